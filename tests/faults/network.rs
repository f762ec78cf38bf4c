//! Faults between client and server, seen by an acquisition (`docs/faults.md`, rows 28 to 30). The
//! leases are long: a key that is gone was released, and one that stays would block others for two
//! minutes.

use std::time::Duration;

use lock_runtime::{Backoff, LockError, LockManager};
use lock_tests::proxy::Close;
use lock_tests::{Action, PATIENCE, Proxy, Server, cases, eventually};

use crate::stage::{
    ANSWER, JumpingClock, LONG, acquires, answered_within, builder, connected, connected_by, gone, hurried, releases,
    stored,
};

/// Takes a lock while the first attempt meets `fault`, which must end in the lock being held, and then given back.
async fn held_in_spite_of(fault: Action) {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = hurried(&proxy.url()).await;
    let hit = proxy.on_next(acquires("faulty", LONG), fault);
    let guard = locks
        .lock("faulty")
        .lease(LONG)
        .wait(PATIENCE)
        .acquire()
        .await
        .expect("a later attempt succeeds");
    assert_eq!(hit.times(), 1);
    assert!(guard.handle().is_held() && server.exists(&stored("faulty")));
    // Whatever cleans up after the first attempt must leave the second one's lock alone.
    tokio::time::sleep(ANSWER * 3).await;
    // The manager is a hurried one, which a busy machine answers too late now and then.
    eventually("the lock to be known as held", || async {
        match guard.handle().verify().await {
            Ok(_) => true,
            Err(LockError::Store { .. }) => false,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
    let released = guard.release().await;
    assert!(
        matches!(released, Ok(()) | Err(LockError::Store { .. })),
        "{released:?}"
    );
    gone(&server, "faulty").await;
}

/// A connected manager for requests that must have been sent by the time that their answer is given up.
async fn soon_answered(url: &str) -> LockManager {
    answered_within(url, Duration::from_secs(5)).await
}

/// Takes a lock by a single attempt that meets `fault`. The caller cannot know the outcome, and nothing may stay behind.
async fn nothing_left_after(fault: Action) {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = soon_answered(&proxy.url()).await;
    let hit = proxy.on_next(acquires("faulty", LONG), fault);
    let refused = locks.lock("faulty").lease(LONG).wait(Duration::ZERO).acquire().await;
    assert!(matches!(refused, Err(LockError::Store { .. })), "{refused:?}");
    hit.done().await;
    gone(&server, "faulty").await;
    // Nor does it come back.
    proxy.release();
    let other = connected(&server.url()).await;
    other
        .lock("faulty")
        .lease(LONG)
        .wait(PATIENCE)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    gone(&server, "faulty").await;
}

cases! {
    // docs/faults.md, row 28.
    a_lost_request_is_repeated_on_a_new_connection: held_in_spite_of(Action::LoseRequest);
    // docs/faults.md, row 28.
    a_request_lost_with_its_connection_is_repeated: held_in_spite_of(Action::CloseBefore(Close::Reset));
    // docs/faults.md, row 28.
    a_lost_request_leaves_nothing_behind: nothing_left_after(Action::LoseRequest);
    // docs/faults.md, row 29.
    a_lock_whose_reply_was_lost_ends_up_held: held_in_spite_of(Action::LoseReply);
    // docs/faults.md, row 29.
    a_lock_whose_reply_was_lost_with_its_connection_ends_up_held: held_in_spite_of(Action::CloseAfter(Close::Fin));
}

// docs/faults.md, row 29.
#[tokio::test]
async fn a_lock_whose_reply_was_lost_is_released_when_its_caller_gave_up() {
    nothing_left_after(Action::LoseReply).await;
    nothing_left_after(Action::CloseAfter(Close::Reset)).await;
}

// docs/faults.md, row 30.
#[tokio::test]
async fn a_request_delivered_after_its_caller_gave_up_takes_no_lock() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = soon_answered(&proxy.url()).await;
    // The client's connection is closed, and its request arrives later all the same.
    let hit = proxy.on_next(acquires("late", LONG), Action::HoldThenClose(Close::Fin));
    let refused = locks.lock("late").lease(LONG).wait(Duration::ZERO).acquire().await;
    assert!(matches!(refused, Err(LockError::Store { .. })), "{refused:?}");
    hit.done().await;
    // A release on another connection overtakes it, and finds nothing.
    eventually("a release that overtook the acquire", || {
        let answered = proxy.count(|command| releases("late")(command) && command.reply.is_some());
        async move { answered > 0 }
    })
    .await;
    assert!(!server.exists(&stored("late")));
    let acquire = proxy
        .commands()
        .into_iter()
        .find(|command| acquires("late", LONG)(command))
        .unwrap();
    proxy.release();
    eventually("the late acquire to be executed", || {
        let done = proxy
            .commands()
            .into_iter()
            .any(|command| command.at == acquire.at && command.reply.is_some());
        async move { done }
    })
    .await;
    gone(&server, "late").await;
}

// docs/faults.md, row 30. The real thing: the server stands still, and finds the request in its socket when it wakes.
#[tokio::test]
async fn a_server_that_wakes_after_the_caller_gave_up_keeps_no_lock() {
    let server = Server::start();
    let locks = soon_answered(&server.url()).await;
    let others = connected(&server.url()).await;
    server.pause();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..10 {
        calls.spawn(
            locks
                .lock(format!("frozen:{number}"))
                .lease(LONG)
                .wait(Duration::ZERO)
                .acquire(),
        );
    }
    while let Some(refused) = calls.join_next().await {
        assert!(matches!(refused.unwrap(), Err(LockError::Store { .. })));
    }
    server.resume();
    for number in 0..10 {
        gone(&server, &format!("frozen:{number}")).await;
        // The server has answered since it woke; had it not yet executed the acquire, the key would come back.
        others
            .lock(format!("frozen:{number}"))
            .wait(PATIENCE)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(server.keys(), [""; 0]);
}

// docs/faults.md, row 35: a grant that comes when the lease is over or about to end is no lock.
#[tokio::test]
async fn a_grant_that_comes_too_late_is_given_back() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    // A lock is good until its lease ends, or until it cannot be renewed in time, or has no renewal left when one is due.
    // A key for each: a call whose key was wanted a moment ago may ask in another way.
    for (key, renew, renewals, part, is_late) in [
        ("a", false, 30, 0.95, false),
        ("b", false, 30, 1.0, true),
        ("c", true, 30, 0.7, false),
        ("d", true, 30, 0.95, true),
        ("e", true, 0, 0.7, true),
    ] {
        let took = LONG.mul_f64(part);
        let hit = proxy.on_next(acquires(key, LONG), Action::HoldReply);
        let request = locks
            .lock(key)
            .lease(LONG)
            .wait(LONG * 5)
            .renew(renew)
            .max_renewals(renewals);
        let acquire = tokio::spawn(request.acquire());
        hit.done().await;
        let first = server.value(&stored(key));
        clock.jump(took);
        proxy.release();
        let guard = acquire.await.unwrap().unwrap();
        assert!(guard.handle().is_held(), "a lock is never granted after its end");
        let is_another = server.value(&stored(key)) != first;
        assert_eq!(is_another, is_late, "after {took:?}, {renew}, {renewals}");
        guard.release().await.unwrap();
        gone(&server, key).await;
    }
}

// A slow line has the connect time-out for all of them.
#[tokio::test]
async fn the_checks_of_a_first_connection_do_not_wait_for_one_another() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let held = proxy.on_next(|command| command.is("SET"), Action::HoldReply);
    let locks = builder(&proxy.url()).build().unwrap();
    let connects = tokio::spawn(async move { locks.check_connection().await });
    held.done().await;
    proxy.wait_for("the last check", |command| command.is("EVALSHA")).await;
    proxy.release();
    connects.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_busy_call_sends_no_last_attempt_that_it_cannot_wait_for() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // After the first attempt nothing but the end of `wait` ends the pause.
    let day = Duration::from_secs(86_400);
    let locks = builder(&proxy.url()).backoff(Backoff::new(day, day)).build().unwrap();
    locks.check_connection().await.unwrap();
    for key in ["busy", "fenced"] {
        server.cmd(&["SET", &stored(key), "another"]);
    }
    // Long enough for the first answer.
    let request = |key: &str| locks.lock(key).lease(LONG).wait(Duration::from_secs(3));
    let (busy, fenced) = tokio::join!(request("busy").acquire(), request("fenced").fencing(true).acquire());
    for busy in [busy, fenced] {
        assert!(busy.as_ref().is_err_and(LockError::is_busy), "{busy:?}");
    }
    // What they had sent, or were still to send in the background, comes before this.
    locks
        .lock("other")
        .lease(LONG)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for key in ["busy", "fenced"] {
        let sent: Vec<_> = proxy
            .commands()
            .iter()
            .filter(|command| acquires(key, LONG)(command))
            .map(ToString::to_string)
            .collect();
        assert_eq!(sent.len(), 1, "one attempt each: {sent:#?}");
    }
}

/// A runtime of one thread, which runs nothing between two jobs.
fn runtime_of_jobs() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap()
}

// docs/faults.md, row 113.
#[test]
fn a_runtime_that_is_driven_per_job_sees_that_the_server_has_ended_its_idle_connection() {
    let server = Server::start();
    let runtime = runtime_of_jobs();
    let locks = runtime.block_on(connected(&server.url()));
    // From 50 ms on, a call looks.
    let idle = || {
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
        std::thread::sleep(Duration::from_millis(60));
    };
    for round in 0..6 {
        idle();
        let request = locks.lock("job").lease(LONG);
        let guard = runtime.block_on(async {
            if round % 2 == 1 {
                request.acquire().await
            } else {
                request.try_acquire().await
            }
        });
        let guard = guard.unwrap();
        idle();
        assert!(runtime.block_on(locks.inspect("job")).unwrap().is_some());
        idle();
        runtime.block_on(guard.release()).unwrap();
        assert!(!server.exists(&stored("job")));
    }
}

// docs/faults.md, row 114.
#[test]
fn a_server_given_by_name_is_reached_though_the_runtime_has_no_thread_for_blocking_work() {
    let server = Server::start();
    let runtime = runtime_of_jobs();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let blocking = runtime.spawn_blocking(move || {
        begun.send(()).unwrap();
        let _ = ended.recv();
    });
    has_begun.recv().unwrap();
    let url = server.url().replace("127.0.0.1", "localhost");
    let locks = builder(&url).build().unwrap();
    let guard = runtime.block_on(locks.lock("named").lease(LONG).try_acquire()).unwrap();
    runtime.block_on(guard.release()).unwrap();
    drop(end);
    runtime.block_on(blocking).unwrap();
}
