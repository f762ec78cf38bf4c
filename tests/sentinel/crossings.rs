//! Failovers while locks of every mode are held, and while managers, runtimes and callers end or stand still.

use std::collections::HashMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockRequest};
use lock_tests::sentinel::{MASTER_NAME, SentinelGroup};
use lock_tests::{PATIENCE, eventually};
use tokio::runtime::{Builder, Runtime};

use crate::failover::{KEY, replicated};

/// For groups of which no server falls silent: a busy machine answers in time. Calls wait for longer than a failover takes.
async fn patient(group: &SentinelGroup) -> LockManager {
    let builder = LockManager::builder(&group.url())
        .default_wait(PATIENCE * 3)
        // Not renewed while a failover lasts.
        .default_lease(PATIENCE * 4);
    lock_tests::patient(builder).await
}

/// One request of each mode, each for keys of its own, with one that cannot be let in beside it.
fn each_mode(locks: &LockManager) -> Vec<(LockRequest, LockRequest, &'static str)> {
    vec![
        (locks.lock("plain"), locks.lock("plain"), "plain"),
        (
            locks.lock("fenced").fencing(true),
            locks.lock("fenced").fencing(true),
            "fenced",
        ),
        (locks.lock("fair").fair(true), locks.lock("fair").fair(true), "fair"),
        (locks.lock("read").read(), locks.lock("read").write(), "read"),
        (locks.lock("write").write(), locks.lock("write").read(), "write"),
        (
            locks.lock("permit").semaphore(1),
            locks.lock("permit").semaphore(1),
            "permit",
        ),
        (
            locks.lock("owned").owner("one"),
            locks.lock("owned").owner("other"),
            "owned",
        ),
        (locks.lock_all(["all:1", "all:2"]), locks.lock("all:2"), "all:1"),
        (
            locks.lock("kept").at_least(Duration::from_millis(500)),
            locks.lock("kept"),
            "kept",
        ),
    ]
}

#[tokio::test]
async fn a_lock_of_any_mode_excludes_others_after_a_failover_there_and_back() {
    let group = SentinelGroup::start_steady().await;
    let (holder, other) = (patient(&group).await, patient(&group).await);
    let first = group.master().await;
    // Nobody but two of them is ever promoted.
    let spare = group.node_ports().into_iter().find(|port| *port != first).unwrap();
    group.server(spare).cmd(&["CONFIG", "SET", "replica-priority", "0"]);
    let is_known_as_spare = |sentinel: u16| {
        let replicas: Vec<HashMap<String, String>> = group.server(sentinel).ask(&["SENTINEL", "REPLICAS", MASTER_NAME]);
        replicas
            .iter()
            .any(|replica| replica["port"] == spare.to_string() && replica["slave-priority"] == "0")
    };
    let mut held = Vec::new();
    for (wanted, _, key) in each_mode(&holder) {
        held.push((wanted.acquire().await.unwrap(), key));
    }
    let token = held[1].0.handle().fencing_token().await.unwrap();
    for round in ["there", "back"] {
        let keys: Vec<_> = held.iter().map(|(_, key)| format!("dist_lock:{key}")).collect();
        for port in group.node_ports() {
            eventually("the locks on every server", || async {
                keys.iter().all(|key| group.server(port).exists(key))
            })
            .await;
        }
        let former = group.master().await;
        // A sentinel learns of the priority, and of a replica that was the master, by asking, every ten seconds.
        eventually("every sentinel to know of the priority", || async {
            group.sentinel_ports().into_iter().all(is_known_as_spare)
        })
        .await;
        group.failover().await;
        let (present, _) = group.wait_for_master_other_than(former).await;
        assert_ne!(present, spare);
        group.settled().await;
        for (guard, key) in &held {
            eventually("the lock to be known as held", || async {
                guard.handle().verify().await.is_ok()
            })
            .await;
            assert!(guard.handle().is_held(), "{key} {round}");
        }
        for (_, excluded, key) in each_mode(&other) {
            let refused = excluded.try_acquire().await;
            assert!(
                matches!(refused, Err(LockError::Busy { .. })),
                "{key} {round}: {refused:?}"
            );
        }
    }
    assert_eq!(group.master().await, first);
    for (guard, key) in held {
        guard.release().await.unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    for (_, excluded, key) in each_mode(&other) {
        let guard = excluded
            .acquire()
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"));
        if key == "fenced" {
            assert!(guard.handle().fencing_token().await.unwrap() > token);
        }
        guard.release().await.unwrap();
    }
}

/// The lock of each is held while its master is killed, and lasts far longer than the harness's patience.
async fn is_given_back_at_the_new_master(end: impl AsyncFnOnce(&SentinelGroup, LockManager)) {
    let group = SentinelGroup::start().await;
    let locks = LockManager::builder(&group.url())
        .default_wait(PATIENCE)
        .default_lease(PATIENCE * 4)
        .shutdown_grace(PATIENCE)
        .build()
        .unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    let former = group.master().await;
    end(&group, locks).await;
    let (present, _) = group.wait_for_master_other_than(former).await;
    let is_free = || async { !group.server(present).exists(KEY) };
    eventually("the release at the new master", is_free).await;
}

async fn replicated_then_killed(group: &SentinelGroup) {
    replicated(group).await;
    group.kill_master().await;
}

#[tokio::test]
async fn a_manager_that_is_shut_down_in_a_failover_gives_its_locks_back_at_the_new_master() {
    is_given_back_at_the_new_master(async |group, locks| {
        let body = tokio::spawn(locks.lock("stock:7").run(std::future::pending::<()>()));
        replicated_then_killed(group).await;
        // From here on its release is owed.
        body.abort();
        locks.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_lock_whose_manager_is_dropped_in_a_failover_is_given_back_at_the_new_master() {
    is_given_back_at_the_new_master(async |group, locks| {
        let guard = locks.lock("stock:7").acquire().await.unwrap();
        replicated_then_killed(group).await;
        drop(locks);
        drop(guard);
    })
    .await;
}

#[tokio::test]
async fn a_lock_whose_runtime_ends_in_a_failover_is_given_back_at_the_new_master() {
    is_given_back_at_the_new_master(async |group, locks| {
        let runtime = Runtime::new().unwrap();
        let held = runtime.spawn(locks.lock("stock:7").run(std::future::pending::<()>()));
        replicated_then_killed(group).await;
        runtime.shutdown_background();
        let ended = held.await;
        assert!(ended.is_err(), "{ended:?}");
    })
    .await;
}

/// Its thread holds a lock, and a place in a queue, and stands still from before the failover until after it.
#[tokio::test]
async fn a_runtime_that_stands_still_in_a_failover_holds_up_nobody_and_keeps_its_lock() {
    let group = SentinelGroup::start().await;
    let (locks, others) = (patient(&group).await, patient(&group).await);
    let busy = others.lock("busy").acquire().await.unwrap();
    let (stands_still, is_still) = mpsc::channel();
    let (goes_on, until) = mpsc::channel::<()>();
    let still = thread::spawn({
        let locks = locks.clone();
        move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let guard = locks.lock("stock:7").acquire().await.unwrap();
                let waiting = tokio::spawn(locks.lock("busy").acquire());
                // Polled until it stands in the queue.
                tokio::time::sleep(Duration::from_millis(200)).await;
                stands_still.send(()).unwrap();
                until.recv().unwrap();
                guard.handle().verify().await.unwrap();
                guard.release().await.unwrap();
                waiting.await.unwrap().unwrap().release().await.unwrap();
            });
        }
    });
    tokio::task::spawn_blocking(move || is_still.recv())
        .await
        .unwrap()
        .unwrap();
    for port in group.node_ports() {
        eventually("the locks on every server", || async {
            group.server(port).exists(KEY) && group.server(port).exists("dist_lock:busy")
        })
        .await;
    }
    let former = group.kill_master().await;
    let (present, _) = group.wait_for_master_other_than(former).await;
    // Of the same manager, on a runtime that goes on.
    let guard = locks.lock("x").acquire().await.unwrap();
    assert!(group.server(present).exists("dist_lock:x"));
    guard.release().await.unwrap();
    eventually("the other manager's lock to be known as held", || async {
        busy.handle().verify().await.is_ok()
    })
    .await;
    busy.release().await.unwrap();
    // The place of the runtime that stands still keeps nobody out for long.
    let guard = others.lock("busy").acquire().await.unwrap();
    guard.release().await.unwrap();
    assert!(group.server(present).exists(KEY));
    goes_on.send(()).unwrap();
    tokio::task::spawn_blocking(|| still.join().unwrap()).await.unwrap();
    eventually("everything to be released", || async {
        !group.server(present).exists(KEY) && !group.server(present).exists("dist_lock:busy")
    })
    .await;
}
