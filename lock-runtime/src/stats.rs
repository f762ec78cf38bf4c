//! Counters of a manager's locks.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::EndCause;
use crate::error::LostReason;

/// A snapshot of a manager's counters since its creation. See
/// [`LockManager::stats`](crate::LockManager::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The number of locks acquired.
    pub acquired: u64,
    /// The number of acquired locks that another call of this process handed over, without a round
    /// trip to the store.
    pub passed: u64,
    /// The number of calls that received a clone of another call's result instead of a lock, under
    /// `coalesce`.
    pub coalesced: u64,
    /// The number of calls that ended with [`LockError::Busy`](crate::LockError::Busy).
    pub busy: u64,
    /// The number of renewals that the store confirmed.
    pub renewals: u64,
    /// The number of locks lost because the lease ran out.
    pub lost_expired: u64,
    /// The number of locks lost because the key held another holder's value.
    pub lost_taken: u64,
    /// The number of locks lost because the key was gone.
    pub lost_deleted: u64,
    /// The number of locks lost because the store could not be reached.
    pub lost_unreachable: u64,
    /// The number of [pipelined](crate::LockRequest::pipelined) releases that failed, or found the
    /// lock lost.
    pub unconfirmed: u64,
    /// The number of calls cancelled after `max_renewals`, or `max_hold`.
    pub hung: u64,
    /// The number of polls of a body that began before the deadline and ended after it. A poll
    /// cannot be stopped midway, so a body that blocks its thread beyond the deadline can overlap
    /// the next holder. A [fencing token](crate::HeldLock::fencing_token) protects data against
    /// that.
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

/// An event that a counter counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Acquired,
    /// A lock passed on inside the process.
    Passed,
    /// A call received the result of another one.
    Coalesced,
    Busy,
    Renewed,
    /// A release that no call waited for failed.
    Unconfirmed,
    /// A poll of a body ended after the deadline.
    Overrun,
    /// A lock ended before its guard.
    Ended(EndCause),
}

impl Counters {
    pub(crate) fn count(&self, event: Event) {
        let counter = match event {
            Event::Acquired => &self.acquired,
            Event::Passed => &self.passed,
            Event::Coalesced => &self.coalesced,
            Event::Busy => &self.busy,
            Event::Renewed => &self.renewals,
            Event::Unconfirmed => &self.unconfirmed,
            Event::Overrun => &self.overruns,
            Event::Ended(EndCause::Lost(LostReason::Expired)) => &self.lost_expired,
            Event::Ended(EndCause::Lost(LostReason::Taken)) => &self.lost_taken,
            Event::Ended(EndCause::Lost(LostReason::Deleted)) => &self.lost_deleted,
            Event::Ended(EndCause::Lost(LostReason::Unreachable)) => &self.lost_unreachable,
            Event::Ended(EndCause::Hung) => &self.hung,
            // A forked child's lock belongs to its parent, and a shutdown is not a failure.
            Event::Ended(EndCause::Lost(LostReason::Forked) | EndCause::Closed) => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
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
