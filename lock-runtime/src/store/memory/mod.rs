//! The embedded store: locks of one process, for examples and for tests. It lives by tokio's clock, which a
//! test can pause.

mod all;
mod exclusive;
mod inspect;
#[cfg(feature = "testing")]
mod intervene;
mod owner;
mod queue;
mod read_write;
mod semaphore;
mod shared;

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Fence, LockPage, LockStore, Mode, QueueRequest,
    ReleaseRequest, RenewRequest, StoreError, StoreFuture, Turn, Verdict,
};
use crate::clock::{Clock, Moment, TokioClock};
use crate::inspect::LockInfo;
use exclusive::Slot;
use queue::{Queue, Ticket};
use shared::Holders;

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
    /// The locks that several may hold.
    shared: HashMap<Arc<str>, Holders>,
    /// At how many of them to look for expired ones.
    sweep_shared_at: usize,
    /// Those who wait for one of them.
    shared_queues: HashMap<Box<str>, Queue>,
}

/// As a server says of a key of another type.
fn other_kind() -> StoreError {
    StoreError::permanent("the key is held by a lock of another kind: exclusive, or one that several may hold")
}

fn wake(handed: impl IntoIterator<Item = Arc<Ticket>>) {
    for ticket in handed {
        ticket.wake();
    }
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
        if !Mode::is_shared(request.value) {
            return self.tables().acquire(request, Self::now());
        }
        let (attempt, handed) = self.tables().acquire_shared(request, Self::now());
        wake(handed);
        attempt
    }

    fn take_all(&self, request: &AcquireAllRequest<'_>) -> Result<AttemptAll, StoreError> {
        request.receipt.sent_on(1);
        let (attempt, handed) = self.tables().acquire_all(request, Self::now());
        wake(handed);
        attempt
    }

    /// Releases, and wakes whoever got the lock.
    fn give_back(&self, request: &ReleaseRequest<'_>) -> Verdict {
        request.receipt.sent_on(1);
        if Mode::is_shared(request.value) {
            let (verdict, handed) = self.tables().release_shared(request, Self::now());
            wake(handed);
            return verdict;
        }
        let (verdict, next) = self.tables().release(request, Self::now());
        wake(next);
        verdict
    }
}

impl LockStore for MemoryStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(ready(self.take(request)))
    }

    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        Box::pin(ready(self.take_all(request)))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Verdict>> {
        let mut tables = self.tables();
        let now = Self::now();
        Box::pin(ready(Ok(requests
            .iter()
            .map(|request| {
                if Mode::is_shared(&request.value) {
                    tables.renew_shared(request, now)
                } else {
                    tables.renew(request, now)
                }
            })
            .collect())))
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Verdict> {
        Box::pin(ready(Ok(self.give_back(request))))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a str) -> StoreFuture<'a, Fence> {
        let mut tables = self.tables();
        let fence = if Mode::is_shared(value) {
            tables.fence_shared(key, value, Self::now())
        } else {
            tables.fence(key, value, Self::now())
        };
        Box::pin(ready(fence))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, Turn> {
        Box::pin(self.stand_in_queue(request))
    }

    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        Box::pin(ready(Ok(self.tables().info(key, Self::now()))))
    }

    fn list<'a>(&'a self, pattern: &'a str, _: u64) -> StoreFuture<'a, LockPage> {
        let locks = self.tables().matching(pattern, Self::now());
        Box::pin(ready(Ok(LockPage { locks, next: 0 })))
    }

    fn force_release<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(ready(Ok(self.take_away(key))))
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
