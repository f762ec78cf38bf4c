//! Promises of the memory store beyond those of every store: releases wake waiters, and are
//! immediate.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::{HolderValue, Ownership, Receipt, ReleaseRequest};
use lock_runtime::{Backoff, LockManager, LockRequest};
use tokio::time::Instant;

use crate::place::{GRANTED, InMemory, LONG, Place};

#[tokio::test(start_paused = true)]
async fn a_release_without_waiting_is_done_when_it_returns() {
    let place = InMemory::new();
    let (a, b) = (place.client("a"), place.client("b"));
    assert!(a.store.release_is_immediate());
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    let receipt = Receipt::default();
    let release = |value: &str| {
        let request = ReleaseRequest {
            key: &"k".into(),
            value: &HolderValue::of(value),
            keep: None,
            unanswered_on: None,
            elsewhere: false,
            queued: None,
            leave_free: None,
            receipt: &receipt,
        };
        a.store.release_now(&request)
    };
    assert_eq!(release("b"), Some(Ownership::Foreign));
    assert_eq!(release("a"), Some(Ownership::Owned));
    assert_eq!(b.acquire("k", LONG).await, GRANTED);
}

/// Through managers: the waiter gets the lock in the very moment of the release, on a clock that only moves when nothing else can.
#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_lock_at_the_moment_of_the_release() {
    let store = Arc::new(MemoryStore::new());
    let slow = Backoff::new(Duration::from_secs(1000), Duration::from_secs(1000));
    let manager = || {
        LockManager::builder("memory://")
            .store(Arc::clone(&store) as _)
            .backoff(slow)
            .build()
            .unwrap()
    };
    let (holder, waiter) = (manager(), manager());
    let guard = holder.lock("k").acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        let guard = waiter.lock("k").wait(Duration::from_secs(10)).acquire().await.unwrap();
        (guard, Instant::now())
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let (_guard, granted) = waiting.await.unwrap();
    assert!(
        granted - released < Duration::from_millis(1),
        "granted {:?} later",
        granted - released
    );
}

/// Nothing of one test may depend on how another one moves its clock.
#[test]
fn paused_clocks_of_two_runtimes_that_share_a_manager_do_not_touch_each_other() {
    let paused = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    let locks = LockManager::builder("memory://").build().unwrap();
    let lease = Duration::from_secs(10);
    let (began, first) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let theirs = locks.clone();
    let blocked = std::thread::spawn(move || {
        paused().block_on(async {
            let guard = theirs.lock("first").lease(lease).acquire().await.unwrap();
            // Its watchdog has begun to run there.
            tokio::task::yield_now().await;
            began.send(()).unwrap();
            // The runtime stands still meanwhile; no time passes there.
            let _ = ended.recv();
            assert!(guard.handle().is_held(), "another runtime's time ended the lock");
            guard.release().await.unwrap();
        });
    });
    first.recv().unwrap();
    let second = paused().block_on(async {
        let minute = tokio::time::sleep(Duration::from_secs(60));
        locks.lock("second").lease(lease).run(minute).await
    });
    drop(end);
    blocked.join().unwrap();
    second.expect("the lock was renewed on its own clock");
}

#[tokio::test(start_paused = true)]
async fn keys_kept_for_a_minimum_hold_do_not_pile_up() {
    let store = Arc::new(MemoryStore::new());
    let locks = LockManager::builder("memory://")
        .store(Arc::clone(&store) as _)
        .build()
        .unwrap();
    let count = || -> usize {
        let shown = format!("{store:?}");
        let digits = shown.trim_start_matches(|c: char| !c.is_ascii_digit());
        digits
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    for number in 0..1000 {
        let request = locks.lock(format!("job:{number}")).at_least(Duration::from_secs(1));
        request.acquire().await.unwrap().release().await.unwrap();
        if number == 0 {
            assert_eq!(count(), 1, "kept, and seen: {store:?}");
        }
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    // Ten are kept at any time.
    assert!(count() <= 200, "{} keys are still there", count());
}

/// Polls a call once.
fn is_waiting<T>(call: Pin<&mut dyn Future<Output = T>>) -> bool {
    call.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// The clock is exact: a waiting call looks at the lock four times a second.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_handed_to_a_call_which_is_not_polled_any_more_goes_to_the_next_one() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let requests: [fn(&LockManager) -> LockRequest; 2] = [
        |locks| locks.lock("exclusive").fair(true),
        |locks| locks.lock("shared").write(),
    ];
    for request in requests {
        let held = request(&locks).acquire().await.unwrap();
        let mut parked = Box::pin(request(&locks).acquire());
        assert!(is_waiting(parked.as_mut()));
        let next = tokio::spawn(request(&locks).wait(Duration::from_secs(60)).acquire());
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        let released = tokio::time::Instant::now();
        let next = next.await.unwrap().unwrap();
        assert!(
            released.elapsed() < Duration::from_secs(2),
            "after {:?}",
            released.elapsed()
        );
        // The call waits anew.
        assert!(is_waiting(parked.as_mut()));
        next.release().await.unwrap();
        parked.await.unwrap().release().await.unwrap();
    }
}
