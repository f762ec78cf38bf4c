//! What can go wrong with a lock, told so that the reader knows what to do next.

use std::fmt;
use std::time::Duration;

use crate::holder::Holder;
use crate::key::KeyProblem;
use crate::store::StoreError;

/// Why a lock could not be taken, or why a body that held it did not succeed.
///
/// Every message names the key and the next thing to do. A function under `#[distributed_lock]` returns it through
/// `E: From<LockError>`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Another holder kept the lock during the whole `wait`. Nothing was run.
    Busy {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// How long this call waited.
        waited: Duration,
        /// Who held the lock when it was last asked for.
        holder: Option<Box<Holder>>,
        /// The rest of the holder's lease, where known. The holder may renew it, or release sooner.
        retry_after: Option<Duration>,
    },
    /// The lock was held and then lost. Unless `completed`, the body was cancelled at one of its awaits.
    Lost {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// How it was lost.
        reason: LostReason,
        /// Whether the body had run to its end. Its effects may then have overlapped another holder's.
        completed: bool,
    },
    /// The body was still running after `max_renewals` renewals, and was cancelled.
    Hung {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// How often the lease had been renewed.
        renewals: u32,
        /// How long the lock had been held.
        held: Duration,
    },
    /// The same call tree already holds this key, so that waiting for it would never end.
    WouldDeadlock {
        /// The key, without the manager's prefix.
        key: Box<str>,
    },
    /// The key cannot be used.
    InvalidKey {
        /// The beginning of the key.
        key: Box<str>,
        /// What is wrong with it.
        problem: KeyProblem,
    },
    /// The lease cannot be used: it is shorter than [`MIN_LEASE`](crate::MIN_LEASE), longer than
    /// [`MAX_LEASE`](crate::MAX_LEASE), or used up by the manager's `skew`. Or `at_least` is longer than that.
    InvalidLease {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// The lease, or minimum hold, that was asked for.
        lease: Duration,
    },
    /// The lock cannot be taken in the way that was asked for: what was asked for contradicts itself.
    InvalidMode {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// What is wrong, and what to ask for instead.
        problem: &'static str,
    },
    /// An annotated function was called before [`lock_runtime::init`](crate::init).
    NotConfigured {
        /// The key, without the manager's prefix.
        key: Box<str>,
    },
    /// The manager was shut down. A body that was still running then was cancelled.
    Closed {
        /// The key, without the manager's prefix.
        key: Box<str>,
    },
    /// The store refused, or could not be reached, for the whole `wait`.
    Store {
        /// The key, without the manager's prefix.
        key: Box<str>,
        /// What the store said.
        source: StoreError,
    },
}

/// How a held lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Its lease ran out: it was not to be renewed, the process was stopped, or the body kept its thread for
    /// too long.
    Expired,
    /// The key held another holder's value.
    Taken,
    /// The key was gone before its time: deleted, evicted, flushed, or not there after a restart.
    Deleted,
    /// The store could not be reached to renew it before the lease ran out.
    Unreachable,
    /// This process was forked from the one that holds the lock. The lock stays with the parent.
    Forked,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::Taken => "another holder's value was under the key",
            Self::Deleted => "the key was deleted before its time",
            Self::Unreachable => "the store could not be reached to renew it",
            Self::Forked => "this process was forked from the one that holds it",
        })
    }
}

impl LostReason {
    const fn advice(self) -> &'static str {
        match self {
            Self::Expired => "allow a longer `lease`, or await more often in the body",
            Self::Taken => "look for a client that writes this key without asking, or for a failover of the store",
            Self::Deleted => {
                "look for a DEL, FLUSHALL or restart without persistence, and let the store's maxmemory-policy be noeviction"
            }
            Self::Unreachable => "check the store and the network, or allow a longer `lease` to ride out such gaps",
            Self::Forked => "take locks after the fork",
        }
    }
}

impl LockError {
    /// The key the error is about, without the manager's prefix; of an invalid key, the beginning.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Busy { key, .. }
            | Self::Lost { key, .. }
            | Self::Hung { key, .. }
            | Self::WouldDeadlock { key }
            | Self::InvalidKey { key, .. }
            | Self::InvalidLease { key, .. }
            | Self::InvalidMode { key, .. }
            | Self::NotConfigured { key }
            | Self::Closed { key }
            | Self::Store { key, .. } => key,
        }
    }

    /// Whether another holder had the lock, so that the body was not run.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    /// Whether the lock was held and then lost.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// The variant's name in one lower-case word, for log fields and metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "busy",
            Self::Lost { .. } => "lost",
            Self::Hung { .. } => "hung",
            Self::WouldDeadlock { .. } => "would_deadlock",
            Self::InvalidKey { .. } => "invalid_key",
            Self::InvalidLease { .. } => "invalid_lease",
            Self::InvalidMode { .. } => "invalid_mode",
            Self::NotConfigured { .. } => "not_configured",
            Self::Closed { .. } => "closed",
            Self::Store { .. } => "store",
        }
    }
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
                write!(f, "lock `{key}` is busy: waited {waited:.1?}")?;
                if let Some(holder) = holder {
                    write!(f, ", held by {holder}")?;
                }
                match retry_after {
                    Some(rest) => write!(
                        f,
                        "; try again, its lease has {rest:.1?} left, or allow a longer `wait`"
                    ),
                    None => f.write_str("; try again, or allow a longer `wait`"),
                }
            }
            Self::Lost { key, reason, completed } => {
                let what = if *completed {
                    "before the body had ended"
                } else {
                    "and the body was cancelled"
                };
                write!(f, "lock `{key}` was lost {what}: {reason}; {}", reason.advice())
            }
            Self::Hung { key, renewals, held } => write!(
                f,
                "lock `{key}` was held for {held:.1?} and renewed {renewals} times, so its call counts as hung and was cancelled; \
                 find what it waits for, or raise `max_renewals`"
            ),
            Self::WouldDeadlock { key } => write!(
                f,
                "lock `{key}` is already held by this call tree, and waiting for it would never end; \
                 take it once in the outer function, or call an inner function without the attribute"
            ),
            Self::InvalidKey { key, problem } => write!(f, "`{key}` cannot be a lock key: {problem}"),
            Self::InvalidLease { key, lease } => write!(
                f,
                "lock `{key}` cannot have a lease or minimum hold of {lease:?}; give one of {:?} to {} days, and a lease longer than the manager's skew",
                crate::MIN_LEASE,
                crate::MAX_LEASE.as_secs() / 86_400
            ),
            Self::InvalidMode { key, problem } => write!(f, "lock `{key}` cannot be taken so: {problem}"),
            Self::NotConfigured { key } => write!(
                f,
                "lock `{key}` was asked for before a store was configured; \
                 call `lock_runtime::init(\"redis://…\").await` at start-up, or name one by `manager = …`"
            ),
            Self::Closed { key } => write!(
                f,
                "lock `{key}` was asked for or held while its manager shut down; stop calling locked functions before `shutdown()`"
            ),
            Self::Store { key, source } => write!(f, "lock `{key}`: {source}; {}", source.advice()),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_names_the_key_and_what_to_do() {
        let key = || Box::<str>::from("inventory:7");
        let errors = [
            LockError::Busy {
                key: key(),
                waited: Duration::from_secs(5),
                holder: Some(Box::new(Holder::new("x"))),
                retry_after: Some(Duration::from_secs(3)),
            },
            LockError::Lost {
                key: key(),
                reason: LostReason::Deleted,
                completed: false,
            },
            LockError::Hung {
                key: key(),
                renewals: 30,
                held: Duration::from_secs(600),
            },
            LockError::WouldDeadlock { key: key() },
            LockError::InvalidKey {
                key: key(),
                problem: KeyProblem::Reserved,
            },
            LockError::InvalidLease {
                key: key(),
                lease: Duration::ZERO,
            },
            LockError::InvalidMode {
                key: key(),
                problem: "a semaphore has at least one permit; give one or more",
            },
            LockError::NotConfigured { key: key() },
            LockError::Closed { key: key() },
            LockError::Store {
                key: key(),
                source: StoreError::transient("connection refused"),
            },
        ];
        let remedies = [
            "try again",
            "look for",
            "raise",
            "take it once",
            "choose",
            "give one",
            "give one or more",
            "call",
            "stop calling",
            "check",
        ];
        for (error, remedy) in errors.iter().zip(remedies) {
            let text = error.to_string();
            assert!(text.contains("inventory:7") && text.contains(remedy), "{text}");
            assert_eq!(error.key(), "inventory:7");
        }
    }

    #[test]
    fn the_error_is_small_enough_to_be_returned_by_value() {
        assert!(size_of::<LockError>() <= 72, "{}", size_of::<LockError>());
    }
}
