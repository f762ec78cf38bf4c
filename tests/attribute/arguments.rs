//! Every argument of the attribute, in every form.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::store::memory::MemoryStore;
use lock_runtime::{LockError, LockManager, distributed_lock};

use crate::witness::{Shop, ShopError, is_taken, locked_key, start};

const LEASE: Duration = Duration::from_secs(40);
const RENEWALS: u32 = 5;

fn remaining() -> Duration {
    lock_runtime::current().expect("locked").remaining()
}

fn about(remaining: Duration, seconds: u64) -> bool {
    // Less 1 % for drift, and what the test itself has taken.
    remaining <= Duration::from_secs(seconds) && remaining > Duration::from_secs(seconds) * 8 / 10
}

#[distributed_lock(key = "lease default")]
async fn lease_default() -> Shop<Duration> {
    Ok(remaining())
}

#[distributed_lock(key = "lease number", lease = 50)]
async fn lease_number() -> Shop<Duration> {
    Ok(remaining())
}

#[distributed_lock(key = "lease text", lease = "1m30s")]
async fn lease_text() -> Shop<Duration> {
    Ok(remaining())
}

#[distributed_lock(key = "lease expression", lease = LEASE * factor, wait = Duration::from_millis(50), at_least = Duration::ZERO)]
async fn lease_expression(factor: u32) -> Shop<Duration> {
    Ok(remaining())
}

#[tokio::test]
async fn the_lease_is_given_in_every_form() {
    start().await;
    assert!(about(lease_default().await.unwrap(), 30));
    assert!(about(lease_number().await.unwrap(), 50));
    assert!(about(lease_text().await.unwrap(), 90));
    assert!(about(lease_expression(2).await.unwrap(), 80));
}

#[distributed_lock(key = "no wait", wait = 0)]
async fn no_wait() -> Shop<()> {
    Ok(())
}

#[distributed_lock(key = "short wait", wait = "50ms")]
async fn short_wait() -> Shop<()> {
    Ok(())
}

#[tokio::test]
async fn the_wait_bounds_the_acquisition() {
    for (key, limit) in [("no wait", 0), ("short wait", 50)] {
        let guard = start().await.lock(key).acquire().await.unwrap();
        let call = async move {
            if limit == 0 {
                no_wait().await
            } else {
                short_wait().await
            }
        };
        match tokio::spawn(call).await.unwrap() {
            Err(ShopError::Lock(LockError::Busy { waited, .. })) => {
                assert!(
                    waited >= Duration::from_millis(limit) && waited < Duration::from_secs(5),
                    "{waited:?}"
                );
            }
            other => panic!("{other:?}"),
        }
        guard.release().await.unwrap();
    }
}

#[distributed_lock(key = "fixed", lease = 20, renew = false, on_lost = cancel, on_busy = error)]
async fn fixed_lease() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "renewals", lease = 20, renew = true, max_renewals = RENEWALS, on_lost = signal)]
async fn renewals() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "renewals literal", max_renewals = 3)]
async fn renewals_literal() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "replicas", min_replicas = REPLICAS)]
async fn replicas() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "replicas literal", min_replicas = 0)]
async fn replicas_literal() -> Shop<String> {
    Ok(locked_key().await)
}

const REPLICAS: u32 = 1;

/// The store in memory has as many as are wanted.
#[tokio::test]
async fn the_number_of_replicas_is_set() {
    start().await;
    assert_eq!(replicas().await.unwrap(), "replicas");
    assert_eq!(replicas_literal().await.unwrap(), "replicas literal");
}

#[tokio::test]
async fn renewal_and_loss_are_set() {
    start().await;
    assert_eq!(fixed_lease().await.unwrap(), "fixed");
    assert_eq!(renewals().await.unwrap(), "renewals");
    assert_eq!(renewals_literal().await.unwrap(), "renewals literal");
}

#[distributed_lock(key = "signalled", lease = "300ms", renew = false, on_lost = signal, manager = locks)]
async fn signalled(locks: &LockManager) -> Shop<LockError> {
    Ok(lock_runtime::current().expect("locked").lost().await)
}

#[distributed_lock(key = "cancelled", lease = "300ms", renew = false, manager = locks)]
async fn cancelled(locks: &LockManager) -> Shop<()> {
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn a_body_is_cancelled_or_told_when_its_fixed_lease_ends() {
    let locks = service().locks;
    let told = signalled(&locks).await;
    assert!(matches!(told, Ok(LockError::Lost { .. })), "{told:?}");
    let ended = cancelled(&locks).await;
    assert!(
        matches!(ended, Err(ShopError::Lock(LockError::Lost { .. }))),
        "{ended:?}"
    );
}

#[distributed_lock(key = "<key>", lease = 15, max_hold = "10m", manager = locks)]
async fn limited(locks: &LockManager, key: &str) -> Shop<()> {
    std::future::pending().await
}

#[distributed_lock(key = "<key>", lease = 15, manager = locks)]
async fn limited_by_default(locks: &LockManager, key: &str) -> Shop<()> {
    std::future::pending().await
}

#[distributed_lock(key = "<key>", lease = 30, max_hold = Duration::from_secs(5), on_lost = signal, manager = locks)]
async fn limited_to_less_than_its_lease(locks: &LockManager, key: &str) -> Shop<()> {
    std::future::pending().await
}

/// The limits that README gives, and another one after a lock that has passed on inside the process.
#[tokio::test(start_paused = true)]
async fn a_body_that_runs_beyond_its_limit_counts_as_hung_at_that_time() {
    let locks = service().locks;
    for next in [false, true] {
        let key = format!("limited {next}");
        let held_for = async |hung: Shop<()>| match hung {
            Err(ShopError::Lock(LockError::Hung { held, .. })) => held.as_secs(),
            other => panic!("{other:?}"),
        };
        let before = next.then(|| locks.lock(&key).lease(Duration::from_secs(15)));
        let before = match before {
            Some(request) => Some(request.acquire().await.unwrap()),
            None => None,
        };
        let waiting = tokio::spawn({
            let (locks, key) = (locks.clone(), key.clone());
            async move { limited(&locks, &key).await }
        });
        tokio::task::yield_now().await;
        drop(before);
        assert_eq!(held_for(waiting.await.unwrap()).await, 600);
        assert_eq!(held_for(limited_by_default(&locks, &key).await).await, 310);
        assert_eq!(held_for(limited_to_less_than_its_lease(&locks, &key).await).await, 5);
    }
}

#[distributed_lock(key = "at least", at_least = 3600)]
async fn at_least() -> Shop<()> {
    Ok(())
}

#[tokio::test]
async fn the_lock_stays_taken_for_at_least_the_given_time() {
    start().await;
    at_least().await.unwrap();
    assert!(is_taken("at least").await);
}

#[distributed_lock(key = "fenced", fencing)]
async fn fenced() -> Shop<u64> {
    Ok(lock_runtime::current().expect("locked").fencing_token().await?.get())
}

#[distributed_lock(key = "fenced", fencing = true)]
async fn fenced_in_words() -> Shop<u64> {
    Ok(lock_runtime::current().expect("locked").fencing_token().await?.get())
}

#[tokio::test]
async fn a_fencing_token_comes_with_the_lock() {
    start().await;
    let first = fenced().await.unwrap();
    assert!(fenced_in_words().await.unwrap() > first);
}

#[distributed_lock(key = "fair", wait = 0, fair)]
async fn fair() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(fair = true, key = "fair", wait = 0)]
async fn fair_in_words() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "fair", fair = false, wait = 0)]
async fn not_fair() -> Shop<String> {
    Ok(locked_key().await)
}

#[tokio::test]
async fn a_fair_call_without_a_wait_tries_once() {
    let locks = start().await;
    assert_eq!(fair().await.unwrap(), "fair");
    assert_eq!(fair_in_words().await.unwrap(), "fair");
    assert_eq!(not_fair().await.unwrap(), "fair");

    let guard = locks.lock("fair").acquire().await.unwrap();
    let busy = tokio::spawn(fair()).await.unwrap();
    assert!(matches!(busy, Err(ShopError::Lock(LockError::Busy { .. }))), "{busy:?}");
    guard.release().await.unwrap();
    assert_eq!(fair().await.unwrap(), "fair");
}

#[distributed_lock(key = "in line", fair)]
async fn in_line(bodies: &AtomicU32) -> Shop<u32> {
    let before = bodies.fetch_add(1, Ordering::Relaxed);
    locked_key().await;
    Ok(bodies.load(Ordering::Relaxed) - before)
}

#[tokio::test]
async fn fair_calls_that_wait_run_one_at_a_time() {
    start().await;
    let bodies = AtomicU32::new(0);
    let (first, second, third) = tokio::join!(in_line(&bodies), in_line(&bodies), in_line(&bodies));
    assert_eq!([first.unwrap(), second.unwrap(), third.unwrap()], [1; 3]);
    assert_eq!(bodies.into_inner(), 3);
}

#[distributed_lock(release = pipelined, lease = 3600, key = "pipelined")]
async fn pipelined() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "pipelined", lease = 3600, release = confirmed)]
async fn confirmed() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(fair, release = pipelined, fencing, lease = 3600, key = "pipelined")]
async fn fair_and_pipelined() -> Shop<String> {
    Ok(locked_key().await)
}

#[tokio::test]
async fn the_next_call_gets_a_lock_whose_release_was_pipelined() {
    start().await;
    for _ in 0..2 {
        assert_eq!(pipelined().await.unwrap(), "pipelined");
        assert_eq!(fair_and_pipelined().await.unwrap(), "pipelined");
        assert_eq!(confirmed().await.unwrap(), "pipelined");
    }
    assert!(!is_taken("pipelined").await);
}

struct Service {
    locks: LockManager,
    shared: Arc<LockManager>,
}

impl Service {
    fn locks(&self) -> &LockManager {
        &self.locks
    }

    #[distributed_lock(key = "managed", wait = 0, manager = self.locks)]
    async fn by_field(&self) -> Shop<bool> {
        Ok(is_taken("managed").await)
    }

    #[distributed_lock(key = "managed", wait = 0, manager = &self.locks)]
    async fn by_reference(&self) -> Shop<bool> {
        Ok(is_taken("managed").await)
    }

    #[distributed_lock(key = "managed", wait = 0, manager = self.shared)]
    async fn by_arc(&self) -> Shop<bool> {
        Ok(is_taken("managed").await)
    }

    #[distributed_lock(key = "managed", wait = 0, manager = self.locks())]
    async fn by_method(self) -> Shop<bool> {
        Ok(is_taken("managed").await)
    }

    #[distributed_lock(key = "managed", wait = 0, manager = if first { &self.locks } else { &*self.shared })]
    async fn by_expression(self: Arc<Self>, first: bool) -> Shop<bool> {
        Ok(is_taken("managed").await)
    }
}

#[distributed_lock(key = "managed", wait = 0, manager = locks)]
async fn by_parameter(locks: &LockManager) -> Shop<bool> {
    Ok(is_taken("managed").await)
}

fn service() -> Service {
    let locks = LockManager::builder("memory://")
        .store(Arc::new(MemoryStore::new()))
        .build()
        .unwrap();
    Service {
        shared: Arc::new(locks.clone()),
        locks,
    }
}

#[tokio::test]
async fn a_given_manager_takes_the_lock_in_its_own_store() {
    start().await;
    let service = service();
    // The global manager's lock of the same name stays free.
    assert!(!service.by_field().await.unwrap());
    assert!(!service.by_reference().await.unwrap());
    assert!(!service.by_arc().await.unwrap());
    assert!(!by_parameter(&service.locks).await.unwrap());

    let guard = service.locks.lock("managed").acquire().await.unwrap();
    let locks = service.locks.clone();
    let busy = tokio::spawn(async move { by_parameter(&locks).await }).await.unwrap();
    assert!(matches!(busy, Err(ShopError::Lock(LockError::Busy { .. }))));
    guard.release().await.unwrap();

    let service = Arc::new(service);
    assert!(!Arc::clone(&service).by_expression(true).await.unwrap());
    assert!(!service.by_expression(false).await.unwrap());
    assert!(!self::service().by_method().await.unwrap());
}

mod renamed {
    pub(crate) mod deep {
        pub(crate) use lock_runtime as locks;
    }
}

#[distributed_lock(key = "renamed", crate = crate::arguments::renamed::deep::locks)]
async fn renamed_crate() -> Shop<String> {
    Ok(locked_key().await)
}

#[tokio::test]
async fn the_runtime_is_found_where_it_is_said_to_be() {
    start().await;
    assert_eq!(renamed_crate().await.unwrap(), "renamed");
}
