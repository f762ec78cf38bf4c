//! `lock_delay`: after a holder's lease has expired, the lock stays taken for a while; after a
//! release it does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::clock::{BootClock, Clock, Moment};
use lock_runtime::{LockError, LockManager, RequestProblem};
use lock_tests::clock::kept_for;
use lock_tests::{PATIENCE, Server, lock_child, patient};
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(2);
const DELAY: Duration = Duration::from_secs(5);

fn manager() -> LockManager {
    LockManager::builder("memory://")
        .default_wait(Duration::from_secs(60))
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn after_a_holder_that_expired_the_next_grant_waits_for_the_delay() {
    let locks = manager();
    let start = Instant::now();
    let request = locks.lock("k").lease(LEASE).lock_delay(DELAY).renew(false);
    let expired = request.run(std::future::pending::<()>()).await;
    assert!(matches!(expired, Err(LockError::Lost { .. })), "{expired:?}");
    assert!(start.elapsed() <= LEASE, "the body outlived its lease");
    let next = locks.lock("k").acquire().await.unwrap();
    assert!(start.elapsed() >= LEASE + DELAY, "granted after {:?}", start.elapsed());
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_releases_leaves_no_delay() {
    let locks = manager();
    let start = Instant::now();
    for end in ["released", "dropped", "body ended"] {
        let request = locks.lock("k").lease(LEASE).lock_delay(DELAY);
        match end {
            "released" => request.acquire().await.unwrap().release().await.unwrap(),
            "dropped" => drop(request.acquire().await.unwrap()),
            _ => request.run(async {}).await.unwrap(),
        }
        drop(locks.lock("k").acquire().await.unwrap());
        assert_eq!(start.elapsed(), Duration::ZERO, "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_renewed_is_held_by_its_lease_and_not_by_the_delay() {
    let locks = manager();
    let guard = locks.lock("k").lease(LEASE).lock_delay(DELAY).acquire().await.unwrap();
    tokio::time::sleep(LEASE * 10).await;
    assert!(
        guard.handle().renewals() >= 10,
        "{} renewals",
        guard.handle().renewals()
    );
    assert!(guard.handle().remaining() <= LEASE);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_killed_process_s_lock_is_granted_after_lease_and_delay_also_to_one_who_waits() {
    let server = Server::start();
    let locks = patient(LockManager::builder(&server.url()).default_wait(PATIENCE)).await;
    // The child's lock was handed over to it by the queue, which gives it a short claim first.
    let first = locks.lock("k").acquire().await.unwrap();
    let mut child = lock_child!("delay", server.url(), "k").spawn();
    child.line("asking").await;
    lock_tests::eventually("the child stands in the queue", || {
        let stands = server.keys().iter().any(|key| key.contains("%lock-queue"));
        async move { stands }
    })
    .await;
    first.release().await.unwrap();
    child.line("holding").await;
    let looked = std::time::Instant::now();
    let before = server.time_left("dist_lock:k");
    child.kill();
    assert!(before > Some(Duration::from_secs(1)), "{before:?} of 1 s + 3 s");
    let request = locks.lock("k").wait(Duration::from_secs(30));
    let next = request.acquire().await.unwrap();
    // The key lives on the server's clock, and it had `before` left.
    assert!(looked.elapsed() >= kept_for(before.unwrap()));
    next.release().await.unwrap();
}

/// A clock of a host that was suspended for so many nanoseconds.
#[derive(Clone, Debug, Default)]
struct Suspended(Arc<AtomicU64>);

impl Clock for Suspended {
    fn now(&self) -> Moment {
        BootClock
            .now()
            .after(Duration::from_nanos(self.0.load(Ordering::SeqCst)))
    }
}

#[tokio::test]
async fn a_guard_that_is_dropped_too_late_leaves_the_delay_though_nobody_has_noticed_the_loss() {
    for dropped in [true, false] {
        let clock = Suspended::default();
        let locks = LockManager::builder("memory://").clock(clock.clone()).build().unwrap();
        let lease = Duration::from_secs(60);
        let guard = locks.lock("k").lease(lease).lock_delay(lease).acquire().await.unwrap();
        clock.0.store(61_000_000_000, Ordering::SeqCst);
        if dropped {
            drop(guard);
        } else {
            assert!(guard.release().await.is_err_and(|error| error.is_lost()));
        }
        let next = locks.lock("k").wait(Duration::ZERO).acquire().await;
        assert!(next.is_err_and(|error| error.is_busy()), "the delay was cut short");
    }
}

#[tokio::test]
async fn a_lock_passes_inside_the_process_only_to_a_call_with_the_same_delay() {
    let server = Server::start();
    let locks = patient(LockManager::builder(&server.url()).default_wait(PATIENCE)).await;
    let lease = 5 * LEASE;
    let first = locks.lock("k").lease(lease).acquire().await.unwrap();
    let waiting = locks.lock("k").lease(lease).lock_delay(DELAY);
    let waiting = tokio::spawn(waiting.acquire());
    tokio::task::yield_now().await;
    first.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    let left = server.time_left("dist_lock:k").unwrap();
    assert!(left > lease, "{left:?} of {:?}", lease + DELAY);
    next.release().await.unwrap();
    assert_eq!(locks.stats().passed, 0);
}

#[tokio::test]
async fn a_lease_and_a_delay_beyond_bounds_are_refused() {
    let too_long = lock_runtime::MAX_LEASE + Duration::from_secs(1);
    let refused = manager().lock("k").lock_delay(too_long).acquire().await;
    assert!(
        matches!(refused, Err(LockError::InvalidRequest { problem: RequestProblem::LockDelay(given), .. }) if given == too_long)
    );
}
