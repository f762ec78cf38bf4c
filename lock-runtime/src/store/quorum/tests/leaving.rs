//! Calls that are dropped or stand still at each of their awaits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::scripted::{Asked, Fate, MS, Op, PROMPT};
use super::{Client, Masters, polled};
use crate::host::{Clock, TokioClock};
use crate::store::{
    Abandoned, AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, ContentionSlot, HolderValue, LockStore,
    QueueOutcome, QueueRequest, Queued, Receipt, Tracked,
};

const LEASE: Duration = Duration::from_secs(60);
const OTHER: &str = "other:h:1:x";

/// The obstacle that a call meets.
#[derive(Clone, Copy, Debug)]
enum Scene {
    /// Nothing.
    Free,
    /// Another holder at all masters, which releases soon.
    Busy,
    /// Another holder at three of five masters, for a while.
    Split,
    /// Answers of the second master that are late, and of the third that are lost.
    Late,
    /// A master where requests for the lock arrive after what was sent later.
    Overtaken,
    /// A master that is down.
    Down,
    /// The lock is handed over at the first of five masters, and another holder has the last three for a while.
    Claim,
}

const SCENES: [Scene; 7] = [
    Scene::Free,
    Scene::Busy,
    Scene::Split,
    Scene::Late,
    Scene::Overtaken,
    Scene::Down,
    Scene::Claim,
];

/// The kind of call.
#[derive(Clone, Copy, Debug)]
enum What {
    One,
    Token,
    Several,
}

const WHATS: [What; 3] = [What::One, What::Token, What::Several];

impl Scene {
    fn set(self) -> Masters {
        let masters = Masters::new(match self {
            Self::Split | Self::Claim => 5,
            _ => 3,
        });
        let release_after = |at: usize, span: Duration| {
            masters.servers[at].put("k", OTHER, LEASE);
            let server = Arc::clone(&masters.servers[at]);
            drop(tokio::spawn(async move {
                sleep(span).await;
                server.remove("k", OTHER);
            }));
        };
        match self {
            Self::Free => {}
            Self::Busy => (0..3).rev().for_each(|at| release_after(at, 20 * MS)),
            Self::Split => (2..5).for_each(|at| release_after(at, 30 * MS)),
            Self::Late => {
                masters.servers[1].script(|_| Fate::Trip(3 * MS, 5 * MS));
                masters.servers[2].script(|asked: &Asked| match asked.op {
                    Op::Acquire | Op::AcquireAll => Fate::AnswerLost,
                    _ => PROMPT,
                });
            }
            Self::Overtaken => masters.servers[2].script(|asked: &Asked| {
                if !matches!(asked.op, Op::Acquire | Op::AcquireAll) || asked.client > 0 {
                    return PROMPT;
                }
                let go = Arc::new(Notify::new());
                let held = Fate::Held(Arc::clone(&go));
                drop(tokio::spawn(async move {
                    sleep(Duration::from_secs(2)).await;
                    go.notify_one();
                }));
                held
            }),
            Self::Down => masters.servers[0].kill(),
            Self::Claim => {
                release_after(0, 20 * MS);
                (2..5).for_each(|at| release_after(at, 60 * MS));
            }
        }
        masters
    }
}

async fn call(client: Client, what: What) {
    let request = match what {
        What::One => client.locks.lock("k"),
        What::Token => client.locks.lock("k").fencing(true),
        What::Several => client.locks.lock_all(["j", "k", "l"]),
    };
    let body = async { sleep(3 * MS).await };
    request
        .lease(LEASE)
        .wait(Duration::from_secs(20))
        .run(body)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_await_leaves_nothing_behind() {
    let mut calls = 0;
    for scene in SCENES {
        for what in WHATS {
            for polls in 0.. {
                let masters = scene.set();
                let running = polled(polls, Box::pin(call(masters.client(0), what))).await;
                let is_done = running.is_ok();
                drop(running);
                calls += 1;
                // The last unanswered request has arrived by then.
                sleep(Duration::from_secs(8)).await;
                for key in ["j", "k", "l"] {
                    let left = masters.left(key);
                    let events = masters.events();
                    assert_eq!(left, [""; 0], "{scene:?}, {what:?}, {polls} polls: {events:#?}");
                }
                if is_done {
                    break;
                }
            }
        }
    }
    assert!(calls > 100, "{calls} calls");
}

/// Asks the store as the runtime does, and stands in its queue if the lock is busy.
async fn ask(client: Client, what: What, value: HolderValue, receipt: Arc<Receipt>, queues: bool) -> bool {
    let store = &client.store;
    if queues {
        let request = QueueRequest {
            key: &"k".into(),
            value: &value,
            ttl: LEASE,
            fence: matches!(what, What::Token),
            clock: &(Arc::new(TokioClock) as Arc<dyn Clock>),
            receipt: &receipt,
            contention: &ContentionSlot::default(),
        };
        return matches!(store.queue(&request).await, Ok(QueueOutcome::Granted { .. }));
    }
    if matches!(what, What::Several) {
        let request = AcquireAllRequest {
            keys: &["j", "k", "l"].map(Arc::from),
            value: &value,
            former: None,
            keep: None,
            ttl: LEASE,
            fence: false,
            receipt: &receipt,
        };
        return matches!(store.acquire_all(&request).await, Ok(AttemptAll::Granted { .. }));
    }
    let request = AcquireRequest {
        key: &"k".into(),
        value: &value,
        ttl: LEASE,
        fence: matches!(what, What::Token),
        tell_remaining: false,
        fair: false,
        receipt: &receipt,
    };
    matches!(store.acquire(&request).await, Ok(Attempt::Granted { .. }))
}

/// Takes back what a call may have or get, as the lock thread does.
fn take_back(client: &Client, what: What, value: &HolderValue, receipt: &Receipt, queues: bool) {
    if receipt.connection().is_none() {
        return;
    }
    let tracked = Tracked {
        held: TaskTracker::new(),
        unanswered: TaskTracker::new(),
    };
    let keys: &[&str] = if matches!(what, What::Several) && !queues {
        &["j", "k", "l"]
    } else {
        &["k"]
    };
    let abandoned = Abandoned {
        keys: keys.iter().map(|key| Arc::from(*key)).collect(),
        value: value.clone(),
        ttl: LEASE,
        queued: queues.then_some(Queued {
            ttl: LEASE,
            fence: matches!(what, What::Token),
        }),
        unanswered_on: receipt.unanswered_on(),
        may_grant: receipt.may_grant(),
        elsewhere: true,
        tracked,
    };
    assert!(client.store.abandon(&abandoned));
}

/// The lock thread takes back what it has and gets, which lets the others go on. When it goes on by itself, it
/// leaves nothing behind, either.
#[tokio::test(start_paused = true)]
async fn a_call_that_stands_still_at_any_await_holds_others_up_until_its_votes_are_taken_back() {
    let mut calls = 0;
    for scene in SCENES {
        for (what, queues) in [
            (What::One, false),
            (What::Token, false),
            (What::Several, false),
            (What::One, true),
            (What::Token, true),
        ] {
            for polls in 0.. {
                let masters = scene.set();
                let (client, other) = (masters.client(0), masters.client(1));
                let value = HolderValue::of("frozen:h:1:x");
                let receipt = Arc::<Receipt>::default();
                let asks = ask(client.clone(), what, value.clone(), Arc::clone(&receipt), queues);
                let asked = polled(polls, Box::pin(asks)).await;
                let is_done = asked.is_ok();
                calls += 1;
                sleep(Duration::from_secs(1)).await;
                let told = |at: &str| {
                    format!(
                        "{scene:?}, {what:?}, queues: {queues}, {polls} polls, {at}: {:#?}",
                        masters.events()
                    )
                };
                take_back(&client, what, &value, &receipt, queues);
                let began = Instant::now();
                let request = other.locks.lock("k").lease(LEASE).wait(Duration::from_secs(5));
                let guard = request
                    .acquire()
                    .await
                    .unwrap_or_else(|error| panic!("{} {error}", told("the other")));
                let took = began.elapsed();
                assert!(took <= 300 * MS, "{took:?} {}", told("the other"));
                if let Err(frozen) = asked {
                    drop(tokio::spawn(frozen));
                    sleep(100 * MS).await;
                    assert!(guard.handle().is_held());
                    take_back(&client, what, &value, &receipt, queues);
                }
                guard.release().await.unwrap();
                sleep(Duration::from_secs(8)).await;
                for key in ["j", "k", "l"] {
                    assert_eq!(masters.left(key), [""; 0], "{}", told("left"));
                }
                if is_done {
                    break;
                }
            }
        }
    }
    assert!(calls > 100, "{calls} calls");
}
