//! The metrics of the feature `metrics`, by a recorder of the thread: in virtual time the watchdog runs there as well.

use std::time::Duration;

use lock_runtime::testing::TestLocks;
use lock_runtime::{LockError, LockManager, distributed_lock};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

#[distributed_lock(key = "metrics:<id>", wait = 1, manager = locks)]
async fn hold(locks: &LockManager, id: u64, time: Duration) -> Result<(), LockError> {
    sleep(time).await;
    Ok(())
}

#[distributed_lock(key = "hung:<id>", max_hold = 1, manager = locks)]
async fn hang(locks: &LockManager, id: u64) -> Result<(), LockError> {
    std::future::pending().await
}

/// Runs a promise in virtual time, with a recorder.
fn run(promise: impl AsyncFnOnce(&PrometheusHandle)) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let shown = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(promise(&shown)));
}

/// Returns the value of one series.
fn value(shown: &PrometheusHandle, series: &str) -> Option<f64> {
    let text = shown.render();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

#[test]
fn the_label_of_each_metric_is_the_template_of_the_key() {
    run(async |shown| {
        let locks = LockManager::builder("memory://").build().unwrap();
        let of = |name: &str| value(shown, &format!("{name}{{key=\"metrics:<id>\"}}"));
        let (first, second) = (hold(&locks, 1, 25 * SECOND), hold(&locks, 1, SECOND));
        let watch = async {
            sleep(SECOND / 2).await;
            assert_eq!((of("lock_held"), of("lock_waiters")), (Some(2.0), Some(1.0)));
        };
        let (first, second, (), other) = tokio::join!(first, second, watch, hold(&locks, 2, SECOND));
        first.unwrap();
        other.unwrap();
        assert!(matches!(second, Err(LockError::Busy { .. })), "{second:?}");
        assert_eq!((of("lock_held"), of("lock_waiters")), (Some(0.0), Some(0.0)));
        assert_eq!(of("lock_busy_total"), Some(1.0));
        assert_eq!(of("lock_acquire_seconds_count"), Some(2.0), "of two items");
        assert_eq!(
            (of("lock_hold_seconds_count"), of("lock_hold_seconds_sum")),
            (Some(2.0), Some(26.0))
        );
        assert_eq!(of("lock_renew_seconds_count"), Some(1.0), "after 2/3 of 30 s");
        let text = shown.render();
        for described in ["# HELP lock_held The locks held now", "# TYPE lock_held gauge"] {
            assert!(text.contains(described), "{described}, in:\n{text}");
        }
    });
}

#[test]
fn a_lost_lock_and_a_hung_call_are_counted_by_their_reasons() {
    run(async |shown| {
        let locks = LockManager::builder("memory://").build().unwrap();
        let deleted = async {
            sleep(SECOND).await;
            assert!(locks.force_release("metrics:1").await.unwrap());
        };
        let (lost, ()) = tokio::join!(hold(&locks, 1, 60 * SECOND), deleted);
        assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
        let series = "lock_lost_total{key=\"metrics:<id>\",reason=\"deleted\"}";
        assert_eq!(value(shown, series), Some(1.0), "{}", shown.render());
        assert!(matches!(hang(&locks, 1).await, Err(LockError::Hung { .. })));
        assert_eq!(value(shown, "lock_hung_total{key=\"hung:<id>\"}"), Some(1.0));
        assert_eq!(value(shown, "lock_held{key=\"hung:<id>\"}"), Some(0.0));
    });
}

#[distributed_lock(key = "begun:<id>", manager = locks)]
async fn begin(locks: &LockManager, id: u64) -> Result<(), LockError> {
    Ok(())
}

/// Prometheus sees no increase in a series that begins at 1.
#[test]
fn the_first_call_begins_the_series_of_each_counter_at_zero() {
    run(async |shown| {
        let locks = LockManager::builder("memory://").build().unwrap();
        begin(&locks, 1).await.unwrap();
        let key = "key=\"begun:<id>\"";
        let counters = [
            "lock_hung_total",
            "lock_busy_total",
            "lock_release_failures_total",
            "lock_renewal_failures_total",
            "lock_overruns_total",
        ];
        let mut series: Vec<_> = counters.iter().map(|name| format!("{name}{{{key}}}")).collect();
        let kinds = ["store", "too_few_replicas"].iter();
        series.extend(kinds.map(|kind| format!("lock_store_failures_total{{{key},kind=\"{kind}\"}}")));
        let reasons = ["expired", "taken", "deleted", "unreachable"].iter();
        series.extend(reasons.map(|reason| format!("lock_lost_total{{{key},reason=\"{reason}\"}}")));
        for series in series {
            assert_eq!(value(shown, &series), Some(0.0), "{series}, in:\n{}", shown.render());
        }
    });
}

#[test]
fn a_call_that_fails_because_of_the_store_is_counted_by_its_error() {
    run(async |shown| {
        let kit = TestLocks::new();
        let locks = kit.manager();
        kit.unreachable_for(60 * SECOND);
        let failed = hold(&locks, 1, SECOND).await;
        assert!(matches!(failed, Err(LockError::Store { .. })), "{failed:?}");
        let series = "lock_store_failures_total{key=\"metrics:<id>\",kind=\"store\"}";
        assert_eq!(value(shown, series), Some(1.0), "{}", shown.render());
        assert_eq!((locks.stats().store_failures, locks.stats().busy), (1, 0));
    });
}

/// The lock of 30 s is renewed after 20 s, while the store cannot be reached for one more second.
#[test]
fn an_attempt_to_renew_that_fails_while_the_lock_holds_is_counted() {
    run(async |shown| {
        let kit = TestLocks::new();
        let locks = kit.manager();
        let outage = async {
            sleep(19 * SECOND).await;
            kit.unreachable_for(2 * SECOND);
        };
        let (held, ()) = tokio::join!(hold(&locks, 1, 25 * SECOND), outage);
        held.unwrap();
        let stats = locks.stats();
        assert_eq!((stats.renewals, stats.lost_unreachable), (1, 0));
        // Its pauses double, from 10 ms on.
        assert_eq!(stats.renewal_failures, 7);
        let series = "lock_renewal_failures_total{key=\"metrics:<id>\"}";
        assert_eq!(value(shown, series), Some(7.0), "{}", shown.render());
    });
}

#[test]
fn a_call_without_the_attribute_has_the_label_that_it_gives() {
    run(async |shown| {
        let locks = LockManager::builder("memory://").build().unwrap();
        let held = locks.lock("k").label("nightly").acquire().await.unwrap();
        let unnamed = locks.lock("other").acquire().await.unwrap();
        for label in ["nightly", ""] {
            assert_eq!(
                value(shown, &format!("lock_held{{key=\"{label}\"}}")),
                Some(1.0),
                "{label}"
            );
        }
        held.release().await.unwrap();
        unnamed.release().await.unwrap();
        assert_eq!(value(shown, "lock_held{key=\"nightly\"}"), Some(0.0));
    });
}
