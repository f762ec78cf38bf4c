//! The limits of a lease.

use std::time::Duration;

/// The shortest lease that a call can ask for: 10 ms.
///
/// The watchdog renews when a third of the lease is left. For a lease under 100 ms, a busy host or
/// network now and then takes longer than that third, so such a lease suits only bodies that end
/// within it, with `renew = false`.
pub const MIN_LEASE: Duration = Duration::from_millis(10);
/// The longest lease that a call can ask for: 366 days.
pub const MAX_LEASE: Duration = Duration::from_secs(366 * 86_400);
