//! Random histories of several clients, compared answer by answer with an executable specification.
//!
//! There is one engine and one [specification](specification::Lock), which the class of each value parametrizes. A test
//! is a [`Kind`] of histories. A history that fails is made smaller, and shown with its seed:
//!
//! - The same few histories are made each time.
//! - `LOCK_MODEL_STEPS=100000` makes as many fresh ones as have that number of steps.
//! - `LOCK_MODEL_SEED=…` runs the one history of that seed.

mod specification;

use std::any::Any;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::store::{AcquireAllRequest, Attempt, AttemptAll, Fence, LockStore, Ownership, Receipt};
use proptest::prelude::*;
use proptest::strategy::{Union, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use self::specification::{Class, EXCLUSIVE, Id, Lock, Waiter, is_fenced};
use crate::place::{Ask, Client, Place, STEP, Standing, is_about};

/// How many steps a history has on average. Their number varies, so that a history that fails can lose steps.
const STEPS: usize = 80;
/// How many histories a test makes, unless `LOCK_MODEL_STEPS` says otherwise.
const HISTORIES: u64 = 10;
/// How long a history that fails is made smaller.
const SHRINKING: Duration = Duration::from_secs(30);
/// Stores, which stand for processes.
const STORES: usize = 3;
/// Each client holds what it got until it releases or forgets it.
const CLIENTS: usize = 4;
/// An actor is one of the clients, or from [`CLIENTS`] on one of the holders of the key.
const ACTORS: usize = CLIENTS + 4;

/// The histories of one test.
#[derive(Clone, Copy)]
struct Kind {
    classes: &'static [Class],
    keys: usize,
    /// Most acquisitions are for several keys at once.
    several: bool,
}

/// One step of a history. Times are in [`STEP`]s.
#[derive(Clone, Debug)]
enum Step {
    Acquire {
        actor: usize,
        key: usize,
        class: Class,
        lease: u32,
        fence: bool,
        fair: bool,
        /// By a value that was never used, or by the actor's last one: the same request once more.
        fresh: bool,
    },
    AcquireAll {
        client: usize,
        /// Which keys, by their bits.
        keys: usize,
        lease: u32,
        fence: bool,
        keep: bool,
        fresh: bool,
        /// The value before that gives way to it.
        former: bool,
    },
    /// A client stands in line, with a new value.
    Join {
        client: usize,
        key: usize,
        class: Class,
        lease: u32,
        fence: bool,
    },
    /// One of the waiters leaves the line.
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
        /// As a caller releases that does not know whether it stands in the queue.
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
        /// A client looks at the keys afterwards, so that no waiter depends on when the store itself does.
        look: bool,
    },
}

fn step(kind: Kind) -> impl Strategy<Value = Step> {
    let (client, actor, key, time) = (0..CLIENTS, 0..ACTORS, 0..kind.keys, 1..5_u32);
    let class = prop::sample::select(kind.classes);
    let extension = prop::option::of(time.clone());
    let flags = || {
        (
            any::<bool>(),
            prop::bool::weighted(0.3),
            prop::bool::weighted(0.7),
            any::<bool>(),
        )
    };
    let acquire = (actor.clone(), key.clone(), class.clone(), time.clone(), flags()).prop_map(
        |(actor, key, class, lease, (fence, fair, fresh, _))| Step::Acquire {
            actor,
            key,
            class,
            lease,
            fence,
            fair,
            fresh,
        },
    );
    let acquire_all = (
        client.clone(),
        1..1_usize << kind.keys,
        time.clone(),
        flags(),
        any::<bool>(),
    )
        .prop_map(
            |(client, keys, lease, (fence, _, fresh, keep), former)| Step::AcquireAll {
                client,
                keys,
                lease,
                fence,
                keep,
                fresh,
                former,
            },
        );
    let join = (client.clone(), key.clone(), class, time.clone(), any::<bool>()).prop_map(
        |(client, key, class, lease, fence)| Step::Join {
            client,
            key,
            class,
            lease,
            fence,
        },
    );
    let leave = (key.clone(), 0..10_usize).prop_map(|(key, nth)| Step::Leave { key, nth });
    let renew =
        prop::collection::vec((actor.clone(), key.clone(), extension), 0..6).prop_map(|batch| Step::Renew { batch });
    let keep = prop::option::weighted(0.2, time);
    let release =
        (actor.clone(), key.clone(), keep, any::<bool>()).prop_map(|(actor, key, keep, queued)| Step::Release {
            actor,
            key,
            keep,
            queued,
        });
    let fence = (actor, key).prop_map(|(actor, key)| Step::Fence { actor, key });
    let crash = client.prop_map(|client| Step::Crash { client });
    let pass = (1..3_u32, prop::bool::weighted(0.97)).prop_map(|(time, look)| Step::Pass { time, look });
    let mut steps = vec![
        (if kind.several { 1 } else { 5 }, acquire.boxed()),
        (4, join.boxed()),
        (1, leave.boxed()),
        (3, renew.boxed()),
        (6, release.boxed()),
        (2, fence.boxed()),
        (1, crash.boxed()),
        (2, pass.boxed()),
    ];
    if kind.several {
        steps.push((8, acquire_all.boxed()));
    }
    Union::new_weighted(steps)
}

/// A store, the specification, and what they have in common.
struct Scene<'a> {
    place: &'a dyn Place,
    /// In steps since the beginning.
    now: u32,
    locks: Vec<Lock>,
    last_token: u64,
    keys: Vec<Arc<str>>,
    stores: &'a [Arc<dyn LockStore>],
    /// By id.
    clients: Vec<(Client, Class)>,
    /// The last two values of each client, the later one first.
    latest: [[Id; 2]; CLIENTS],
    standing: BTreeMap<Id, Standing>,
}

fn ask(lease: u32, fence: bool, class: Class) -> Ask {
    Ask {
        lease: STEP * lease,
        fence: fence && is_fenced(class),
        tell_remaining: true,
        fair: false,
    }
}

impl<'a> Scene<'a> {
    fn new(place: &'a dyn Place, stores: &'a [Arc<dyn LockStore>], kind: Kind, nth: usize, last_token: u64) -> Self {
        let mut scene = Self {
            place,
            now: 0,
            locks: (0..kind.keys).map(|_| Lock::default()).collect(),
            last_token,
            // Each history has keys of its own.
            keys: (0..kind.keys)
                .map(|key| format!("history-{nth}:{key}").into())
                .collect(),
            stores,
            clients: Vec::new(),
            latest: [[0, 0]; CLIENTS],
            standing: BTreeMap::new(),
        };
        for client in 0..CLIENTS {
            scene.latest[client] = [scene.new_id(kind.classes[0]), scene.new_id(kind.classes[0])];
        }
        scene
    }

    fn new_id(&mut self, class: Class) -> Id {
        let id = self.clients.len();
        let separator = if class == EXCLUSIVE { "" } else { ":" };
        let client = Client {
            store: Arc::clone(&self.stores[id % self.stores.len()]),
            value: format!("{class}{separator}{:032x}:host:1:client-{id}", id + 16),
            clock: self.place.clock(),
        };
        self.clients.push((client, class));
        id
    }

    /// Gives a client another value; returns it.
    fn renew_value(&mut self, client: usize, class: Class) -> Id {
        let id = self.new_id(class);
        self.latest[client] = [id, self.latest[client][0]];
        id
    }

    fn who(&self, actor: usize, key: usize) -> Id {
        let holds = &self.locks[key].holds;
        match actor.checked_sub(CLIENTS) {
            None => self.latest[actor][0],
            Some(nth) => holds
                .get(nth % holds.len().max(1))
                .map_or(self.latest[0][0], |hold| hold.id),
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
                fair,
                fresh,
            } => {
                let mut id = self.who(actor, key);
                // Where several may hold a lock, what was released into its minimum hold is not used again.
                if fresh || (class != EXCLUSIVE && self.locks[key].is_kept(id)) {
                    id = match actor {
                        ..CLIENTS => self.renew_value(actor, class),
                        _ => self.new_id(class),
                    };
                }
                self.acquire(id, key, lease, fence, fair).await;
            }
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
                    self.renew_value(client, EXCLUSIVE);
                }
                let [id, before] = self.latest[client];
                let keys: Vec<usize> = (0..self.keys.len()).filter(|key| keys & (1 << key) != 0).collect();
                self.acquire_all(id, former.then_some(before), &keys, lease, fence, keep)
                    .await;
            }
            Step::Join {
                client,
                key,
                class,
                lease,
                fence,
            } => self.join(client, key, class, lease, fence).await,
            Step::Leave { key, nth } => {
                if let Some(waiter) = self.locks[key].leave(nth) {
                    let left = self.standing.remove(&waiter.id).unwrap().leave().await;
                    assert_eq!(left, self.locks[key].release_answer(waiter.id, waiter.class));
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
            Step::Fence { actor, key } => self.fence(self.who(actor, key), key).await,
            Step::Crash { client } => {
                let class = self.clients[self.latest[client][0]].1;
                self.renew_value(client, class);
            }
            Step::Pass { time, look } => {
                self.place.age(STEP * time).await;
                self.now += time;
                let now = self.now;
                for lock in &mut self.locks {
                    lock.remove(|hold| hold.until <= now);
                }
                if look {
                    self.look().await;
                }
                at_once = look;
            }
        }
        self.settle(at_once).await;
    }

    async fn acquire(&mut self, id: Id, key: usize, lease: u32, fence: bool, fair: bool) {
        let (client, class) = &self.clients[id];
        let ask = Ask {
            fair,
            ..ask(lease, fence, class)
        };
        let answer = client.try_acquire(&self.keys[key], ask).await.unwrap();
        let lock = &mut self.locks[key];
        let expected = lock.holds(id) || lock.may_enter(class);
        match answer {
            Attempt::Granted { fence } if expected => {
                lock.put(id, class, self.now + lease);
                assert_eq!(fence.is_some(), ask.fence);
                if let Some(token) = fence {
                    lock.take_token(class, token.get(), &mut self.last_token);
                }
            }
            Attempt::Busy { holder, remaining } if !expected => {
                let holder = holder.unwrap();
                self.is_told(key, holder.function(), remaining);
            }
            answer => panic!("{id} ({class}) got {answer:?} of {lock:?}"),
        }
    }

    /// Checks the holder that a busy answer tells: the one whose lease ends first.
    fn is_told(&self, key: usize, function: Option<&str>, remaining: Option<Duration>) {
        let holds = &self.locks[key].holds;
        // Not by the token, which a key in its minimum hold does not show.
        let hold = holds
            .iter()
            .find(|hold| function == Some(&*format!("client-{}", hold.id)))
            .unwrap_or_else(|| panic!("{function:?} does not hold {holds:?}"));
        let left = STEP * (hold.until - self.now);
        assert!(is_about(remaining, left), "{remaining:?} instead of {left:?}");
        let first = holds.iter().map(|hold| hold.until).min();
        assert_eq!(first, Some(hold.until), "another holder's lease ends sooner");
    }

    async fn acquire_all(&mut self, id: Id, former: Option<Id>, keys: &[usize], lease: u32, fence: bool, keep: bool) {
        let names: Vec<_> = keys.iter().map(|key| Arc::clone(&self.keys[*key])).collect();
        let receipt = Receipt::default();
        let client = &self.clients[id].0;
        let former_value = former.map(|former| self.clients[former].0.holder_value());
        let request = AcquireAllRequest {
            keys: &names,
            value: &client.holder_value(),
            former: former_value.as_ref(),
            keep: keep.then_some(STEP * lease),
            ttl: STEP * lease,
            fence,
            receipt: &receipt,
        };
        let answer = client.store.acquire_all(&request).await.unwrap();

        let until = self.now + lease;
        let is_own = |lock: &Lock| lock.holds(id) || former.is_some_and(|former| lock.holds(former));
        let is_busy = |key: &usize| !self.locks[*key].holds.is_empty() && !is_own(&self.locks[*key]);
        let busy = keys.iter().position(is_busy);
        for (nth, key) in keys.iter().enumerate() {
            let lock = &mut self.locks[*key];
            let takes = busy.is_none_or(|busy| keep && nth < busy);
            if takes || is_own(lock) {
                lock.remove(|_| true);
            }
            if takes {
                lock.put(id, EXCLUSIVE, until);
            }
        }
        match (answer, busy) {
            (AttemptAll::Granted { fence: token }, None) => {
                assert_eq!(token.is_some(), fence);
                if let Some(token) = token {
                    self.locks[keys[0]].take_token(EXCLUSIVE, token.get(), &mut self.last_token);
                }
            }
            (AttemptAll::Busy { at, holder, remaining }, Some(busy)) => {
                assert_eq!(at, busy);
                let holder = holder.unwrap();
                self.is_told(keys[busy], holder.function(), remaining);
            }
            (answer, busy) => panic!("{answer:?} where {busy:?} is busy"),
        }
    }

    async fn join(&mut self, client: usize, key: usize, class: Class, lease: u32, fence: bool) {
        let id = self.new_id(class);
        let standing = self.clients[id]
            .0
            .stand(&self.keys[key], ask(lease, fence, class))
            .await;
        let lock = &mut self.locks[key];
        if lock.may_enter(class) {
            lock.put(id, class, self.now + lease);
            if let Some(token) = standing.claim().await {
                lock.take_token(class, token, &mut self.last_token);
            }
            self.latest[client] = [id, self.latest[client][0]];
        } else {
            lock.join(Waiter {
                id,
                class,
                client,
                lease,
            });
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
        let answers = self.stores[0].renew(&requests).await.unwrap();
        assert_eq!(answers.len(), batch.len());
        for ((id, key, extend), answer) in batch.into_iter().zip(answers) {
            let class = self.clients[id].1;
            let lock = &mut self.locks[key];
            assert_eq!(answer, lock.ownership(id, class), "{id} ({class}) of {lock:?}");
            if let (Ownership::Owned, Some(lease)) = (answer, extend) {
                lock.put(id, class, self.now + lease);
            }
        }
    }

    async fn release(&mut self, id: Id, key: usize, keep: Option<u32>, queued: bool) {
        let (client, class) = &self.clients[id];
        let released = if queued {
            client.leave(&self.keys[key], ask(1, false, class)).await
        } else {
            let keep = keep.map(|keep| STEP * keep);
            client.try_release(&self.keys[key], keep).await.unwrap()
        };
        let lock = &mut self.locks[key];
        // The same release once more has no other effect.
        let again = keep.is_some() && lock.is_kept(id);
        let expected = if again {
            Ownership::Owned
        } else {
            lock.release_answer(id, class)
        };
        assert_eq!(released, expected, "{id} ({class}) of {lock:?}");
        lock.release(id, keep.map(|keep| self.now + keep));
    }

    async fn fence(&mut self, id: Id, key: usize) {
        let (client, class) = &self.clients[id];
        if !is_fenced(class) {
            return;
        }
        let answer = client.fence(&self.keys[key]).await;
        let lock = &mut self.locks[key];
        match (answer, lock.ownership(id, class)) {
            (Fence::Token(token), Ownership::Owned) => lock.take_token(class, token.get(), &mut self.last_token),
            (Fence::NotOwned(answer), expected) => assert_eq!(answer, expected),
            (answer, expected) => panic!("{answer:?} for a lock that is {expected:?}"),
        }
    }

    /// Joins the lines of the keys that are waited for, and leaves them again: by then each waiter that may have the
    /// lock has it.
    async fn look(&mut self) {
        for key in 0..self.keys.len() {
            if self.locks[key].has_waiters() {
                let class = self.clients[self.latest[0][0]].1;
                let class = if class == EXCLUSIVE { EXCLUSIVE } else { "w" };
                let passer_by = self.new_id(class);
                let standing = self.clients[passer_by]
                    .0
                    .stand(&self.keys[key], ask(1, false, class))
                    .await;
                let left = standing.leave().await;
                let expected = if class == EXCLUSIVE {
                    Ownership::Foreign
                } else {
                    Ownership::Gone
                };
                assert_eq!(left, expected, "a passer-by was let in");
            }
        }
    }

    /// Checks that each waiter that may have a lock has it, and no other. `at_once`: it has it by now, whenever it hears
    /// of it.
    async fn settle(&mut self, at_once: bool) {
        let mut tokens = Vec::new();
        for (key, lock) in self.locks.iter_mut().enumerate() {
            for Waiter { id, class, client, .. } in lock.serve(self.now) {
                if at_once {
                    let answer = self.clients[id].0.renew(&self.keys[key], None).await;
                    assert_eq!(answer, Ownership::Owned, "{id} was not let in");
                }
                let standing = self.standing.remove(&id).unwrap();
                if let Some(token) = standing.claim().await {
                    tokens.push((token, key, class));
                }
                self.latest[client] = [id, self.latest[client][0]];
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

    /// All waiters leave.
    async fn end(&mut self) {
        // From the back, so that none is let in.
        while let Some((id, standing)) = self.standing.pop_last() {
            let expected = if self.clients[id].1 == EXCLUSIVE {
                Ownership::Foreign
            } else {
                Ownership::Gone
            };
            assert_eq!(standing.leave().await, expected);
        }
    }
}

/// Runs histories one after the other against a place.
struct Runner<'a> {
    place: &'a dyn Place,
    stores: Vec<Arc<dyn LockStore>>,
    kind: Kind,
    runs: usize,
    last_token: u64,
}

impl Runner<'_> {
    /// Runs one history; returns what is wrong with it.
    async fn run(&mut self, history: Vec<Step>) -> Result<(), String> {
        self.runs += 1;
        let mut scene = Scene::new(self.place, &self.stores, self.kind, self.runs, self.last_token);
        let outcome = caught(async {
            for step in history {
                scene.carry_out(step).await;
            }
            scene.end().await;
        })
        .await;
        for standing in std::mem::take(&mut scene.standing).into_values() {
            standing.abandon().await;
        }
        self.last_token = scene.last_token;
        // The next history begins on an empty store.
        self.place.age(Duration::from_secs(3600)).await;
        outcome
    }

    /// Makes a history that fails smaller. Returns the smallest one that fails as well, and what is wrong with it.
    async fn shrink(&mut self, mut tree: impl ValueTree<Value = Vec<Step>>, wrong: String) -> (Vec<Step>, String) {
        let began = Instant::now();
        let mut smallest = (tree.current(), wrong);
        let mut goes_on = tree.simplify();
        while goes_on && began.elapsed() < SHRINKING {
            let history = tree.current();
            goes_on = match self.run(history.clone()).await {
                Err(wrong) => {
                    smallest = (history, wrong);
                    tree.simplify()
                }
                Ok(()) => tree.complicate(),
            };
        }
        smallest
    }
}

/// Returns the panic of a future as an error.
async fn caught(future: impl Future<Output = ()>) -> Result<(), String> {
    let mut future = pin!(future);
    let outcome = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic)),
    });
    outcome
        .await
        .map_err(|panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => panic
                .downcast::<&str>()
                .map_or_else(|_| "a panic".to_owned(), |message| (*message).to_owned()),
        })
}

/// A number from the environment.
fn number<N: std::str::FromStr>(name: &str) -> Option<N> {
    let number = std::env::var(name).ok()?;
    Some(
        number
            .parse()
            .unwrap_or_else(|_| panic!("{name} must be a number, not {number}")),
    )
}

fn seeds() -> Vec<u64> {
    if let Some(seed) = number("LOCK_MODEL_SEED") {
        return vec![seed];
    }
    let fresh = number("LOCK_MODEL_STEPS").map(|steps: usize| steps.div_ceil(STEPS));
    fresh.map_or_else(
        || (0..HISTORIES).collect(),
        |histories| (0..histories).map(|_| fastrand::u64(..)).collect(),
    )
}

/// Chance that a seed decides.
fn chance(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

async fn histories_follow_the_model(place: &dyn Place, kind: Kind) {
    let random = prop::collection::vec(step(kind), 1..2 * STEPS);
    let mut runner = Runner {
        place,
        stores: (0..STORES).map(|_| place.store()).collect(),
        kind,
        runs: 0,
        last_token: 0,
    };
    for seed in seeds() {
        let tree = random.new_tree(&mut chance(seed)).unwrap();
        if let Err(wrong) = runner.run(tree.current()).await {
            let (history, wrong) = runner.shrink(tree, wrong).await;
            panic!("{wrong}\nafter the history {history:#?}\nLOCK_MODEL_SEED={seed} runs the one it was part of");
        }
    }
}

/// The tests, and what their histories are made of.
macro_rules! kinds {
    ($($name:ident: $kind:expr;)*) => {
        $(
            pub(crate) async fn $name(place: &dyn Place) {
                histories_follow_the_model(place, $kind).await;
            }
        )*
    };
}

kinds! {
    histories_of_exclusive_locks_follow_the_model:
        Kind { classes: &[EXCLUSIVE], keys: 3, several: false };
    histories_of_several_keys_follow_the_model:
        Kind { classes: &[EXCLUSIVE], keys: 4, several: true };
    histories_of_readers_and_writers_follow_the_model:
        Kind { classes: &["r", "r", "w"], keys: 2, several: false };
    histories_of_semaphores_follow_the_model:
        Kind { classes: &["s1", "s2", "s3", "s4"], keys: 2, several: false };
    histories_of_owners_follow_the_model:
        Kind { classes: &["oa", "ob", "oc"], keys: 2, several: false };
    histories_of_all_modes_follow_the_model:
        Kind { classes: &["r", "w", "s2", "s3", "oa", "ob"], keys: 2, several: false };
}
