//! The clock of deadlines. All processes of a machine read the same, and on Linux it includes the time
//! for which the machine is suspended, as the lock's own clock does.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the machine was started.
pub(super) fn now() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
