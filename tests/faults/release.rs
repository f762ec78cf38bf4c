//! A lock is released however its body ends. Every lease here is two minutes long, so a key that
//! disappears was released.

use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager};
use lock_tests::patience::eventually_blocking;
use lock_tests::{Action, Command, PATIENCE, Proxy, Server, eventually, lock_child};
use tokio::sync::oneshot;

use crate::stage::{LONG, acquires, answered_within, builder, connected, gone, stored};

#[tokio::test]
async fn a_body_that_ends_has_released_its_lock_when_the_call_returns() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let request = || locks.lock("normal").lease(LONG);

    assert_eq!(request().run(async { 7 }).await.unwrap(), 7);
    assert!(!server.exists(&stored("normal")));

    let failed = request()
        .run(async { Err::<(), _>("the body's own error") })
        .await
        .unwrap();
    assert_eq!(failed, Err("the body's own error"));
    assert!(!server.exists(&stored("normal")));

    let asked = request().run(async { "x".parse::<u8>().map(|_| ()) }).await.unwrap();
    assert!(asked.is_err());
    assert!(!server.exists(&stored("normal")));

    assert!(request().run(questions(&server)).await.unwrap().is_err());
    assert!(!server.exists(&stored("normal")));

    request().acquire().await.unwrap().release().await.unwrap();
    assert!(!server.exists(&stored("normal")));
}

async fn questions(server: &Server) -> Result<u8, std::num::ParseIntError> {
    assert!(server.exists(&stored("normal")));
    tokio::task::yield_now().await;
    let number: u8 = "x".parse()?;
    Ok(number)
}

#[tokio::test]
async fn a_panic_reaches_the_caller_and_the_lock_is_released() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    // At the first poll, and at a later one.
    for polls in [0, 3] {
        let call = tokio::spawn(locks.lock("panic").lease(LONG).run(async move {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            resume_unwind(Box::new("the body's own panic"));
        }));
        let payload = call.await.unwrap_err().into_panic();
        assert_eq!(payload.downcast_ref(), Some(&"the body's own panic"));
        gone(&server, "panic").await;
    }
}

#[tokio::test]
async fn a_cancelled_call_releases_its_lock() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let body = |began: oneshot::Sender<()>| async {
        assert!(server.exists(&stored("cancelled")));
        began.send(()).unwrap();
        std::future::pending::<()>().await;
    };
    // By `select!`, as a web server does when its client leaves.
    let (began, started) = oneshot::channel();
    tokio::select! {
        _ = locks.lock("cancelled").lease(LONG).run(body(began)) => panic!("the body never ends"),
        _ = started => {}
    }
    gone(&server, "cancelled").await;
    // By a time-out.
    let (began, started) = oneshot::channel();
    let call = locks.lock("cancelled").lease(LONG).run(body(began));
    let (timed, started) = tokio::join!(tokio::time::timeout(Duration::from_secs(5), call), started);
    assert!(timed.is_err());
    started.unwrap();
    gone(&server, "cancelled").await;
    // By the end of its task.
    let (began, started) = oneshot::channel();
    let call = tokio::spawn(locks.lock("cancelled").lease(LONG).run(async move {
        began.send(()).unwrap();
        std::future::pending::<()>().await;
    }));
    started.await.unwrap();
    call.abort();
    gone(&server, "cancelled").await;
}

#[tokio::test]
async fn a_guard_dropped_in_any_place_releases_its_lock() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let take = |key: &'static str| {
        let request = locks.lock(key).lease(LONG);
        async { request.acquire().await.unwrap() }
    };
    let elsewhere = |guard: LockGuard| std::thread::spawn(move || drop(guard)).join().unwrap();

    drop(take("here").await);
    elsewhere(take("thread").await);
    let guard = take("blocking").await;
    tokio::task::spawn_blocking(move || drop(guard)).await.unwrap();
    let guard = take("runtime").await;
    std::thread::spawn(move || {
        let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
        other.block_on(async { drop(guard) });
    })
    .join()
    .unwrap();
    for key in ["here", "thread", "blocking", "runtime"] {
        gone(&server, key).await;
    }
}

#[test]
fn a_call_half_done_and_dropped_on_another_thread_releases_its_lock() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Nobody drives the connection of the call any more. After the response time-out another one releases the lock.
    let locks = runtime.block_on(answered_within(&server.url(), PATIENCE / 6));
    let mut call = Box::pin(locks.lock("half").lease(LONG).run(std::future::pending::<()>()));
    runtime.block_on(async {
        while !server.exists(&stored("half")) {
            let waited = tokio::time::timeout(Duration::from_millis(5), &mut call).await;
            assert!(waited.is_err(), "the body never ends");
        }
    });
    std::thread::spawn(move || drop(call)).join().unwrap();
    eventually_blocking("the lock to be released", || !server.exists(&stored("half")));
}

#[test]
fn a_guard_that_outlives_its_runtime_releases_its_lock() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // The other runtime has no network, which a panic tells there. Its backtrace takes its time on a busy machine.
    let locks = LockManager::builder(&server.url());
    let locks = locks.response_timeout(Duration::from_secs(20)).build().unwrap();
    let guard = runtime.block_on(locks.lock("outlives").lease(LONG).acquire()).unwrap();
    let released = runtime.block_on(locks.lock("awaited").lease(LONG).acquire()).unwrap();
    drop(runtime);
    drop(guard);
    eventually_blocking("the lock to be released", || !server.exists(&stored("outlives")));
    // Another runtime serves as well.
    let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
    other.block_on(released.release()).unwrap();
    assert!(!server.exists(&stored("awaited")));
}

#[tokio::test]
async fn shutdown_returns_when_every_lock_has_been_released() {
    let server = Server::start();
    let grace = Duration::from_millis(200);
    let locks = builder(&server.url()).shutdown_grace(grace).build().unwrap();
    for number in 0..50 {
        drop(
            locks
                .lock(format!("dropped:{number}"))
                .lease(LONG)
                .acquire()
                .await
                .unwrap(),
        );
    }
    let (began, started) = oneshot::channel();
    let stubborn = tokio::spawn(locks.lock("stubborn").lease(LONG).run(async {
        began.send(()).unwrap();
        std::future::pending::<()>().await;
    }));
    started.await.unwrap();
    tokio::time::timeout(PATIENCE, locks.shutdown())
        .await
        .expect("the grace period has an end");
    assert_eq!(server.keys(), [""; 0]);
    assert!(matches!(stubborn.await.unwrap(), Err(LockError::Closed { .. })));
    assert!(matches!(
        locks.lock("late").acquire().await,
        Err(LockError::Closed { .. })
    ));
}

#[tokio::test]
async fn shutdown_lets_a_body_end_in_its_grace_period() {
    let server = Server::start();
    let locks = builder(&server.url()).shutdown_grace(PATIENCE).build().unwrap();
    let (began, started) = oneshot::channel();
    let (enough, told) = oneshot::channel();
    let call = tokio::spawn(locks.lock("graceful").lease(LONG).run(async {
        began.send(()).unwrap();
        told.await.unwrap();
        7
    }));
    started.await.unwrap();
    let down = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown().await }
    });
    lock_tests::eventually("the manager to be closed", || async {
        let late = locks.lock("late").wait(Duration::ZERO).acquire().await;
        matches!(late, Err(LockError::Closed { .. }))
    })
    .await;
    assert!(!down.is_finished() && server.exists(&stored("graceful")));
    enough.send(()).unwrap();
    down.await.unwrap();
    assert_eq!(call.await.unwrap().unwrap(), 7);
    assert_eq!(server.keys(), [""; 0]);
}

#[tokio::test]
async fn a_process_that_ends_after_shutdown_leaves_no_lock() {
    let server = Server::start();
    let mut child = lock_child!("hold", server.url(), "exits", "120000").spawn();
    child.line("holding").await;
    assert!(server.exists(&stored("exits")));
    child.say("shutdown");
    child.line("down").await;
    assert!(child.exit().await.success());
    assert!(!server.exists(&stored("exits")), "the lock outlived its process");
}

#[tokio::test]
async fn shutdown_waits_for_an_acquire_under_way_which_takes_no_lock() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = LockManager::builder(&proxy.url())
        .response_timeout(PATIENCE)
        .shutdown_grace(PATIENCE)
        .build()
        .unwrap();
    locks.check_connection().await.unwrap();
    let granted = proxy.on_next(acquires("under way", LONG), Action::HoldReply);
    let acquire = tokio::spawn(locks.lock("under way").lease(LONG).wait(PATIENCE).acquire());
    granted.done().await;
    proxy
        .wait_for("the grant", |command| {
            command.mentions(&stored("under way")) && command.reply.is_some()
        })
        .await;
    assert!(server.exists(&stored("under way")));
    let mut down = pin!(locks.shutdown());
    let polled = poll_fn(|cx| Poll::Ready(down.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "it does not wait for the acquire");
    let late = locks.lock("late").acquire().await;
    assert!(matches!(late, Err(LockError::Closed { .. })), "{late:?}");
    proxy.release();
    down.await;
    assert_eq!(server.keys(), [""; 0]);
    let ended = acquire.await.unwrap();
    assert!(matches!(ended, Err(LockError::Closed { .. })), "{ended:?}");
}

#[tokio::test]
async fn a_release_that_was_refused_for_a_while_is_finished_in_the_background() {
    let server = Server::start();
    let may = |rule: &str| {
        server.cmd(&["ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", rule]);
    };
    may("+evalsha");
    let locks = connected(&format!("redis://limited:secret@{}", server.addr())).await;
    let awaited = locks.lock("awaited").lease(LONG).acquire().await.unwrap();
    let dropped = locks.lock("dropped").lease(LONG).acquire().await.unwrap();
    may("-evalsha");
    let refused = awaited.release().await;
    assert!(matches!(refused, Err(LockError::Store { .. })), "{refused:?}");
    drop(dropped);
    assert!(server.exists(&stored("awaited")) && server.exists(&stored("dropped")));
    may("+evalsha");
    gone(&server, "awaited").await;
    gone(&server, "dropped").await;
}

#[tokio::test]
async fn a_minimum_hold_does_not_begin_anew_with_each_try_of_its_release() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    let at_least = Duration::from_secs(20);
    let asked = Instant::now();
    let request = locks.lock("kept").lease(LONG).at_least(at_least);
    let guard = request.acquire().await.unwrap();
    let granted = Instant::now();
    let refusal = Action::error("NOREPLICAS Not enough good replicas to write.");
    let gives_back = |command: &Command| {
        command.is_script() && command.argument(3) == Some(&stored("kept")) && command.mentions("wake:")
    };
    let refused = proxy.on_each(gives_back, refusal);
    drop(guard);
    // It is tried for so long that nothing else takes as much time.
    let tried_for = Duration::from_secs(7);
    tokio::time::sleep(tried_for.saturating_sub(granted.elapsed())).await;
    refused.done_times(6).await;
    proxy.heal();
    let mut ends = asked;
    eventually("the release to be carried out", || {
        let left = server.time_left(&stored("kept")).expect("the key is kept");
        ends = Instant::now() + left;
        async move { left <= at_least }
    })
    .await;
    assert!(
        ends + Duration::from_millis(50) >= asked + at_least,
        "it ended {:?} after the lock was asked for",
        ends - asked
    );
    assert!(
        ends <= granted + at_least + Duration::from_secs(4),
        "it ended {:?} after the grant",
        ends - granted
    );
}
