//! Random histories of several clients, compared answer by answer with an executable specification.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_runtime::store::{Attempt, Fence, Verdict};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::place::{Ask, Client, Place, STEP, is_about};

/// How many histories, and how many steps each of them has.
const HISTORIES: u32 = 40;
const STEPS: usize = 80;
const KEYS: usize = 3;
const CLIENTS: usize = 3;

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

    fn take_token(&mut self, token: u64) {
        assert!(token > self.last_token, "token {token} after {}", self.last_token);
        self.last_token = token;
    }
}

/// One step of a history. Times are in [`STEP`]s.
#[derive(Clone, Debug)]
enum Step {
    Acquire {
        client: usize,
        key: usize,
        lease: u32,
        fence: bool,
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
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (client, key, time) = (0..CLIENTS, 0..KEYS, 1..5_u32);
    prop_oneof![
        4 => (client.clone(), key.clone(), time.clone(), any::<bool>())
            .prop_map(|(client, key, lease, fence)| Step::Acquire { client, key, lease, fence }),
        3 => (client.clone(), prop::collection::vec((key.clone(), prop::option::of(time.clone())), 0..6))
            .prop_map(|(client, batch)| Step::Renew { client, batch }),
        2 => (client.clone(), key.clone(), prop::option::weighted(0.3, time.clone()))
            .prop_map(|(client, key, keep)| Step::Release { client, key, keep }),
        2 => (client, key).prop_map(|(client, key)| Step::Fence { client, key }),
        2 => (1..3_u32).prop_map(|time| Step::Pass { time }),
    ]
}

/// Carries one step out, on the store and on the specification.
async fn carry_out(step: Step, spec: &mut Spec, clients: &[Client], keys: &[String], place: &impl Place) {
    match step {
        Step::Acquire {
            client,
            key,
            lease,
            fence,
        } => {
            let ask = Ask {
                lease: STEP * lease,
                fence,
                tell_remaining: true,
            };
            let answer = clients[client].try_acquire(&keys[key], ask).await.unwrap();
            match (spec.verdict(key, client), answer) {
                (Verdict::Foreign, Attempt::Busy { holder, remaining }) => {
                    let hold = spec.hold(key).unwrap();
                    // Not by the token, which a key in its minimum hold does not show.
                    assert_eq!(holder.unwrap().function(), Some(&*format!("client-{}", hold.client)));
                    let left = STEP * (hold.until - spec.now);
                    assert!(is_about(remaining, left), "{remaining:?} instead of {left:?}");
                }
                (Verdict::Owned | Verdict::Gone, Attempt::Granted { fence: token }) => {
                    assert_eq!(token.is_some(), fence);
                    if let Some(token) = token {
                        spec.take_token(token);
                    }
                    spec.set(key, client, lease);
                }
                (verdict, answer) => panic!("client {client} got {answer:?} while the key was {verdict:?}"),
            }
        }
        Step::Renew { client, batch } => {
            let requests: Vec<_> = batch
                .iter()
                .map(|(key, extend)| clients[client].request(&keys[*key], extend.map(|extend| STEP * extend)))
                .collect();
            let verdicts = clients[client].store.renew(&requests).await.unwrap();
            assert_eq!(verdicts.len(), batch.len());
            for ((key, extend), verdict) in batch.into_iter().zip(verdicts) {
                assert_eq!(verdict, spec.verdict(key, client));
                if let (Verdict::Owned, Some(lease)) = (verdict, extend) {
                    spec.set(key, client, lease);
                }
            }
        }
        Step::Release { client, key, keep } => {
            let verdict = clients[client]
                .try_release(&keys[key], keep.map(|keep| STEP * keep))
                .await
                .unwrap();
            assert_eq!(verdict, spec.release(key, client, keep));
        }
        Step::Fence { client, key } => match (clients[client].fence(&keys[key]).await, spec.verdict(key, client)) {
            (Fence::Token(token), Verdict::Owned) => spec.take_token(token),
            (Fence::NotOwned(verdict), expected) if expected != Verdict::Owned => assert_eq!(verdict, expected),
            (answer, expected) => panic!("{answer:?} for a lock that is {expected:?}"),
        },
        Step::Pass { time } => {
            place.age(STEP * time).await;
            spec.now += time;
        }
    }
}

pub(crate) async fn random_histories_follow_the_model(place: &impl Place) {
    let mut runner = TestRunner::new(Config::default());
    let histories = prop::collection::vec(step(), STEPS);
    let mut last_token = 0;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| place.client(&format!("{:032x}:host:1:client-{client}", client + 16)))
        .collect();
    for nth in 0..HISTORIES {
        let history = histories.new_tree(&mut runner).unwrap().current();
        // Each history has keys of its own, and a failed one is shown whole.
        let keys: Vec<_> = (0..KEYS).map(|key| format!("history-{nth}:{key}")).collect();
        let mut spec = Spec {
            last_token,
            ..Spec::default()
        };
        let told = Told(&history);
        for step in history.clone() {
            carry_out(step, &mut spec, &clients, &keys, place).await;
        }
        std::mem::forget(told);
        last_token = spec.last_token;
        // The next history begins on an empty store.
        place.age(Duration::from_secs(3600)).await;
    }
}

/// Shows the history if a step of it panics.
struct Told<'a>(&'a [Step]);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        eprintln!("the history was {:#?}", self.0);
    }
}
