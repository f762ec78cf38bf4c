//! A lock is given back on every path out of its body. Every lease here is two minutes long: a key that goes was released.

use std::panic::resume_unwind;
use std::time::Duration;

use lock_runtime::{LockError, LockGuard, LockManager};
use lock_tests::patience::eventually_blocking;
use lock_tests::{PATIENCE, Server, lock_child};
use tokio::sync::oneshot;

use crate::stage::{LONG, connected, gone, manager, stored};

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
    let (timed, started) = tokio::join!(tokio::time::timeout(Duration::from_millis(300), call), started);
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
    let locks = runtime.block_on(connected(&server.url()));
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
    let locks = manager(&server.url());
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
    let locks = LockManager::builder(&server.url())
        .shutdown_grace(Duration::from_millis(200))
        .build()
        .unwrap();
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
    let locks = LockManager::builder(&server.url())
        .shutdown_grace(PATIENCE)
        .build()
        .unwrap();
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
