//! Locks that are lost.

use std::time::Duration;

use lock_runtime::testing::TestLocks;
use lock_runtime::{LockError, LockRequest, LostReason};
use tokio::time::Instant;

use crate::witness::{Endless, LONG, panic_of};

/// The way to lose a lock, and how the loss is told.
type Loss = (fn(&TestLocks, &str), LostReason);

const LOSSES: [Loss; 3] = [
    (TestLocks::expire, LostReason::Expired),
    (TestLocks::delete, LostReason::Deleted),
    (TestLocks::steal, LostReason::Taken),
];

#[tokio::test(start_paused = true)]
async fn a_lost_lock_cancels_its_body_before_any_time_passes() {
    for (lose, expected) in LOSSES {
        // Before the first check of a young lock, and after it; before the first renewal, and after it.
        for age in [Duration::ZERO, Duration::from_millis(100), LONG] {
            let kit = TestLocks::new();
            let body = Endless::under(kit.manager().lock("k").lease(LONG)).await;
            let bystander = Endless::under(kit.manager().lock("other").lease(LONG)).await;
            tokio::time::sleep(age).await;
            assert!(body.runs());
            let lost_at = Instant::now();
            lose(&kit, "k");
            let LockError::Lost {
                key, reason, completed, ..
            } = body.end().await
            else {
                panic!("not lost")
            };
            assert_eq!((&*key, reason, completed), ("k", expected, false));
            assert_eq!(lost_at.elapsed(), Duration::ZERO, "{expected:?} after {age:?}");
            assert!(bystander.runs() && kit.is_locked("other"));
            assert_eq!(kit.is_locked("k"), expected == LostReason::Taken);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_any_mode_is_lost_by_all_who_hold_it_at_once() {
    type Asked = fn(LockRequest) -> LockRequest;
    let modes: [(&str, Asked, usize); 4] = [
        ("read", LockRequest::read, 2),
        ("write", LockRequest::write, 1),
        ("semaphore", |request| request.semaphore(2), 2),
        ("owner", |request| request.owner("workflow"), 2),
    ];
    for (mode, asked, holders) in modes {
        for (lose, expected) in LOSSES {
            // After the first check as well: a lock with many holders is not checked at every change.
            for age in [Duration::ZERO, Duration::from_millis(100)] {
                let kit = TestLocks::new();
                let mut bodies = Vec::new();
                for _ in 0..holders {
                    bodies.push(Endless::under(asked(kit.manager().lock("k").lease(LONG))).await);
                }
                tokio::time::sleep(age).await;
                let lost_at = Instant::now();
                lose(&kit, "k");
                for body in bodies {
                    let end = body.end().await;
                    assert!(
                        matches!(end, LockError::Lost { reason, .. } if reason == expected),
                        "{mode}: {end:?}"
                    );
                }
                assert_eq!(lost_at.elapsed(), Duration::ZERO, "{mode}, {expected:?} after {age:?}");
                let stolen = expected == LostReason::Taken;
                let next = asked(kit.manager().lock("k").wait(Duration::ZERO)).acquire().await;
                assert_eq!(next.is_err_and(|error| error.is_busy()), stolen, "{mode}, {expected:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_tells_its_loss() {
    for (lose, expected) in LOSSES {
        let kit = TestLocks::new();
        let guard = kit.manager().lock("k").lease(LONG).acquire().await.unwrap();
        lose(&kit, "k");
        let told = guard.handle().lost().await;
        assert!(
            matches!(told, LockError::Lost { reason, .. } if reason == expected),
            "{told:?}"
        );
        assert!(guard.release().await.is_err_and(|error| error.is_lost()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_thief_keeps_the_lock_for_half_a_minute() {
    let kit = TestLocks::new();
    let guard = kit.manager().lock("k").acquire().await.unwrap();
    kit.steal("k");
    let stolen = Instant::now();
    assert!(guard.release().await.is_err());
    let other_wait = kit.manager().lock("k").wait(Duration::from_secs(60));
    other_wait.acquire().await.unwrap().release().await.unwrap();
    assert!(stolen.elapsed() >= Duration::from_secs(30) && stolen.elapsed() < Duration::from_secs(31));
}

#[tokio::test(start_paused = true)]
async fn an_expired_lock_stays_taken_for_its_delay() {
    let kit = TestLocks::new();
    let delay = Duration::from_secs(5);
    let body = Endless::under(kit.manager().lock("k").lock_delay(delay)).await;
    kit.expire("k");
    let expired = Instant::now();
    assert!(body.end().await.is_lost());
    assert!(kit.is_locked("k"));
    drop(kit.manager().lock("k").acquire().await.unwrap());
    assert!(expired.elapsed() >= delay && expired.elapsed() < delay * 2);
}

#[tokio::test(start_paused = true)]
async fn a_loss_by_another_host_is_nobodys_here() {
    let kit = TestLocks::new();
    let other = kit.hold("k");
    kit.expire("k");
    assert!(!kit.is_locked("k"));
    let guard = kit.manager().lock("k").acquire().await.unwrap();
    drop(other);
    assert!(guard.handle().is_held() && kit.is_locked("k"));
}

#[tokio::test(start_paused = true)]
async fn losing_what_nobody_has_is_a_mistake() {
    let kit = TestLocks::new();
    for (lose, _) in LOSSES {
        let (message, ..) = panic_of(|| lose(&kit, "k"));
        assert!(message.contains("`k` has no holder"), "{message}");
    }
    let (_, file, _) = panic_of(|| kit.steal("k"));
    assert_eq!(file, file!());
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_gets_a_lock_that_was_lost() {
    for (lose, expected) in LOSSES {
        let kit = TestLocks::new();
        let body = Endless::under(kit.manager().lock("k").lease(LONG)).await;
        let others = kit.manager();
        let waiting = tokio::spawn(others.lock("k").wait(Duration::from_secs(60)).acquire());
        tokio::time::sleep(Duration::from_secs(1)).await;
        lose(&kit, "k");
        assert!(body.end().await.is_lost());
        let lost = Instant::now();
        drop(waiting.await.unwrap().unwrap());
        let stolen = expected == LostReason::Taken;
        assert_eq!(
            lost.elapsed() > Duration::from_secs(1),
            stolen,
            "{expected:?}: {:?}",
            lost.elapsed()
        );
    }
}
