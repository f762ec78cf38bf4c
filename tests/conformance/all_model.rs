//! Random histories of clients that take many locks at once, compared answer by answer with an executable specification.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::store::{AcquireAllRequest, Attempt, AttemptAll, LockStore, Receipt, Verdict};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::model::{STEPS, Told, histories};
use crate::place::{Ask, Client, Place, STEP, Standing, is_about};

const KEYS: usize = 4;
const CLIENTS: usize = 3;
/// Whoever acts is one of the clients, or from here on the holder of a key.
const ACTORS: usize = CLIENTS + 3;

/// A value that was used, and is never used for anything else.
type Id = usize;

#[derive(Clone, Copy, Debug)]
struct Hold {
    id: Id,
    until: u32,
    /// Released, and there for the rest of its minimum hold: nobody's.
    kept: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: Id,
    client: usize,
    lease: u32,
}

#[derive(Debug, Default)]
struct Lock {
    hold: Option<Hold>,
    line: VecDeque<Waiter>,
}

impl Lock {
    fn is_of(&self, id: Id) -> bool {
        self.hold.is_some_and(|hold| hold.id == id && !hold.kept)
    }

    fn verdict(&self, id: Id) -> Verdict {
        match self.hold {
            None => Verdict::Gone,
            Some(_) if self.is_of(id) => Verdict::Owned,
            Some(_) => Verdict::Foreign,
        }
    }

    fn set(&mut self, id: Id, until: u32) {
        self.hold = Some(Hold { id, until, kept: false });
    }
}

/// One step of a history. Times are in [`STEP`]s.
#[derive(Clone, Debug)]
enum Step {
    AcquireAll {
        client: usize,
        /// Which, by their bits.
        keys: usize,
        lease: u32,
        fence: bool,
        keep: bool,
        /// By a new value, or by the last one: the same request once more, or one that was handed a key.
        fresh: bool,
        /// Whether the value before that gives way to it.
        former: bool,
    },
    /// One key alone, past all who wait.
    Acquire {
        client: usize,
        key: usize,
        lease: u32,
    },
    /// A client stands in line for one key, with a new value.
    Join {
        client: usize,
        key: usize,
        lease: u32,
    },
    /// One of those in line leaves it.
    Leave {
        key: usize,
        nth: usize,
    },
    /// One batch; the entries are actor, key and extension.
    Renew {
        batch: Vec<(usize, usize, Option<u32>)>,
    },
    Release {
        actor: usize,
        key: usize,
        keep: Option<u32>,
    },
    Pass {
        time: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (client, actor, key, time) = (0..CLIENTS, 0..ACTORS, 0..KEYS, 1..5_u32);
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.7), any::<bool>());
    let extension = prop::option::of(time.clone());
    prop_oneof![
        8 => (client.clone(), 1..1_usize << KEYS, time.clone(), flags)
            .prop_map(|(client, keys, lease, (fence, keep, fresh, former))| Step::AcquireAll { client, keys, lease, fence, keep, fresh, former }),
        1 => (client.clone(), key.clone(), time.clone()).prop_map(|(client, key, lease)| Step::Acquire { client, key, lease }),
        4 => (client, key.clone(), time.clone()).prop_map(|(client, key, lease)| Step::Join { client, key, lease }),
        1 => (key.clone(), 0..10_usize).prop_map(|(key, nth)| Step::Leave { key, nth }),
        2 => prop::collection::vec((actor.clone(), key.clone(), extension), 0..6).prop_map(|batch| Step::Renew { batch }),
        6 => (actor, key, prop::option::weighted(0.2, time)).prop_map(|(actor, key, keep)| Step::Release { actor, key, keep }),
        2 => (1..3_u32).prop_map(|time| Step::Pass { time }),
    ]
}

/// A store, the specification, and what they have in common.
struct Scene<'a, P> {
    place: &'a P,
    /// In steps since the beginning.
    now: u32,
    locks: Vec<Lock>,
    last_token: u64,
    keys: Vec<Arc<str>>,
    stores: Vec<Arc<dyn LockStore>>,
    /// By id.
    clients: Vec<Client>,
    /// The last two values of each client, the later one first.
    latest: [[Id; 2]; CLIENTS],
    standing: BTreeMap<Id, Standing>,
}

fn for_lease(lease: u32) -> Ask {
    Ask {
        lease: STEP * lease,
        ..Ask::default()
    }
}

impl<'a, P: Place> Scene<'a, P> {
    fn new(place: &'a P, stores: &[Arc<dyn LockStore>], nth: u32, last_token: u64) -> Self {
        let mut scene = Self {
            place,
            now: 0,
            locks: (0..KEYS).map(|_| Lock::default()).collect(),
            last_token,
            // Each history has keys of its own.
            keys: (0..KEYS).map(|key| format!("history-{nth}:{key}").into()).collect(),
            stores: stores.to_vec(),
            clients: Vec::new(),
            latest: [[0, 0]; CLIENTS],
            standing: BTreeMap::new(),
        };
        for client in 0..CLIENTS {
            scene.latest[client] = [scene.new_id(), scene.new_id()];
        }
        scene
    }

    fn new_id(&mut self) -> Id {
        let id = self.clients.len();
        self.clients.push(Client {
            store: Arc::clone(&self.stores[id % self.stores.len()]),
            value: format!("{:032x}:host:1:client-{id}", id + 16),
            clock: self.place.clock(),
        });
        id
    }

    fn who(&self, actor: usize, key: usize) -> Id {
        let holder = self.locks[key].hold.map(|hold| hold.id);
        match self.latest.get(actor) {
            Some([latest, _]) => *latest,
            None => holder.unwrap_or(self.latest[0][0]),
        }
    }

    /// Carries one step out, on the store and on the specification.
    async fn carry_out(&mut self, step: Step) {
        match step {
            Step::AcquireAll {
                client,
                keys,
                lease,
                fence,
                keep,
                fresh,
                former,
            } => {
                if fresh {
                    self.latest[client] = [self.new_id(), self.latest[client][0]];
                }
                let [id, before] = self.latest[client];
                let keys: Vec<usize> = (0..KEYS).filter(|key| keys & (1 << key) != 0).collect();
                self.acquire_all(id, former.then_some(before), &keys, lease, fence, keep)
                    .await;
            }
            Step::Acquire { client, key, lease } => {
                let id = self.latest[client][0];
                let answer = self.clients[id].acquire(&self.keys[key], STEP * lease).await;
                let lock = &mut self.locks[key];
                let is_free = lock.hold.is_none() || lock.is_of(id);
                assert_eq!(
                    matches!(answer, Attempt::Granted { .. }),
                    is_free,
                    "{id} got {answer:?} of {lock:?}"
                );
                if is_free {
                    lock.set(id, self.now + lease);
                }
            }
            Step::Join { client, key, lease } => {
                let id = self.new_id();
                let standing = self.clients[id].stand(&self.keys[key], for_lease(lease)).await;
                self.standing.insert(id, standing);
                self.locks[key].line.push_back(Waiter { id, client, lease });
            }
            Step::Leave { key, nth } => {
                let lock = &mut self.locks[key];
                if !lock.line.is_empty() {
                    let waiter = lock.line.remove(nth % lock.line.len()).unwrap();
                    let left = self.standing.remove(&waiter.id).unwrap().leave().await;
                    assert_eq!(left, lock.verdict(waiter.id));
                }
            }
            Step::Renew { batch } => self.renew(batch).await,
            Step::Release { actor, key, keep } => {
                let id = self.who(actor, key);
                let released = self.clients[id]
                    .try_release(&self.keys[key], keep.map(|keep| STEP * keep))
                    .await;
                let lock = &mut self.locks[key];
                let again = keep.is_some() && lock.hold.is_some_and(|hold| hold.id == id && hold.kept);
                let expected = if again { Verdict::Owned } else { lock.verdict(id) };
                assert_eq!(released.unwrap(), expected, "{id} of {lock:?}");
                if lock.is_of(id) {
                    lock.hold = keep.map(|keep| Hold {
                        id,
                        until: self.now + keep,
                        kept: true,
                    });
                }
            }
            Step::Pass { time } => {
                self.place.age(STEP * time).await;
                self.now += time;
                for lock in &mut self.locks {
                    lock.hold = lock.hold.filter(|hold| hold.until > self.now);
                }
                self.look().await;
            }
        }
        self.settle().await;
    }

    async fn acquire_all(&mut self, id: Id, former: Option<Id>, keys: &[usize], lease: u32, fence: bool, keep: bool) {
        let names: Vec<_> = keys.iter().map(|key| Arc::clone(&self.keys[*key])).collect();
        let receipt = Receipt::default();
        let request = AcquireAllRequest {
            keys: &names,
            value: &self.clients[id].value.as_str().into(),
            former: former.map(|former| self.clients[former].value.as_str()),
            keep,
            lease: STEP * lease,
            fence,
            receipt: &receipt,
        };
        let answer = self.clients[id].store.acquire_all(&request).await.unwrap();

        let until = self.now + lease;
        let is_own = |lock: &Lock| lock.is_of(id) || former.is_some_and(|former| lock.is_of(former));
        let is_busy = |key: &usize| self.locks[*key].hold.is_some() && !is_own(&self.locks[*key]);
        let busy = keys.iter().position(is_busy);
        for (nth, key) in keys.iter().enumerate() {
            let lock = &mut self.locks[*key];
            match busy {
                None => lock.set(id, until),
                Some(busy) if keep && nth < busy => lock.set(id, until),
                Some(_) if is_own(lock) => lock.hold = None,
                Some(_) => {}
            }
        }
        match (answer, busy) {
            (AttemptAll::Granted { fence: token }, None) => {
                assert_eq!(token.is_some(), fence);
                if let Some(token) = token {
                    assert!(token > self.last_token, "token {token} after {}", self.last_token);
                    self.last_token = token;
                }
            }
            (AttemptAll::Busy { at, holder, remaining }, Some(busy)) => {
                assert_eq!(at, busy);
                let hold = self.locks[keys[busy]].hold.unwrap();
                // Not by the token, which a key in its minimum hold does not show.
                assert_eq!(holder.unwrap().function(), Some(&*format!("client-{}", hold.id)));
                let left = STEP * (hold.until - self.now);
                assert!(is_about(remaining, left), "{remaining:?} instead of {left:?}");
            }
            (answer, busy) => panic!("{answer:?} where {busy:?} is busy"),
        }
    }

    async fn renew(&mut self, batch: Vec<(usize, usize, Option<u32>)>) {
        let batch: Vec<_> = batch
            .into_iter()
            .map(|(actor, key, extend)| (self.who(actor, key), key, extend))
            .collect();
        let requests: Vec<_> = batch
            .iter()
            .map(|(id, key, extend)| self.clients[*id].request(&self.keys[*key], extend.map(|extend| STEP * extend)))
            .collect();
        let verdicts = self.stores[0].renew(&requests).await.unwrap();
        assert_eq!(verdicts.len(), batch.len());
        for ((id, key, extend), verdict) in batch.into_iter().zip(verdicts) {
            assert_eq!(verdict, self.locks[key].verdict(id));
            if let (Verdict::Owned, Some(lease)) = (verdict, extend) {
                self.locks[key].set(id, self.now + lease);
            }
        }
    }

    /// Somebody joins the lines of the keys that are free and leaves again: by then the first in line has the key.
    async fn look(&mut self) {
        for key in 0..KEYS {
            if self.locks[key].hold.is_none() && !self.locks[key].line.is_empty() {
                let id = self.new_id();
                let left = self.clients[id]
                    .stand(&self.keys[key], for_lease(1))
                    .await
                    .leave()
                    .await;
                assert_eq!(left, Verdict::Foreign);
            }
        }
    }

    /// Sees to it that every key that is free and waited for has been handed over, and nobody else has got one.
    async fn settle(&mut self) {
        for (key, lock) in self.locks.iter_mut().enumerate() {
            if lock.hold.is_none()
                && let Some(first) = lock.line.pop_front()
            {
                // By now, whenever it hears of it.
                let verdict = self.clients[first.id].renew(&self.keys[key], None).await;
                assert_eq!(verdict, Verdict::Owned, "{} was not let in", first.id);
                self.standing.remove(&first.id).unwrap().claim().await;
                lock.set(first.id, self.now + first.lease);
                self.latest[first.client] = [first.id, self.latest[first.client][0]];
            }
        }
        for (id, standing) in &self.standing {
            assert!(standing.waits(), "{id} has got a lock that it must not have");
        }
    }

    /// Everybody leaves. Returns the last token.
    async fn end(self) -> u64 {
        for standing in self.standing.into_values() {
            assert!(matches!(standing.leave().await, Verdict::Foreign | Verdict::Gone));
        }
        self.last_token
    }
}

pub(crate) async fn random_histories_follow_the_model(place: &impl Place) {
    let mut runner = TestRunner::new(Config::default());
    let random = prop::collection::vec(step(), STEPS);
    let stores: Vec<_> = (0..3).map(|_| place.store()).collect();
    let mut last_token = 0;
    for nth in 0..histories() {
        let history = random.new_tree(&mut runner).unwrap().current();
        let mut scene = Scene::new(place, &stores, nth, last_token);
        // One that fails is shown whole.
        let told = Told(&history);
        for step in history.clone() {
            scene.carry_out(step).await;
        }
        last_token = scene.end().await;
        std::mem::forget(told);
        // The next history begins on an empty store.
        place.age(Duration::from_secs(3600)).await;
    }
}
