//! A master in the memory of this process that can die, in the place of a server.

use std::sync::Arc;

use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, LockStore, Ownership, QueueOutcome, QueueRequest, ReleaseRequest,
    RenewRequest, StoreError, StoreFuture,
};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Master {
    memory: MemoryStore,
    is_dead: watch::Sender<bool>,
}

impl Master {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(),
            is_dead: watch::Sender::new(false),
        })
    }

    /// Answers nothing from now on, not even what it has been asked already.
    pub(crate) fn die(&self) {
        self.is_dead.send_replace(true);
    }

    fn ask<'a, T: Send + 'a>(&'a self, question: impl FnOnce() -> StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        let mut is_dead = self.is_dead.subscribe();
        if *is_dead.borrow_and_update() {
            return Box::pin(async { Err(StoreError::transient("the connection is refused")) });
        }
        let answer = question();
        Box::pin(async move {
            tokio::select! {
                biased;
                _ = is_dead.changed() => Err(StoreError::unknown("the connection is closed")),
                answer = answer => answer,
            }
        })
    }
}

impl LockStore for Master {
    fn connect(&self) -> StoreFuture<'_, ()> {
        self.ask(|| self.memory.connect())
    }

    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.ask(|| self.memory.acquire(request))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        self.ask(|| self.memory.queue(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        self.ask(|| self.memory.renew(requests))
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        self.ask(|| self.memory.release(request))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        self.ask(|| self.memory.fence(key, value))
    }
}
