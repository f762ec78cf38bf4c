//! Masters that come back empty while locks are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::store::LockStore;
use lock_runtime::store::redis::{RedisStore, TimeOuts};
use lock_runtime::{LockManager, LockManagerBuilder};
use lock_tests::judge::Violation;
use lock_tests::{Judge, PATIENCE, Server, Stamp, eventually};
use tokio::task::JoinSet;

use crate::stage::connected;

const ROUNDS: usize = 50;
/// Every lease, and the time for which a master that comes back gives no vote.
const LEASE: Duration = Duration::from_millis(400);

fn settings(builder: LockManagerBuilder) -> LockManagerBuilder {
    builder.default_lease(LEASE).longest_lease(LEASE).default_wait(PATIENCE)
}

/// A manager whose masters keep a mark.
fn marked(masters: &[Server]) -> LockManagerBuilder {
    settings(LockManager::builder_quorum(masters.iter().map(Server::url)))
}

/// A manager on the same masters, which vote at once when they come back.
fn unmarked(masters: &[Server]) -> LockManagerBuilder {
    let store = |master: &Server| -> Arc<dyn LockStore> {
        Arc::new(RedisStore::open(&master.url(), "dist_lock:", TimeOuts::default()).unwrap())
    };
    settings(LockManager::builder_quorum(masters.iter().map(store)))
}

/// Kills two of three masters, which come back empty, while one of several processes is inside, again and
/// again. Returns the number of times that two were inside at once. Ends after the first of them if
/// `until_overlap` is set.
async fn overlaps(builder: fn(&[Server]) -> LockManagerBuilder, until_overlap: bool) -> usize {
    let masters: [Server; 3] = std::array::from_fn(|_| Server::start());
    let (judge, calm, entries) = (
        Judge::new(),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let mut raging = JoinSet::new();
    for number in 0..3 {
        let locks = connected(builder(&masters)).await;
        let (judge, calm, entries) = (judge.clone(), Arc::clone(&calm), Arc::clone(&entries));
        raging.spawn(async move {
            while !calm.load(Ordering::SeqCst) {
                let asked = Stamp::now();
                let body = async {
                    let _inside = judge.enter(format!("process {number}"), asked, None);
                    entries.fetch_add(1, Ordering::SeqCst);
                    // Longer than the masters need to come back.
                    tokio::time::sleep(Duration::from_millis(300)).await;
                };
                // Lost in most rounds.
                let _ = locks.lock("k").run(body).await;
            }
        });
    }
    let found = || {
        let violations = judge.check().err().unwrap_or_default();
        violations
            .iter()
            .filter(|one| matches!(one, Violation::Overlap(..)))
            .count()
    };
    for round in 0..ROUNDS {
        let before = entries.load(Ordering::SeqCst);
        eventually("a body", || async { entries.load(Ordering::SeqCst) > before }).await;
        // The first in order is one of them, two rounds of three.
        for nth in [round, round + 1] {
            masters[nth % 3].kill();
        }
        for nth in [round, round + 1] {
            masters[nth % 3].restart_empty();
        }
        if until_overlap && found() > 0 {
            break;
        }
    }
    calm.store(true, Ordering::SeqCst);
    while let Some(ended) = raging.join_next().await {
        ended.unwrap();
    }
    found()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_that_come_back_empty_let_nobody_in_beside_a_holder() {
    assert_eq!(overlaps(marked, false).await, 0);
}

/// What the mark is for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_mark_they_do() {
    assert!(overlaps(unmarked, true).await > 0);
}
