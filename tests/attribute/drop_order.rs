//! Every argument is dropped before the lock is released, in the order of a plain function.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, LockStore, Ownership, ReleaseRequest, RenewRequest, StoreError,
    StoreFuture,
};
use lock_runtime::{LockManager, distributed_lock};

use crate::witness::Shop;

#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn add(&self, event: &'static str) {
        self.0.lock().unwrap().push(event);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn guard(&self, name: &'static str) -> Transaction {
        Transaction {
            log: self.clone(),
            name,
        }
    }
}

/// Ends when it is dropped, as a database transaction does.
struct Transaction {
    log: Log,
    name: &'static str,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.log.add(self.name);
    }
}

impl Transaction {
    /// Something that borrows, to stand in the last expression.
    fn get(&self) -> Borrowed<'_> {
        Borrowed(self)
    }
}

struct Borrowed<'a>(&'a Transaction);

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.0.log.add("temporary");
    }
}

impl Borrowed<'_> {
    fn length(&self) -> usize {
        self.0.name.len()
    }
}

/// The embedded store, writing down when it is asked for a release.
#[derive(Debug)]
struct Recording {
    inner: MemoryStore,
    log: Log,
}

impl LockStore for Recording {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.log.add("acquire");
        self.inner.acquire(request)
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        self.inner.renew(requests)
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        self.log.add("release");
        self.inner.release(request)
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        self.inner.fence(key, value)
    }

    // So that the locks follow a paused clock, and no call that stands still is asked for a sign of life.
    fn release_is_immediate(&self) -> bool {
        true
    }

    fn acquire_now(&self, request: &AcquireRequest<'_>) -> Option<Result<Attempt, StoreError>> {
        self.log.add("acquire");
        self.inner.acquire_now(request)
    }

    // At once, so that a lock that is dropped too early is released too early.
    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Ownership> {
        self.log.add("release");
        self.inner.release_now(request)
    }
}

fn recording() -> (LockManager, Log) {
    let log = Log::default();
    let store = Recording {
        inner: MemoryStore::new(),
        log: log.clone(),
    };
    (
        LockManager::builder("memory://")
            .store(Arc::new(store))
            .build()
            .unwrap(),
        log,
    )
}

struct Parts {
    used: Transaction,
    #[expect(dead_code, reason = "it only has to end")]
    rest: Transaction,
}

/// Parts of it are copied out of it; it ends as a whole.
struct Whole {
    id: u32,
    log: Log,
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.log.add("whole");
    }
}

/// The same function with and without the attribute.
macro_rules! function {
    ($(#[$attr:meta])* $name:ident, $locks:ident) => {
        $(#[$attr])*
        #[allow(clippy::too_many_arguments, unused_variables)]
        async fn $name(
            $locks: &LockManager,
            log: Log,
            used: Transaction,
            unused: Transaction,
            _: Transaction,
            _underscored: Transaction,
            mut changed: Transaction,
            Parts { used: part, .. }: Parts,
            (first, second): (Transaction, Transaction),
            Whole { id, .. }: Whole,
            tail: Transaction,
        ) -> Shop<usize> {
            let local = log.guard("local");
            changed.name = "changed";
            drop((used.get(), part.get()));
            log.take();
            if id == 0 {
                drop(first);
                return Ok(second.name.len() + local.name.len());
            }
            tail.get().length().checked_add(1).ok_or(crate::witness::ShopError::SoldOut)
        }
    };
}

function!(plain, locks);
function!(
    #[distributed_lock(key = "drop order", manager = locks)]
    locked,
    locks
);

macro_rules! events {
    ($function:ident, $id:literal) => {{
        let (locks, log) = recording();
        let [used, unused, unnamed, underscored, changed] =
            ["used", "unused", "unnamed", "underscored", "unchanged"].map(|name| log.guard(name));
        let parts = Parts {
            used: log.guard("part"),
            rest: log.guard("rest of the parts"),
        };
        let pair = (log.guard("first"), log.guard("second"));
        let whole = Whole {
            id: $id,
            log: log.clone(),
        };
        let tail = log.guard("tail");
        let log_in = log.clone();
        let call = $function(
            &locks,
            log_in,
            used,
            unused,
            unnamed,
            underscored,
            changed,
            parts,
            pair,
            whole,
            tail,
        );
        call.await.unwrap();
        log.take()
    }};
}

#[tokio::test]
async fn arguments_end_before_the_release_in_the_order_of_a_plain_function() {
    let expected = events!(plain, 1);
    assert_eq!(expected.first(), Some(&"temporary"));
    assert_eq!(expected.last(), Some(&"used"));
    let mut events = events!(locked, 1);
    assert_eq!(events.pop(), Some("release"));
    assert_eq!(events, expected);
}

#[tokio::test]
async fn arguments_end_before_the_release_after_an_early_return() {
    let expected = events!(plain, 0);
    let mut events = events!(locked, 0);
    assert_eq!(events.pop(), Some("release"));
    assert_eq!(events, expected);
}

struct Service {
    locks: LockManager,
    first: Transaction,
    #[expect(dead_code, reason = "it only has to end")]
    second: Transaction,
}

impl Service {
    #[distributed_lock(key = "self", manager = self.locks)]
    async fn by_value(self, _argument: Transaction) -> Shop<()> {
        Ok(())
    }

    #[distributed_lock(key = "self", manager = self.locks)]
    async fn by_part(self, _argument: Transaction) -> Shop<usize> {
        let taken = self.first;
        Ok(taken.name.len())
    }

    #[distributed_lock(key = "self", manager = self.locks)]
    async fn by_box(self: Box<Self>) -> Shop<()> {
        Ok(())
    }
}

fn service() -> (Service, Log) {
    let (locks, log) = recording();
    (
        Service {
            locks,
            first: log.guard("first"),
            second: log.guard("second"),
        },
        log,
    )
}

#[tokio::test]
async fn a_receiver_by_value_ends_before_the_release() {
    let (service, log) = self::service();
    let argument = log.guard("argument");
    service.by_value(argument).await.unwrap();
    assert_eq!(log.take(), ["acquire", "argument", "first", "second", "release"]);

    let (service, log) = self::service();
    let argument = log.guard("argument");
    service.by_part(argument).await.unwrap();
    assert_eq!(log.take(), ["acquire", "first", "argument", "second", "release"]);

    let (service, log) = self::service();
    Box::new(service).by_box().await.unwrap();
    assert_eq!(log.take(), ["acquire", "first", "second", "release"]);
}

#[async_trait]
trait Boxed {
    async fn call(&self, locks: &LockManager, used: Transaction, _: Transaction) -> Shop<usize>;
}

#[async_trait]
impl Boxed for () {
    #[distributed_lock(key = "boxed", manager = locks)]
    async fn call(&self, locks: &LockManager, used: Transaction, _: Transaction) -> Shop<usize> {
        let _ = locks;
        Ok(used.name.len())
    }
}

#[tokio::test]
async fn arguments_of_an_async_trait_method_end_before_the_release() {
    let (locks, log) = recording();
    let (used, unnamed) = (log.guard("used"), log.guard("unnamed"));
    ().call(&locks, used, unnamed).await.unwrap();
    assert_eq!(log.take(), ["acquire", "unnamed", "used", "release"]);
}

#[distributed_lock(key = "cancelled", manager = locks, lease = "1s", renew = false)]
async fn cancelled(locks: &LockManager, argument: Transaction) -> Shop<()> {
    let _local = argument.log.guard("local");
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn arguments_of_a_cancelled_body_end_before_the_release() {
    let (locks, log) = recording();
    let argument = log.guard("argument");
    cancelled(&locks, argument).await.unwrap_err();
    let events = log.take();
    assert_eq!(events[..3], ["acquire", "local", "argument"]);
}

#[distributed_lock(key = "dropped", manager = locks)]
async fn dropped(locks: &LockManager, argument: Transaction, _: Transaction) -> Shop<()> {
    let _local = argument.log.guard("local");
    std::future::pending().await
}

#[tokio::test]
async fn arguments_of_a_dropped_call_end_before_the_release() {
    let (locks, log) = recording();
    let (argument, unnamed) = (log.guard("argument"), log.guard("unnamed"));
    let call = dropped(&locks, argument, unnamed);
    tokio::select! {
        biased;
        _ = call => unreachable!("the body never ends"),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!(log.take(), ["acquire", "local", "unnamed", "argument", "release"]);
}

#[distributed_lock(key = "panics", manager = locks)]
async fn panics(locks: &LockManager, argument: Transaction) -> Shop<()> {
    let _local = argument.log.guard("local");
    panic!("as planned")
}

#[tokio::test]
async fn arguments_of_a_panicking_body_end_before_the_release() {
    let (locks, log) = recording();
    let argument = log.guard("argument");
    let call = tokio::spawn(async move { panics(&locks, argument).await });
    assert!(call.await.unwrap_err().is_panic());
    assert_eq!(log.take(), ["acquire", "local", "argument", "release"]);
}
