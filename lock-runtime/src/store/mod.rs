//! The interface between the runtime and the stores that keep the locks. Public with the feature
//! `custom-store`.

#![cfg_attr(not(feature = "custom-store"), allow(unreachable_pub))]

pub(crate) mod abandon;
pub(crate) mod access;
mod fencing_token;
pub(crate) mod health;
pub(crate) mod holder;
pub(crate) mod info;
pub(crate) mod limits;
pub mod memory;
mod mode;
mod one_by_one;
pub mod quorum;
pub mod redis;
pub(crate) mod responder;
#[cfg(feature = "serde")]
mod serialize;

use std::error::Error;
use std::fmt::{self, Debug};
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::host::{Clock, Host, Moment, Mutex, Timer};
use crate::key::KeyProblem;
use crate::store::health::ServerHealth;
use crate::store::holder::Holder;
pub use crate::store::holder::HolderValue;
use crate::store::info::LockInfo;
pub use crate::store::info::LockPage;
pub use fencing_token::FencingToken;
pub use mode::LockMode;
pub use responder::Responder;

/// The advice after a body that may have begun. Not to try again, which would do its work twice.
pub(crate) const LOOK_FIRST: &str = "before the call is repeated, see what it has done";

/// The future that a store's operation returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Waits for a store's answer for at most `limit`; without one, fails with an unknown outcome.
pub(crate) async fn within<T>(
    host: &Host,
    timer: Timer,
    limit: Duration,
    question: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = host.timeout(timer, limit, question).await;
    answer.unwrap_or_else(no_answer)
}

fn no_answer<T>() -> Result<T, StoreError> {
    Err(StoreError::unknown("no answer within the response time-out"))
}

/// A backend that stores locks.
///
/// Every [`HolderValue`] has the [`LockMode`] in which it is to hold its key.
///
/// # Required guarantees
/// - While a key holds an unexpired value, [`acquire`](Self::acquire) of any other value returns
///   [`Attempt::Busy`], unless the modes of both values let them share it.
/// - In every mode but exclusive, no caller overtakes the waiters in the store's
///   [`queue`](Self::queue), except another holder for an owner that has the lock.
/// - An `acquire` that finds its own value grants it again: a request delivered twice grants one
///   lock.
/// - `renew`, `release` and `fence` act only where the key holds the given value, and compare and
///   act in one step.
/// - A renewal never creates a key.
/// - A release that keeps the key for a minimum hold ends the ownership all the same: the value no
///   longer owns the key, and the same release sent again returns [`Ownership::Owned`] without
///   another effect.
/// - An `acquire` that failed with [`Effect::Unknown`] may have been applied, or may still be
///   applied later.
/// - A release hands the lock to the first waiter in the store's [`queue`](Self::queue), in the
///   same step. Within a second or two, the store passes over a waiter whose process has died.
///
/// The futures can be polled on any runtime. Dropping one at any point is safe: a request that was
/// sent may still be carried out, and the runtime then releases what it took.
pub trait LockStore: Debug + Send + Sync + 'static {
    /// Takes the lock if it is free.
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt>;

    /// Takes many exclusive locks under one value: all of them, or none.
    ///
    /// A store that can do so in one step should. This default takes one after the other, and
    /// releases them if one is busy.
    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        Box::pin(one_by_one::one_by_one(self, request))
    }

    /// Renews (or only checks) many locks in one round trip. Returns one [`Ownership`] per request,
    /// in the same order. A lock may be checked and renewed by two calls at once.
    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>>;

    /// Does the same as [`renew`](Self::renew) for a store on several servers, some of which may not
    /// answer: returns `None` for a lock about which it knows nothing. By default asks `renew`.
    fn renew_each<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Option<Ownership>>> {
        Box::pin(async move {
            let verdicts = self.renew(requests).await?;
            Ok(verdicts.into_iter().map(Some).collect())
        })
    }

    /// Waits until at least `replicas` replicas have the locks of `requests`, which belong to one
    /// holder, and returns how many have them. A replica that gets them later than the store's own
    /// time limit does not count. Asked before a body whose call wants replicas begins, also if its
    /// lock was handed over. The store renews the locks as the requests say.
    ///
    /// A store whose data cannot be lost by the failure of one server returns `replicas`. By default
    /// a store does not know, which fails such calls.
    fn wait_for_replicas<'a>(&'a self, requests: &'a [RenewRequest], replicas: u32) -> StoreFuture<'a, Replicated> {
        let _ = (requests, replicas);
        Box::pin(ready(Err(StoreError::permanent(
            "this store cannot tell how many replicas have a lock",
        )
        .advise(
            "leave `min_replicas` out, or use a Redis or Valkey server with replicas",
        ))))
    }

    /// Returns the health of the store's servers, for
    /// [`LockManager::health`](crate::LockManager::health). By default a store does not tell.
    fn health(&self) -> Option<watch::Receiver<Vec<ServerHealth>>> {
        None
    }

    /// Returns the number of servers that keep locks without which locks can be taken all the same: none by
    /// default.
    fn may_miss(&self) -> usize {
        0
    }

    /// Returns where the store keeps its locks. Stores that return the same text share their locks. By
    /// default a store has locks of its own.
    fn place(&self) -> Option<&str> {
        None
    }

    /// Returns how far the clocks may differ of servers that can replace one another, which a manager
    /// uses unless it is given a [`skew`](crate::LockManagerBuilder::skew). Defaults to zero, for one
    /// server.
    fn skew(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the lane of a key: the server, of several, that keeps its lock.
    ///
    /// Locks of one lane are renewed and checked together, and apart from those of other lanes, so
    /// that a server that does not answer holds up no other one's locks. Only the keys of one call
    /// for several may lie in different lanes; their locks are then renewed together with those of
    /// the same lanes. Asked once for each lock that was granted, and again after
    /// [`LossHint::Relocated`]; it must not block, nor report a hint itself. Defaults to one lane for all keys.
    fn lane(&self, key: &str) -> Lane {
        let _ = key;
        Lane::default()
    }

    /// Returns why the store cannot keep a lock under this whole key, for an
    /// [`InvalidKey`](crate::LockError::InvalidKey). By default it can.
    fn refuses(&self, key: &str) -> Option<KeyProblem> {
        let _ = key;
        None
    }

    /// Returns the longest time for which a key can be kept: its lease and the `lock_delay`, or the
    /// `at_least`. By default there is no limit but [`MAX_LEASE`](crate::MAX_LEASE).
    fn longest_lease(&self) -> Option<Duration> {
        None
    }

    /// Returns `true` if the store cannot keep locks in this mode, or in the order of their requests if
    /// `fair` is set. By default it can.
    fn refuses_mode(&self, mode: &LockMode, fair: bool) -> bool {
        let _ = (mode, fair);
        false
    }

    /// Tells the store that the answer of `lane` to a [`renew`](Self::renew) under way has become
    /// urgent. A store that uses a connection should find out if it still works, and repeat the
    /// request on another one if not. Returns at once.
    fn renewal_is_late(&self, lane: Lane) {
        let _ = lane;
    }

    /// Releases the lock.
    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership>;

    /// Gives up an attempt, or a place in the queue: releases whatever it has taken or may still get, in
    /// the background, until the store can no longer have it. Returns at once.
    ///
    /// Returns `false` if the store leaves this to the runtime, which then repeats
    /// [`release`](Self::release). So it is by default; a store of several servers has to know by
    /// itself which of them were asked.
    fn abandon(&self, abandoned: &Abandoned) -> bool {
        let _ = abandoned;
        false
    }

    /// Sends an attempt at once, if the store can, and before everything that this runtime sends later.
    ///
    /// `responder` is called only for a request that goes into a batch. By default nothing is sent: use
    /// [`acquire`](Self::acquire).
    fn send_acquire(
        &self,
        request: &AcquireRequest<'_>,
        responder: &dyn Fn() -> Responder<Attempt>,
    ) -> Dispatch<Attempt> {
        let _ = (request, responder);
        Dispatch::Declined
    }

    /// Sends a release as [`send_acquire`](Self::send_acquire) sends an attempt. By default nothing is sent:
    /// use [`release`](Self::release).
    fn send_release(
        &self,
        request: &ReleaseRequest<'_>,
        responder: &dyn Fn() -> Responder<Ownership>,
    ) -> Dispatch<Ownership> {
        let _ = (request, responder);
        Dispatch::Declined
    }

    /// Tells the store that the answer to a request in a batch, with this receipt, is awaited no more, and was
    /// so for this time. Returns at once.
    fn gave_up(&self, receipt: &Receipt, waited: Duration) {
        let _ = (receipt, waited);
    }

    /// Queues a release and returns without waiting for the answer. The store carries the release
    /// out after everything that this runtime has sent before, and before everything that this
    /// runtime sends later. The outcome goes to `report`.
    ///
    /// # Errors
    /// Returns the report if the store cannot do so: use [`release`](Self::release).
    fn release_in_order(&self, request: &ReleaseRequest<'_>, report: ReleaseReport) -> Result<(), ReleaseReport> {
        let _ = request;
        Err(report)
    }

    /// Takes a fencing token for a lock that is still held.
    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence>;

    /// Raises the store's last fencing token to `fence`, if the lock is still held and that one is smaller. A
    /// quorum asks this of its masters. By default it fails.
    fn raise_fence<'a>(
        &'a self,
        key: &'a str,
        value: &'a HolderValue,
        fence: FencingToken,
    ) -> StoreFuture<'a, Ownership> {
        let _ = (key, value, fence);
        Box::pin(ready(Err(StoreError::permanent(
            "this store cannot be a master of a quorum, since it cannot be told of another master's fencing token",
        )
        .advise("implement `raise_fence` of its `LockStore`"))))
    }

    /// Takes one fencing token for several locks that are still held under one value. By default takes
    /// one for the first lock, which suffices if the store counts the tokens of all locks together.
    fn fence_all<'a>(&'a self, keys: &'a [Arc<str>], value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        match keys.first() {
            Some(first) => self.fence(first, value),
            None => Box::pin(ready(Err(StoreError::permanent("no key was given")))),
        }
    }

    /// Waits, for at most `most`, until the store takes another request of this kind for `key` from
    /// this runtime. Returns `None` if it does already.
    ///
    /// Bounds the number of requests under way. The time spent here is part of a call's `wait`, and
    /// not of the response time-out. The future reserves nothing: a call that is no longer polled
    /// takes no other call's place.
    fn ready(&self, what: Limited, key: &str, most: Duration) -> Option<StoreFuture<'_, ()>> {
        let _ = (what, key, most);
        None
    }

    /// Connects and verifies that the server permits every command that the store needs. Stores
    /// without a connection have nothing to do.
    fn connect(&self) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Asks the server, without an effect, for what it refuses while it cannot release or hand over locks. By default
    /// connects.
    fn ping(&self) -> StoreFuture<'_, ()> {
        self.connect()
    }

    /// Returns the identifier of the store's server, which two stores on one server have in common. It
    /// changes with each restart. By default there is none.
    fn identity(&self) -> StoreFuture<'_, Option<Box<str>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Opens the store's server at once if it is closed, since it may have forgotten locks. The caller
    /// vouches that none of them can still be held. Returns `true` if it was closed. By default a store
    /// is never closed.
    ///
    /// All connections of this store then take locks at once. Another process that has found the server
    /// closed asks it again once a second, while it is asked for locks.
    fn open_now(&self) -> StoreFuture<'_, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Returns advice on settings of the store's servers that endanger locks of which so many replicas
    /// must have each, for [`LockManager::check_setup`](crate::LockManager::check_setup). By default
    /// there is none.
    fn check_setup(&self, min_replicas: u32) -> StoreFuture<'_, Vec<String>> {
        let _ = min_replicas;
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Waits in the store's queue for a key until the store hands the lock to `request.value`.
    ///
    /// Only an answer of the server makes the outcome [`QueueOutcome::Granted`]: a store whose
    /// server notifies waiters by messages asks the server again when a message arrives, since
    /// other clients may be able to send messages.
    ///
    /// A caller that drops the future early releases the value with [`ReleaseRequest::queued`],
    /// which also takes it out of the queue. A store without a queue answers
    /// [`QueueOutcome::Unavailable`], and its callers try again after pauses.
    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        let _ = request;
        Box::pin(std::future::ready(Ok(QueueOutcome::Unavailable)))
    }

    /// Gives the store a receiver for [`LossHint`]s. Returns `true` if the store will send any.
    ///
    /// In that case every lock is checked once (a [`RenewRequest`] without `extend`) soon after it
    /// was taken, and the store can then ask its server to report changes of the key.
    fn report_losses(&self, receiver: LossReceiver) -> bool {
        let _ = receiver;
        false
    }

    /// Returns a snapshot of one lock, or `None` if it is free and no caller waits for it.
    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        let _ = key;
        info::unavailable()
    }

    /// Returns a page of the held locks whose whole keys match `pattern`, a glob in Redis's syntax.
    /// `from` is zero for the first page, then the [`next`](LockPage::next) of the page before. A
    /// lock that is held throughout is on at least one page.
    fn list<'a>(&'a self, pattern: &'a str, from: u64) -> StoreFuture<'a, LockPage> {
        let _ = (pattern, from);
        info::unavailable()
    }

    /// Takes a lock away from all its holders and hands it to the first waiter. Returns `true` if
    /// it was held. Must not touch a key that is not a lock.
    fn force_release<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        let _ = key;
        info::unavailable()
    }

    /// Returns `true` if the store lives in this process and uses tokio's clock, so that
    /// [`acquire_now`](Self::acquire_now) and [`release_now`](Self::release_now) return `Some`.
    fn release_is_immediate(&self) -> bool {
        false
    }

    /// Takes the lock if it is free, without waiting. Returns `None` if the store cannot: use
    /// [`acquire`](Self::acquire).
    fn acquire_now(&self, request: &AcquireRequest<'_>) -> Option<Result<Attempt, StoreError>> {
        let _ = request;
        None
    }

    /// Releases the lock without waiting. Returns `None` if the store cannot: use
    /// [`release`](Self::release).
    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Ownership> {
        let _ = request;
        None
    }
}

/// One of the servers of a store, by a number that the store chooses. See [`LockStore::lane`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u32);

/// The kinds of requests that [`LockStore::ready`] limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Requests that take a lock, or a place in the queue.
    Acquires,
    /// Requests that others wait for: they release a lock, or take one that was handed over.
    Releases,
}

/// The way in which a store sends a request. See [`LockStore::send_acquire`].
#[must_use = "a request that is not sent in a batch is not sent before its future is polled"]
pub enum Dispatch<T> {
    /// The store does not send it at once.
    Declined,
    /// Together with other requests. The answer goes to the [`Responder`]. If it is an error with
    /// [`Effect::None`], the runtime asks again, by [`LockStore::acquire`] or [`LockStore::release`].
    InBatch,
    /// By itself, by the first poll of this future. Dropping the future gives up the answer.
    ByItself(StoreFuture<'static, T>),
    /// Likewise, to where the store expects the lock. After an error with [`Effect::None`], the runtime asks again
    /// as it does after [`InBatch`](Self::InBatch).
    Tried(StoreFuture<'static, T>),
}

impl<T> fmt::Debug for Dispatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Declined => "Declined",
            Self::InBatch => "InBatch",
            Self::ByItself(_) => "ByItself",
            Self::Tried(_) => "Tried",
        })
    }
}

/// A request for a lock.
#[derive(Debug)]
pub struct AcquireRequest<'a> {
    /// The whole key, prefix included.
    pub key: &'a Arc<str>,
    /// The value to store.
    pub value: &'a HolderValue,
    /// The time to live in the store.
    pub ttl: Duration,
    /// `true` to take a fencing token in the same step.
    pub fence: bool,
    /// `true` to have a busy answer include the rest of the holder's lease.
    pub tell_remaining: bool,
    /// `true` to treat the lock as busy while others wait in the store's queue for it.
    pub fair: bool,
    /// Filled in by the store before it sends anything.
    pub receipt: &'a Receipt,
}

/// A request for many locks. See [`LockStore::acquire_all`].
#[derive(Debug)]
pub struct AcquireAllRequest<'a> {
    /// The whole keys, sorted, each once.
    pub keys: &'a [Arc<str>],
    /// The value to store under all of them.
    pub value: &'a HolderValue,
    /// An earlier value of the same caller, which may hold some of the keys and is replaced by
    /// `value`. If not all keys are free, the store releases it too.
    pub former: Option<&'a HolderValue>,
    /// The time for which to keep the keys before the first busy one if not all are free; `None` to keep
    /// none. A caller that waits for a key then holds only smaller ones, so no circle of waiting callers can
    /// form.
    pub keep: Option<Duration>,
    /// The time to live in the store.
    pub ttl: Duration,
    /// `true` to take a fencing token in the same step, one for all locks.
    pub fence: bool,
    /// Filled in by the store before it sends anything.
    pub receipt: &'a Receipt,
}

/// The answer to an [`AcquireAllRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptAll {
    /// The caller has all the locks.
    Granted {
        /// The fencing token, if one was asked for.
        fence: Option<FencingToken>,
    },
    /// Another holder has one of them.
    Busy {
        /// The index of the first busy key.
        at: usize,
        /// The other holder, if known.
        holder: Option<Holder>,
        /// The rest of its lease, if known. Also `None` for a key without expiry.
        remaining: Option<Duration>,
    },
}

/// The connection that a request was sent on, and whether it was answered.
///
/// A later command on the same connection cannot overtake the request; one on another connection
/// can.
#[derive(Debug, Default)]
pub struct Receipt {
    connection: AtomicU64,
    /// The time at which a request was sent that had to wait for its connection, in nanoseconds of the host's clock;
    /// 0 for any other.
    sent: AtomicU64,
    answered: AtomicBool,
    /// `true` while the store asks whether an answered request has been handed the lock.
    taking: AtomicBool,
    /// The reason why the store sends the request again.
    refusal: Mutex<Option<StoreError>>,
}

impl Receipt {
    /// Records the connection. The store calls this just before it sends, with a number other than
    /// zero that is unique to the connection.
    pub fn sent_on(&self, connection: u64) {
        self.connection.store(connection, Ordering::Release);
    }

    /// Does the same for a request that may have waited for its connection until now: the time until its answer
    /// counts from here.
    pub(crate) fn sent_at(&self, connection: u64, now: Moment) {
        self.sent.store(now.as_nanos(), Ordering::Relaxed);
        self.sent_on(connection);
    }

    /// Returns the time at which a request was sent that may have waited for its connection.
    pub(crate) fn waited_until(&self) -> Option<Moment> {
        Some(self.sent.load(Ordering::Relaxed))
            .filter(|sent| *sent != 0)
            .map(Moment::from_nanos)
    }

    /// Records that a [`QueueRequest`] was answered. The store calls this when the answer has
    /// arrived: no part of the request is still in flight.
    pub fn answered(&self) {
        self.answered.store(true, Ordering::Release);
        self.refused(None);
    }

    /// Records that the store asks, for an answered [`QueueRequest`], whether the lock was handed
    /// to it, and takes it if so. The store calls this with `true` before it asks, and with `false`
    /// if the answer is no.
    pub fn taking(&self, taking: bool) {
        self.taking.store(taking, Ordering::Release);
    }

    /// Records that an answered request is sent once more.
    pub(crate) fn reopen(&self) {
        self.answered.store(false, Ordering::Release);
    }

    /// Records why the store is about to send the request again. A call that has no time for that any
    /// more fails with this reason. `None` removes it.
    pub(crate) fn refused(&self, refusal: Option<StoreError>) {
        *self.refusal.lock() = refusal;
    }

    /// Returns why the store has sent the request again last, if it has.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        self.refusal.lock().clone()
    }

    /// Resets the receipt for a new request.
    pub(crate) fn begin(&self) {
        self.sent.store(0, Ordering::Relaxed);
        self.connection.store(0, Ordering::Release);
        self.answered.store(false, Ordering::Release);
        self.taking.store(false, Ordering::Release);
        self.refused(None);
    }

    /// Returns `true` if the store may still grant the lock even if the caller does nothing more.
    pub(crate) fn may_grant(&self) -> bool {
        self.unanswered_on().is_some() || self.taking.load(Ordering::Acquire)
    }

    /// Returns the connection's number, or `None` if nothing has been sent.
    #[must_use]
    pub fn connection(&self) -> Option<u64> {
        Some(self.connection.load(Ordering::Acquire)).filter(|connection| *connection != 0)
    }

    /// Returns the connection's number while the request has not been answered.
    #[must_use]
    pub fn unanswered_on(&self) -> Option<u64> {
        self.connection().filter(|_| !self.answered.load(Ordering::Acquire))
    }
}

/// A request for a place in the store's queue. See [`LockStore::queue`].
pub struct QueueRequest<'a> {
    /// The whole key, prefix included.
    pub key: &'a Arc<str>,
    /// The value to store, never used in an earlier request.
    pub value: &'a HolderValue,
    /// The time to live in the store.
    pub ttl: Duration,
    /// `true` to take a fencing token in the same step.
    pub fence: bool,
    /// The clock for the `since` of [`QueueOutcome::Granted`].
    pub clock: &'a Arc<dyn Clock>,
    /// Filled in by the store before it sends anything.
    pub receipt: &'a Receipt,
    /// Filled in by the store with the present holder, each time it learns of one.
    pub contention: &'a ContentionSlot,
}

impl QueueRequest<'_> {
    /// Returns what its withdrawal needs to know of it.
    fn queued(&self) -> Queued {
        Queued {
            ttl: self.ttl,
            fence: self.fence,
        }
    }
}

impl fmt::Debug for QueueRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueRequest")
            .field("key", &self.key)
            .field("value", &self.value)
            .field("ttl", &self.ttl)
            .field("fence", &self.fence)
            .field("receipt", &self.receipt)
            .field("contention", &self.contention)
            .finish_non_exhaustive()
    }
}

/// The last known holder of a lock.
#[derive(Debug, Default)]
pub struct ContentionSlot(Mutex<Option<(Holder, Option<Duration>)>>);

impl ContentionSlot {
    /// Records the holder and the rest of its lease, where known.
    pub fn see(&self, holder: Holder, remaining: Option<Duration>) {
        *self.0.lock() = Some((holder, remaining));
    }

    /// Takes the last record out and returns it.
    pub fn take(&self) -> Option<(Holder, Option<Duration>)> {
        self.0.lock().take()
    }
}

/// The end of a wait in the store's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueOutcome {
    /// The caller has the lock.
    Granted {
        /// The fencing token, if one was asked for.
        fence: Option<FencingToken>,
        /// A moment on the request's clock before which the store cannot have set the key's expiry.
        /// The store sets the expiry to the whole lease.
        since: Moment,
    },
    /// The place was lost: the caller sends a new request, with another value.
    Lapsed,
    /// There is no queue, or not at present: the caller tries again after a pause.
    Unavailable,
}

/// The answer to an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The caller has the lock.
    Granted {
        /// The fencing token, if one was asked for.
        fence: Option<FencingToken>,
    },
    /// Another holder has the lock.
    Busy {
        /// The other holder, if known.
        holder: Option<Holder>,
        /// The rest of its lease, if asked for and known. Also `None` for a key without expiry.
        remaining: Option<Duration>,
    },
}

/// A request to renew or check one lock. See [`LockStore::renew`].
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// The whole key.
    pub key: Arc<str>,
    /// The holder's value.
    pub value: HolderValue,
    /// The new time to live; `None` only checks.
    pub extend: Option<Duration>,
}

/// A request to release one lock. See [`LockStore::release`].
#[derive(Debug)]
pub struct ReleaseRequest<'a> {
    /// The whole key.
    pub key: &'a Arc<str>,
    /// The holder's value. It is not used again afterwards: a store that moves to another server
    /// repeats releases there, at any time.
    pub value: &'a HolderValue,
    /// The time for which to keep the key instead of deleting it.
    pub keep: Option<Duration>,
    /// The connection of an acquire that was not answered, or `None` if it was. The store prefers
    /// this connection while it lives, since a release must not overtake its acquire.
    pub unanswered_on: Option<u64>,
    /// `true` to prefer a connection of another thread, since this thread's may not reach the server.
    /// Ignored by a store that has no such connections.
    pub elsewhere: bool,
    /// Set if the value may be in the store's queue, and is to be taken out of it.
    pub queued: Option<Queued>,
    /// The conditions on which the store may leave the lock free for a moment although others wait
    /// for it. `None` if it must not.
    pub leave_free: Option<LeaveFree>,
    /// Filled in by the store before it sends anything.
    pub receipt: &'a Receipt,
}

impl<'a> ReleaseRequest<'a> {
    /// Creates a request for a lock that was granted, whose call did not stand in a queue.
    pub(crate) fn plain(key: &'a Arc<str>, value: &'a HolderValue, receipt: &'a Receipt) -> Self {
        Self {
            key,
            value,
            keep: None,
            unanswered_on: None,
            elsewhere: false,
            queued: None,
            leave_free: None,
            receipt,
        }
    }
}

/// An attempt, or a place in a queue, that a call has given up. Its outcome may be unknown. See
/// [`LockStore::abandon`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Abandoned {
    /// The whole keys that it was for.
    pub keys: Box<[Arc<str>]>,
    /// The value that it was to store.
    pub value: HolderValue,
    /// The time to live that it asked for.
    pub ttl: Duration,
    /// Set if the value may be in the store's queue.
    pub queued: Option<Queued>,
    /// The connection on which it was sent, while it has not been answered there.
    pub(crate) unanswered_on: Option<u64>,
    /// `true` if it may still be granted.
    pub(crate) may_grant: bool,
    /// `true` to prefer a connection of another thread.
    pub(crate) elsewhere: bool,
    pub(crate) tracked: Tracked,
}

/// The counts of background releases, for which a shutdown waits.
#[derive(Clone, Debug)]
pub(crate) struct Tracked {
    /// Counts releases of locks that are held.
    pub(crate) held: TaskTracker,
    /// Counts releases of locks that may never have been granted.
    pub(crate) unanswered: TaskTracker,
}

impl fmt::Debug for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abandoned")
            .field("keys", &self.keys)
            .field("value", &self.value)
            .field("ttl", &self.ttl)
            .field("queued", &self.queued)
            .finish_non_exhaustive()
    }
}

/// The conditions on which a release may leave a lock free for a moment although others wait in the
/// store's queue, so that clients of other kinds, which poll for it, get a turn. Ignored by a store
/// without a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaveFree {
    /// The time for which the lock is left free.
    pub pause: Duration,
    /// The minimum time since it was last left free.
    pub every: Duration,
    /// `true` if calls of the releasing process have waited outside the store's queue for at least
    /// `every`. The first of them then [joins the queue](LockStore::queue), instead of taking the
    /// lock that is left free.
    pub is_due: bool,
}

/// The details of a [`QueueRequest`] that is to be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The time to live that it asked for.
    pub ttl: Duration,
    /// `true` if it asked for a fencing token.
    pub fence: bool,
}

/// An answer to [`LockStore::wait_for_replicas`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replicated {
    /// So many replicas have the locks.
    To(u32),
    /// The caller owned them no more. Never [`Ownership::Owned`].
    NotOwned(Ownership),
}

/// The ownership of a lock as the store found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The caller owned it, and the request was carried out.
    Owned,
    /// The key did not exist.
    Gone,
    /// The key held another value.
    Foreign,
}

impl Ownership {
    /// Combines the answers for two keys of one lock: returns the first that is not
    /// [`Owned`](Self::Owned).
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::Owned { other } else { self }
    }
}

/// The answer to [`LockStore::fence`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// A token, greater than every earlier one of this key that the store knows of.
    Token(FencingToken),
    /// The lock is no longer the caller's ([`Ownership::Gone`] or [`Ownership::Foreign`]).
    NotOwned(Ownership),
}

/// A report of locks that may have been lost. It is only a hint: the runtime asks the store before
/// it acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossHint {
    /// This key was changed by another client.
    Key(Box<str>),
    /// Any key of this lane may have changed unnoticed: after a flush, or after the loss of the
    /// connection that reports changes.
    All(Lane),
    /// The server of this lane answers again, on any connection, after one was lost or could not be
    /// made. Any key may have changed meanwhile, and requests that were not possible before are
    /// possible now.
    Back(Lane),
    /// Another server has taken over this lane, and may not have the latest renewals.
    Moved(Lane),
    /// Some keys of this lane are in other lanes from now on, whose servers may not have the latest
    /// renewals. [`LockStore::lane`] tells which.
    Relocated(Lane),
    /// The server of this lane is not reached, or refuses, and another attempt has failed as well. The
    /// runtime logs it as a warning, with the number of locks that are held there. Reported once per
    /// outage, and once more when the server turns out to refuse for a lasting reason.
    Down {
        /// The lane.
        lane: Lane,
        /// The server's address.
        address: Box<str>,
        /// The failure of the last attempt.
        error: Box<str>,
    },
    /// The outage that [`Down`](Self::Down) reported is over. The runtime logs it.
    Up {
        /// The lane.
        lane: Lane,
        /// The server's address, which may be that of another one by now.
        address: Box<str>,
        /// The time since the server was last reached.
        lasted: Duration,
    },
}

impl LossHint {
    /// Returns this hint for another lane.
    pub(crate) fn in_lane(self, lane: Lane) -> Self {
        match self {
            Self::Key(key) => Self::Key(key),
            Self::All(_) => Self::All(lane),
            Self::Back(_) => Self::Back(lane),
            Self::Moved(_) => Self::Moved(lane),
            Self::Relocated(_) => Self::Relocated(lane),
            Self::Down { address, error, .. } => Self::Down { lane, address, error },
            Self::Up { address, lasted, .. } => Self::Up { lane, address, lasted },
        }
    }
}

/// A callback for the outcome of a release that no call waits for. Must not block.
pub type ReleaseReport = Box<dyn FnOnce(Result<Ownership, StoreError>) + Send>;

/// A callback for a store's [`LossHint`]s. Must not block.
pub type LossReceiver = Arc<dyn Fn(LossHint) + Send + Sync>;

/// The effect of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The operation was not carried out, and will not be.
    None,
    /// The operation may have been carried out, or may still be.
    Unknown,
}

/// An error of a store.
///
/// Its message is that of its cause, followed by advice. The chain of sources continues with the
/// source of that cause.
#[derive(Clone)]
pub struct StoreError(Arc<Failure>);

// Behind a pointer, since the future of every annotated function has room for an error.
#[derive(Clone)]
struct Failure {
    cause: Arc<dyn Error + Send + Sync>,
    outcome: Effect,
    permanent: bool,
    /// `true` if a server has answered with it, as opposed to one that was not reached.
    answered: bool,
    /// The advice for this error, in place of the general one.
    advice: Option<Box<str>>,
}

impl StoreError {
    fn new(cause: impl Into<Box<dyn Error + Send + Sync>>, outcome: Effect, permanent: bool) -> Self {
        Self(Arc::new(Failure {
            cause: Arc::from(cause.into()),
            outcome,
            permanent,
            answered: false,
            advice: None,
        }))
    }

    /// Creates the error of a store that refused for now. The operation was not carried out, and
    /// the caller may try again.
    pub fn transient(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(cause, Effect::None, false)
    }

    /// Creates the error of a store that refused for a lasting reason. The operation was not
    /// carried out.
    pub fn permanent(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(cause, Effect::None, true)
    }

    /// Creates the error of a store that did not answer a request. The operation may have been
    /// carried out.
    pub fn unknown(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(cause, Effect::Unknown, false)
    }

    /// Creates the error of a store whose server may have forgotten locks, and takes none until these
    /// are over.
    pub(crate) fn closed(opens_in: Duration) -> Self {
        let advice = if opens_in.is_zero() {
            "try again"
        } else {
            "wait, or if no lock can be held any more, open it by `LockManager::open_quorum`"
        };
        Self::transient(Closed { opens_in }).advise(advice)
    }

    /// Returns the time after which a server opens that may have forgotten locks and takes none until
    /// these are over. Zero if it is open again. `None` if that is not the reason for this error.
    #[must_use]
    pub fn opens_in(&self) -> Option<Duration> {
        let cause: &(dyn Error + 'static) = self.cause();
        Some(cause.downcast_ref::<Closed>()?.opens_in)
    }

    /// Returns [`Effect::Unknown`] if the operation may have been carried out despite the error.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.0.outcome
    }

    /// Returns `true` if another attempt is of no use until the store or the configuration is
    /// changed.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.0.permanent
    }

    /// Notes that a server has answered with this error.
    pub(crate) fn answered(self) -> Self {
        let mut failure = Arc::unwrap_or_clone(self.0);
        failure.answered = true;
        Self(Arc::new(failure))
    }

    /// Returns the code of a server's refusal, such as `READONLY`: the first word in capitals. The rest of the text may
    /// differ from one renewal to the next. Empty if there is no code.
    pub(crate) fn code(&self) -> Box<str> {
        let cause = self.cause().to_string();
        let mut words = cause.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let code = words.find(|word| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase()));
        code.unwrap_or_default().into()
    }

    /// Returns `true` if a server has answered with this error.
    pub(crate) fn is_answer(&self) -> bool {
        self.0.answered
    }

    /// Turns this into an error with an unknown outcome.
    pub(crate) fn into_unknown(self) -> Self {
        let mut failure = Arc::unwrap_or_clone(self.0);
        (failure.outcome, failure.permanent) = (Effect::Unknown, false);
        Self(Arc::new(failure))
    }

    /// Replaces the effect that the failed operation may have had.
    pub(crate) fn with_effect(self, effect: Effect) -> Self {
        let mut failure = Arc::unwrap_or_clone(self.0);
        failure.outcome = effect;
        Self(Arc::new(failure))
    }

    /// Turns this into an error for a lasting reason.
    pub(crate) fn into_permanent(self) -> Self {
        let mut failure = Arc::unwrap_or_clone(self.0);
        (failure.outcome, failure.permanent) = (Effect::None, true);
        Self(Arc::new(failure))
    }

    /// Creates the error for a key whose content excludes a lock in the requested mode.
    pub(crate) fn other_kind() -> Self {
        Self::permanent(
            "the key is held in another kind of mode, exclusive or one that several may hold, or holds another program's data",
        )
        .advise("take a key in one kind of mode everywhere, or choose another key or prefix")
    }

    /// Names what the error is about before its cause.
    pub(crate) fn about(self, name: &str) -> Self {
        let mut failure = Arc::unwrap_or_clone(self.0);
        failure.cause = Arc::from(Box::<dyn Error + Send + Sync>::from(format!(
            "`{name}`: {}",
            failure.cause
        )));
        Self(Arc::new(failure))
    }

    /// Takes back the advice to try again, since the work under the lock may have begun, and what the
    /// general advice says of an attempt to take it. The rest of the advice stays.
    pub(crate) fn after_the_grant(self) -> Self {
        let error = self.without_another_try();
        let advice = format!("{}; {LOOK_FIRST}", error.advice());
        error.advise(advice)
    }

    /// Takes back the advice to try again, and what the general advice says of an attempt to take the lock. The rest
    /// of the advice stays.
    pub(crate) fn without_another_try(self) -> Self {
        let advice = match (&self.0.advice, self.0.permanent) {
            (None, false) => "check the store and the network",
            _ => self.advice(),
        };
        let again = [", then try again", ", and try again"];
        let again = again.iter().find_map(|again| advice.split_once(again));
        let advice = again.map_or(advice, |(before, _)| before).to_owned();
        self.advise(advice)
    }

    /// Replaces the general advice.
    pub(crate) fn advise(self, advice: impl Into<Box<str>>) -> Self {
        let mut failure = Arc::unwrap_or_clone(self.0);
        failure.advice = Some(advice.into());
        Self(Arc::new(failure))
    }

    /// Returns the cause, without the advice.
    pub(crate) fn cause(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0.cause
    }

    /// Returns the advice for this error, if it is not the general one.
    pub(crate) fn own_advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }

    pub(crate) fn advice(&self) -> &str {
        if let Some(advice) = self.own_advice() {
            return advice;
        }
        match (self.0.permanent, self.0.outcome) {
            (true, _) => "correct the store or its configuration",
            (false, Effect::None) => "check that the store is up and reachable, then try again",
            (false, Effect::Unknown) => {
                "the outcome is unknown and whatever was taken is being released; check the store and the network, then try again"
            }
        }
    }
}

/// The cause of [`StoreError::closed`].
#[derive(Debug)]
struct Closed {
    opens_in: Duration,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server may have forgotten locks (first use, a restart or a flush), and ")?;
        if self.opens_in.is_zero() {
            return f.write_str("was opened anew meanwhile");
        }
        let seconds = self.opens_in.as_millis().div_ceil(1000);
        write!(f, "takes none for another {seconds} s")
    }
}

impl Error for Closed {}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.0.cause, self.advice())
    }
}

impl Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("cause", &self.0.cause)
            .field("outcome", &self.0.outcome)
            .field("permanent", &self.0.permanent)
            .finish()
    }
}

impl Error for StoreError {
    // The text of this error includes that of the cause, so the chain continues with the cause's
    // source.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.source()
    }
}
