//! The safety margin between the deadline of a lock and the expiry of its key. The deadline counts
//! from before the send of the command that set the expiry, and only a renewal, counted in the same
//! way, moves it: the store's lease begins after the send, so the holder stops before the store
//! grants the lock to another one. A renewal without an answer proves nothing and leaves the
//! deadline. The deadline of a lock that the store's queue handed over counts from before the send
//! of the script that took it for the whole lease. A lock that passes on inside the process keeps
//! its deadline.

use std::time::Duration;

use crate::host::Moment;

/// The part of a lease by which a deadline comes before the key's expiry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Margins {
    skew: Duration,
}

impl Margins {
    pub(super) fn new(skew: Duration) -> Self {
        Self { skew }
    }

    /// Returns the maximum drift between two clocks during one lease: 1 %, plus 2 ms for their
    /// granularity.
    fn drift(lease: Duration) -> Duration {
        lease / 100 + Duration::from_millis(2)
    }

    pub(super) fn validity(self, lease: Duration) -> Duration {
        lease.saturating_sub(Self::drift(lease)).saturating_sub(self.skew)
    }

    /// Returns the time to renew a lease that was set by a command sent at `sent`: 2/3 of what is
    /// left of the lease without the skew. Later, a large skew would end the lock first.
    pub(super) fn renew_at(self, sent: Moment, lease: Duration) -> Moment {
        sent.after(lease.saturating_sub(self.skew) / 3 * 2)
    }

    /// Returns the time until which a lock is valid whose expiry was set by a command sent at
    /// `sent` or later.
    pub(super) fn deadline(self, sent: Moment, lease: Duration) -> Moment {
        sent.after(self.validity(lease))
    }
}
