//! The kit's store: the memory store, with faults before and after its operations.

use std::fmt;
use std::future::{pending, ready};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::host::{Clock, Host, Moment, Mutex, Timer, TokioClock};
use crate::store::info::LockInfo;
use crate::store::memory::MemoryStore;
use crate::store::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Fence, HolderValue, Lane, LockPage, LockStore, LossHint,
    LossReceiver, Ownership, QueueOutcome, QueueRequest, ReleaseRequest, RenewRequest, Replicated, StoreError,
    StoreFuture,
};

/// A store in memory that can be out of reach, and can lose replies.
#[derive(Default)]
pub(super) struct TestStore {
    /// The store without faults, as other hosts see it.
    pub(super) inner: MemoryStore,
    faults: Mutex<Faults>,
    losses: OnceLock<LossReceiver>,
}

#[derive(Debug, Default)]
struct Faults {
    /// The end of the outage, on tokio's clock.
    unreachable_until: Option<Moment>,
    /// The number of replies that are still to be lost.
    lost_replies: u32,
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestStore")
            .field("inner", &self.inner)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl TestStore {
    pub(super) fn drop_next_reply(&self) {
        self.faults.lock().lost_replies += 1;
    }

    pub(super) fn unreachable_for(&self, span: Duration) {
        self.faults.lock().unreachable_until = Some(TokioClock.now().after(span));
    }

    /// Makes the manager check every lock, as after a report of the store that a key was changed.
    pub(super) fn report_changes(&self) {
        if let Some(receiver) = self.losses.get() {
            receiver(LossHint::All(Lane::default()));
        }
    }

    /// Returns the rest of the outage; `None` while the store is in reach.
    fn unreachable(&self) -> Option<Duration> {
        let until = self.faults.lock().unreachable_until?;
        Some(until.since(TokioClock.now())).filter(|rest| !rest.is_zero())
    }

    fn is_faulty(&self) -> bool {
        self.unreachable().is_some() || self.faults.lock().lost_replies > 0
    }

    /// Runs an operation whose reply is never lost.
    fn ask<'a, T: Send + 'a>(&self, operation: impl FnOnce() -> StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        if self.unreachable().is_some() {
            let error = StoreError::transient("the test has put the store out of reach");
            return Box::pin(ready(Err(error)));
        }
        operation()
    }

    /// Runs an operation whose reply may be lost.
    fn ask_and_hear<'a, T: Send + 'a>(&self, operation: impl FnOnce() -> StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        self.ask(|| {
            let mut faults = self.faults.lock();
            if faults.lost_replies == 0 {
                drop(faults);
                return operation();
            }
            faults.lost_replies -= 1;
            drop(faults);
            let applied = operation();
            Box::pin(async move {
                drop(applied.await);
                pending().await
            })
        })
    }

    async fn wait_until_reachable(&self) {
        let timer = Timer::of_tokio();
        while let Some(rest) = self.unreachable() {
            Host::process().sleep(timer, rest).await;
        }
    }
}

impl LockStore for TestStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.ask_and_hear(|| self.inner.acquire(request))
    }

    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        self.ask_and_hear(|| self.inner.acquire_all(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        let operation = || self.inner.renew(requests);
        // A test does not know when a lock is checked, so the replies to checks are never lost.
        if requests.iter().any(|request| request.extend.is_some()) {
            self.ask_and_hear(operation)
        } else {
            self.ask(operation)
        }
    }

    fn wait_for_replicas<'a>(&'a self, requests: &'a [RenewRequest], replicas: u32) -> StoreFuture<'a, Replicated> {
        self.ask(|| self.inner.wait_for_replicas(requests, replicas))
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        self.ask_and_hear(|| self.inner.release(request))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        self.ask(|| self.inner.fence(key, value))
    }

    fn connect(&self) -> StoreFuture<'_, ()> {
        self.ask(|| self.inner.connect())
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        self.ask(|| {
            Box::pin(async move {
                let turn = self.inner.queue(request).await;
                // The message that reports the grant arrives once the store is in reach again.
                self.wait_until_reachable().await;
                turn
            })
        })
    }

    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        self.ask(|| self.inner.inspect(key))
    }

    fn list<'a>(&'a self, pattern: &'a str, from: u64) -> StoreFuture<'a, LockPage> {
        self.ask(|| self.inner.list(pattern, from))
    }

    fn force_release<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        self.ask(|| self.inner.force_release(key))
    }

    fn report_losses(&self, receiver: LossReceiver) -> bool {
        // A kit has one manager.
        self.losses.set(receiver).is_ok()
    }

    fn release_is_immediate(&self) -> bool {
        self.inner.release_is_immediate()
    }

    fn acquire_now(&self, request: &AcquireRequest<'_>) -> Option<Result<Attempt, StoreError>> {
        if self.is_faulty() {
            return None;
        }
        self.inner.acquire_now(request)
    }

    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Ownership> {
        if self.is_faulty() {
            return None;
        }
        self.inner.release_now(request)
    }
}

/// Returns the store in the form that a manager takes.
pub(super) fn as_store(store: &Arc<TestStore>) -> Arc<dyn LockStore> {
    Arc::clone(store) as _
}
