//! The one seam between the runtime and whatever keeps the locks.

mod all;
pub mod memory;
pub(crate) mod mode;
pub mod redis;

use std::error::Error;
use std::fmt::{self, Debug};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::holder::Holder;
pub use crate::inspect::LockPage;
use crate::inspect::{self, LockInfo};
pub use mode::Mode;

/// What a store's operation returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Where locks are kept.
///
/// Every value tells the [`Mode`] in which it is to hold its key.
///
/// # What an implementation promises
/// - While a key holds an unexpired value, [`acquire`](Self::acquire) of any other value is [`Attempt::Busy`], unless both are of
///   modes that may hold it together.
/// - In every mode but exclusive, nobody overtakes those in the store's [`queue`](Self::queue), except another holder for an owner that
///   has the lock.
/// - An `acquire` that finds its own value grants it again: a request delivered twice grants one lock.
/// - `renew`, `release` and `fence` act only where the key holds the given value, and compare and act in one step.
/// - A renewal never creates a key.
/// - A release that keeps the key for a minimum hold ends the ownership all the same: the value then owns the key no
///   longer, and the same release sent again is [`Verdict::Owned`] without another effect.
/// - An `acquire` that failed with [`Outcome::Unknown`] may have been applied, or may still be applied later.
/// - A release hands the lock to the first in the store's [`queue`](Self::queue), in the same step. One that has died is
///   passed over within a second or two.
///
/// The futures need no particular runtime to be polled on. Dropping one at any point is safe: whatever was sent
/// may still be carried out, and the runtime then releases it.
pub trait LockStore: Debug + Send + Sync + 'static {
    /// Takes the lock if it is free.
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt>;

    /// Takes many locks, all of them or none, for one value of an exclusive lock.
    ///
    /// A store that can do so in one step should. This default takes one after the other, and gives them back when one is busy.
    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        Box::pin(all::one_by_one(self, request))
    }

    /// Renews (or only checks) many locks in one round trip. One verdict per request, in the same order.
    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Verdict>>;

    /// Gives the lock back.
    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Verdict>;

    /// Sends a release behind everything that was sent before, without waiting for it: what is sent after it from the
    /// same runtime is carried out after it. The outcome goes to `report`.
    ///
    /// # Errors
    /// The report back, when that cannot be done: use [`release`](Self::release).
    fn release_in_order(&self, request: &ReleaseRequest<'_>, report: ReleaseReport) -> Result<(), ReleaseReport> {
        let _ = request;
        Err(report)
    }

    /// Takes a fencing token for a lock that is still held.
    fn fence<'a>(&'a self, key: &'a str, value: &'a str) -> StoreFuture<'a, Fence>;

    /// Connects and checks that every command the store needs is allowed. Stores without a connection have
    /// nothing to do.
    fn connect(&self) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Stands in the store's queue for a key until the lock is handed to `request.value`.
    ///
    /// Whoever drops the future early releases the value with [`ReleaseRequest::queued`], which also takes it out of the
    /// queue. A store without a queue answers [`Turn::Unavailable`], and its callers try again after pauses.
    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, Turn> {
        let _ = request;
        Box::pin(std::future::ready(Ok(Turn::Unavailable)))
    }

    /// Hands over a receiver for [`LossHint`]s, and tells whether the store will send any.
    ///
    /// A store that does gets every lock checked once (a [`RenewRequest`] without `extend`) soon after it was
    /// taken, which is where it can ask its server to report changes of the key.
    fn report_losses(&self, receiver: LossReceiver) -> bool {
        let _ = receiver;
        false
    }

    /// Tells how one lock stands, all at one moment. `None`: it is free, and nobody waits.
    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        let _ = key;
        inspect::unavailable()
    }

    /// Tells of the held locks whose whole keys match a glob as Redis reads it, a page at a time: the first one `from` zero. A
    /// lock that is held throughout is on at least one page.
    fn list<'a>(&'a self, pattern: &'a str, from: u64) -> StoreFuture<'a, LockPage> {
        let _ = (pattern, from);
        inspect::unavailable()
    }

    /// Takes a lock away from all its holders, and hands it to the first who waits. Returns whether anybody held it. What is no
    /// lock must not be touched.
    fn force_release<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        let _ = key;
        inspect::unavailable()
    }

    /// Whether the store lives in this process and by tokio's clock, so that [`acquire_now`](Self::acquire_now) and
    /// [`release_now`](Self::release_now) answer.
    fn release_is_immediate(&self) -> bool {
        false
    }

    /// Takes the lock if it is free, without waiting, for stores that can. `None`: use [`acquire`](Self::acquire).
    fn acquire_now(&self, request: &AcquireRequest<'_>) -> Option<Result<Attempt, StoreError>> {
        let _ = request;
        None
    }

    /// Releases without waiting, for stores that can. `None`: use [`release`](Self::release).
    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Verdict> {
        let _ = request;
        None
    }
}

/// Asks for a lock.
#[derive(Debug)]
pub struct AcquireRequest<'a> {
    /// The whole key, prefix included.
    pub key: &'a Arc<str>,
    /// The value to store: the holder's unique token and who it is.
    pub value: &'a Arc<str>,
    /// Time to live in the store.
    pub lease: Duration,
    /// Whether to take a fencing token in the same step.
    pub fence: bool,
    /// Whether a busy answer should tell the rest of the holder's lease.
    pub tell_remaining: bool,
    /// Whether the lock counts as busy while others stand in the store's queue for it.
    pub fair: bool,
    /// Filled in by the store before it sends anything.
    pub receipt: &'a Receipt,
}

/// Asks for many locks. See [`LockStore::acquire_all`].
#[derive(Debug)]
pub struct AcquireAllRequest<'a> {
    /// The whole keys, sorted, each once.
    pub keys: &'a [Arc<str>],
    /// The value to store under all of them.
    pub value: &'a Arc<str>,
    /// An earlier value of the same caller, which may hold some of the keys and gives way to `value`. Where not all keys are free,
    /// it is released as well.
    pub former: Option<&'a str>,
    /// Where not all keys are free, to keep those before the first busy one: whoever waits for a key then holds smaller ones
    /// only, so nobody waits in a circle.
    pub keep: bool,
    /// Time to live in the store.
    pub lease: Duration,
    /// Whether to take a fencing token in the same step, one for all.
    pub fence: bool,
    /// Filled in by the store before it sends anything.
    pub receipt: &'a Receipt,
}

/// The answer to an [`AcquireAllRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptAll {
    /// All locks are the caller's.
    Granted {
        /// The fencing token, if one was asked for.
        fence: Option<u64>,
    },
    /// Another holder has one of them.
    Busy {
        /// Which key: the first busy one.
        at: usize,
        /// Who.
        holder: Option<Holder>,
        /// The rest of its lease, if known. `None` also for a key without expiry.
        remaining: Option<Duration>,
    },
}

/// Which connection a request was sent on, and whether it was answered.
///
/// A later command on the same connection cannot overtake the request; one on another connection can.
#[derive(Debug, Default)]
pub struct Receipt {
    connection: AtomicU64,
    answered: AtomicBool,
}

impl Receipt {
    /// To be called by the store just before it sends, with a number other than zero that is unique to the
    /// connection.
    pub fn sent_on(&self, connection: u64) {
        self.connection.store(connection, Ordering::Release);
    }

    /// To be called by the store when the answer to a [`QueueRequest`] is there: from then on nothing of the request is on
    /// its way.
    pub fn answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// The connection's number, or `None` when nothing has been sent.
    #[must_use]
    pub fn connection(&self) -> Option<u64> {
        Some(self.connection.load(Ordering::Acquire)).filter(|connection| *connection != 0)
    }

    /// The connection's number while the request has not been answered.
    #[must_use]
    pub fn unanswered_on(&self) -> Option<u64> {
        self.connection().filter(|_| !self.answered.load(Ordering::Acquire))
    }
}

/// Asks for a place in the store's queue. See [`LockStore::queue`].
#[derive(Debug)]
pub struct QueueRequest<'a> {
    /// The whole key, prefix included.
    pub key: &'a str,
    /// The value to store, never used in an earlier request.
    pub value: &'a str,
    /// Time to live in the store.
    pub lease: Duration,
    /// Whether to take a fencing token in the same step.
    pub fence: bool,
    /// The clock of [`Turn::Granted`]'s `since`.
    pub clock: &'a Arc<dyn Clock>,
    /// Filled in by the store before it sends anything.
    pub receipt: &'a Receipt,
    /// Filled in by the store with whom the request waits for, as often as it learns of it.
    pub sighting: &'a Sighting,
}

/// Who had a lock when the store was last asked.
#[derive(Debug, Default)]
pub struct Sighting(Mutex<Option<(Holder, Option<Duration>)>>);

impl Sighting {
    /// Notes the holder and the rest of its lease, where known.
    pub fn see(&self, holder: Holder, remaining: Option<Duration>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((holder, remaining));
    }

    /// The last note, which is taken out.
    pub fn take(&self) -> Option<(Holder, Option<Duration>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// How a place in the store's queue has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The lock is the caller's.
    Granted {
        /// The fencing token, if one was asked for.
        fence: Option<u64>,
        /// A moment on the request's clock before which the store cannot have set the key's expiry.
        since: Moment,
        /// What the expiry was set to: the lease that was asked for, or a shorter one, within which the caller is to renew
        /// it to that.
        lease: Duration,
    },
    /// The place was lost: the request is to be made anew, with another value.
    Lapsed,
    /// There is no queue, or not now: the lock is to be tried again after a pause.
    Unavailable,
}

/// The answer to an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The lock is the caller's.
    Granted {
        /// The fencing token, if one was asked for.
        fence: Option<u64>,
    },
    /// Another holder has it.
    Busy {
        /// Who.
        holder: Option<Holder>,
        /// The rest of its lease, if asked for and known. `None` also for a key without expiry.
        remaining: Option<Duration>,
    },
}

/// Asks for one lock to be renewed or checked. See [`LockStore::renew`].
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// The whole key.
    pub key: Arc<str>,
    /// The holder's value.
    pub value: Arc<str>,
    /// The new time to live; `None` only checks.
    pub extend: Option<Duration>,
}

/// Asks for one lock to be given back. See [`LockStore::release`].
#[derive(Debug)]
pub struct ReleaseRequest<'a> {
    /// The whole key.
    pub key: &'a str,
    /// The holder's value.
    pub value: &'a str,
    /// Keep the key for this much longer instead of deleting it.
    pub keep: Option<Duration>,
    /// The connection of an acquire that was not answered; `None` when it was. The store prefers it while it lives,
    /// since a release must not overtake its acquire.
    pub unanswered_on: Option<u64>,
    /// The value may stand in the store's queue, and is to be taken out of it.
    pub queued: Option<Queued>,
    /// Filled in by the store before it sends anything.
    pub receipt: &'a Receipt,
}

/// What a [`QueueRequest`] asked for that has to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its lease.
    pub lease: Duration,
    /// Whether it asked for a fencing token.
    pub fence: bool,
}

/// Whether a lock was still the caller's when the store looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was, and what was asked for was done.
    Owned,
    /// The key was gone.
    Gone,
    /// The key held something else.
    Foreign,
}

impl Verdict {
    /// The first that is not [`Owned`](Self::Owned): what many of them say about a lock of many keys.
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::Owned { other } else { self }
    }
}

/// The answer to [`LockStore::fence`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// A token, greater than every earlier one of this key.
    Token(u64),
    /// The lock is no longer the caller's ([`Verdict::Gone`] or [`Verdict::Foreign`]).
    NotOwned(Verdict),
}

/// What a store tells about locks that may have been lost. A hint: the runtime asks the store before it believes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossHint {
    /// This key was changed by somebody.
    Key(Box<str>),
    /// Any key may have changed unseen: after a flush, or after the connection that reports changes was lost.
    All,
}

/// Takes the outcome of a release that nobody waits for. Must not block.
pub type ReleaseReport = Box<dyn FnOnce(Result<Verdict, StoreError>) + Send>;

/// Takes a store's [`LossHint`]s. Must not block.
pub type LossReceiver = Arc<dyn Fn(LossHint) + Send + Sync>;

/// Whether a failed operation may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not, and will not be.
    NotApplied,
    /// It may have been, or may still be.
    Unknown,
}

/// Why a store could not do what it was asked for.
#[derive(Clone)]
pub struct StoreError {
    source: Arc<dyn Error + Send + Sync>,
    outcome: Outcome,
    permanent: bool,
}

impl StoreError {
    /// The store refused for now; nothing was done. The caller may try again.
    pub fn transient(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            source: Arc::from(source.into()),
            outcome: Outcome::NotApplied,
            permanent: false,
        }
    }

    /// The store refused for a reason that will not pass by itself; nothing was done.
    pub fn permanent(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            source: Arc::from(source.into()),
            outcome: Outcome::NotApplied,
            permanent: true,
        }
    }

    /// The store was asked, and no answer came.
    pub fn unknown(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            source: Arc::from(source.into()),
            outcome: Outcome::Unknown,
            permanent: false,
        }
    }

    /// Whether the operation may have been carried out all the same.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether trying again is of no use until somebody changes the store or the configuration.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.permanent
    }

    pub(crate) const fn advice(&self) -> &'static str {
        match (self.permanent, self.outcome) {
            (true, _) => "correct the store or its configuration",
            (false, Outcome::NotApplied) => "check that the store is up and reachable, then try again",
            (false, Outcome::Unknown) => {
                "the outcome is unknown and whatever was taken is being released; check the store and the network, then try again"
            }
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store failed: {}", self.source)
    }
}

impl Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("source", &self.source)
            .field("outcome", &self.outcome)
            .field("permanent", &self.permanent)
            .finish()
    }
}

impl Error for StoreError {
    // This error's own text already says what the first source says.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}
