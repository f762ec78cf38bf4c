//! Replies that are lost.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::testing::TestLocks;
use tokio::time::Instant;

use crate::witness::{Endless, LONG};

/// A call must take longer than this if it has missed a reply: the response time-out is 1 s.
const MISSED: Duration = Duration::from_millis(900);

#[tokio::test(start_paused = true)]
async fn an_acquire_without_its_reply_is_released_and_tried_again() {
    let kit = TestLocks::new();
    kit.drop_next_reply();
    let began = Instant::now();
    let guard = kit.manager().lock("k").acquire().await.unwrap();
    assert!(began.elapsed() >= MISSED);
    // Nobody has been told of the first one.
    assert_eq!(kit.locked(), ["k"]);
    guard.release().await.unwrap();
    assert!(!kit.is_locked("k"), "the one without a reply is still there");
}

#[tokio::test(start_paused = true)]
async fn a_release_without_its_reply_has_happened_and_fails_nobody() {
    let kit = TestLocks::new();
    let request = kit.manager().lock("k");
    let done = request.run(async {
        kit.drop_next_reply();
        Instant::now()
    });
    let ended = done.await.expect("the body was under its lock");
    assert!(ended.elapsed() >= MISSED);
    assert!(!kit.is_locked("k"));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_its_reply_is_made_again() {
    let kit = TestLocks::new();
    let body = Endless::under(kit.manager().lock("k").lease(LONG)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    kit.drop_next_reply();
    tokio::time::sleep(LONG * 2).await;
    assert!(body.runs());
    assert!(kit.manager().stats().renewals >= 1);
    // It was the renewal that has used the loss up.
    let began = Instant::now();
    drop(kit.manager().lock("other").acquire().await.unwrap());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_look_at_a_young_lock_is_none_of_the_replies_that_are_lost() {
    let kit = TestLocks::new();
    let guard = kit.manager().lock("k").lease(LONG).acquire().await.unwrap();
    kit.drop_next_reply();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = Instant::now();
    assert_eq!(guard.release().await.unwrap_err().kind(), "store");
    assert!(began.elapsed() >= MISSED && !kit.is_locked("k"));
}

#[tokio::test(start_paused = true)]
async fn as_many_replies_are_lost_as_were_asked_for() {
    let limit = Duration::from_secs(2);
    let kit = TestLocks::with(LockManager::builder("memory://").response_timeout(limit));
    kit.drop_next_reply();
    kit.drop_next_reply();
    // The other one is that to the release of what the first attempt has got.
    let began = Instant::now();
    let guard = kit.manager().lock("k").acquire().await.unwrap();
    assert!(began.elapsed() >= limit && began.elapsed() < limit * 2);
    let again = Instant::now();
    guard.release().await.unwrap();
    drop(kit.manager().lock("k").acquire().await.unwrap());
    assert_eq!(again.elapsed(), Duration::ZERO);
}
