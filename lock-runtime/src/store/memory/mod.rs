//! The embedded store: locks of one process, for examples and tests. It uses tokio's clock, which a
//! test can pause.

mod exclusive;
mod inspect;
#[cfg(feature = "testing")]
mod intervene;
mod multi;
mod queue;
mod shared;

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::Arc;

use crate::host::{Clock, Host, Moment, Mutex, TokioClock};
use crate::store::info::LockInfo;
use crate::store::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Fence, FencingToken, HolderValue, LockPage, LockStore,
    Ownership, QueueOutcome, QueueRequest, ReleaseRequest, RenewRequest, Replicated, StoreError, StoreFuture,
};
use exclusive::Slot;
use queue::{Queue, Ticket};
use shared::Holders;

/// A store in this process's memory. Managers that share one store exclude each other.
///
/// ```
/// # use std::sync::Arc;
/// # use lock_runtime::LockManager;
/// use lock_runtime::store::memory::MemoryStore;
///
/// let store = Arc::new(MemoryStore::new());
/// let one = LockManager::builder("memory://").store(store.clone()).build()?;
/// let other = LockManager::builder("memory://").store(store).build()?;
/// # Ok::<(), lock_runtime::ConfigError>(())
/// ```
#[derive(Default)]
pub struct MemoryStore {
    host: Host,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    host: Host,
    slots: HashMap<Arc<str>, Slot>,
    /// The number of slots at which to look for expired ones.
    sweep_at: usize,
    /// The last fencing token issued, for any key.
    last_fence: u64,
    /// The waiters for each key that has any.
    queues: HashMap<Arc<str>, Queue>,
    /// The locks in shared modes.
    shared: HashMap<Arc<str>, Holders>,
    /// The number of entries in `shared` at which to look for expired ones.
    sweep_shared_at: usize,
    /// The waiters for locks in shared modes.
    shared_queues: HashMap<Arc<str>, Queue>,
}

fn wake(handed: impl IntoIterator<Item = Arc<Ticket>>) {
    for ticket in handed {
        ticket.wake();
    }
}

impl MemoryStore {
    /// Creates an empty store.
    #[cfg(feature = "custom-store")]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn on(host: &Host) -> Self {
        let tables = Tables {
            host: host.clone(),
            ..Tables::default()
        };
        Self {
            host: host.clone(),
            tables: Mutex::new(tables),
        }
    }

    fn now() -> Moment {
        TokioClock.now()
    }

    fn take(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        request.receipt.sent_on(1);
        if !request.value.is_shared() {
            return self.tables.lock().acquire(request, Self::now());
        }
        let (attempt, handed) = self.tables.lock().acquire_shared(request, Self::now());
        wake(handed);
        attempt
    }

    fn take_all(&self, request: &AcquireAllRequest<'_>) -> Result<AttemptAll, StoreError> {
        request.receipt.sent_on(1);
        let (attempt, handed) = self.tables.lock().acquire_all(request, Self::now());
        wake(handed);
        attempt
    }

    /// Releases the lock and wakes the waiters that got it.
    fn give_back(&self, request: &ReleaseRequest<'_>) -> Ownership {
        request.receipt.sent_on(1);
        if request.value.is_shared() {
            let (verdict, handed) = self.tables.lock().release_shared(request, Self::now());
            wake(handed);
            return verdict;
        }
        let (verdict, next) = self.tables.lock().release(request, Self::now());
        wake(next);
        verdict
    }
}

/// Shows the number of keys and not their values, which contain the holders' tokens.
impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = {
            let tables = self.tables.lock();
            tables.slots.len() + tables.shared.len()
        };
        f.debug_struct("MemoryStore")
            .field("keys", &keys)
            .finish_non_exhaustive()
    }
}

impl LockStore for MemoryStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(ready(self.take(request)))
    }

    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        Box::pin(ready(self.take_all(request)))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        let mut tables = self.tables.lock();
        let now = Self::now();
        let verdicts = requests.iter().map(|request| tables.renew(request, now));
        Box::pin(ready(Ok(verdicts.collect())))
    }

    /// Any number: what is in memory is lost only together with all that use it.
    fn wait_for_replicas<'a>(&'a self, requests: &'a [RenewRequest], replicas: u32) -> StoreFuture<'a, Replicated> {
        Box::pin(async move {
            let owned = self.renew(requests).await?.into_iter().reduce(Ownership::or);
            Ok(match owned {
                None | Some(Ownership::Owned) => Replicated::To(replicas),
                Some(other) => Replicated::NotOwned(other),
            })
        })
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        Box::pin(ready(Ok(self.give_back(request))))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        Box::pin(ready(self.tables.lock().fence(key, value, Self::now())))
    }

    fn raise_fence<'a>(
        &'a self,
        key: &'a str,
        value: &'a HolderValue,
        fence: FencingToken,
    ) -> StoreFuture<'a, Ownership> {
        let raised = self.tables.lock().raise_fence(key, value, fence, Self::now());
        Box::pin(ready(Ok(raised)))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        Box::pin(self.stand_in_queue(request))
    }

    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        Box::pin(ready(Ok(self.tables.lock().info(key, Self::now()))))
    }

    fn list<'a>(&'a self, pattern: &'a str, _: u64) -> StoreFuture<'a, LockPage> {
        let locks = self.tables.lock().matching(pattern, Self::now());
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

    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Ownership> {
        Some(self.give_back(request))
    }
}
