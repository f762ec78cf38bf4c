//! Random histories of several clients, compared answer by answer with an executable specification.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use lock_runtime::store::{Attempt, Fence, Verdict};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::place::{Ask, Client, Place, STEP, Standing, is_about};

/// How many steps a history has.
pub(crate) const STEPS: usize = 80;
const KEYS: usize = 3;
/// Those who only try. The ones who stand in line are new each time.
const CLIENTS: usize = 3;
const HOLDER: usize = CLIENTS;

/// How many histories: a few seconds' worth, or as many as have the number of steps that the environment says.
pub(crate) fn histories() -> u32 {
    let steps = std::env::var("LOCK_MODEL_STEPS").ok();
    let steps = steps.map_or(40 * STEPS, |steps| steps.parse().expect("a number of steps"));
    u32::try_from(steps.div_ceil(STEPS)).expect("a number of steps that can be done")
}

/// Who has a key, and until when. Once released into its minimum hold, the key is nobody's.
#[derive(Clone, Copy, Debug)]
struct Hold {
    client: usize,
    until: u32,
    kept: bool,
}

/// What the specification says about every store, in as few words as possible.
#[derive(Debug, Default)]
struct Spec {
    /// In steps since the beginning.
    now: u32,
    held: BTreeMap<usize, Hold>,
    /// Those in line for each key, and the lease that they have asked for.
    lines: BTreeMap<usize, VecDeque<(usize, u32)>>,
    last_token: u64,
}

impl Spec {
    fn hold(&self, key: usize) -> Option<Hold> {
        self.held.get(&key).copied().filter(|hold| hold.until > self.now)
    }

    fn verdict(&self, key: usize, client: usize) -> Verdict {
        match self.hold(key) {
            Some(hold) if hold.client == client && !hold.kept => Verdict::Owned,
            Some(_) => Verdict::Foreign,
            None => Verdict::Gone,
        }
    }

    fn set(&mut self, key: usize, client: usize, lease: u32) {
        self.held.insert(
            key,
            Hold {
                client,
                until: self.now + lease,
                kept: false,
            },
        );
    }

    /// Releases, and tells what the store should have said.
    fn release(&mut self, key: usize, client: usize, keep: Option<u32>) -> Verdict {
        let verdict = self.verdict(key, client);
        match (&verdict, self.hold(key)) {
            (Verdict::Owned, _) => {
                self.held.insert(
                    key,
                    Hold {
                        client,
                        until: self.now + keep.unwrap_or(0),
                        kept: true,
                    },
                );
            }
            // The same release once more.
            (_, Some(hold)) if hold.client == client && keep.is_some() => return Verdict::Owned,
            _ => {}
        }
        verdict
    }

    /// Who stands in line comes behind all others.
    fn join(&mut self, key: usize, client: usize, lease: u32) {
        self.lines.entry(key).or_default().push_back((client, lease));
    }

    /// Hands a free key to the first in line.
    fn hand_over(&mut self, key: usize) -> Option<usize> {
        if self.hold(key).is_some() {
            return None;
        }
        let (client, lease) = self.lines.get_mut(&key)?.pop_front()?;
        self.set(key, client, lease);
        Some(client)
    }

    /// Takes the `nth` in line out of it.
    fn leave(&mut self, key: usize, nth: usize) -> Option<usize> {
        let line = self.lines.get_mut(&key).filter(|line| !line.is_empty())?;
        line.remove(nth % line.len()).map(|(client, _)| client)
    }

    fn take_token(&mut self, token: u64) {
        assert!(token > self.last_token, "token {token} after {}", self.last_token);
        self.last_token = token;
    }
}

/// One step of a history. Times are in [`STEP`]s. The client [`HOLDER`] is whoever has the (first) key.
#[derive(Clone, Debug)]
enum Step {
    Acquire {
        client: usize,
        key: usize,
        lease: u32,
        fence: bool,
        fair: bool,
    },
    /// A new client stands in line.
    Join {
        key: usize,
        lease: u32,
        fence: bool,
    },
    /// One of those in line leaves it.
    Leave {
        key: usize,
        nth: usize,
    },
    /// One batch; the entries are key and extension.
    Renew {
        client: usize,
        batch: Vec<(usize, Option<u32>)>,
    },
    Release {
        client: usize,
        key: usize,
        keep: Option<u32>,
    },
    Fence {
        client: usize,
        key: usize,
    },
    Pass {
        time: u32,
        /// Whether somebody looks at the keys afterwards, so that nobody has to wait until the store itself does.
        look: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (client, key, time) = (0..=HOLDER, 0..KEYS, 1..5_u32);
    prop_oneof![
        4 => (client.clone(), key.clone(), time.clone(), any::<bool>(), prop::bool::weighted(0.3))
            .prop_map(|(client, key, lease, fence, fair)| Step::Acquire { client, key, lease, fence, fair }),
        3 => (key.clone(), time.clone(), any::<bool>()).prop_map(|(key, lease, fence)| Step::Join { key, lease, fence }),
        1 => (key.clone(), 0..10_usize).prop_map(|(key, nth)| Step::Leave { key, nth }),
        3 => (client.clone(), prop::collection::vec((key.clone(), prop::option::of(time.clone())), 0..6))
            .prop_map(|(client, batch)| Step::Renew { client, batch }),
        3 => (client.clone(), key.clone(), prop::option::weighted(0.3, time.clone()))
            .prop_map(|(client, key, keep)| Step::Release { client, key, keep }),
        2 => (client, key).prop_map(|(client, key)| Step::Fence { client, key }),
        2 => (1..3_u32, prop::bool::weighted(0.95)).prop_map(|(time, look)| Step::Pass { time, look }),
    ]
}

/// A store, the specification, and what they have in common.
struct Scene<'a, P> {
    place: &'a P,
    spec: Spec,
    keys: Vec<String>,
    clients: Vec<Client>,
    /// By client.
    standing: BTreeMap<usize, Standing>,
}

fn new_client(place: &impl Place, number: usize) -> Client {
    place.client(&format!("{:032x}:host:1:client-{number}", number + 16))
}

fn ask(lease: u32, fence: bool, fair: bool) -> Ask {
    Ask {
        lease: STEP * lease,
        fence,
        tell_remaining: true,
        fair,
    }
}

impl<'a, P: Place> Scene<'a, P> {
    fn new(place: &'a P, nth: u32, last_token: u64) -> Self {
        Self {
            place,
            spec: Spec {
                last_token,
                ..Spec::default()
            },
            // Each history has keys of its own.
            keys: (0..KEYS).map(|key| format!("history-{nth}:{key}")).collect(),
            clients: (0..=HOLDER).map(|number| new_client(place, number)).collect(),
            standing: BTreeMap::new(),
        }
    }

    fn who(&self, client: usize, key: usize) -> usize {
        match self.spec.hold(key) {
            Some(hold) if client == HOLDER => hold.client,
            _ => client,
        }
    }

    /// Carries one step out, on the store and on the specification.
    async fn carry_out(&mut self, step: Step) {
        match step {
            Step::Acquire {
                client,
                key,
                lease,
                fence,
                fair,
            } => {
                let client = self.who(client, key);
                self.acquire(client, key, lease, ask(lease, fence, fair)).await;
            }
            Step::Join { key, lease, fence } => self.join(key, lease, fence).await,
            Step::Leave { key, nth } => {
                if let Some(client) = self.spec.leave(key, nth) {
                    let left = self.standing.remove(&client).unwrap().leave().await;
                    assert_eq!(left, self.spec.verdict(key, client));
                }
            }
            Step::Renew { client, batch } => {
                let client = batch.first().map_or(client, |(key, _)| self.who(client, *key));
                self.renew(client, batch).await;
            }
            Step::Release { client, key, keep } => {
                let client = self.who(client, key);
                let verdict = self.clients[client]
                    .try_release(&self.keys[key], keep.map(|keep| STEP * keep))
                    .await
                    .unwrap();
                assert_eq!(verdict, self.spec.release(key, client, keep));
            }
            Step::Fence { client, key } => {
                let client = self.who(client, key);
                let answer = self.clients[client].fence(&self.keys[key]).await;
                match (answer, self.spec.verdict(key, client)) {
                    (Fence::Token(token), Verdict::Owned) => self.spec.take_token(token),
                    (Fence::NotOwned(verdict), expected) if expected != Verdict::Owned => assert_eq!(verdict, expected),
                    (answer, expected) => panic!("{answer:?} for a lock that is {expected:?}"),
                }
            }
            Step::Pass { time, look } => {
                self.place.age(STEP * time).await;
                self.spec.now += time;
                if look {
                    self.look().await;
                }
            }
        }
        self.settle().await;
    }

    async fn acquire(&mut self, client: usize, key: usize, lease: u32, ask: Ask) {
        let answer = self.clients[client].try_acquire(&self.keys[key], ask).await.unwrap();
        match (self.spec.verdict(key, client), answer) {
            (Verdict::Foreign, Attempt::Busy { holder, remaining }) => {
                let hold = self.spec.hold(key).unwrap();
                // Not by the token, which a key in its minimum hold does not show.
                assert_eq!(holder.unwrap().function(), Some(&*format!("client-{}", hold.client)));
                let left = STEP * (hold.until - self.spec.now);
                assert!(is_about(remaining, left), "{remaining:?} instead of {left:?}");
            }
            (Verdict::Owned | Verdict::Gone, Attempt::Granted { fence: token }) => {
                assert_eq!(token.is_some(), ask.fence);
                if let Some(token) = token {
                    self.spec.take_token(token);
                }
                self.spec.set(key, client, lease);
            }
            (verdict, answer) => panic!("client {client} got {answer:?} while the key was {verdict:?}"),
        }
    }

    async fn join(&mut self, key: usize, lease: u32, fence: bool) {
        let number = self.clients.len();
        let client = new_client(self.place, number);
        self.clients.push(client.clone());
        let standing = client.stand(&self.keys[key], ask(lease, fence, false)).await;
        self.standing.insert(number, standing);
        self.spec.join(key, number, lease);
    }

    async fn renew(&mut self, client: usize, batch: Vec<(usize, Option<u32>)>) {
        let requests: Vec<_> = batch
            .iter()
            .map(|(key, extend)| self.clients[client].request(&self.keys[*key], extend.map(|extend| STEP * extend)))
            .collect();
        let verdicts = self.clients[client].store.renew(&requests).await.unwrap();
        assert_eq!(verdicts.len(), batch.len());
        for ((key, extend), verdict) in batch.into_iter().zip(verdicts) {
            assert_eq!(verdict, self.spec.verdict(key, client));
            if let (Verdict::Owned, Some(lease)) = (verdict, extend) {
                self.spec.set(key, client, lease);
            }
        }
    }

    /// Somebody joins the lines of the keys that are free and leaves again: by then the first in line has the key.
    async fn look(&mut self) {
        for key in 0..KEYS {
            if self.spec.hold(key).is_none() && self.spec.lines.get(&key).is_some_and(|line| !line.is_empty()) {
                let passer_by = new_client(self.place, self.clients.len());
                self.clients.push(passer_by.clone());
                let left = passer_by
                    .stand(&self.keys[key], ask(1, false, false))
                    .await
                    .leave()
                    .await;
                assert_eq!(left, Verdict::Foreign);
            }
        }
    }

    /// Waits until every key that is free and waited for is handed over, and sees to it that nobody else has got one.
    async fn settle(&mut self) {
        let mut tokens = Vec::new();
        for key in 0..KEYS {
            if let Some(client) = self.spec.hand_over(key) {
                let standing = self.standing.remove(&client).unwrap();
                tokens.extend(standing.claim().await);
            }
        }
        // Those of several keys may have been taken in any order.
        tokens.sort_unstable();
        for token in tokens {
            self.spec.take_token(token);
        }
        for (client, standing) in &self.standing {
            assert!(standing.waits(), "client {client} has got a lock that is not its own");
        }
    }

    /// Everybody leaves. Returns the last token.
    async fn end(self) -> u64 {
        for standing in self.standing.into_values() {
            assert!(matches!(standing.leave().await, Verdict::Foreign | Verdict::Gone));
        }
        self.spec.last_token
    }
}

pub(crate) async fn random_histories_follow_the_model(place: &impl Place) {
    let mut runner = TestRunner::new(Config::default());
    let random = prop::collection::vec(step(), STEPS);
    let mut last_token = 0;
    for nth in 0..histories() {
        let history = random.new_tree(&mut runner).unwrap().current();
        let mut scene = Scene::new(place, nth, last_token);
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

/// Shows the history if a step of it panics.
pub(crate) struct Told<'a, S: Debug>(pub(crate) &'a [S]);

impl<S: Debug> Drop for Told<'_, S> {
    fn drop(&mut self) {
        eprintln!("the history was {:#?}", self.0);
    }
}
