//! Errors of locks, managers and stores. Every message, read with its sources, tells the reader
//! what to do next.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::key::{KeyError, KeyProblem};
use crate::store::LOOK_FIRST;
use crate::store::holder::Holder;
use crate::store::limits::{MAX_LEASE, MIN_LEASE};
pub use crate::store::{Effect, StoreError};

/// The reason why a lock could not be taken, or why a body that held it did not succeed.
///
/// Every message names the key, the cause and the next thing to do. That of [`Store`](Self::Store)
/// contains the store's error, so [`source`](Error::source) continues with the source of that one: a
/// reporter that prints the chain of sources prints every text once.
///
/// A function under `#[distributed_lock]` returns it through `E: From<LockError>`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Another holder kept the lock during the whole `wait`. The body was not run.
    #[non_exhaustive]
    Busy {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// The time that this call waited.
        waited: Duration,
        /// The holder of the lock at the last attempt, where known.
        holder: Option<Box<Holder>>,
        /// The rest of the holder's lease, where known. The holder may renew its lease, or release
        /// sooner.
        retry_after: Option<Duration>,
    },
    /// The lock was held and then lost. Unless `completed`, the body was cancelled at one of its
    /// awaits, so its work may have been carried out in part.
    #[non_exhaustive]
    Lost {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// The way in which it was lost.
        reason: LostReason,
        /// `true` if the body had run to its end. Its effects may then have overlapped another
        /// holder's.
        completed: bool,
        /// `true` if the watchdog renewed the lease; `false` under `renew = false`, where the lease
        /// is a time limit.
        renew: bool,
    },
    /// The body was still running at its time limit, and was cancelled: after `max_hold`, or when
    /// one more renewal than `max_renewals` would have been due, which is after 2/3 of the lease ×
    /// (`max_renewals` + 1). Its work may have been carried out in part.
    #[non_exhaustive]
    Hung {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// The number of renewals of the lease.
        renewals: u32,
        /// The time for which the call had held the lock when it was cancelled, at most until the lease ended.
        held: Duration,
    },
    /// The same call tree already holds this key, so waiting for it would never end.
    #[non_exhaustive]
    WouldDeadlock {
        /// The key, without the manager's prefix.
        key: Box<str>,
    },
    /// The key cannot be used.
    #[non_exhaustive]
    InvalidKey {
        /// The beginning of the key.
        key: Box<str>,
        /// The problem with the key.
        problem: KeyProblem,
    },
    /// The request is invalid: an option has a value that no lock can have, options exclude each
    /// other, or a call would block a thread of a runtime.
    #[non_exhaustive]
    InvalidRequest {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// The problem with the request.
        problem: RequestProblem,
    },
    /// An annotated function that names no manager was called before [`init`](crate::init) or
    /// [`init_with`](crate::init_with) had created the global manager.
    #[non_exhaustive]
    NotConfigured {
        /// The key, without the manager's prefix.
        key: Box<str>,
    },
    /// The manager was shut down. A body that was still running then was cancelled.
    #[non_exhaustive]
    Closed {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// `true` if the call had got the lock by then: its work may have been carried out in part.
        began: bool,
    },
    /// Fewer replicas than `min_replicas` had the lock in time, so it was given back. The body was not
    /// run.
    #[non_exhaustive]
    TooFewReplicas {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// The number of replicas that had the lock.
        acknowledged: u32,
        /// The number of replicas that the call asked for.
        wanted: u32,
    },
    /// The store refused, or could not be reached, for the whole `wait`; or, if the lock was held by
    /// then (`began`), it did not answer [`verify`](crate::HeldLock::verify),
    /// [`fencing_token`](crate::HeldLock::fencing_token) or
    /// [`LockGuard::release`](crate::LockGuard::release).
    #[non_exhaustive]
    Store {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// `true` if the call had got the lock by then: its work may have been carried out, in part
        /// or as a whole.
        began: bool,
        /// The error from the store.
        source: StoreError,
    },
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy {
                key,
                waited,
                holder,
                retry_after,
            } => {
                let (seen, advice) = seen_holder(holder.as_deref(), *retry_after);
                write!(f, "lock `{key}` is busy: waited {waited:.1?}{seen}; {advice}")
            }
            Self::Lost {
                key,
                reason,
                completed,
                renew,
            } => {
                let (when, advice) = (lost_when(*completed), reason.advice(*renew));
                write!(f, "lock `{key}` was lost {when}: {reason}; {advice}; {LOOK_FIRST}")
            }
            Self::Hung { key, renewals, held } => write!(
                f,
                "lock `{key}` was held for {held:.1?} (renewed {renewals} times), which is the limit of its call, so the call counts as hung \
                 and was cancelled, and the work under it {IN_PART}; find what it waits for, move blocking work to \
                 `spawn_blocking`, or allow more by `max_hold`, or by `max_renewals`, which allows 2/3 of the lease × (max_renewals + 1); {LOOK_FIRST}"
            ),
            Self::WouldDeadlock { key } => write!(
                f,
                "lock `{key}` is already held by this call tree, and waiting for it would never end; give the inner function `reentrant` to \
                 pass through a lock of the same mode, or take the lock once, in the outer function"
            ),
            Self::InvalidKey { key, problem } => write!(f, "{}: {problem}", unusable_key(key, *problem)),
            Self::InvalidRequest { key, problem } => write!(f, "invalid request for lock `{key}`: {problem}"),
            Self::NotConfigured { key } => {
                write!(f, "lock `{key}` was asked for before a store was configured; {SET_UP}")
            }
            Self::Closed { key, began } => write!(f, "lock `{key}` was {}", closed_when(*began)),
            Self::TooFewReplicas {
                key,
                acknowledged,
                wanted,
            } => write!(
                f,
                "lock `{key}` was given back, since {acknowledged} of the {wanted} replicas that `min_replicas` asks for had it in time; see \
                 that the replicas are connected and keep up (`INFO replication`), or ask for fewer"
            ),
            Self::Store { key, began, source } => {
                write!(f, "lock `{key}`: the store failed{}: {source}", failed_when(*began))
            }
        }
    }
}

impl Error for LockError {
    // The text of this error includes that of the store's, so the chain continues with its source.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store { source, .. } => source.source(),
            _ => None,
        }
    }
}

/// A problem with a manager, which concerns no single lock.
///
/// Every message names the server, by its URL without the password, or the setting, and the cause and
/// the next thing to do. That of [`Server`](Self::Server) contains the server's error, so
/// [`source`](Error::source) continues with the source of that one.
///
/// It does not convert into a [`LockError`], which is always about one lock: an annotated function
/// whose manager is missing returns [`LockError::NotConfigured`].
#[derive(Clone)]
#[non_exhaustive]
pub enum ConfigError {
    /// The URL is not understood.
    #[non_exhaustive]
    Url {
        /// The URL, without its password.
        url: Box<str>,
        /// The problem with the URL, and what to give instead.
        problem: Box<str>,
    },
    /// The server cannot be reached, or refuses a command that locks need.
    #[non_exhaustive]
    Server {
        /// The server's URL, without its password.
        url: Box<str>,
        /// The error from the server.
        source: StoreError,
    },
    /// There is a global manager already, for another URL or with settings of its own.
    #[non_exhaustive]
    AlreadySet {
        /// The URL that the first manager was created from, without its password; `None` for a
        /// manager given to [`init_with`](crate::init_with).
        first: Option<Box<str>>,
    },
    /// The global manager was asked for before it was created.
    NotSet,
    /// A setting has a value that cannot be used, two settings contradict each other, or the
    /// operating system cannot start another thread.
    #[non_exhaustive]
    Settings {
        /// The problem, and what to do.
        problem: Box<str>,
    },
}

/// Shows the message: an error that `main` returns is printed by `Debug`.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { url, problem } => write!(f, "the store's URL `{url}` cannot be used: {problem}"),
            Self::Server { url, source } => write!(f, "the store at `{url}` cannot be used: {source}"),
            Self::AlreadySet { first } => write!(
                f,
                "this is the second global lock manager: the first one was made {}; make it once, at start-up, and name any other manager \
                 by `manager = …`",
                maker(first.as_deref())
            ),
            Self::NotSet => write!(f, "the global lock manager was asked for before it was made; {SET_UP}"),
            Self::Settings { problem } => f.write_str(problem),
        }
    }
}

impl Error for ConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.store_error().and_then(Error::source)
    }
}

/// The advice for a process without a global manager. It is the same with and without the feature
/// `testing`, so that a test that enables the feature sees the message of the service.
const SET_UP: &str = "call `lock_runtime::init(\"redis://…\").await` at start-up, or name a manager by `manager = …`; in a test, \
                      `TestLocks::as_global` is for the calls of its own thread: under `multi_thread` give `kit.manager()` to `init_with`";

impl ConfigError {
    /// Returns the error from the server, if the server was asked.
    #[must_use]
    pub const fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Server { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Returns `true` if the same call may succeed later without a change of the program or of the
    /// server's configuration: the server could not be reached, or could not serve for the moment.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.store_error().is_some_and(|error| !error.is_permanent())
    }
}

/// Returns the part of a busy lock's message that names its holder, and the advice.
fn seen_holder(holder: Option<&Holder>, rest: Option<Duration>) -> (String, &'static str) {
    let again = "try again later, or allow a longer `wait`";
    let Some(holder) = holder else {
        return (String::new(), again);
    };
    let (rest, advice) = match rest {
        // Leaves out a lease of days, which says little about when the lock will be free.
        Some(rest) if rest.as_secs() < 86_400 => (
            format!(", with {rest:.1?} left of its lease unless it is renewed"),
            again,
        ),
        // The server tells the rest of every expiry, also of another kind of client's key.
        None if holder.host().is_none() => (
            ", whose expiry is not known".to_owned(),
            "if its key has none (`lockctl show`), it stays locked until that client or an operator deletes it; otherwise try again later, \
             or allow a longer `wait`",
        ),
        _ => (String::new(), again),
    };
    (format!(", held by {holder}{rest}"), advice)
}

/// The effect of a body that was stopped on its way.
const IN_PART: &str = "may have been carried out in part";

fn lost_when(completed: bool) -> String {
    if completed {
        "before the work under it had ended, which was carried out and may have overlapped another holder's".to_owned()
    } else {
        format!("while it was in use, and the work under it {IN_PART}")
    }
}

fn closed_when(began: bool) -> String {
    if began {
        format!(
            "held while its manager shut down, and the work under it {IN_PART}; let such work end before `shutdown()`, or allow a longer \
             `shutdown_grace`; {LOOK_FIRST}"
        )
    } else {
        "asked for while its manager shut down, or after that, and its body did not begin; for a service that ends, this is as it should be; \
         elsewhere call `shutdown()` after the last locked function"
            .to_owned()
    }
}

fn failed_when(began: bool) -> String {
    if began {
        format!(" while the lock was held, and the work under it {IN_PART} or as a whole")
    } else {
        String::new()
    }
}

fn unusable_key(key: &str, problem: KeyProblem) -> String {
    match problem {
        KeyProblem::NoKeys => "a lock of several keys cannot be taken".to_owned(),
        KeyProblem::TooMany(_) => format!("the lock of `{key}` and others cannot be taken"),
        _ => format!("`{key}` cannot be a lock key"),
    }
}

fn maker(url: Option<&str>) -> String {
    url.map_or_else(|| "by `init_with`".to_owned(), |url| format!("by `init` for `{url}`"))
}

/// The way in which a held lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Its lease ran out: its renewal was off, the process was stopped, or the body blocked its
    /// thread for too long.
    Expired,
    /// The key held another holder's value.
    Taken,
    /// The key was gone before its time: deleted, evicted, flushed, or missing after a restart.
    Deleted,
    /// The store did not renew the lock before its lease ran out: it could not be reached, or refused.
    Unreachable,
    /// This process was forked from the one that holds the lock. The lock stays with the parent.
    Forked,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::Taken => "the key held another holder's value",
            Self::Deleted => "the key was gone before its time",
            Self::Unreachable => "the store could not be reached to renew it, or refused",
            Self::Forked => "this process was forked from the one that holds it",
        })
    }
}

impl LostReason {
    /// Returns the name in logs and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::Deleted => "deleted",
            Self::Unreachable => "unreachable",
            Self::Forked => "forked",
        }
    }

    const fn advice(self, renew: bool) -> &'static str {
        match self {
            Self::Expired if renew => {
                "the process, or its lock thread, stood still for longer than that: give it more CPU time, or allow a longer `lease`"
            }
            Self::Expired => {
                "with `renew = false` the lease limits the time: allow a longer `lease`, or let it be renewed"
            }
            Self::Taken => {
                "find out if an operator used `force_release`; if not, look for a client that writes this key without asking, or for a failover of the store"
            }
            Self::Deleted => {
                "find out if an operator used `force_release`; if not, look for a DEL, FLUSHALL or restart without persistence, or a clock of the server that was set forward, and let the store's maxmemory-policy be noeviction"
            }
            Self::Unreachable => {
                "see the log for a refusal, check the store and the network, or allow a longer `lease` to ride out such gaps"
            }
            Self::Forked => "take locks after the fork",
        }
    }
}

/// The problem of a request that no lock can be taken for. Its `Display` says what to ask for instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestProblem {
    /// The lease, which this contains, is shorter than [`MIN_LEASE`], longer than
    /// [`MAX_LEASE`], or used up by the manager's
    /// [`skew`](crate::LockManagerBuilder::skew).
    #[error(
        "no lock can have a `lease` of {0:?}; give {MIN_LEASE:?} to {MAX_DAYS} days, and more than the manager's `skew`"
    )]
    Lease(Duration),
    /// The `at_least`, which this contains, is longer than [`MAX_LEASE`].
    #[error("no lock can stay taken for an `at_least` of {0:?}; give at most {MAX_DAYS} days")]
    AtLeast(Duration),
    /// The `lock_delay`, which this contains, is longer than [`MAX_LEASE`].
    #[error("no lock can stay closed for a `lock_delay` of {0:?}; give at most {MAX_DAYS} days")]
    LockDelay(Duration),
    /// The `max_hold` is zero.
    #[error("no body can run for a `max_hold` of zero; give a longer one, or leave it out")]
    MaxHold,
    /// The request was given more than one mode.
    #[error("a lock has one mode, and more than one is given; leave out all but one")]
    TwoModes,
    /// A semaphore was asked for with no permits.
    #[error("a semaphore has at least one permit; give one or more")]
    NoPermits,
    /// A fencing token was asked for in a mode with several holders at once, `read` or `semaphore`.
    #[error(
        "a fencing token tells one holder from the next, and under `read` or `semaphore` there are several at once; leave the token out, \
         switch it off where it is the manager's default, or take an exclusive lock or `write`"
    )]
    ManyToFence,
    /// The owner's name is empty.
    #[error("the owner's name is empty; give one that is not")]
    NoOwner,
    /// The owner's name is longer than 1,024 bytes when it is percent-encoded.
    #[error("the owner's name is longer than 1,024 bytes; give a shorter one, such as a hash of it")]
    LongOwner,
    /// Several keys were asked for in a mode that is not exclusive.
    #[error(
        "several keys are locked exclusively; leave the mode out, give `exclusive` where the manager's default is another one, or lock one \
         key"
    )]
    SeveralInAMode,
    /// Several keys were asked for under `fair`.
    #[error(
        "several keys have no common queue; leave `fair` out, switch it off where it is the manager's default, or lock one key"
    )]
    SeveralFair,
    /// The store is a quorum, and the request is `fair` or in a mode that is not exclusive.
    #[error(
        "`fair` and every mode but exclusive need one server that keeps the order, and a quorum has several; leave it out, or keep these \
         locks on one server, or behind sentinels or a cluster"
    )]
    OneServer,
    /// The store is a quorum, and the lock may be kept for longer than its
    /// [`longest_lease`](crate::LockManagerBuilder::longest_lease).
    #[error(
        "its `lease` with the `lock_delay`, or its `at_least`, is longer than the longest lease of this quorum; give a shorter one, or a \
         longer `longest_lease` to the manager, and the same in all processes"
    )]
    LongLease,
    /// A blocking method was called on a thread of a tokio runtime.
    #[error(
        "this is a thread of a tokio runtime, whose tasks would wait as well; await `acquire` and `release` instead, in `spawn_blocking` by \
         `Handle::current().block_on(…)`"
    )]
    InRuntime,
}

/// The longest lease, in days.
const MAX_DAYS: u64 = MAX_LEASE.as_secs() / 86_400;

impl LockError {
    /// Returns the key that the error is about, without the manager's prefix. For an invalid key,
    /// this is its beginning.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Busy { key, .. }
            | Self::Lost { key, .. }
            | Self::Hung { key, .. }
            | Self::WouldDeadlock { key }
            | Self::InvalidKey { key, .. }
            | Self::InvalidRequest { key, .. }
            | Self::NotConfigured { key }
            | Self::Closed { key, .. }
            | Self::TooFewReplicas { key, .. }
            | Self::Store { key, .. } => key,
        }
    }

    /// Returns `true` if another holder had the lock, so that the body was not run.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    /// Returns `true` if the lock was held and then lost.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Returns the variant's name in lower case, for log fields and metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "busy",
            Self::Lost { .. } => "lost",
            Self::Hung { .. } => "hung",
            Self::WouldDeadlock { .. } => "would_deadlock",
            Self::InvalidKey { .. } => "invalid_key",
            Self::InvalidRequest { .. } => "invalid_request",
            Self::NotConfigured { .. } => "not_configured",
            Self::Closed { .. } => "closed",
            Self::TooFewReplicas { .. } => "too_few_replicas",
            Self::Store { .. } => "store",
        }
    }

    /// Returns `true` if the body was not run and the same call may succeed later, without a change
    /// of the program, its settings or the store's. A layer that repeats calls may go by it.
    ///
    /// It is `true` for [`Busy`](Self::Busy) and [`TooFewReplicas`](Self::TooFewReplicas), and for
    /// a [`Store`](Self::Store) that failed for the moment before the call had got its lock. It is
    /// `false` wherever the work under the lock may have been carried out, in part or as a whole:
    /// [`Lost`](Self::Lost), [`Hung`](Self::Hung), and `Closed` and `Store` with `began`. See what
    /// was done before you repeat such a call, or make its work idempotent. A release that was not
    /// confirmed, the `Store` of [`LockGuard::release`](crate::LockGuard::release), goes on in the
    /// background and need not be repeated.
    ///
    /// The method knows of the body of this error's own lock. A body that returns the error of a
    /// lock that it takes itself has run up to there: map such an error to one of your own.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::TooFewReplicas { .. } => true,
            Self::Store { source, began, .. } => !began && !source.is_permanent(),
            Self::Lost { .. }
            | Self::Hung { .. }
            | Self::WouldDeadlock { .. }
            | Self::InvalidKey { .. }
            | Self::InvalidRequest { .. }
            | Self::NotConfigured { .. }
            | Self::Closed { .. } => false,
        }
    }

    /// Returns the time after which another call has a chance, where there is an estimate.
    ///
    /// For [`Busy`](Self::Busy), this is the rest of the holder's lease as far as known. The holder
    /// may release sooner, or renew. For [`TooFewReplicas`](Self::TooFewReplicas), and for a
    /// [`Store`](Self::Store) that is [retryable](Self::is_retryable), it is one second: the library
    /// connects again after at most 100 ms, and a server that restarts or fails over needs longer.
    /// `None` for all others.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            Self::TooFewReplicas { .. } => Some(Duration::from_secs(1)),
            Self::Store { .. } if self.is_retryable() => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

impl LockError {
    // Not a `From`: a second one beside that of the type itself makes `?` in a closure ambiguous.
    pub(crate) fn of_key(error: KeyError) -> Self {
        let (key, problem) = error.into_parts();
        Self::InvalidKey { key, problem }
    }

    /// Returns the error of a call that would block a thread of a runtime.
    pub(crate) fn in_runtime(key: Box<str>) -> Self {
        let problem = RequestProblem::InRuntime;
        Self::InvalidRequest { key, problem }
    }
}

/// The way in which a lock ended before its guard did. Set once: the first one is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    Lost(LostReason),
    Hung,
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Box<str> {
        "inventory:7".into()
    }

    fn lost(reason: LostReason, renew: bool) -> LockError {
        LockError::Lost {
            key: key(),
            reason,
            completed: false,
            renew,
        }
    }

    fn invalid(problem: KeyProblem) -> LockError {
        let key = if problem == KeyProblem::NoKeys {
            ""
        } else {
            "%lock-fence"
        };
        LockError::InvalidKey {
            key: key.into(),
            problem,
        }
    }

    fn request(problem: RequestProblem) -> LockError {
        let key = key();
        LockError::InvalidRequest { key, problem }
    }

    fn store(source: StoreError) -> LockError {
        LockError::Store {
            key: key(),
            began: false,
            source,
        }
    }

    fn held(source: StoreError) -> LockError {
        LockError::Store {
            key: key(),
            began: true,
            source: source.after_the_grant(),
        }
    }

    /// The whole text of every error of a lock, sources included: the key, the cause, and what to
    /// do.
    #[allow(clippy::too_many_lines, reason = "one row for each")]
    fn texts() -> Vec<(LockError, &'static str)> {
        let seconds = Duration::from_secs;
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        vec![
            (
                LockError::Busy {
                    key: key(),
                    waited: seconds(5),
                    holder: Some(Box::new(Holder::of(
                        "0123456789abcdef0123456789abcdef:shop-2:17:stock::reduce",
                    ))),
                    retry_after: Some(seconds(3)),
                },
                "lock `inventory:7` is busy: waited 5.0s, held by shop-2, pid 17, stock::reduce, with 3.0s left of its lease unless it is \
                 renewed; try again later, or allow a longer `wait`",
            ),
            (
                LockError::Busy {
                    key: key(),
                    waited: seconds(5),
                    holder: None,
                    retry_after: Some(Duration::ZERO),
                },
                "lock `inventory:7` is busy: waited 5.0s; try again later, or allow a longer `wait`",
            ),
            (
                LockError::Busy {
                    key: key(),
                    waited: seconds(5),
                    holder: Some(Box::new(Holder::of("val"))),
                    retry_after: Some(MAX_LEASE),
                },
                "lock `inventory:7` is busy: waited 5.0s, held by val; try again later, or allow a longer `wait`",
            ),
            (
                LockError::Busy {
                    key: key(),
                    waited: seconds(5),
                    holder: Some(Box::new(Holder::of("val"))),
                    retry_after: None,
                },
                "lock `inventory:7` is busy: waited 5.0s, held by val, whose expiry is not known; if its key has none \
                 (`lockctl show`), it stays locked until that client or an operator deletes it; otherwise try again later, or allow a \
                 longer `wait`",
            ),
            (
                lost(LostReason::Expired, true),
                "lock `inventory:7` was lost while it was in use, and the work under it may have been carried out in part: its lease ran \
                 out; the process, or its lock thread, stood still for longer than that: give it more CPU time, or allow a longer `lease`; before the \
                 call is repeated, see what it has done",
            ),
            (
                lost(LostReason::Expired, false),
                "lock `inventory:7` was lost while it was in use, and the work under it may have been carried out in part: its lease ran \
                 out; with `renew = false` the lease limits the time: allow a longer `lease`, or let it be renewed; before the call is \
                 repeated, see what it has done",
            ),
            (
                lost(LostReason::Taken, true),
                "lock `inventory:7` was lost while it was in use, and the work under it may have been carried out in part: the key held \
                 another holder's value; find out if an operator used `force_release`; if not, look for a client that writes this key \
                 without asking, or for a failover of the store; before the call is repeated, see what it has done",
            ),
            (
                lost(LostReason::Deleted, true),
                "lock `inventory:7` was lost while it was in use, and the work under it may have been carried out in part: the key was \
                 gone before its time; find out if an operator used `force_release`; if not, look for a DEL, FLUSHALL or restart without \
                 persistence, or a clock of the server that was set forward, and let the store's maxmemory-policy be noeviction; before the call is repeated, see what it has done",
            ),
            (
                lost(LostReason::Unreachable, true),
                "lock `inventory:7` was lost while it was in use, and the work under it may have been carried out in part: the store could \
                 not be reached to renew it, or refused; see the log for a refusal, check the store and the network, or allow a longer \
                 `lease` to ride out such gaps; before the call is repeated, see what it has done",
            ),
            (
                lost(LostReason::Forked, true),
                "lock `inventory:7` was lost while it was in use, and the work under it may have been carried out in part: this process \
                 was forked from the one that holds it; take locks after the fork; before the call is repeated, see what it has done",
            ),
            (
                LockError::Lost {
                    key: key(),
                    reason: LostReason::Expired,
                    completed: true,
                    renew: true,
                },
                "lock `inventory:7` was lost before the work under it had ended, which was carried out and may have overlapped another \
                 holder's: its lease ran out; the process, or its lock thread, stood still for longer than that: give it more CPU time, or allow a \
                 longer `lease`; before the call is repeated, see what it has done",
            ),
            (
                LockError::Hung {
                    key: key(),
                    renewals: 30,
                    held: seconds(310),
                },
                "lock `inventory:7` was held for 310.0s (renewed 30 times), which is the limit of its call, so the call counts as hung and \
                 was cancelled, and the work under it may have been carried out in part; find what it waits for, move \
                 blocking work to `spawn_blocking`, or allow more by `max_hold`, or by `max_renewals`, which allows 2/3 of the lease × \
                 (max_renewals + 1); before the call is repeated, see what it has done",
            ),
            (
                LockError::WouldDeadlock { key: key() },
                "lock `inventory:7` is already held by this call tree, and waiting for it would never end; give the inner function \
                 `reentrant` to pass through a lock of the same mode, or take the lock once, in the outer function",
            ),
            (
                invalid(KeyProblem::Empty),
                "`%lock-fence` cannot be a lock key: it is empty; name what is to be locked",
            ),
            (
                invalid(KeyProblem::NoKeys),
                "a lock of several keys cannot be taken: no key was given; give at least one, or do not lock",
            ),
            (
                invalid(KeyProblem::TooMany(2000)),
                "the lock of `%lock-fence` and others cannot be taken: the call names 2000 keys and at most 1000 are allowed; lock what \
                 they belong to by one key, or take them by several calls, one after another",
            ),
            (
                invalid(KeyProblem::TooLong(2000)),
                "`%lock-fence` cannot be a lock key: it has 2000 bytes and at most 1024 are allowed; insert an id or a hash instead of the \
                 whole value",
            ),
            (
                invalid(KeyProblem::Reserved),
                "`%lock-fence` cannot be a lock key: keys that start with `%lock-` are kept for the library; choose another name",
            ),
            (
                invalid(KeyProblem::NoTag),
                "`%lock-fence` cannot be a lock key: in a cluster it and its queue would lie on different nodes, since it has a `}` that \
                 ends no tag; leave that out, or put a part of the key in braces, as its tag",
            ),
            (
                invalid(KeyProblem::Display),
                "`%lock-fence` cannot be a lock key: a value's `Display` failed; insert a value that can be written as text",
            ),
            (
                request(RequestProblem::Lease(Duration::ZERO)),
                "invalid request for lock `inventory:7`: no lock can have a `lease` of 0ns; give 10ms to 366 days, and more than the \
                 manager's `skew`",
            ),
            (
                request(RequestProblem::AtLeast(seconds(40_000_000))),
                "invalid request for lock `inventory:7`: no lock can stay taken for an `at_least` of 40000000s; give at most 366 days",
            ),
            (
                request(RequestProblem::LockDelay(seconds(40_000_000))),
                "invalid request for lock `inventory:7`: no lock can stay closed for a `lock_delay` of 40000000s; give at most 366 days",
            ),
            (
                request(RequestProblem::MaxHold),
                "invalid request for lock `inventory:7`: no body can run for a `max_hold` of zero; give a longer one, or leave it out",
            ),
            (
                request(RequestProblem::InRuntime),
                "invalid request for lock `inventory:7`: this is a thread of a tokio runtime, whose tasks would wait as well; await \
                 `acquire` and `release` instead, in `spawn_blocking` by `Handle::current().block_on(…)`",
            ),
            (
                request(RequestProblem::TwoModes),
                "invalid request for lock `inventory:7`: a lock has one mode, and more than one is given; leave out all but one",
            ),
            (
                request(RequestProblem::NoPermits),
                "invalid request for lock `inventory:7`: a semaphore has at least one permit; give one or more",
            ),
            (
                request(RequestProblem::ManyToFence),
                "invalid request for lock `inventory:7`: a fencing token tells one holder from the next, and under `read` or `semaphore` \
                 there are several at once; leave the token out, switch it off where it is the manager's default, or take an exclusive \
                 lock or `write`",
            ),
            (
                request(RequestProblem::NoOwner),
                "invalid request for lock `inventory:7`: the owner's name is empty; give one that is not",
            ),
            (
                request(RequestProblem::LongOwner),
                "invalid request for lock `inventory:7`: the owner's name is longer than 1,024 bytes; give a shorter one, such as a hash of \
                 it",
            ),
            (
                request(RequestProblem::OneServer),
                "invalid request for lock `inventory:7`: `fair` and every mode but exclusive need one server that keeps the order, and a \
                 quorum has several; leave it out, or keep these locks on one server, or behind sentinels or a cluster",
            ),
            (
                request(RequestProblem::LongLease),
                "invalid request for lock `inventory:7`: its `lease` with the `lock_delay`, or its `at_least`, is longer than the longest \
                 lease of this quorum; give a shorter one, or a longer `longest_lease` to the manager, and the same in all processes",
            ),
            (
                request(RequestProblem::SeveralInAMode),
                "invalid request for lock `inventory:7`: several keys are locked exclusively; leave the mode out, give `exclusive` where the \
                 manager's default is another one, or lock one key",
            ),
            (
                request(RequestProblem::SeveralFair),
                "invalid request for lock `inventory:7`: several keys have no common queue; leave `fair` out, switch it off where it is the \
                 manager's default, or lock one key",
            ),
            (
                LockError::NotConfigured { key: key() },
                "lock `inventory:7` was asked for before a store was configured; call `lock_runtime::init(\"redis://…\").await` at \
                 start-up, or name a manager by `manager = …`; in a test, `TestLocks::as_global` is for the calls of its own thread: \
                 under `multi_thread` give `kit.manager()` to `init_with`",
            ),
            (
                LockError::Closed {
                    key: key(),
                    began: false,
                },
                "lock `inventory:7` was asked for while its manager shut down, or after that, and its body did not begin; for a service that \
                 ends, this is as it should be; elsewhere call `shutdown()` after the last locked function",
            ),
            (
                LockError::Closed {
                    key: key(),
                    began: true,
                },
                "lock `inventory:7` was held while its manager shut down, and the work under it may have been carried out in part; let \
                 such work end before `shutdown()`, or allow a longer `shutdown_grace`; before the call is repeated, see what it has done",
            ),
            (
                LockError::TooFewReplicas {
                    key: key(),
                    acknowledged: 1,
                    wanted: 2,
                },
                "lock `inventory:7` was given back, since 1 of the 2 replicas that `min_replicas` asks for had it in time; see that the \
                 replicas are connected and keep up (`INFO replication`), or ask for fewer",
            ),
            (
                store(StoreError::transient(refused())),
                "lock `inventory:7`: the store failed: connection refused; check that the store is up and reachable, then try again",
            ),
            (
                store(StoreError::unknown("no answer within 1s")),
                "lock `inventory:7`: the store failed: no answer within 1s; the outcome is unknown and whatever was taken is being \
                 released; check the store and the network, then try again",
            ),
            (
                store(StoreError::permanent("unknown command")),
                "lock `inventory:7`: the store failed: unknown command; correct the store or its configuration",
            ),
            (
                held(StoreError::unknown("no answer within 1s")),
                "lock `inventory:7`: the store failed while the lock was held, and the work under it may have been carried out in part or \
                 as a whole: no answer within 1s; check the store and the network; before the call is repeated, see what it has done",
            ),
            (
                held(StoreError::transient("LOADING").advise("wait until the server is ready, then try again")),
                "lock `inventory:7`: the store failed while the lock was held, and the work under it may have been carried out in part or \
                 as a whole: LOADING; wait until the server is ready; before the call is repeated, see what it has done",
            ),
            (
                held(StoreError::permanent("unknown command")),
                "lock `inventory:7`: the store failed while the lock was held, and the work under it may have been carried out in part or \
                 as a whole: unknown command; correct the store or its configuration; before the call is repeated, see what it has done",
            ),
            (
                store(StoreError::other_kind()),
                "lock `inventory:7`: the store failed: the key is held in another kind of mode, exclusive or one that several may hold, or \
                 holds another program's data; take a key in one kind of mode everywhere, or choose another key or prefix",
            ),
        ]
    }

    /// The same for the errors of a manager: the server or the setting, the cause, and what to do.
    fn config_texts() -> Vec<(ConfigError, &'static str)> {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        vec![
            (
                ConfigError::Url {
                    url: "localhost".into(),
                    problem: "it has no scheme; give `redis://host:port`".into(),
                },
                "the store's URL `localhost` cannot be used: it has no scheme; give `redis://host:port`",
            ),
            (
                ConfigError::Server {
                    url: "redis://app:***@cache:6379".into(),
                    source: StoreError::transient(refused),
                },
                "the store at `redis://app:***@cache:6379` cannot be used: connection refused; check that the store is up and reachable, \
                 then try again",
            ),
            (
                ConfigError::AlreadySet {
                    first: Some("redis://cache:6379".into()),
                },
                "this is the second global lock manager: the first one was made by `init` for `redis://cache:6379`; make it once, at \
                 start-up, and name any other manager by `manager = …`",
            ),
            (
                ConfigError::AlreadySet { first: None },
                "this is the second global lock manager: the first one was made by `init_with`; make it once, at start-up, and name any \
                 other manager by `manager = …`",
            ),
            (
                ConfigError::NotSet,
                "the global lock manager was asked for before it was made; call `lock_runtime::init(\"redis://…\").await` at start-up, or \
                 name a manager by `manager = …`; in a test, `TestLocks::as_global` is for the calls of its own thread: under \
                 `multi_thread` give `kit.manager()` to `init_with`",
            ),
            (
                ConfigError::Settings {
                    problem: "the lock thread of the manager for `redis://cache:6379` cannot be started: out of threads; let the process \
                              have one more thread"
                        .into(),
                },
                "the lock thread of the manager for `redis://cache:6379` cannot be started: out of threads; let the process have one more \
                 thread",
            ),
        ]
    }

    /// Fails to compile when a variant is added, which then needs a row in the table.
    fn number(error: &LockError) -> usize {
        match error {
            LockError::Busy { .. } => 0,
            LockError::Lost { reason, .. } => match reason {
                LostReason::Expired => 1,
                LostReason::Taken => 2,
                LostReason::Deleted => 3,
                LostReason::Unreachable => 4,
                LostReason::Forked => 5,
            },
            LockError::Hung { .. } => 6,
            LockError::WouldDeadlock { .. } => 7,
            LockError::InvalidKey { problem, .. } => match problem {
                KeyProblem::Empty => 8,
                KeyProblem::NoKeys => 9,
                KeyProblem::TooLong(_) => 10,
                KeyProblem::Reserved => 11,
                KeyProblem::Display => 12,
                KeyProblem::NoTag => 20,
                KeyProblem::TooMany(_) => 19,
            },
            LockError::InvalidRequest { problem, .. } => match problem {
                RequestProblem::Lease(_) => 13,
                RequestProblem::AtLeast(_) => 14,
                RequestProblem::LockDelay(_) => 21,
                RequestProblem::MaxHold => 22,
                RequestProblem::TwoModes => 23,
                RequestProblem::NoPermits => 24,
                RequestProblem::ManyToFence => 25,
                RequestProblem::NoOwner => 26,
                RequestProblem::LongOwner => 27,
                RequestProblem::SeveralInAMode => 28,
                RequestProblem::SeveralFair => 29,
                RequestProblem::OneServer => 30,
                RequestProblem::LongLease => 31,
                RequestProblem::InRuntime => 32,
            },
            LockError::NotConfigured { .. } => 15,
            LockError::Closed { .. } => 16,
            LockError::Store { .. } => 17,
            LockError::TooFewReplicas { .. } => 18,
        }
    }

    fn config_number(error: &ConfigError) -> usize {
        match error {
            ConfigError::Server { .. } => 0,
            ConfigError::Url { .. } => 1,
            ConfigError::AlreadySet { .. } => 2,
            ConfigError::NotSet => 3,
            ConfigError::Settings { .. } => 4,
        }
    }

    /// Every number up to the largest is there.
    fn assert_complete(numbers: impl Iterator<Item = usize>, count: usize) {
        let told: std::collections::BTreeSet<_> = numbers.collect();
        assert!(told.into_iter().eq(0..count), "each variant has its row");
    }

    /// An error's texts and those of its sources, one by one.
    fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
        let errors = std::iter::successors(Some(error), |&error| error.source());
        errors.map(ToString::to_string).collect()
    }

    #[test]
    fn every_error_says_what_it_is_about_its_cause_and_what_to_do() {
        for (error, text) in texts() {
            assert_eq!(error.to_string(), text);
            assert!(error.to_string().contains(error.key()), "{text}");
            assert_eq!(text.matches("; ").count().min(1), 1, "what to do is missing: {text}");
        }
        for (error, text) in config_texts() {
            assert_eq!(error.to_string(), text);
            assert_eq!(text.matches("; ").count().min(1), 1, "what to do is missing: {text}");
        }
        assert_complete(texts().iter().map(|(error, _)| number(error)), 33);
        assert_complete(config_texts().iter().map(|(error, _)| config_number(error)), 5);
    }

    #[test]
    fn a_chain_says_every_text_once() {
        let locks = texts().into_iter().map(|(error, _)| chain(&error));
        let configs = config_texts().into_iter().map(|(error, _)| chain(&error));
        for chain in locks.chain(configs) {
            for (at, text) in chain.iter().enumerate() {
                let others = chain.iter().enumerate().filter(|(other, _)| *other != at);
                assert!(
                    others.clone().all(|(_, other)| !other.contains(text.as_str())),
                    "{chain:?}"
                );
            }
        }
    }

    #[test]
    fn the_sources_of_a_stores_error_follow_it() {
        #[derive(Debug, thiserror::Error)]
        #[error("the middle")]
        struct Middle(#[source] std::fmt::Error);

        let told = chain(&store(StoreError::permanent(Middle(std::fmt::Error)).advise("advice")));
        let deepest = std::fmt::Error.to_string();
        assert_eq!(
            told,
            ["lock `inventory:7`: the store failed: the middle; advice", &deepest]
        );
    }

    #[test]
    fn another_call_is_worth_its_while_where_the_cause_passes_by_itself() {
        let second = Some(Duration::from_secs(1));
        for (error, _) in texts() {
            let (retryable, after) = match &error {
                LockError::Busy { retry_after, .. } => (true, *retry_after),
                LockError::Store { source, began, .. } if *began || source.is_permanent() => (false, None),
                LockError::Store { .. } | LockError::TooFewReplicas { .. } => (true, second),
                _ => (false, None),
            };
            assert_eq!(
                (error.is_retryable(), error.retry_after()),
                (retryable, after),
                "{error}"
            );
        }
        for (error, _) in config_texts() {
            assert_eq!(error.is_retryable(), error.store_error().is_some(), "{error}");
        }
    }

    /// A retry layer goes by `is_retryable`, and a person by the text: either would pay twice.
    #[test]
    fn an_error_of_a_body_that_may_have_begun_asks_nobody_to_try_again() {
        let mut told = 0;
        for (error, _) in texts() {
            let completed = match &error {
                LockError::Lost { completed, .. } => *completed,
                LockError::Hung { .. }
                | LockError::Closed { began: true, .. }
                | LockError::Store { began: true, .. } => false,
                _ => continue,
            };
            told += 1;
            let text = error.to_string();
            assert!(!error.is_retryable() && error.retry_after().is_none(), "{text}");
            assert!(!text.contains("try again"), "{text}");
            let effect = if completed {
                "was carried out"
            } else {
                "may have been carried out in part"
            };
            assert!(text.contains(effect) && text.ends_with(LOOK_FIRST), "{text}");
        }
        assert_eq!(told, 12);
    }

    #[test]
    fn the_error_is_small_enough_to_be_returned_by_value() {
        assert!(size_of::<LockError>() <= 72, "{}", size_of::<LockError>());
    }
}
