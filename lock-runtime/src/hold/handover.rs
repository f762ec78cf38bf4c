//! The limits of the handover inside a process.

use std::time::Duration;

/// The number of times, and the total time, that a lock may pass between calls of one process
/// before it goes back to the store.
///
/// Passing a lock on costs no round trip to the store, but no other process gets the lock
/// meanwhile. The limit that is reached first ends the handovers, so another process waits for at
/// most the time limit plus one call, per process ahead of it.
///
/// A call that passes its lock on does not ask the store if it still held the lock, as a release
/// does. It returns success unless the process knew of a loss by then: a lock that somebody deletes
/// from the store can be another holder's while calls of this process still pass it on. The watchdog
/// renews and checks the lock as if these calls were one, every 4 ms while it passes on, so that ends
/// within 6 ms plus three round trips. A loss ends the call that holds the lock when it is found, and
/// the lock is not passed on again. If a check has been
/// overdue for 2 ms plus twice the usual round-trip time, the next call waits for its answer before
/// it begins; after 250 ms the lock goes back to the store.
///
/// ```
/// # use lock_runtime::{HandoverLimits, LockManager};
/// # use std::time::Duration;
/// let locks = LockManager::builder("memory://")
///     .handover(HandoverLimits::new(16, Duration::from_millis(20)))
///     .build()?;
/// # Ok::<(), lock_runtime::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoverLimits {
    passes: u32,
    time: Duration,
}

impl HandoverLimits {
    /// Disables the handover: every lock goes back to the store.
    pub const OFF: Self = Self::new(0, Duration::ZERO);

    /// Allows `passes` passes in a row, and none once the process has held the lock for `time`.
    #[must_use]
    pub const fn new(passes: u32, time: Duration) -> Self {
        Self { passes, time }
    }

    /// Returns one with these values, where they are given.
    pub(crate) fn with(self, passes: Option<u32>, time: Option<Duration>) -> Self {
        Self::new(passes.unwrap_or(self.passes), time.unwrap_or(self.time))
    }

    /// Returns `true` if a lock that was passed on `passes` times within `time` may pass once more.
    pub(super) fn allows(self, passes: u32, time: Duration) -> bool {
        passes < self.passes && time < self.time
    }
}

impl Default for HandoverLimits {
    /// Returns a limit of 128 passes and 50 ms.
    fn default() -> Self {
        Self::new(128, Duration::from_millis(50))
    }
}
