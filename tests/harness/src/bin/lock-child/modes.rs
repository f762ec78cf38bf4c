//! A process that takes locks of every mode, for the tests of the modes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{HeldLock, LockError, LockManager, LockRequest, current};
use lock_tests::Door;
use lock_tests::children::child_says;
use lock_tests::door::{Visitor, valid_until};
use redis::{AsyncCommands, AsyncConnectionConfig};
use tokio::task::JoinSet;

use crate::{millis, orders, outcome, patient};

/// Does what its one order says:
/// - `storm <name> <tasks> <mode> <lease> <judge>` takes and gives back locks all the time, each body past the judge, until `calm`. Says
///   `raging`, and at last `calm <bodies> <busy calls> <other errors>`.
/// - `transfer <tasks> <rounds> <accounts> <bank>` moves money to and fro between accounts of the bank, each round with both of them
///   locked, and says `transferred <rounds> <errors>`.
pub(crate) async fn modes(url: &str) {
    let locks = patient(url).build().unwrap();
    let mut orders = orders();
    let Some(order) = orders.recv().await else { return };
    match order.split(' ').collect::<Vec<_>>()[..] {
        ["storm", name, tasks, mode, lease, judge] => {
            let storm = Storm {
                name: format!("{name}-{}", std::process::id()),
                mode: mode.to_owned(),
                lease: millis(lease),
                judge: Door::connect(judge),
                calm: AtomicBool::new(false),
                calls: AtomicUsize::new(0),
            };
            let storm = Arc::new(storm);
            let mut raging = JoinSet::new();
            for _ in 0..tasks.parse().unwrap() {
                let (storm, locks) = (Arc::clone(&storm), locks.clone());
                raging.spawn(async move { storm.rage(&locks).await });
            }
            child_says("raging");
            assert_eq!(orders.recv().await.as_deref(), Some("calm"));
            storm.calm.store(true, Ordering::SeqCst);
            let tally = raging.join_all().await.into_iter().fold(Tally::default(), Tally::plus);
            child_says(format_args!("calm {} {} {}", tally.bodies, tally.busy, tally.errors));
        }
        ["transfer", tasks, rounds, accounts, bank] => {
            let bank = redis::Client::open(bank).unwrap();
            // However busy the machine is.
            let patient = AsyncConnectionConfig::new().set_response_timeout(None);
            let bank = bank
                .get_multiplexed_async_connection_with_config(&patient)
                .await
                .unwrap();
            let (rounds, accounts) = (rounds.parse().unwrap(), accounts.parse().unwrap());
            let mut busy = JoinSet::new();
            for _ in 0..tasks.parse().unwrap() {
                busy.spawn(transfers(locks.clone(), bank.clone(), rounds, accounts));
            }
            let tally = busy.join_all().await.into_iter().fold(Tally::default(), Tally::plus);
            child_says(format_args!(
                "transferred {} {}",
                tally.bodies,
                tally.busy + tally.errors
            ));
        }
        ref unknown => panic!("unknown order {unknown:?}"),
    }
    // The test says when it is over.
    let _ = orders.recv().await;
}

/// What has become of calls.
#[derive(Clone, Copy, Default)]
struct Tally {
    bodies: usize,
    busy: usize,
    errors: usize,
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            bodies: self.bodies + other.bodies,
            busy: self.busy + other.busy,
            errors: self.errors + other.errors,
        }
    }

    fn note<T>(&mut self, ended: &Result<T, LockError>) {
        match ended {
            Ok(_) => self.bodies += 1,
            Err(error) if error.is_busy() => self.busy += 1,
            Err(_) => self.errors += 1,
        }
        if let Err(error) = ended {
            eprintln!("{}: {}", outcome(ended), lock_tests::chain(error));
        }
    }
}

struct Storm {
    name: String,
    mode: String,
    lease: Duration,
    judge: Door,
    calm: AtomicBool,
    calls: AtomicUsize,
}

impl Storm {
    async fn rage(&self, locks: &LockManager) -> Tally {
        let mut tally = Tally::default();
        while !self.calm.load(Ordering::SeqCst) {
            let (request, class, names) = self.request(locks);
            // A token is taken with the lock, later, or not at all.
            let (request, token) = match fastrand::u8(..3) {
                0 if is_fenced(&class) => (request.fencing(true), true),
                1 => (request, is_fenced(&class)),
                _ => (request, false),
            };
            // Now and then longer than a lease, or most of a long one, which is renewed meanwhile.
            let stay = match fastrand::u8(..100) {
                0 => (self.lease * 3 / 2).min(Duration::from_secs(6).max(self.lease * 3 / 4)),
                _ => Duration::from_millis(fastrand::u64(..4)),
            };
            let visitor = Visitor {
                name: format!("{}-{}", self.name, self.calls.fetch_add(1, Ordering::SeqCst)),
                class,
                token: None,
                locks: names,
            };
            let body = self.visit(visitor, token, stay);
            let ended = request.lease(self.lease).run(body).await;
            tally.note(&ended);
        }
        tally
    }

    /// Some lock of the mode, the class of its holders, and what the judge is to call it.
    fn request(&self, locks: &LockManager) -> (LockRequest, String, Vec<String>) {
        // Each mode with a lock of its own.
        if self.mode == "each" {
            let key = fastrand::choice(["exclusive", "fair", "read-write", "semaphore", "owner", "several"]).unwrap();
            let (request, class) = match key {
                "exclusive" => (locks.lock(key), "x"),
                "fair" => (locks.lock(key).fair(true), "x"),
                "read-write" if fastrand::bool() => (locks.lock(key).write(), "w"),
                "read-write" => (locks.lock(key).read(), "r"),
                "semaphore" => (locks.lock(key).semaphore(2), "s2"),
                "owner" if fastrand::bool() => (locks.lock(key).owner("a"), "oa"),
                "owner" => (locks.lock(key).owner("b"), "ob"),
                _ => {
                    let names = ["exclusive", "several"].map(str::to_owned);
                    return (locks.lock_all(names.clone()), "x".to_owned(), names.into());
                }
            };
            return (request, class.to_owned(), vec![key.to_owned()]);
        }
        let (request, class) = match &*self.mode {
            "exclusive" => (locks.lock("stormy"), "x".to_owned()),
            "read-write" if fastrand::u8(..4) == 0 => (locks.lock("stormy").write(), "w".to_owned()),
            "read-write" => (locks.lock("stormy").read(), "r".to_owned()),
            "semaphore" => {
                let permits = fastrand::u32(2..=4);
                (locks.lock("stormy").semaphore(permits), format!("s{permits}"))
            }
            "owner" => {
                let owner = fastrand::choice(["a", "b", "c"]).unwrap();
                (locks.lock("stormy").owner(owner), format!("o{owner}"))
            }
            // All modes on one lock keep each other out as well.
            "mixed" => match fastrand::u8(..5) {
                0 => (locks.lock("stormy").write(), "w".to_owned()),
                1 | 2 => (locks.lock("stormy").read(), "r".to_owned()),
                3 => (locks.lock("stormy").semaphore(3), "s3".to_owned()),
                _ => (locks.lock("stormy").owner("a"), "oa".to_owned()),
            },
            "several" => {
                let mut names: Vec<_> = (0..6).map(|account| format!("account:{account}")).collect();
                fastrand::shuffle(&mut names);
                names.truncate(fastrand::usize(1..=3));
                return (locks.lock_all(names.clone()), "x".to_owned(), names);
            }
            unknown => panic!("unknown mode {unknown}"),
        };
        (request, class, vec!["stormy".to_owned()])
    }

    async fn visit(&self, mut visitor: Visitor, token: bool, stay: Duration) {
        let lock = current().unwrap();
        if token {
            // An error is the loss of the lock, which cancels the body.
            let Ok(fence) = lock.fencing_token().await else { return };
            visitor.token = Some(fence.get());
        }
        let until = |lock: &HeldLock| valid_until(|| lock.remaining());
        let visit = self.judge.enter(visitor, until(&lock));
        let began = Instant::now();
        while began.elapsed() < stay {
            tokio::time::sleep(stay.min(self.lease / 10)).await;
            if stay > self.lease {
                visit.stay(until(&lock));
            }
        }
    }
}

fn is_fenced(class: &str) -> bool {
    class.starts_with(['x', 'w', 'o'])
}

/// Reads two balances and writes them back: without a lock, what others do in between would be lost.
async fn transfers(
    locks: LockManager,
    mut bank: redis::aio::MultiplexedConnection,
    rounds: usize,
    accounts: usize,
) -> Tally {
    let mut tally = Tally::default();
    for _ in 0..rounds {
        let from = fastrand::usize(..accounts);
        let to = (from + fastrand::usize(1..accounts)) % accounts;
        // As the caller names them: in either order.
        let [from, to] = [from, to].map(|account| format!("account:{account}"));
        let body = async {
            let amount = fastrand::i64(1..10);
            let balance: i64 = bank.get(&from).await.unwrap();
            bank.set::<_, _, ()>(&from, balance - amount).await.unwrap();
            let balance: i64 = bank.get(&to).await.unwrap();
            bank.set::<_, _, ()>(&to, balance + amount).await.unwrap();
            bank.incr::<_, _, ()>("moved", amount).await.unwrap();
        };
        let ended = locks.lock_all([from.clone(), to.clone()]).run(body).await;
        tally.note(&ended);
    }
    tally
}
