//! Several keys: all of them or none, and waiting calls never form a circle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockMode, LostReason, RequestProblem};
use lock_tests::{PATIENCE, Server, assert_free, eventually};

/// A manager whose time-outs no busy machine meets.
fn on(server: &Server) -> LockManager {
    let builder = LockManager::builder(&server.url()).default_wait(PATIENCE);
    let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
    builder.build().unwrap()
}

fn places() -> (Server, [LockManager; 3]) {
    let server = Server::start();
    let memory = LockManager::builder("memory://")
        .default_wait(PATIENCE)
        .build()
        .unwrap();
    let (one, other) = (on(&server), on(&server));
    (server, [memory, one, other])
}

#[tokio::test]
async fn all_keys_are_taken_or_none() {
    let (_server, managers) = places();
    for locks in &managers {
        let held = locks.lock("b").acquire().await.unwrap();
        let refused = locks.lock_all(["a", "b", "c"]).wait(Duration::ZERO).acquire().await;
        assert!(refused.is_err_and(|error| error.is_busy()));
        assert_free(locks, ["a", "c"]).await;
        held.release().await.unwrap();
        let all = locks.lock_all(["c", "a", "b", "a"]).acquire().await.unwrap();
        assert_eq!(all.handle().keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        for taken in ["a", "b", "c"] {
            let refused = locks.lock(taken).wait(Duration::ZERO).acquire().await;
            assert!(refused.is_err_and(|error| error.is_busy()), "{taken}");
        }
        all.release().await.unwrap();
        assert_free(locks, ["a", "b", "c"]).await;
    }
}

#[tokio::test]
async fn whoever_waits_is_woken_by_any_of_the_keys() {
    let (server, managers) = places();
    let [memory, one, other] = managers;
    for (locks, holder, on_server) in [(&memory, &memory, false), (&one, &other, true)] {
        for busy in ["a", "b", "c"] {
            let held = holder.lock(busy).acquire().await.unwrap();
            let waiting = tokio::spawn(locks.lock_all(["a", "b", "c"]).acquire());
            if on_server {
                eventually("the call stands in the queue", || {
                    let stands = server.keys().iter().any(|key| key.contains("%lock-queue"));
                    async move { stands }
                })
                .await;
            } else {
                tokio::task::yield_now().await;
            }
            held.release().await.unwrap();
            waiting.await.unwrap().unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_opposite_directions_never_deadlock_and_never_overlap() {
    let (server, managers) = places();
    for pair in [[0, 0], [1, 2]] {
        let inside: Arc<[AtomicBool; 4]> = Arc::default();
        let sections = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for task in 0..8_usize {
            let locks = managers[pair[task % 2]].clone();
            let (inside, sections) = (Arc::clone(&inside), Arc::clone(&sections));
            tasks.push(tokio::spawn(async move {
                for round in 0..40 {
                    let (from, to) = ((task + round) % 4, (task * 3 + round * 2 + 1) % 4);
                    let keys = [format!("account:{from}"), format!("account:{to}")];
                    let body = async {
                        for account in [from, to] {
                            let alone = !inside[account].swap(true, Ordering::SeqCst) || from == to;
                            assert!(alone, "two bodies under account:{account}");
                        }
                        tokio::task::yield_now().await;
                        for account in [from, to] {
                            inside[account].store(false, Ordering::SeqCst);
                        }
                    };
                    locks.lock_all(keys).run(body).await.unwrap();
                    sections.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(sections.load(Ordering::SeqCst), 320);
    }
    let mut left = server.keys();
    left.retain(|key| !key.contains("%lock-"));
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn losing_one_key_cancels_the_body_and_the_others_are_released() {
    let server = Server::start();
    let locks = on(&server);
    let request = locks.lock_all(["a", "b"]);
    let lost = tokio::spawn(request.run(std::future::pending::<()>()));
    eventually("both are taken", || {
        let taken = server.exists("dist_lock:a") && server.exists("dist_lock:b");
        async move { taken }
    })
    .await;
    // Early enough or late: the watchdog's first look finds it.
    server.cmd(&["DEL", "dist_lock:b"]);
    let lost = lost.await.unwrap();
    assert!(
        matches!(&lost, Err(LockError::Lost { key, reason: LostReason::Deleted, .. }) if &**key == "a, b"),
        "{lost:?}"
    );
    eventually("the other key is released", || {
        let released = !server.exists("dist_lock:a");
        async move { released }
    })
    .await;
}

#[tokio::test]
async fn one_token_fences_all_keys() {
    let (_server, managers) = places();
    for locks in &managers {
        let before = locks.lock("b").fencing(true).acquire().await.unwrap();
        let last = before.handle().fencing_token().await.unwrap().get();
        before.release().await.unwrap();
        let all = locks.lock_all(["a", "b"]).fencing(true).acquire().await.unwrap();
        let token = all.handle().fencing_token().await.unwrap().get();
        assert!(token > last);
        all.release().await.unwrap();
        let later = locks.lock_all(["a", "b"]).acquire().await.unwrap();
        assert!(later.handle().fencing_token().await.unwrap().get() > token);
        later.release().await.unwrap();
    }
}

#[tokio::test]
async fn whoever_has_lost_one_of_the_keys_gets_no_token() {
    let server = Server::start();
    let locks = on(&server);
    for _ in 0..20 {
        let all = locks.lock_all(["a", "b"]).acquire().await.unwrap();
        server.cmd(&["SET", "dist_lock:b", "another"]);
        let refused = all.handle().fencing_token().await;
        assert!(refused.is_err_and(|error| error.is_lost()));
        drop(all);
        server.cmd(&["DEL", "dist_lock:b"]);
    }
}

#[tokio::test]
async fn a_dropped_guard_and_a_dropped_call_leave_nothing() {
    let (server, [_, one, other]) = places();
    drop(one.lock_all(["a", "b"]).acquire().await.unwrap());
    let held = other.lock_all(["b", "c"]).acquire().await.unwrap();
    let waiting = tokio::spawn(one.lock_all(["a", "b"]).acquire());
    eventually("it waits", || {
        let stands = server.keys().iter().any(|key| key.contains("%lock-queue"));
        async move { stands }
    })
    .await;
    waiting.abort();
    assert!(waiting.await.is_err());
    other.lock("a").acquire().await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
    eventually("nothing is left", || {
        let left = server.keys().iter().any(|key| !key.contains("%lock-fence"));
        async move { !left }
    })
    .await;
}

#[tokio::test]
async fn contradictions_are_refused_with_what_to_ask_for() {
    let (_server, [locks, ..]) = places();
    let contradictions = [
        (locks.lock_all(["a", "b"]).read(), RequestProblem::SeveralInAMode),
        (locks.lock_all(["a", "b"]).fair(true), RequestProblem::SeveralFair),
        (locks.lock("a").semaphore(0), RequestProblem::NoPermits),
        (locks.lock("a").owner(""), RequestProblem::NoOwner),
        (locks.lock("a").read().fencing(true), RequestProblem::ManyToFence),
        (locks.lock("a").semaphore(2).fencing(true), RequestProblem::ManyToFence),
        (locks.lock("a").read().write(), RequestProblem::TwoModes),
        (
            locks.lock("a").mode(LockMode::Exclusive).owner("flow"),
            RequestProblem::TwoModes,
        ),
    ];
    for (request, expected) in contradictions {
        let refused = request.clone().acquire().await;
        assert!(
            matches!(&refused, Err(LockError::InvalidRequest { problem, .. }) if *problem == expected),
            "{request:?}: {refused:?}"
        );
    }
    let none: [&str; 0] = [];
    let refused = locks.lock_all(none).acquire().await;
    assert!(matches!(refused, Err(LockError::InvalidKey { .. })));
}
