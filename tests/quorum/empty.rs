//! Masters that come back empty while locks are held.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::store::LockStore;
use lock_runtime::store::redis::RedisStore;
use lock_runtime::{LockError, LockManager, LockManagerBuilder};
use lock_tests::judge::{Hold, Violation};
use lock_tests::{Judge, PATIENCE, PATIENT, Server, Stamp, eventually};
use tokio::task::JoinSet;

use crate::stage::{Five, connected};

const ROUNDS: usize = 50;

/// `lease` is every lease, and the time for which a master that comes back gives no vote.
fn settings(builder: LockManagerBuilder, lease: Duration) -> LockManagerBuilder {
    builder
        .default_lease(lease)
        .longest_lease(lease)
        .default_wait(PATIENCE)
        .connect_timeout(PATIENCE)
        .response_timeout(PATIENCE)
}

/// A manager whose masters keep a mark.
fn marked(masters: &[Server]) -> LockManagerBuilder {
    let builder = LockManager::builder_quorum(masters.iter().map(Server::url));
    settings(builder, Duration::from_millis(400))
}

/// A manager on the same masters, which vote at once when they come back. A lock lasts longer than a body stays.
fn unmarked(masters: &[Server]) -> LockManagerBuilder {
    let store = |master: &Server| -> Arc<dyn LockStore> {
        Arc::new(RedisStore::open(&master.url(), "dist_lock:", PATIENT).unwrap())
    };
    let builder = LockManager::builder_quorum(masters.iter().map(store));
    settings(builder, Duration::from_secs(5))
}

/// Notes the beginning of the first poll of a body, and that of its last one: no poll begins after the deadline.
async fn stamped<F: Future>(first: &AtomicU64, last: &AtomicU64, body: F) -> F::Output {
    let mut body = pin!(body);
    poll_fn(|cx| {
        let now = Stamp::now().as_nanos();
        last.store(now, Ordering::SeqCst);
        let _ = first.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
        body.as_mut().poll(cx)
    })
    .await
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
                    let began = Instant::now();
                    let own = entries.fetch_add(1, Ordering::SeqCst) + 1;
                    let mut is_over = false;
                    // It is polled all the time, to show when it is for the last time, and once more after somebody else has come.
                    while !is_over {
                        is_over = if until_overlap {
                            entries.load(Ordering::SeqCst) > own || began.elapsed() >= Duration::from_secs(3)
                        } else {
                            // Longer than the masters need to come back.
                            began.elapsed() >= Duration::from_millis(300)
                        };
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                let (first, last) = (AtomicU64::new(0), AtomicU64::new(0));
                // Lost in most rounds.
                let _ = locks.lock("k").run(stamped(&first, &last, body)).await;
                let [entered, left] = [first, last].map(|nanos| Stamp::from_nanos(nanos.into_inner()));
                if entered > asked {
                    judge.hold(Hold {
                        holder: format!("process {number}"),
                        asked,
                        entered,
                        left,
                        token: None,
                    });
                }
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

/// So many calls that most of them ask in batches.
#[tokio::test]
async fn a_crowd_gets_no_votes_of_masters_that_were_flushed() {
    let five = Five::start();
    let locks = five.connected().await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    for master in five.iter() {
        master.cmd(&["FLUSHALL"]);
    }
    let key = |number: usize| format!("k:{number}");
    let mut calls = JoinSet::new();
    for number in 0..64 {
        let request = locks.lock(key(number)).wait(Duration::from_millis(300));
        calls.spawn(async move { request.acquire().await.map(drop) });
    }
    while let Some(ended) = calls.join_next().await {
        let outcome = ended.unwrap();
        assert!(matches!(outcome, Err(LockError::Store { .. })), "{outcome:?}");
    }
    let are_given_back = || async { (0..64).all(|number| five.votes(&key(number)) == 0) };
    eventually("all votes are given back", are_given_back).await;
}
