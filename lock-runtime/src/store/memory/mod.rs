//! The embedded store: locks of one process, for examples and for tests. It lives by tokio's clock, which a
//! test can pause.

mod exclusive;
mod queue;

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    AcquireRequest, Attempt, Fence, LockStore, QueueRequest, ReleaseRequest, RenewRequest, StoreError, StoreFuture,
    Turn, Verdict,
};
use crate::clock::{Clock, Moment, TokioClock};
use exclusive::Slot;
use queue::Queue;

/// Locks kept in this process. Managers that are given the same store exclude each other.
///
/// ```
/// # use std::sync::Arc;
/// # use lock_runtime::LockManager;
/// use lock_runtime::store::memory::MemoryStore;
///
/// let store = Arc::new(MemoryStore::new());
/// let one = LockManager::builder("memory://").store(store.clone()).build()?;
/// let other = LockManager::builder("memory://").store(store).build()?;
/// # Ok::<(), lock_runtime::LockError>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    slots: HashMap<Arc<str>, Slot>,
    /// At how many slots to look for expired ones.
    sweep_at: usize,
    /// The last fencing token given out, of all keys.
    last_fence: u64,
    /// Those who wait for a key, if any.
    queues: HashMap<Box<str>, Queue>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now() -> Moment {
        TokioClock.now()
    }

    fn take(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        request.receipt.sent_on(1);
        self.tables().acquire(request, Self::now())
    }

    /// Releases, and wakes whoever got the lock.
    fn give_back(&self, request: &ReleaseRequest<'_>) -> Verdict {
        request.receipt.sent_on(1);
        let (verdict, next) = self.tables().release(request, Self::now());
        if let Some(next) = next {
            next.wake();
        }
        verdict
    }
}

impl LockStore for MemoryStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(ready(self.take(request)))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Verdict>> {
        let mut tables = self.tables();
        let now = Self::now();
        Box::pin(ready(Ok(requests
            .iter()
            .map(|request| tables.renew(request, now))
            .collect())))
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Verdict> {
        Box::pin(ready(Ok(self.give_back(request))))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a str) -> StoreFuture<'a, Fence> {
        Box::pin(ready(self.tables().fence(key, value, Self::now())))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, Turn> {
        Box::pin(self.stand_in_queue(request))
    }

    fn release_is_immediate(&self) -> bool {
        true
    }

    fn acquire_now(&self, request: &AcquireRequest<'_>) -> Option<Result<Attempt, StoreError>> {
        Some(self.take(request))
    }

    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Verdict> {
        Some(self.give_back(request))
    }
}
