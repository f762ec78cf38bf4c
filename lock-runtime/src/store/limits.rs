//! The limits of a lease, and of a claim.

use std::time::Duration;

/// The shortest lease that a call can ask for: 10 ms.
///
/// The watchdog renews when a third of the lease is left. For a lease under 100 ms, a busy host or
/// network now and then takes longer than that third, so such a lease suits only bodies that end
/// within it, with `renew = false`.
pub const MIN_LEASE: Duration = Duration::from_millis(10);
/// The longest lease that a call can ask for: 366 days.
pub const MAX_LEASE: Duration = Duration::from_secs(366 * 86_400);

/// The limits of a claim. Within the shortest one, a look finds a handover that no message tells.
pub(super) const SHORTEST_CLAIM: Duration = Duration::from_millis(500);
const LONGEST_CLAIM: Duration = Duration::from_millis(1500);

/// Returns the time for which a lock is kept for a waiter that was handed it and has not taken it, or has not got
/// the votes for it, in place of the lease.
pub(crate) fn claim(lease: Duration) -> Duration {
    lease.clamp(SHORTEST_CLAIM, LONGEST_CLAIM)
}
