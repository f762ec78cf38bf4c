//! A holder on another host.

use std::fmt;
use std::sync::Arc;

use super::store::TestStore;
use crate::store::{HolderValue, LockStore, Receipt, ReleaseRequest};

/// A lock held by another host, as [`LockError::Busy`](crate::LockError::Busy) reports it. Created
/// by [`TestLocks::hold`](super::TestLocks::hold). When it is dropped, the lock is released and
/// goes to the next waiter.
#[must_use = "the lock is released when this is dropped"]
pub struct RemoteHolder {
    store: Arc<TestStore>,
    key: Arc<str>,
    value: HolderValue,
}

impl RemoteHolder {
    pub(super) fn new(store: &Arc<TestStore>, key: Arc<str>, value: HolderValue) -> Self {
        let store = Arc::clone(store);
        Self { store, key, value }
    }

    /// Releases the lock now. Has no effect if its lease has run out.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let other = kit.hold("inventory:7");
    /// other.release();
    /// assert!(!kit.is_locked("inventory:7"));
    /// # })
    /// ```
    pub fn release(self) {}
}

impl Drop for RemoteHolder {
    fn drop(&mut self) {
        let request = ReleaseRequest {
            key: &self.key,
            value: &self.value,
            keep: None,
            unanswered_on: None,
            elsewhere: false,
            queued: None,
            leave_free: None,
            receipt: &Receipt::default(),
        };
        // The other host has its own connection to the store, which has no faults.
        self.store.inner.release_now(&request);
    }
}

impl fmt::Debug for RemoteHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteHolder").field(&self.key).finish()
    }
}
