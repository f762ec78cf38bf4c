//! Random histories of the modes in which several may hold a lock, compared answer by answer with an executable specification.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::store::{Attempt, Fence, LockStore, Verdict};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::model::{STEPS, Told, histories};
use crate::place::{Ask, Client, Place, STEP, Standing, is_about};

const KEYS: usize = 2;
/// Processes, each with a client that holds what it got until it releases or forgets it.
const CLIENTS: usize = 4;
/// Whoever acts is one of the clients, or from here on one of those who hold the key.
const ACTORS: usize = CLIENTS + 4;

/// A value that was used, and is never used for anything else.
type Id = usize;

#[derive(Clone, Copy, Debug)]
struct Hold {
    id: Id,
    class: &'static str,
    until: u32,
    /// Released, and there for the rest of its minimum hold.
    kept: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: Id,
    class: &'static str,
    lease: u32,
}

#[derive(Debug, Default)]
struct Lock {
    holds: Vec<Hold>,
    line: Vec<Waiter>,
    /// Of the owner that has the lock.
    token: Option<u64>,
}

/// Whether one of this class may hold a lock beside those of the other classes.
fn may_join<'a>(class: &'a str, others: impl Iterator<Item = &'a str> + Clone) -> bool {
    match class.split_at(1) {
        ("r", "") => others.clone().all(|other| other == "r"),
        ("w", "") => others.count() == 0,
        ("o", _) => others.clone().all(|other| other == class),
        ("s", _) => {
            let permits = |class: &str| class.strip_prefix('s').map(|permits| permits.parse::<usize>().unwrap());
            let all: Option<Vec<usize>> = others.chain([class]).map(permits).collect();
            all.is_some_and(|all| all.iter().all(|permits| all.len() <= *permits))
        }
        unknown => panic!("{unknown:?}"),
    }
}

impl Lock {
    fn may_join<'a>(&'a self, class: &'a str) -> bool {
        may_join(class, self.holds.iter().map(|hold| hold.class))
    }

    /// Whether an owner has it already, whose holders wait for nobody.
    fn may_pass<'a>(&'a self, class: &'a str) -> bool {
        class.starts_with('o') && !self.holds.is_empty() && self.may_join(class)
    }

    fn holds(&self, id: Id) -> bool {
        self.holds.iter().any(|hold| hold.id == id && !hold.kept)
    }

    fn is_kept(&self, id: Id) -> bool {
        self.holds.iter().any(|hold| hold.id == id && hold.kept)
    }

    fn verdict(&self, id: Id, class: &str) -> Verdict {
        if self.holds(id) {
            Verdict::Owned
        } else if self.may_join(class) {
            Verdict::Gone
        } else {
            Verdict::Foreign
        }
    }

    fn remove(&mut self, mut which: impl FnMut(&Hold) -> bool) {
        self.holds.retain(|hold| !which(hold));
        if self.holds.is_empty() {
            self.token = None;
        }
    }

    fn put(&mut self, id: Id, class: &'static str, until: u32) {
        self.holds.retain(|hold| hold.id != id || hold.kept);
        self.holds.push(Hold {
            id,
            class,
            until,
            kept: false,
        });
    }

    /// Lets in whoever may hold the lock: from the front of the line as many as may be in together, and of an owner that then has it all.
    fn serve(&mut self, now: u32) -> Vec<Id> {
        let mut entered = Vec::new();
        while let Some(first) = self.line.first().copied().filter(|first| self.may_join(first.class)) {
            self.line.remove(0);
            self.put(first.id, first.class, now + first.lease);
            entered.push(first.id);
        }
        for waiter in std::mem::take(&mut self.line) {
            if self.may_pass(waiter.class) {
                self.put(waiter.id, waiter.class, now + waiter.lease);
                entered.push(waiter.id);
            } else {
                self.line.push(waiter);
            }
        }
        entered
    }

    /// Notes a token that a holder of this class was given.
    fn take_token(&mut self, class: &str, token: u64, last: &mut u64) {
        if class.starts_with('o')
            && let Some(shared) = self.token
        {
            assert_eq!(token, shared, "holders for one owner have different tokens");
            return;
        }
        assert!(token > *last, "token {token} after {last}");
        *last = token;
        if class.starts_with('o') {
            self.token = Some(token);
        }
    }
}

fn is_fenced(class: &str) -> bool {
    class.starts_with(['w', 'o'])
}

/// One step of a history. Times are in [`STEP`]s.
#[derive(Clone, Debug)]
enum Step {
    /// By a value that was never used, or by the client's last one: the same request once more.
    Acquire {
        actor: usize,
        key: usize,
        class: &'static str,
        lease: u32,
        fence: bool,
        fresh: bool,
    },
    /// Somebody new stands in line.
    Join {
        key: usize,
        class: &'static str,
        lease: u32,
        fence: bool,
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
        /// As somebody does who does not know whether it stands in the queue.
        queued: bool,
    },
    Fence {
        actor: usize,
        key: usize,
    },
    /// A client forgets what it holds.
    Crash {
        client: usize,
    },
    Pass {
        time: u32,
        /// Whether somebody looks at the keys afterwards, so that nobody has to wait until the store itself does.
        look: bool,
    },
}

fn step(classes: &'static [&'static str]) -> impl Strategy<Value = Step> {
    let (actor, key, time) = (0..ACTORS, 0..KEYS, 1..5_u32);
    let class = prop::sample::select(classes);
    let extension = prop::option::of(time.clone());
    prop_oneof![
        5 => (actor.clone(), key.clone(), class.clone(), time.clone(), any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(actor, key, class, lease, fence, fresh)| Step::Acquire { actor, key, class, lease, fence, fresh }),
        4 => (key.clone(), class, time.clone(), any::<bool>())
            .prop_map(|(key, class, lease, fence)| Step::Join { key, class, lease, fence }),
        1 => (key.clone(), 0..10_usize).prop_map(|(key, nth)| Step::Leave { key, nth }),
        3 => prop::collection::vec((actor.clone(), key.clone(), extension), 0..6).prop_map(|batch| Step::Renew { batch }),
        6 => (actor.clone(), key.clone(), prop::option::weighted(0.2, time), any::<bool>())
            .prop_map(|(actor, key, keep, queued)| Step::Release { actor, key, keep, queued }),
        2 => (actor, key).prop_map(|(actor, key)| Step::Fence { actor, key }),
        1 => (0..CLIENTS).prop_map(|client| Step::Crash { client }),
        2 => (1..3_u32, prop::bool::weighted(0.98)).prop_map(|(time, look)| Step::Pass { time, look }),
    ]
}

/// A store, the specification, and what they have in common.
struct Scene<'a, P> {
    place: &'a P,
    /// In steps since the beginning.
    now: u32,
    locks: Vec<Lock>,
    last_token: u64,
    keys: Vec<String>,
    stores: Vec<Arc<dyn LockStore>>,
    /// By id.
    clients: Vec<(Client, &'static str)>,
    /// What each client asked with last.
    latest: Vec<Id>,
    standing: BTreeMap<Id, Standing>,
}

fn ask(lease: u32, fence: bool, class: &str) -> Ask {
    Ask {
        lease: STEP * lease,
        fence: fence && is_fenced(class),
        tell_remaining: true,
        fair: false,
    }
}

impl<'a, P: Place> Scene<'a, P> {
    fn new(place: &'a P, stores: &[Arc<dyn LockStore>], classes: &[&'static str], nth: u32, last_token: u64) -> Self {
        let mut scene = Self {
            place,
            now: 0,
            locks: (0..KEYS).map(|_| Lock::default()).collect(),
            last_token,
            // Each history has keys of its own.
            keys: (0..KEYS).map(|key| format!("history-{nth}:{key}")).collect(),
            stores: stores.to_vec(),
            clients: Vec::new(),
            latest: Vec::new(),
            standing: BTreeMap::new(),
        };
        for _ in 0..CLIENTS {
            let id = scene.new_id(classes[0]);
            scene.latest.push(id);
        }
        scene
    }

    fn new_id(&mut self, class: &'static str) -> Id {
        let id = self.clients.len();
        let client = Client {
            store: Arc::clone(&self.stores[id % self.stores.len()]),
            value: format!("{class}:{:032x}:host:1:client-{id}", id + 16),
            clock: self.place.clock(),
        };
        self.clients.push((client, class));
        id
    }

    fn who(&self, actor: usize, key: usize) -> Id {
        let holds = &self.locks[key].holds;
        match actor.checked_sub(CLIENTS) {
            None => self.latest[actor],
            Some(nth) => holds
                .get(nth % holds.len().max(1))
                .map_or(self.latest[0], |hold| hold.id),
        }
    }

    /// Carries one step out, on the store and on the specification.
    async fn carry_out(&mut self, step: Step) {
        let mut at_once = true;
        match step {
            Step::Acquire {
                actor,
                key,
                class,
                lease,
                fence,
                fresh,
            } => {
                let mut id = self.who(actor, key);
                // What was given back with a minimum hold is not used again.
                if fresh || self.locks[key].is_kept(id) {
                    id = self.new_id(class);
                    if let Some(latest) = self.latest.get_mut(actor) {
                        *latest = id;
                    }
                }
                self.acquire(id, key, lease, fence).await;
            }
            Step::Join {
                key,
                class,
                lease,
                fence,
            } => self.join(key, class, lease, fence).await,
            Step::Leave { key, nth } => {
                let line = &mut self.locks[key].line;
                if !line.is_empty() {
                    let waiter = line.remove(nth % line.len());
                    let left = self.standing.remove(&waiter.id).unwrap().leave().await;
                    assert_eq!(left, Verdict::Gone);
                }
            }
            Step::Renew { batch } => self.renew(batch).await,
            Step::Release {
                actor,
                key,
                keep,
                queued,
            } => {
                let id = self.who(actor, key);
                self.release(id, key, keep, queued && keep.is_none()).await;
            }
            Step::Fence { actor, key } => {
                let id = self.who(actor, key);
                let (client, class) = &self.clients[id];
                if is_fenced(class) {
                    let answer = client.fence(&self.keys[key]).await;
                    match (answer, self.locks[key].verdict(id, class)) {
                        (Fence::Token(token), Verdict::Owned) => {
                            self.locks[key].take_token(class, token, &mut self.last_token);
                        }
                        (Fence::NotOwned(verdict), expected) => assert_eq!(verdict, expected),
                        (answer, expected) => panic!("{answer:?} for a lock that is {expected:?}"),
                    }
                }
            }
            Step::Crash { client } => self.latest[client] = self.new_id(self.clients[self.latest[client]].1),
            Step::Pass { time, look } => {
                self.place.age(STEP * time).await;
                self.now += time;
                let now = self.now;
                for lock in &mut self.locks {
                    lock.remove(|hold| hold.until <= now);
                }
                if look {
                    self.look().await;
                } else {
                    at_once = false;
                }
            }
        }
        self.settle(at_once).await;
    }

    async fn acquire(&mut self, id: Id, key: usize, lease: u32, fence: bool) {
        let (client, class) = &self.clients[id];
        let ask = ask(lease, fence, class);
        let answer = client.try_acquire(&self.keys[key], ask).await.unwrap();
        let lock = &mut self.locks[key];
        let expected = lock.holds(id) || lock.may_pass(class) || (lock.line.is_empty() && lock.may_join(class));
        match answer {
            Attempt::Granted { fence } if expected => {
                lock.put(id, class, self.now + lease);
                assert_eq!(fence.is_some(), ask.fence);
                if let Some(token) = fence {
                    lock.take_token(class, token, &mut self.last_token);
                }
            }
            Attempt::Busy { holder, remaining } if !expected => {
                let holder = holder.unwrap();
                // Not by the token, which a key in its minimum hold does not show.
                let is_it = |hold: &&Hold| holder.function() == Some(&*format!("client-{}", hold.id));
                let hold = lock
                    .holds
                    .iter()
                    .find(is_it)
                    .unwrap_or_else(|| panic!("{holder} is not in"));
                let left = STEP * (hold.until - self.now);
                assert!(is_about(remaining, left), "{remaining:?} instead of {left:?}");
                let first = lock.holds.iter().map(|hold| hold.until).min();
                assert_eq!(first, Some(hold.until), "somebody else's lease ends sooner");
            }
            answer => panic!("{id} ({class}) got {answer:?} of {lock:?}"),
        }
    }

    async fn join(&mut self, key: usize, class: &'static str, lease: u32, fence: bool) {
        let id = self.new_id(class);
        let standing = self.clients[id]
            .0
            .stand(&self.keys[key], ask(lease, fence, class))
            .await;
        let lock = &mut self.locks[key];
        if lock.may_pass(class) || (lock.line.is_empty() && lock.may_join(class)) {
            lock.put(id, class, self.now + lease);
            if let Some(token) = standing.claim().await {
                lock.take_token(class, token, &mut self.last_token);
            }
        } else {
            lock.line.push(Waiter { id, class, lease });
            self.standing.insert(id, standing);
        }
    }

    async fn renew(&mut self, batch: Vec<(usize, usize, Option<u32>)>) {
        let batch: Vec<_> = batch
            .into_iter()
            .map(|(actor, key, extend)| (self.who(actor, key), key, extend))
            .collect();
        let requests: Vec<_> = batch
            .iter()
            .map(|(id, key, extend)| {
                self.clients[*id]
                    .0
                    .request(&self.keys[*key], extend.map(|extend| STEP * extend))
            })
            .collect();
        let verdicts = self.stores[0].renew(&requests).await.unwrap();
        assert_eq!(verdicts.len(), batch.len());
        for ((id, key, extend), verdict) in batch.into_iter().zip(verdicts) {
            let class = self.clients[id].1;
            assert_eq!(
                verdict,
                self.locks[key].verdict(id, class),
                "{id} ({class}) of {:?}",
                self.locks[key]
            );
            if let (Verdict::Owned, Some(lease)) = (verdict, extend) {
                self.locks[key].put(id, class, self.now + lease);
            }
        }
    }

    async fn release(&mut self, id: Id, key: usize, keep: Option<u32>, queued: bool) {
        let (client, class) = &self.clients[id];
        let lock = &mut self.locks[key];
        let released = if queued {
            client.leave(&self.keys[key], ask(1, false, class)).await
        } else {
            let keep = keep.map(|keep| STEP * keep);
            client.try_release(&self.keys[key], keep).await.unwrap()
        };
        // The same release once more has no other effect.
        let again = keep.is_some() && lock.is_kept(id);
        let expected = if again || lock.holds(id) {
            Verdict::Owned
        } else {
            Verdict::Gone
        };
        assert_eq!(released, expected, "{id} ({class}) of {lock:?}");
        if lock.holds(id) {
            if let Some(keep) = keep {
                let hold = lock.holds.iter_mut().find(|hold| hold.id == id).unwrap();
                (hold.until, hold.kept) = (self.now + keep, true);
            } else {
                lock.remove(|hold| hold.id == id);
            }
        }
    }

    /// Somebody asks for the locks that are waited for, and does not get them: by then whoever may be in is.
    async fn look(&mut self) {
        for key in 0..KEYS {
            if !self.locks[key].line.is_empty() {
                let passer_by = self.new_id("w");
                assert!(matches!(
                    self.clients[passer_by].0.acquire(&self.keys[key], STEP).await,
                    Attempt::Busy { .. }
                ));
            }
        }
    }

    /// Sees to it that all who may be in are, and nobody else. `at_once`: they are by now, whenever they hear of it.
    async fn settle(&mut self, at_once: bool) {
        let mut tokens = Vec::new();
        for (key, lock) in self.locks.iter_mut().enumerate() {
            for id in lock.serve(self.now) {
                if at_once {
                    let verdict = self.clients[id].0.renew(&self.keys[key], None).await;
                    assert_eq!(verdict, Verdict::Owned, "{id} was not let in");
                }
                let standing = self.standing.remove(&id).unwrap();
                if let Some(token) = standing.claim().await {
                    tokens.push((token, key, self.clients[id].1));
                }
            }
        }
        // Those of several keys may have been taken in any order.
        tokens.sort_unstable();
        for (token, key, class) in tokens {
            self.locks[key].take_token(class, token, &mut self.last_token);
        }
        for (id, standing) in &self.standing {
            assert!(standing.waits(), "{id} has got a lock that it must not have");
        }
    }

    /// Everybody leaves. Returns the last token.
    async fn end(self) -> u64 {
        // From the back, so that nobody is let in.
        for standing in self.standing.into_values().rev() {
            assert_eq!(standing.leave().await, Verdict::Gone);
        }
        self.last_token
    }
}

async fn histories_follow_the_model(place: &impl Place, classes: &'static [&'static str]) {
    let mut runner = TestRunner::new(Config::default());
    let random = prop::collection::vec(step(classes), STEPS);
    let stores: Vec<_> = (0..3).map(|_| place.store()).collect();
    let mut last_token = 0;
    for nth in 0..histories() {
        let history = random.new_tree(&mut runner).unwrap().current();
        let mut scene = Scene::new(place, &stores, classes, nth, last_token);
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

pub(crate) async fn histories_of_readers_and_writers_follow_the_model(place: &impl Place) {
    histories_follow_the_model(place, &["r", "r", "w"]).await;
}

pub(crate) async fn histories_of_semaphores_follow_the_model(place: &impl Place) {
    histories_follow_the_model(place, &["s1", "s2", "s3", "s4"]).await;
}

pub(crate) async fn histories_of_owners_follow_the_model(place: &impl Place) {
    histories_follow_the_model(place, &["oa", "ob", "oc"]).await;
}

pub(crate) async fn histories_of_all_modes_follow_the_model(place: &impl Place) {
    histories_follow_the_model(place, &["r", "w", "s2", "s3", "oa", "ob"]).await;
}
