//! Calls that want replicas to have their lock (`docs/faults.md`, rows 96 and 97), on a master with two real replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LostReason, distributed_lock};
use lock_tests::{Action, Command, Flow, PATIENCE, Proxy, Server, eventually};

use crate::stage::{LONG, answered_within, connected, gone, stored};

const PASSWORD: &str = "replicas-wait";

/// A master and two replicas that acknowledge what it writes. One that has loaded the master's data
/// acknowledges nothing for another second.
async fn group() -> (Server, [Server; 2]) {
    let master = Server::builder().arg("repl-diskless-sync-delay", "0").start();
    let replica = || {
        Server::builder()
            .arg("replicaof", &format!("127.0.0.1 {}", master.port()))
            .start()
    };
    let replicas = [replica(), replica()];
    let connection = master.connection().await;
    eventually("both replicas to acknowledge a write", || async {
        let mut connection = connection.clone();
        let mut acknowledged = redis::pipe();
        acknowledged.cmd("SET").arg("written").arg("yes").ignore();
        acknowledged.cmd("WAIT").arg(2).arg(100);
        let answer: (u32,) = acknowledged.query_async(&mut connection).await.unwrap();
        answer == (2,)
    })
    .await;
    (master, replicas)
}

/// A connected manager. Replicas that go on answer in time on a machine that does other work, too, and those that are stopped are not
/// waited for until the end of a test.
async fn limited(url: &str) -> LockManager {
    answered_within(url, Duration::from_secs(5)).await
}

/// Returns `true` if each replica has the lock.
fn have(replicas: &[Server], key: &str) -> bool {
    replicas.iter().all(|replica| replica.exists(&stored(key)))
}

async fn refused(locks: &LockManager, key: &str, replicas: u32) -> LockError {
    let request = locks.lock(key).lease(LONG).wait(PATIENCE).min_replicas(replicas);
    request.run(async { panic!("the body runs") }).await.unwrap_err()
}

#[track_caller]
fn assert_too_few(error: &LockError, of: (u32, u32)) {
    match error {
        LockError::TooFewReplicas {
            acknowledged, wanted, ..
        } => assert_eq!((*acknowledged, *wanted), of),
        other => panic!("{other:?}"),
    }
}

#[distributed_lock(key = "attribute", lease = LONG, min_replicas = WANTED, manager = locks)]
async fn begin(locks: &LockManager, body: impl Future<Output = ()>) -> Result<(), LockError> {
    body.await;
    Ok(())
}

const WANTED: u32 = 2;

#[tokio::test]
async fn a_body_begins_when_replicas_have_its_lock() {
    let (master, replicas) = group().await;
    let locks = connected(&master.url()).await;
    for _ in 0..50 {
        let seen = async { assert!(have(&replicas, "attribute")) };
        begin(&locks, seen).await.unwrap();
    }
    for request in [
        locks.lock("read").read(),
        locks.lock("permit").semaphore(2),
        locks.lock("owner").owner("me"),
        locks.lock_all(["one", "two"]),
        locks.lock("fair").fair(true).fencing(true),
    ] {
        let guard = request.lease(LONG).min_replicas(2).acquire().await.unwrap();
        for replica in &replicas {
            let names = replica.keys();
            assert!(
                guard
                    .handle()
                    .keys()
                    .all(|key| names.iter().any(|name| name.ends_with(key))),
                "{names:?}"
            );
        }
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn too_few_replicas_give_the_lock_back_and_are_counted() {
    let (master, replicas) = group().await;
    let locks = limited(&master.url()).await;
    replicas[0].pause();
    assert_too_few(&refused(&locks, "one", 2).await, (1, 2));
    assert!(!master.exists(&stored("one")), "it has been released");
    // One is enough for this one, which asks at the same time as the one that is refused.
    let enough = locks.lock("enough").lease(LONG).min_replicas(1);
    let (enough, error) = tokio::join!(enough.run(async {}), refused(&locks, "one", 2));
    enough.unwrap();
    assert_too_few(&error, (1, 2));
    replicas[1].pause();
    assert_too_few(&refused(&locks, "none", 1).await, (0, 1));
    assert!(!master.exists(&stored("none")), "it has been released");
    // Which a later attempt may change.
    assert!(error.is_retryable() && error.retry_after().is_some());
    locks.lock("other").run(async {}).await.unwrap();
    for replica in &replicas {
        replica.resume();
    }
    let again = || async {
        let request = locks.lock("one").min_replicas(2);
        request.run(async { assert!(have(&replicas, "one")) }).await.is_ok()
    };
    eventually("the replicas to have caught up", again).await;
}

/// As for a scheduled job: another process may run it at once, since this one has not.
#[tokio::test]
async fn a_call_that_too_few_replicas_have_does_not_keep_its_minimum_hold() {
    let (master, replicas) = group().await;
    let locks = limited(&master.url()).await;
    replicas[0].pause();
    let request = || locks.lock("job").lease(LONG).at_least(LONG);
    let refused = request().min_replicas(2).run(async { panic!("the body runs") }).await;
    assert_too_few(&refused.unwrap_err(), (1, 2));
    assert!(!master.exists(&stored("job")), "it has been released");
    request().min_replicas(1).run(async {}).await.unwrap();
    assert!(master.exists(&stored("job")), "it is kept for its minimum hold");
}

#[tokio::test]
async fn a_replica_that_catches_up_counts() {
    let (master, replicas) = group().await;
    let locks = LockManager::builder(&master.url())
        .response_timeout(PATIENCE)
        .min_replicas(2)
        .build()
        .unwrap();
    replicas[1].pause();
    let body = async { assert!(have(&replicas, "late")) };
    let call = locks.lock("late").lease(LONG).run(body);
    let resume = async {
        eventually("the first replica to have it", || async {
            have(&replicas[..1], "late")
        })
        .await;
        // It waits for the other one, and a call that wants none waits for nothing.
        locks.lock("other").min_replicas(0).run(async {}).await.unwrap();
        replicas[1].resume();
    };
    let (called, ()) = tokio::join!(call, resume);
    called.unwrap();
}

/// Without renewals, it expires while its call waits, and the replicas answer after that.
#[tokio::test]
async fn a_lock_that_expires_before_replicas_have_it_is_lost_and_no_guard_is_returned() {
    let (master, replicas) = group().await;
    let builder = LockManager::builder(&master.url()).response_timeout(PATIENCE);
    let locks = builder.min_replicas(2).build().unwrap();
    replicas[1].pause();
    let lease = Duration::from_secs(4);
    let call = locks.lock("short").lease(lease).renew(false).acquire();
    let resume = async {
        eventually("the lock at the first replica", || async {
            have(&replicas[..1], "short")
        })
        .await;
        gone(&master, "short").await;
        // The renewal that asks about it has given it a whole lease anew at the server.
        tokio::time::sleep(lease).await;
        replicas[1].resume();
    };
    let (called, ()) = tokio::join!(call, resume);
    let error = called.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
}

#[tokio::test]
async fn a_lock_that_was_handed_over_waits_for_replicas_too() {
    let (master, replicas) = group().await;
    let (first, second) = (connected(&master.url()).await, limited(&master.url()).await);
    for (holder, is_another_process) in [(&first, true), (&second, false)] {
        let held = holder.lock("handed").lease(LONG).acquire().await.unwrap();
        for replica in &replicas {
            replica.pause();
        }
        let mut waits = Box::pin(refused(&second, "handed", 1));
        let stands = || async { !is_another_process || master.keys().iter().any(|name| name.contains("%lock-queue")) };
        tokio::select! {
            biased;
            error = &mut waits => panic!("{error:?}"),
            () = eventually("it to wait", stands) => {}
        }
        held.release().await.unwrap();
        assert_too_few(&waits.await, (0, 1));
        gone(&master, "handed").await;
        for replica in &replicas {
            replica.resume();
        }
    }
}

#[tokio::test]
async fn a_nested_call_waits_for_as_many_as_it_wants() {
    let (master, replicas) = group().await;
    let locks = limited(&master.url()).await;
    replicas[0].pause();
    let outer = locks.lock("nested").lease(LONG).min_replicas(1);
    let body = async {
        let inner = || locks.lock("nested").lease(LONG).reentrant(true);
        inner().min_replicas(1).run(async {}).await.unwrap();
        let refused = inner().min_replicas(2).run(async {}).await;
        assert_too_few(&refused.unwrap_err(), (1, 2));
        assert!(master.exists(&stored("nested")), "the outer call holds it");
    };
    outer.reentrant(true).run(body).await.unwrap();
}

/// The renewal that asks if this server has the lock comes to one that has lost it.
#[tokio::test]
async fn a_lock_that_is_lost_before_replicas_have_it_starts_no_body() {
    let (master, replicas) = group().await;
    let proxy = Proxy::to(&master);
    let locks = connected(&proxy.url()).await;
    for (change, expected) in [("DEL", LostReason::Deleted), ("SET", LostReason::Taken)] {
        // A script for one key; one that takes a lock names its queue and the counter as well.
        let renews =
            |command: &Command| command.is_script() && command.mentions("120000") && command.argument(2) == Some("1");
        let renewed = proxy.on_next(renews, Action::Hold);
        let lose = async {
            renewed.done().await;
            let name = stored("lost");
            match change {
                "DEL" => drop(master.cmd(&["DEL", &name])),
                _ => drop(master.cmd(&["SET", &name, "another"])),
            }
            proxy.release();
        };
        let (error, ()) = tokio::join!(refused(&locks, "lost", 1), lose);
        let is_expected = matches!(&error, LockError::Lost { reason, completed: false, .. } if *reason == expected);
        assert!(is_expected, "{error:?}");
        master.cmd(&["DEL", &stored("lost")]);
    }
    drop(replicas);
}

#[tokio::test]
async fn a_call_that_is_polled_no_more_while_it_waits_for_replicas_holds_up_no_other() {
    let (master, replicas) = group().await;
    let locks = connected(&master.url()).await;
    replicas[0].pause();
    let mut parked = Box::pin(locks.lock("parked").lease(LONG).min_replicas(2).acquire());
    let polled = async {
        eventually("its lock to be written", || async { have(&replicas[1..], "parked") }).await;
    };
    tokio::select! {
        biased;
        _ = &mut parked => panic!("a replica is stopped"),
        () = polled => {}
    }
    replicas[0].resume();
    let has_run = Arc::new(AtomicBool::new(false));
    let body = {
        let has_run = Arc::clone(&has_run);
        async move { has_run.store(true, Ordering::SeqCst) }
    };
    locks.lock("other").min_replicas(2).run(body).await.unwrap();
    assert!(has_run.load(Ordering::SeqCst));
    drop(parked);
    gone(&master, "parked").await;
}

/// Nothing else would release its lock for the whole lease, which is renewed. What it is told when it is polled again
/// comes too late.
#[tokio::test]
async fn the_lock_of_a_call_that_is_polled_no_more_while_it_waits_for_replicas_goes_to_others() {
    let (master, _replicas) = group().await;
    let proxy = Proxy::to(&master);
    // A call that is not polled keeps its lock for twice as long.
    let locks = answered_within(&proxy.url(), Duration::from_secs(5)).await;
    let elsewhere = connected(&master.url()).await;
    for others in [&elsewhere, &locks] {
        let waits = proxy.on_next(|command| command.is("WAIT"), Action::Hold);
        let mut parked = Box::pin(locks.lock("parked").lease(LONG).min_replicas(2).acquire());
        tokio::select! {
            biased;
            ended = &mut parked => panic!("no answer has come: {ended:?}"),
            () = waits.done() => {}
        }
        proxy.release();
        let other = others
            .lock("parked")
            .lease(LONG)
            .wait(PATIENCE)
            .acquire()
            .await
            .unwrap();
        // The replicas may have been late as well, on a machine that is.
        let ended = parked.await;
        assert!(
            matches!(ended, Err(LockError::Store { .. } | LockError::TooFewReplicas { .. })),
            "{ended:?}"
        );
        other.handle().verify().await.unwrap();
        other.release().await.unwrap();
    }
}

/// A program in which one call asks for more replicas than there are, or than answer.
#[tokio::test]
async fn a_call_that_waits_for_more_replicas_holds_up_none_that_wants_fewer() {
    let (master, replicas) = group().await;
    let locks = connected(&master.url()).await;
    replicas[0].pause();
    for more in [2, 5] {
        let mut waits = Box::pin(locks.lock("more").lease(LONG).min_replicas(more).acquire());
        let is_waiting = || async { master.ask::<String>(&["INFO", "clients"]).contains("blocked_clients:1") };
        tokio::select! {
            biased;
            ended = &mut waits => panic!("a replica is stopped: {ended:?}"),
            () = eventually("the server to wait for replicas", is_waiting) => {}
        }
        for _ in 0..3 {
            let fewer = locks.lock("fewer").lease(LONG).min_replicas(1);
            tokio::select! {
                biased;
                ended = &mut waits => panic!("the other one should have ended before: {ended:?}"),
                ended = fewer.run(async {}) => ended.unwrap(),
            }
        }
        drop(waits);
        gone(&master, "more").await;
        let is_over = || async { master.ask::<String>(&["INFO", "clients"]).contains("blocked_clients:0") };
        if more == 2 {
            replicas[0].resume();
            eventually("the server to wait no more", is_over).await;
            replicas[0].pause();
        }
    }
}

/// Their renewals take several scripts. One after another, these would take longer than the response time-out.
#[tokio::test]
async fn a_crowd_on_a_slow_line_waits_for_replicas_in_time() {
    const CALLS: usize = 1_500;
    // Fifteen scripts, one after another, take longer. A batch of the releases that follow takes a turn of its own.
    const LIMIT: Duration = Duration::from_secs(25);
    const ONE_WAY: Duration = Duration::from_secs(1);
    let (master, _replicas) = group().await;
    let proxy = Proxy::to(&master);
    let locks = answered_within(&proxy.url(), LIMIT).await;
    // The first one keeps the others until all of them have their locks.
    let first = proxy.on_next(|command| command.is("WAIT"), Action::Hold);
    let mut calls = tokio::task::JoinSet::new();
    for call in 0..CALLS {
        calls.spawn(
            locks
                .lock(format!("crowd:{call}"))
                .lease(LONG)
                .wait(PATIENCE)
                .min_replicas(1)
                .run(async {}),
        );
    }
    first.done().await;
    eventually("all locks to be taken", || async {
        master.ask::<usize>(&["DBSIZE"]) >= CALLS
    })
    .await;
    proxy.both(Flow::Delay(ONE_WAY));
    proxy.release();
    while let Some(ended) = calls.join_next().await {
        ended.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_user_that_may_not_wait_for_replicas_is_told() {
    let (master, _replicas) = group().await;
    let password = format!(">{PASSWORD}");
    master.cmd(&["ACL", "SETUSER", "app", "on", &password, "~*", "&*", "+@all", "-wait"]);
    let url = master.url().replace("redis://", &format!("redis://app:{PASSWORD}@"));
    let locks = connected(&url).await;
    let error = refused(&locks, "forbidden", 1).await;
    let LockError::Store { source, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(
        source.is_permanent() && source.to_string().contains("`+wait`"),
        "{source}"
    );
    gone(&master, "forbidden").await;
}

#[tokio::test]
async fn a_store_in_memory_has_as_many_as_are_wanted() {
    let locks = LockManager::builder("memory://").min_replicas(3).build().unwrap();
    locks.lock("memory").run(async {}).await.unwrap();
}

#[tokio::test]
async fn no_body_begins_after_a_shutdown_that_comes_while_its_call_waits_for_replicas() {
    let (master, replicas) = group().await;
    let locks = LockManager::builder(&master.url())
        .response_timeout(PATIENCE)
        .shutdown_grace(PATIENCE)
        .build()
        .unwrap();
    locks.check_connection().await.unwrap();
    for replica in &replicas {
        replica.pause();
    }
    let request = locks.lock("late").lease(LONG).min_replicas(1);
    let call = tokio::spawn(request.run(async { panic!("the body runs") }));
    eventually("the lock to be taken", || async { master.exists(&stored("late")) }).await;
    tokio::time::timeout(PATIENCE / 2, locks.shutdown())
        .await
        .expect("the shutdown waits for no replicas");
    let ended = call.await.unwrap();
    assert!(matches!(ended, Err(LockError::Closed { .. })), "{ended:?}");
    gone(&master, "late").await;
}
