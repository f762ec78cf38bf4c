//! A process that waits for locks, for the tests of waiting.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{Backoff, LockManager, LockRequest, current};
use lock_tests::children::child_says;
use lock_tests::judge::Hold;
use lock_tests::{PATIENCE, Stamp, StoreJudge};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::{millis, orders, outcome, stamped};

/// So long that nobody gets a lock by trying again.
const NEVER: Duration = Duration::from_secs(1000);

/// Does what it is told, one order a line. A patient one never gets a lock by trying again:
/// - `ask <name> <key> <lease> <wait> <flags>` calls for a lock, with any of the letters `t` (fencing token), `f` (fair) and `-`. Says
///   `got <name> <token or -> <when>` as the body begins, and `ended <name> <outcome> <end of the last poll>`.
/// - `free <name>` ends that body, now or when it begins. `cancel <name>` drops the call and says `cancelled <name>`.
/// - `crowd <count> <key>` makes that many calls, and says `asked`. Each says `got` as above, with its number as name.
/// - `leave <count>` cancels all of the crowd but so many, and says `left`.
/// - `storm <name> <tasks> <key> <lease> <judge>` takes and gives back the lock all the time, each body at the judge, until `calm`; says
///   one `hold …` for each body, and `calm <bodies> <overruns>`.
pub(crate) async fn contend(url: &str, patient: bool) {
    let mut locks = crate::patient(url);
    if patient {
        locks = locks.backoff(Backoff::new(NEVER, NEVER));
    }
    let locks = locks.build().unwrap();
    let mut orders = orders();
    let mut calls = HashMap::new();
    while let Some(order) = orders.recv().await {
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["ask", name, key, lease, wait, flags] => {
                let request = locks.lock(key).lease(millis(lease)).wait(millis(wait));
                let request = request.fencing(flags.contains('t')).fair(flags.contains('f'));
                calls.insert(name.to_owned(), Call::start(name, request, flags.contains('t')));
            }
            ["free", name] => calls[name].enough.notify_one(),
            ["cancel", name] => {
                calls.remove(name).unwrap().cancel().await;
                child_says(format_args!("cancelled {name}"));
            }
            ["crowd", count, key] => {
                for number in 0..count.parse().unwrap() {
                    let name = usize::to_string(&number);
                    let request = locks.lock(key).wait(PATIENCE * 2);
                    calls.insert(name.clone(), Call::start(&name, request, false));
                }
                child_says("asked");
            }
            ["leave", count] => {
                let stays: usize = count.parse().unwrap();
                let all = std::mem::take(&mut calls);
                let (stay, leave): (HashMap<_, _>, _) = all
                    .into_iter()
                    .partition(|(name, _)| name.parse::<usize>().unwrap() < stays);
                calls = stay;
                for call in leave.into_values() {
                    call.cancel().await;
                }
                child_says("left");
            }
            ["storm", name, tasks, key, lease, judge] => {
                let storm = Storm {
                    name: name.to_owned(),
                    key: key.to_owned(),
                    lease: millis(lease),
                    judge: (judge != "-").then(|| StoreJudge::connect(judge)),
                };
                // After having stood still again and again a call tries again by itself.
                let locks = crate::patient(url).build().unwrap();
                storm.rage(&locks, tasks.parse().unwrap(), &mut orders).await;
            }
            ref unknown => panic!("unknown order {unknown:?}"),
        }
    }
}

struct Call {
    enough: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Call {
    fn start(name: &str, request: LockRequest, fenced: bool) -> Self {
        let enough = Arc::new(Notify::new());
        let last_poll = Arc::new(AtomicU64::new(0));
        let work = {
            let (name, enough) = (name.to_owned(), Arc::clone(&enough));
            async move {
                let at = Stamp::now();
                let token = if fenced {
                    current().unwrap().fencing_token().await.unwrap().get().to_string()
                } else {
                    "-".to_owned()
                };
                child_says(format_args!("got {name} {token} {at}"));
                let mut enough = std::pin::pin!(enough.notified());
                // It is polled all the time, to show when it is for the last time.
                while tokio::time::timeout(Duration::from_millis(1), &mut enough)
                    .await
                    .is_err()
                {}
            }
        };
        let body = stamped(&last_poll, Stamp::as_nanos, Stamp::now, work);
        let name = name.to_owned();
        let task = tokio::spawn(async move {
            let ended = request.run(body).await;
            if let Err(error) = &ended {
                // For whoever waits for something else in vain.
                eprintln!("{name} has ended: {error:?}");
            }
            let (ended, last_poll) = (outcome(&ended), last_poll.load(Ordering::SeqCst));
            child_says(format_args!("ended {name} {ended} {last_poll}"));
        });
        Self { enough, task }
    }

    async fn cancel(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

struct Storm {
    name: String,
    key: String,
    lease: Duration,
    judge: Option<StoreJudge>,
}

impl Storm {
    async fn rage(self, locks: &LockManager, tasks: usize, orders: &mut mpsc::UnboundedReceiver<String>) {
        let calm = Arc::new(AtomicBool::new(false));
        let storm = Arc::new(self);
        let before = locks.stats().overruns;
        let mut raging = JoinSet::new();
        for task in 0..tasks {
            let (storm, locks, calm) = (Arc::clone(&storm), locks.clone(), Arc::clone(&calm));
            raging.spawn(async move {
                let mut bodies = 0;
                while !calm.load(Ordering::SeqCst) {
                    bodies += storm.once(&locks, task, bodies % 4 == 3).await;
                }
                bodies
            });
        }
        child_says("raging");
        assert_eq!(orders.recv().await.as_deref(), Some("calm"));
        calm.store(true, Ordering::SeqCst);
        let bodies: usize = raging.join_all().await.into_iter().sum();
        child_says(format_args!("calm {bodies} {}", locks.stats().overruns - before));
    }

    /// One call; returns the number of bodies that began.
    async fn once(&self, locks: &LockManager, task: usize, fair: bool) -> usize {
        let holder = format!("{}-{task}", self.name);
        let request = locks.lock(&self.key).lease(self.lease).wait(PATIENCE);
        let request = request.fencing(true).fair(fair);
        let (asked, entered) = (Stamp::now(), AtomicU64::new(0));
        let token = AtomicU64::new(0);
        let last_poll = Arc::new(AtomicU64::new(0));
        let work = async {
            entered.store(Stamp::now().as_nanos(), Ordering::SeqCst);
            let fence = match current().unwrap().fencing_token().await {
                Ok(fence) => fence.get(),
                // The process stood still for longer than its lease in the middle of this poll: there is no further one.
                Err(error) => {
                    assert!(error.is_lost(), "{error}");
                    std::future::pending().await
                }
            };
            token.store(fence, Ordering::SeqCst);
            let _inside = self.judge.as_ref().map(|judge| judge.enter(&holder, Some(fence)));
            for _ in 0..fence % 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let ended = request
            .run(stamped(&last_poll, Stamp::as_nanos, Stamp::now, work))
            .await;
        if let Err(error) = &ended {
            eprintln!("{holder}: {error}");
        }
        let stamp = |nanos: &AtomicU64| Stamp::from_nanos(nanos.load(Ordering::SeqCst));
        if entered.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        let (entered, left) = (stamp(&entered), stamp(&last_poll));
        let token = Some(token.load(Ordering::SeqCst)).filter(|token| *token != 0);
        child_says(Hold {
            holder,
            asked,
            entered,
            left,
            token,
        });
        1
    }
}
