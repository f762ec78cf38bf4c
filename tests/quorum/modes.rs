//! The ways to use a lock, on five masters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LostReason, OnLost, assert_locked, current, distributed_lock};
use lock_tests::{Alone, PATIENCE, Stamp, eventually, eventually_some};
use tokio::sync::Semaphore;

use crate::stage::{Five, LONG, queue_of, stored};

#[distributed_lock(key = "nested", reentrant, wait = 0, manager = locks)]
async fn nested(locks: &LockManager, depth: u32) -> Result<u32, LockError> {
    let mut count = current().unwrap().hold_count();
    if depth > 0 {
        count = count.max(Box::pin(nested(locks, depth - 1)).await?);
    }
    Ok(count)
}

#[tokio::test]
async fn a_reentrant_lock_is_taken_once() {
    let five = Five::start();
    let locks = five.connected().await;
    assert_eq!(nested(&locks, 2).await.unwrap(), 3);
    five.nothing_is_left().await;
}

#[tokio::test]
async fn a_minimum_hold_keeps_the_lock_at_a_majority() {
    let five = Five::start();
    let (locks, other) = (five.connected().await, five.connected().await);
    let began = Stamp::now();
    let at_least = Duration::from_secs(2);
    let guard = locks.lock("k").at_least(at_least).acquire().await.unwrap();
    five.has_votes("k", 5).await;
    guard.release().await.unwrap();
    let next = other.lock("k").acquire().await.unwrap();
    assert!(Stamp::now().since(began) >= at_least, "the minimum hold was cut short");
    next.release().await.unwrap();
    five.nothing_is_left().await;
}

#[derive(Debug, Default)]
struct Report {
    runs: AtomicU64,
    end: Option<Semaphore>,
}

#[distributed_lock(key = "report", coalesce, manager = locks)]
async fn report(locks: &LockManager, report: &Report) -> Result<u64, LockError> {
    let run = report.runs.fetch_add(1, Ordering::SeqCst) + 1;
    report.end.as_ref().unwrap().acquire().await.unwrap().forget();
    Ok(run)
}

#[tokio::test]
async fn calls_that_come_meanwhile_get_a_copy() {
    let five = Five::start();
    let locks = five.connected().await;
    let all = Arc::new(Report {
        end: Some(Semaphore::new(0)),
        ..Report::default()
    });
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let (locks, all) = (locks.clone(), Arc::clone(&all));
            tokio::spawn(async move { report(&locks, &all).await })
        })
        .collect();
    five.has_votes("report", 5).await;
    // A call that is not polled for a while loses the lead before it has the lock. The next one then runs for those behind it, and the
    // former one for itself.
    all.end.as_ref().unwrap().add_permits(calls.len());
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap().unwrap());
    }
    results.sort_unstable();
    let copies = locks.stats().coalesced;
    let runs = all.runs.load(Ordering::SeqCst);
    assert!(copies > 0 && runs + copies == 5, "{runs} runs, {copies} copies");
    // Each is that of a run, and no run's is missing.
    let mut of_runs = results.clone();
    of_runs.dedup();
    assert_eq!(of_runs, (1..=runs).collect::<Vec<_>>(), "{results:?}");
    five.nothing_is_left().await;
}

#[tokio::test]
async fn a_body_that_wants_to_be_told_goes_on_and_is_told() {
    let five = Five::start();
    let locks = five.connected().await;
    let call = locks.lock("k").lease(LONG).on_lost(OnLost::Signal).run(async {
        five.has_votes("k", 5).await;
        for master in &five[1..4] {
            master.cmd(&["DEL", &stored("k")]);
        }
        let why = current().unwrap().lost().await;
        tokio::task::yield_now().await;
        why
    });
    let why = tokio::time::timeout(PATIENCE, call)
        .await
        .unwrap()
        .expect("such a body returns what it likes");
    assert!(
        matches!(
            why,
            LockError::Lost {
                reason: LostReason::Deleted,
                ..
            }
        ),
        "{why:?}"
    );
}

#[tokio::test]
async fn several_keys_are_taken_and_released_together_over_kills() {
    let five = Five::start();
    let (locks, other) = (five.connected().await, five.connected().await);
    // A master that does not know the script yet gets a second request, for which the call does not wait.
    let both = eventually_some("five votes for both", || async {
        let both = locks.lock_all(["a", "b"]).lease(LONG).acquire().await.unwrap();
        if ["a", "b"].iter().all(|key| five.votes(key) == 5) {
            return Some(both);
        }
        both.release().await.unwrap();
        None
    })
    .await;
    for key in ["a", "b"] {
        let busy = other.lock(key).wait(Duration::ZERO).acquire().await;
        assert!(busy.as_ref().is_err_and(LockError::is_busy), "{busy:?}");
    }
    // Two that want them in another order each, and one of them.
    let inside = Arc::new(AtomicUsize::new(0));
    let mut waiting = tokio::task::JoinSet::new();
    for keys in [vec!["b", "a"], vec!["a"], vec!["c", "a", "b"]] {
        let (request, inside) = (other.lock_all(keys).lease(LONG), Arc::clone(&inside));
        waiting.spawn(request.run(async move {
            let _alone = Alone::enter(&inside);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }));
    }
    five[0].kill();
    five[4].kill();
    both.handle().verify().await.unwrap();
    both.release().await.unwrap();
    while let Some(ended) = waiting.join_next().await {
        ended.unwrap().unwrap();
    }
    five.nothing_is_left().await;
}

#[tokio::test]
async fn many_calls_for_overlapping_keys_all_come_to_their_turn() {
    let five = Five::start();
    let managers = [five.connected().await, five.connected().await, five.connected().await];
    let inside: [Arc<AtomicUsize>; 4] = std::array::from_fn(|_| Arc::default());
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..24_usize {
        let keys = [number % 4, (number / 2 + 1) % 4];
        let names = keys.map(|key| format!("k:{key}"));
        let request = managers[number % 3].lock_all(names).lease(LONG);
        let inside = inside.clone();
        calls.spawn(request.run(async move {
            let _first = Alone::enter(&inside[keys[0]]);
            let _second = (keys[0] != keys[1]).then(|| Alone::enter(&inside[keys[1]]));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }));
    }
    while let Some(ended) = calls.join_next().await {
        ended.unwrap().unwrap();
    }
    five.nothing_is_left().await;
}

/// Each majority has a master in common with the one before, which knows its token.
#[tokio::test]
async fn fencing_tokens_grow_whichever_masters_are_there() {
    let five = Five::start();
    let locks = five.connected().await;
    let mut last = 0;
    let mut take = async |what: &str| {
        let guard = locks.lock("k").lease(LONG).fencing(true).acquire().await.unwrap();
        let token = guard.handle().fencing_token().await.unwrap().get();
        assert!(token > last, "{what}: {token} after {last}");
        last = token;
        guard.release().await.unwrap();
    };
    take("all").await;
    for killed in [[0, 1], [2, 3], [4, 0], [1, 2]] {
        for nth in killed {
            five[nth].kill();
        }
        take(&format!("without {killed:?}")).await;
        take(&format!("without {killed:?}, again")).await;
        for nth in killed {
            five[nth].start_again();
        }
        // Those that are back vote again.
        eventually("all to vote", || async {
            let _ = locks.open_quorum().await;
            let guard = locks.lock("other").lease(LONG).acquire().await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            let all = five.votes("other") == 5;
            guard.release().await.unwrap();
            all
        })
        .await;
    }
    // A token that is asked for later.
    let guard = locks.lock("k").lease(LONG).acquire().await.unwrap();
    five[0].kill();
    assert!(guard.handle().fencing_token().await.unwrap().get() > last);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn operators_see_what_each_master_says() {
    let five = Five::start();
    let (locks, other) = (five.connected().await, five.connected().await);
    assert!(locks.inspect("k").await.unwrap().is_none());
    let guard = locks.lock("k").lease(LONG).acquire().await.unwrap();
    let second = locks.lock("l").lease(LONG).acquire().await.unwrap();
    five.has_votes("k", 5).await;
    five.has_votes("l", 5).await;
    let waiting = tokio::spawn(other.lock("k").lease(LONG).acquire());
    eventually("the call to stand in the queue", || async {
        five[0].exists(&queue_of("k"))
    })
    .await;
    five[1].cmd(&["SET", &stored("k"), "stranger", "PX", "60000"]);
    five[3].kill();
    let info = other.inspect("k").await.unwrap().unwrap();
    assert_eq!(info.holders.len(), 1, "{info:?}");
    assert_eq!(info.holders[0].holder.pid(), Some(std::process::id()));
    assert_eq!(info.waiters, 1, "{info:?}");
    let holders = info.masters.iter().map(|master| master.holders.len());
    assert_eq!(holders.collect::<Vec<_>>(), [1, 1, 1, 0, 1], "{info:?}");
    let names: Vec<_> = info.masters.iter().map(|master| master.name.to_string()).collect();
    assert_eq!(names, five.each_ref().map(|master| master.addr().to_string()));
    assert_eq!(info.masters[1].holders[0].holder.pid(), None, "{info:?}");
    for (nth, master) in info.masters.iter().enumerate() {
        assert_eq!(master.error.is_some(), nth == 3, "{info:?}");
    }
    let listed = other.list("*").await.unwrap();
    let keys: Vec<_> = listed.iter().map(|info| info.key.to_string()).collect();
    assert_eq!(keys, ["k", "l"], "{listed:?}");
    assert!(listed.iter().all(|info| info.holders.len() == 1), "{listed:?}");

    assert!(other.force_release("k").await.unwrap());
    let reason = guard.handle().lost().await;
    assert!(reason.is_lost(), "{reason}");
    drop(guard);
    // The one that waits gets it.
    let next = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    next.release().await.unwrap();
    second.release().await.unwrap();
    assert!(!other.force_release("l").await.unwrap());
    five.nothing_is_left().await;
}

#[tokio::test]
async fn assertions_find_the_lock() {
    let five = Five::start();
    let locks = five.connected().await;
    locks.lock("k").run(async { assert_locked!("k") }).await.unwrap();
}
