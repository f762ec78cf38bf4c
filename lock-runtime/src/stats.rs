//! Counters of what a manager's locks went through.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::LostReason;
use crate::held::Fate;

/// What a manager's locks have gone through since it was made. See [`LockManager::stats`](crate::LockManager::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Locks taken.
    pub acquired: u64,
    /// Those of them that came from another call of this process, without a trip to the store.
    pub passed: u64,
    /// Calls that got the result of another call of this process instead of a lock, under `on_busy = coalesce`.
    pub coalesced: u64,
    /// Calls that ended with [`LockError::Busy`](crate::LockError::Busy).
    pub busy: u64,
    /// Renewals confirmed by the store.
    pub renewals: u64,
    /// Locks lost because the lease ran out.
    pub lost_expired: u64,
    /// Locks lost because another holder's value was found under the key.
    pub lost_taken: u64,
    /// Locks lost because the key was gone.
    pub lost_deleted: u64,
    /// Locks lost because the store could not be reached.
    pub lost_unreachable: u64,
    /// Releases that were not waited for and failed, or found the lock lost.
    pub unconfirmed: u64,
    /// Calls cancelled after `max_renewals`.
    pub hung: u64,
    /// Polls of a body that began in time and ended after the deadline. Nobody can stop such a poll: it is the
    /// one way in which a body that does not yield can overlap the next holder, and the reason for fencing.
    pub overruns: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    acquired: AtomicU64,
    passed: AtomicU64,
    coalesced: AtomicU64,
    busy: AtomicU64,
    renewals: AtomicU64,
    lost_expired: AtomicU64,
    lost_taken: AtomicU64,
    lost_deleted: AtomicU64,
    lost_unreachable: AtomicU64,
    unconfirmed: AtomicU64,
    hung: AtomicU64,
    overruns: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn count_acquired(&self) {
        count(&self.acquired);
    }

    pub(crate) fn count_passed(&self) {
        count(&self.passed);
    }

    pub(crate) fn count_coalesced(&self) {
        count(&self.coalesced);
    }

    pub(crate) fn count_busy(&self) {
        count(&self.busy);
    }

    pub(crate) fn count_renewal(&self) {
        count(&self.renewals);
    }

    pub(crate) fn count_unconfirmed(&self) {
        count(&self.unconfirmed);
    }

    pub(crate) fn count_overrun(&self) {
        count(&self.overruns);
    }

    pub(crate) fn count_fate(&self, fate: Fate) {
        match fate {
            Fate::Lost(LostReason::Expired) => count(&self.lost_expired),
            Fate::Lost(LostReason::Taken) => count(&self.lost_taken),
            Fate::Lost(LostReason::Deleted) => count(&self.lost_deleted),
            Fate::Lost(LostReason::Unreachable) => count(&self.lost_unreachable),
            Fate::Hung => count(&self.hung),
            // The lock is the parent's, and a shutdown is no accident.
            Fate::Lost(LostReason::Forked) | Fate::Closed => {}
        }
    }

    pub(crate) fn read(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            acquired: read(&self.acquired),
            passed: read(&self.passed),
            coalesced: read(&self.coalesced),
            busy: read(&self.busy),
            renewals: read(&self.renewals),
            lost_expired: read(&self.lost_expired),
            lost_taken: read(&self.lost_taken),
            lost_deleted: read(&self.lost_deleted),
            lost_unreachable: read(&self.lost_unreachable),
            unconfirmed: read(&self.unconfirmed),
            hung: read(&self.hung),
            overruns: read(&self.overruns),
        }
    }
}
