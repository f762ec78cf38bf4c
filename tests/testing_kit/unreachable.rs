//! A store out of reach.

use std::time::Duration;

use lock_runtime::testing::TestLocks;
use lock_runtime::{LockError, LostReason};
use tokio::time::Instant;

use crate::witness::{Endless, LONG};

#[tokio::test(start_paused = true)]
async fn a_body_outlives_a_gap_that_is_shorter_than_its_lease() {
    let kit = TestLocks::new();
    let body = Endless::under(kit.manager().lock("k").lease(LONG)).await;
    // Over the time of the first renewal.
    kit.unreachable_for(LONG * 5 / 6);
    tokio::time::sleep(LONG * 3).await;
    assert!(body.runs() && kit.is_locked("k"));
}

#[tokio::test(start_paused = true)]
async fn a_body_is_cancelled_before_anybody_else_can_get_its_lock() {
    let kit = TestLocks::new();
    let body = Endless::under(kit.manager().lock("k").lease(LONG)).await;
    let began = Instant::now();
    kit.unreachable_for(LONG * 10);
    let end = body.end().await;
    let unreachable = LostReason::Unreachable;
    assert!(
        matches!(end, LockError::Lost { reason, .. } if reason == unreachable),
        "{end:?}"
    );
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    // The store has it until the lease ends, and others reach the store.
    assert!(kit.is_locked("k"));
    tokio::time::sleep_until(began + LONG).await;
    drop(kit.hold("k"));
}

#[tokio::test(start_paused = true)]
async fn calls_fail_or_wait_until_the_store_is_back() {
    let kit = TestLocks::new();
    let locks = kit.manager();
    let gap = Duration::from_secs(5);
    kit.unreachable_for(gap);
    assert!(locks.check_connection().await.is_err());
    let began = Instant::now();
    for wait in [Duration::ZERO, Duration::from_secs(1)] {
        let failed = locks.lock("k").wait(wait).acquire().await.unwrap_err();
        assert_eq!(failed.kind(), "store", "{failed}");
    }
    drop(locks.lock("k").acquire().await.unwrap());
    assert!(began.elapsed() >= gap && began.elapsed() < gap + Duration::from_secs(1));
    locks.check_connection().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_is_made_up_for_when_the_store_is_back() {
    let kit = TestLocks::new();
    let gap = Duration::from_secs(3);
    let guards = [
        kit.manager().lock("dropped").lease(LONG).acquire().await.unwrap(),
        kit.manager().lock("released").lease(LONG).acquire().await.unwrap(),
    ];
    kit.unreachable_for(gap);
    let back = Instant::now() + gap;
    let [dropped, released] = guards;
    drop(dropped);
    assert_eq!(released.release().await.unwrap_err().kind(), "store");
    tokio::time::sleep_until(back - Duration::from_millis(1)).await;
    assert!(kit.is_locked("dropped") && kit.is_locked("released"));
    // All in virtual time: well before the lease ends.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!kit.is_locked("dropped") && !kit.is_locked("released"));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_hears_of_its_turn_when_the_store_is_back() {
    let kit = TestLocks::new();
    let other = kit.hold("k");
    let waiting = tokio::spawn(kit.manager().lock("k").wait(Duration::from_secs(60)).acquire());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let gap = Duration::from_secs(5);
    kit.unreachable_for(gap);
    let began = Instant::now();
    other.release();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(began.elapsed().as_secs(), gap.as_secs());
    assert!(guard.handle().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_theft_is_noticed_when_the_store_is_back() {
    let kit = TestLocks::new();
    let body = Endless::under(kit.manager().lock("k").lease(LONG)).await;
    let gap = Duration::from_secs(5);
    kit.unreachable_for(gap);
    let began = Instant::now();
    kit.steal("k");
    let end = body.end().await;
    assert!(
        matches!(
            end,
            LockError::Lost {
                reason: LostReason::Taken,
                ..
            }
        ),
        "{end:?}"
    );
    assert!(began.elapsed() >= gap && began.elapsed() < LONG);
}
