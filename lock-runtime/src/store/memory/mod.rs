//! The embedded store: locks of one process, for examples and for tests. It lives by tokio's clock, which a
//! test can pause.

mod exclusive;

use std::collections::HashMap;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{AcquireRequest, Attempt, Fence, LockStore, ReleaseRequest, RenewRequest, StoreFuture, Verdict};
use crate::clock::{Clock, Moment, TokioClock};
use exclusive::Slot;

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
    slots: HashMap<Box<str>, Slot>,
    /// At how many slots to look for expired ones.
    sweep_at: usize,
    /// The last fencing token given out, of all keys.
    last_fence: u64,
    /// Those who wait for a key, if any.
    waiting: HashMap<Box<str>, Arc<Notify>>,
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
}

impl LockStore for MemoryStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        request.receipt.sent_on(1);
        Box::pin(ready(self.tables().acquire(request, Self::now())))
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
        request.receipt.sent_on(1);
        Box::pin(ready(Ok(self.tables().release(request, Self::now()))))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a str) -> StoreFuture<'a, Fence> {
        Box::pin(ready(self.tables().fence(key, value, Self::now())))
    }

    fn released<'a>(&'a self, key: &'a str) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let waiting = {
            let mut tables = self.tables();
            match tables.waiting.get(key) {
                Some(waiting) => Arc::clone(waiting),
                None => Arc::clone(tables.waiting.entry(key.into()).or_default()),
            }
        };
        let leave = Leave {
            store: self,
            key,
            waiting,
        };
        Box::pin(async move { leave.waiting.notified().await })
    }

    fn release_is_immediate(&self) -> bool {
        true
    }

    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Verdict> {
        Some(self.tables().release(request, Self::now()))
    }
}

/// One waiter; the last one takes the entry along.
struct Leave<'a> {
    store: &'a MemoryStore,
    key: &'a str,
    waiting: Arc<Notify>,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut tables = self.store.tables();
        // The table's own and this one.
        if Arc::strong_count(&self.waiting) <= 2 {
            tables.waiting.remove(self.key);
        }
    }
}
