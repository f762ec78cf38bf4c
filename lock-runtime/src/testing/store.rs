//! The kit's store: the one in memory, with faults before and after its operations.

use std::fmt;
use std::future::{pending, ready};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Moment, TokioClock, tokio_clock_is_paused};
use crate::engine::Timer;
use crate::inspect::LockInfo;
use crate::store::memory::MemoryStore;
use crate::store::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Fence, LockPage, LockStore, LossHint, LossReceiver,
    QueueRequest, ReleaseRequest, RenewRequest, StoreError, StoreFuture, Turn, Verdict,
};

/// A store in memory that can be out of reach, and lose its replies.
#[derive(Default)]
pub(super) struct TestStore {
    /// What everybody else sees, at all times.
    pub(super) inner: MemoryStore,
    faults: Mutex<Faults>,
    losses: OnceLock<LossReceiver>,
}

#[derive(Debug, Default)]
struct Faults {
    /// On tokio's clock.
    unreachable_until: Option<Moment>,
    /// How many replies are to be lost.
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
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn drop_next_reply(&self) {
        self.faults().lost_replies += 1;
    }

    pub(super) fn unreachable_for(&self, span: Duration) {
        self.faults().unreachable_until = Some(TokioClock.now().after(span));
    }

    /// Has every lock checked, as after a report of the store that something was changed.
    pub(super) fn report_changes(&self) {
        if let Some(receiver) = self.losses.get() {
            receiver(LossHint::All);
        }
    }

    /// For how much longer nothing gets through. `None`: it does.
    fn unreachable(&self) -> Option<Duration> {
        let until = self.faults().unreachable_until?;
        Some(until.since(TokioClock.now())).filter(|rest| !rest.is_zero())
    }

    fn is_faulty(&self) -> bool {
        self.unreachable().is_some() || self.faults().lost_replies > 0
    }

    /// An operation whose reply is not lost.
    fn ask<'a, T: Send + 'a>(&self, operation: impl FnOnce() -> StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        if self.unreachable().is_some() {
            let error = StoreError::transient("the test has put the store out of reach");
            return Box::pin(ready(Err(error)));
        }
        operation()
    }

    /// An operation whose reply may be lost.
    fn ask_and_hear<'a, T: Send + 'a>(&self, operation: impl FnOnce() -> StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        self.ask(|| {
            let mut faults = self.faults();
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
        let timer = if tokio_clock_is_paused() {
            Timer::Caller
        } else {
            Timer::Engine
        };
        while let Some(rest) = self.unreachable() {
            timer.sleep(rest).await;
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

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Verdict>> {
        let operation = || self.inner.renew(requests);
        // The reply to a mere check is not what a test wants to lose.
        if requests.iter().any(|request| request.extend.is_some()) {
            self.ask_and_hear(operation)
        } else {
            self.ask(operation)
        }
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Verdict> {
        self.ask_and_hear(|| self.inner.release(request))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a str) -> StoreFuture<'a, Fence> {
        self.ask(|| self.inner.fence(key, value))
    }

    fn connect(&self) -> StoreFuture<'_, ()> {
        self.ask(|| self.inner.connect())
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, Turn> {
        self.ask(|| {
            Box::pin(async move {
                let turn = self.inner.queue(request).await;
                // The message that tells it comes late.
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
        // There is one manager for one kit.
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

    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Verdict> {
        if self.is_faulty() {
            return None;
        }
        self.inner.release_now(request)
    }
}

/// The store as a manager takes it.
pub(super) fn as_store(store: &Arc<TestStore>) -> Arc<dyn LockStore> {
    Arc::clone(store) as _
}
