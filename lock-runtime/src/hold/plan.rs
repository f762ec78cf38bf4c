//! The times at which a lock is to be renewed and checked.

use std::time::Duration;

use crate::host::Moment;

/// The first pause before a failed renewal or check is retried.
const FIRST_RETRY: Duration = Duration::from_millis(10);

/// The watchdog's notes on one lock. Changed only while the schedule is locked.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The time of the next event; `None` for a lock that is not watched.
    pub(super) due: Option<Moment>,
    /// The time of the next renewal; `None` if there is none.
    pub(super) renew_at: Option<Moment>,
    /// The time of the next check without renewal; `None` if none is needed.
    pub(super) check_at: Option<Moment>,
    /// `true` if the next check is to restore the expiry of the key, which its server may have set
    /// back.
    pub(super) restores: bool,
    /// The time at which the last check or renewal was queued for sending.
    pub(super) checked_at: Option<Moment>,
    /// The requests in batches under way.
    pub(super) under_way: UnderWay,
    /// The lock's place in its server's queue.
    pub(super) waiting: Option<Moment>,
    /// The retry state while renewals fail.
    pub(super) renewal_retry: Option<Retry>,
    /// The retry state while checks fail.
    pub(super) check_retry: Option<Retry>,
    /// `true` if the watchdog's index lists the lock, so that a store's hint finds it by its key.
    pub(super) indexed: bool,
}

/// The requests about one lock that are in batches under way.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    /// `true` for a check that leaves the expiry alone.
    pub(super) check: bool,
    /// `true` for a request that sets the expiry. There is one at a time, since of two expiries the one that arrives
    /// last would count.
    pub(super) renewal: bool,
}

/// A failed attempt that will be retried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub(super) pause: Duration,
    /// The time of the next attempt.
    pub(super) at: Moment,
}

impl Retry {
    pub(super) fn after(failed: Option<Self>, now: Moment, longest: Duration) -> Self {
        let pause = failed.map_or(FIRST_RETRY, |failed| failed.pause.saturating_mul(2));
        let pause = pause.min(longest).max(Duration::from_millis(1));
        Self {
            pause,
            at: now.after(pause),
        }
    }
}

impl Plan {
    pub(super) fn new(renew_at: Option<Moment>) -> Self {
        Self {
            renew_at,
            ..Self::default()
        }
    }

    /// Returns `true` if a renewal has failed, or is overdue without an answer.
    pub(super) fn is_failing(&self, now: Moment) -> bool {
        let overdue = self.renew_at.is_some_and(|at| at <= now);
        self.renew_at.is_some() && (self.renewal_retry.is_some() || (self.is_in_flight() && overdue))
    }

    /// Returns the time for which a check has been due without an answer.
    pub(super) fn check_is_late_by(&self, now: Moment) -> Duration {
        self.check_at.map_or(Duration::ZERO, |at| now.since(at))
    }

    /// Ends the pause before a failed renewal is retried. Called when the store answers again.
    pub(super) fn hurry(&mut self, now: Moment) {
        if let Some(retry) = &mut self.renewal_retry {
            retry.at = now;
        }
    }

    /// Returns `true` while the lock is in its server's queue or in a batch under way.
    pub(super) fn is_in_flight(&self) -> bool {
        self.waiting.is_some() || self.under_way.check || self.under_way.renewal
    }

    /// Returns the time at which the next renewal is to be queued. A renewal does not wait for the answer to a check, which
    /// may take as long as what is left of the lease.
    pub(super) fn renews_at(&self) -> Moment {
        let due = self.renewal_due();
        let is_queued = self.waiting.is_some() && self.checked_at.is_some_and(|queued| due <= queued);
        if is_queued || self.under_way.renewal {
            Moment::NEVER
        } else {
            due
        }
    }

    /// Returns the time at which the next check is to be queued.
    pub(super) fn checks_at(&self) -> Moment {
        if self.is_in_flight() {
            return Moment::NEVER;
        }
        Self::due(self.check_at, self.check_retry)
    }

    /// Returns the time of the next event.
    pub(super) fn next(&self, deadline: Moment) -> Moment {
        self.renews_at().min(self.checks_at()).min(deadline)
    }

    pub(super) fn renewal_due(&self) -> Moment {
        Self::due(self.renew_at, self.renewal_retry)
    }

    fn due(at: Option<Moment>, retry: Option<Retry>) -> Moment {
        at.map_or(Moment::NEVER, |at| retry.map_or(at, |retry| retry.at.max(at)))
    }
}
