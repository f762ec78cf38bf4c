//! A holder on another host.

use std::fmt;
use std::sync::Arc;

use super::store::TestStore;
use crate::holder;
use crate::store::mode::{self, Mode, TOKEN_LENGTH};
use crate::store::{LockStore, Receipt, ReleaseRequest};

/// A lock that another host's holder has, as [`LockError::Busy`](crate::LockError::Busy) tells it. Made by
/// [`TestLocks::hold`](super::TestLocks::hold). Dropped, it is released, and whoever waits for it gets it.
#[must_use = "the lock is released when this is dropped"]
pub struct OtherHolder {
    store: Arc<TestStore>,
    key: Arc<str>,
    value: Arc<str>,
}

impl OtherHolder {
    pub(super) fn new(store: &Arc<TestStore>, key: Arc<str>, value: Arc<str>) -> Self {
        let store = Arc::clone(store);
        Self { store, key, value }
    }

    /// Releases the lock now. Nothing happens if its lease has run out.
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

impl Drop for OtherHolder {
    fn drop(&mut self) {
        let request = ReleaseRequest {
            key: &self.key,
            value: &self.value,
            keep: None,
            unanswered_on: None,
            queued: None,
            receipt: &Receipt::default(),
        };
        // The other host's way to the store is its own, without faults.
        self.store.inner.release_now(&request);
    }
}

impl fmt::Debug for OtherHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OtherHolder").field(&self.key).finish()
    }
}

/// The value of a holder on another host; `None` when the operating system gives no random bytes.
pub(super) fn value(mode: &Mode) -> Option<Arc<str>> {
    let ours = holder::new_value("", mode).ok()?;
    let token = mode::split(&ours).1.get(..TOKEN_LENGTH)?;
    let class = mode.class().map(|class| format!("{class}:")).unwrap_or_default();
    Some(format!("{class}{token}:another-host:1:TestLocks::hold").into())
}
