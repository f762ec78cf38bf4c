//! The time for which a test waits for an event that must happen, and waits that do not guess a
//! sleep.

use std::future::Future;
use std::time::{Duration, Instant};

use lock_runtime::store::redis::TimeOuts;
use lock_runtime::{LockManager, LockManagerBuilder};

/// How long every wait of the harness lasts before it gives up: far longer than a healthy run needs on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The time-outs of a store that no busy machine meets.
pub const PATIENT: TimeOuts = TimeOuts {
    connect: PATIENCE,
    response: PATIENCE,
};

pub(crate) const GLANCE: Duration = Duration::from_millis(5);

/// Connects a manager whose time-outs no busy machine meets.
pub async fn patient(builder: LockManagerBuilder) -> LockManager {
    let locks = builder
        .connect_timeout(PATIENCE)
        .response_timeout(PATIENCE)
        .build()
        .expect("a manager");
    locks.check_connection().await.expect("a connection");
    locks
}

/// Returns once `condition` is true, looking every few milliseconds; panics after [`PATIENCE`], naming `what`.
///
/// The time-out is in real time, so a paused tokio clock does not shorten it.
pub async fn eventually<F>(what: &str, mut condition: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    eventually_some(what, || {
        let met = condition();
        async move { met.await.then_some(()) }
    })
    .await;
}

/// Returns the first `Some` that `attempt` gives, like [`eventually`].
pub async fn eventually_some<T, F>(what: &str, attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    within(PATIENCE, what, attempt).await
}

/// Returns the first `Some` that `attempt` gives, like [`eventually_some`]; panics after `limit`.
pub(crate) async fn within<T, F>(limit: Duration, what: &str, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(started.elapsed() < limit, "waited {limit:?} in vain: {what}");
        tokio::time::sleep(GLANCE).await;
    }
}

/// [`eventually`] for code outside a runtime.
pub fn eventually_blocking(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(GLANCE);
    }
}
