//! A key that another host holds.

use std::time::Duration;

use lock_runtime::testing::TestLocks;
use lock_runtime::{LockError, LockMode};
use tokio::time::Instant;

use crate::witness::panic_of;

#[tokio::test(start_paused = true)]
async fn a_busy_call_names_the_other_host_and_waits_for_as_long_as_it_may() {
    let kit = TestLocks::new();
    let _other = kit.hold("k");
    let began = Instant::now();
    let wait = Duration::from_secs(5);
    let busy = kit.manager().lock("k").wait(wait).acquire().await.unwrap_err();
    let LockError::Busy {
        holder: Some(holder), ..
    } = &busy
    else {
        panic!("{busy:?}")
    };
    assert_eq!(holder.host(), Some("another-host"));
    assert_ne!(holder.pid(), Some(std::process::id()));
    assert!(began.elapsed() >= wait);
}

/// What the kit holds has no end in sight: neither a person nor a web client is told to come back in a year.
#[tokio::test(start_paused = true)]
async fn a_busy_call_is_told_a_sensible_time_to_come_back() {
    use axum::response::IntoResponse;

    let kit = TestLocks::new();
    let _other = kit.hold("k");
    for (wait, seconds) in [(0, "1"), (5, "5"), (600, "30")] {
        let wait = Duration::from_secs(wait);
        let busy = kit.manager().lock("k").wait(wait).acquire().await.unwrap_err();
        let text = busy.to_string();
        assert!(!text.contains("of its lease"), "{text}");
        assert_eq!(busy.into_response().headers()["retry-after"], seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_lock_at_the_moment_in_which_the_other_lets_go() {
    let kit = TestLocks::new();
    let other = kit.hold("k");
    let locks = kit.manager();
    let waiting = tokio::spawn(async move {
        let guard = locks.lock("k").acquire().await.unwrap();
        (guard, Instant::now())
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let released = Instant::now();
    other.release();
    let (_guard, granted) = waiting.await.unwrap();
    assert_eq!(granted, released);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_dies_blocks_others_for_its_lease() {
    let kit = TestLocks::new();
    let began = Instant::now();
    let lease = Duration::from_secs(3);
    let other = kit.hold_as("k", &LockMode::Exclusive, lease);
    let guard = kit.manager().lock("k").acquire().await.unwrap();
    assert!(began.elapsed() >= lease && began.elapsed() < lease * 2);
    // What has expired is nobody's to release.
    drop(other);
    assert!(kit.is_locked("k"));
    guard.release().await.unwrap();
    assert!(!kit.is_locked("k"));
}

#[tokio::test(start_paused = true)]
async fn a_reader_elsewhere_lets_readers_in_and_keeps_writers_out() {
    let kit = TestLocks::new();
    let _reader = kit.hold_as("k", &LockMode::Read, Duration::from_secs(60));
    let asked = || kit.manager().lock("k").wait(Duration::ZERO);
    asked().read().acquire().await.unwrap().release().await.unwrap();
    assert!(asked().write().acquire().await.is_err_and(|error| error.is_busy()));
    let (message, ..) = panic_of(|| kit.hold_as("k", &LockMode::Write, Duration::from_secs(60)));
    assert!(message.contains("another-host"), "{message}");
    assert_eq!(*kit.locked()[0].mode(), LockMode::Read);
}

#[tokio::test(start_paused = true)]
async fn holding_what_somebody_has_is_a_mistake_that_names_the_holder() {
    let kit = TestLocks::new();
    let guard = kit.manager().lock("k").label("the-first").acquire().await.unwrap();
    let (message, file, _) = panic_of(|| kit.hold("k"));
    assert!(message.contains("the-first") && message.contains("steal"), "{message}");
    assert_eq!(file, file!());
    guard.release().await.unwrap();
}

/// In real time, and over several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kit_works_on_a_clock_that_runs() {
    let kit = TestLocks::new();
    let other = kit.hold("k");
    let locks = kit.manager();
    let waiting = tokio::spawn(async move {
        let body = std::future::pending::<()>();
        locks.lock("k").wait(Duration::from_secs(60)).run(body).await
    });
    other.release();
    lock_tests::eventually("the body runs", async || kit.was_locked("k")).await;
    kit.steal("k");
    let lost = tokio::time::timeout(lock_tests::PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(lost.is_err_and(|error| error.is_lost()));
}
