//! Bodies that must be alone, and locks that must be free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::LockManager;

/// A body that must be alone: panics if another one is inside.
#[derive(Debug)]
pub struct Alone(Arc<AtomicUsize>);

impl Alone {
    /// Enters. The body leaves when this is dropped.
    #[must_use]
    pub fn enter(inside: &Arc<AtomicUsize>) -> Self {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
        Self(Arc::clone(inside))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes each of the locks without waiting for it, and releases it.
pub async fn assert_free(locks: &LockManager, keys: impl IntoIterator<Item = &str>) {
    for key in keys {
        let guard = locks.lock(key).wait(Duration::ZERO).acquire().await;
        guard.unwrap_or_else(|error| panic!("{error}")).release().await.unwrap();
    }
}
