//! The clocks that lock deadlines are read from.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A point in time on one [`Clock`], in nanoseconds since that clock's origin.
///
/// Moments of different clocks cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// A moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates the moment `nanos` nanoseconds after the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the number of nanoseconds since the clock's origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns this moment plus `span`, or [`Moment::NEVER`] on overflow.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A source of the present time, which lock deadlines are counted from.
///
/// The default, [`BootClock`], counts the time that a host spends suspended. Give a manager another
/// clock with [`LockManagerBuilder::clock`](crate::LockManagerBuilder::clock), for example in
/// tests.
///
/// A clock must never go backwards.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Returns the present moment.
    fn now(&self) -> Moment;
}

/// The system's monotonic clock including suspended time (`CLOCK_BOOTTIME` on Linux).
///
/// [`std::time::Instant`] stands still on Linux while the machine sleeps, so a lock that expired
/// during the sleep would look valid.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn now(&self) -> Moment {
        moment_of(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
    }

    // `CLOCK_MONOTONIC` counts sleep on macOS and iOS. The BSDs have no clock that does.
    #[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
    fn now(&self) -> Moment {
        moment_of(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
    }

    #[cfg(not(unix))]
    fn now(&self) -> Moment {
        Moment::from_nanos(nanos(Instant::now().saturating_duration_since(origin())))
    }
}

#[cfg(unix)]
fn moment_of(time: rustix::time::Timespec) -> Moment {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// tokio's clock, which a test can pause and advance. The memory store uses it by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        let now = tokio::time::Instant::now().into_std();
        Moment(nanos(now.saturating_duration_since(origin())))
    }
}

/// Returns `true` if the current runtime's clock has been paused by `tokio::time::pause`.
///
/// tokio has no method for this, so both clocks are read until the real one has moved.
pub(super) fn tokio_clock_is_paused() -> bool {
    if tokio::runtime::Handle::try_current().is_err() {
        return false;
    }
    let tokio_before = tokio::time::Instant::now();
    // A paused clock does not advance between two reads. A running clock may not either, if it is
    // coarse.
    if tokio::time::Instant::now() > tokio_before {
        return false;
    }
    let real_before = Instant::now();
    while Instant::now() == real_before {
        std::hint::spin_loop();
    }
    tokio::time::Instant::now() == tokio_before
}

/// Returns the fixed point that every moment of an `Instant`-based clock is counted from. It lies
/// an hour back, because a paused clock may have been started before the first call.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let now = Instant::now();
        now.checked_sub(Duration::from_secs(3600)).unwrap_or(now)
    })
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        assert_eq!(
            Moment::from_nanos(u64::MAX - 1).after(Duration::from_secs(1)),
            Moment::NEVER
        );
        assert_eq!(Moment::from_nanos(5).since(Moment::from_nanos(9)), Duration::ZERO);
    }

    #[test]
    fn the_boot_clock_moves_forward() {
        let first = BootClock.now();
        while BootClock.now() == first {
            std::hint::spin_loop();
        }
        assert!(BootClock.now() > first);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_is_seen_as_paused() {
        assert!(tokio_clock_is_paused());
        let before = TokioClock.now();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(TokioClock.now().since(before), Duration::from_secs(7));
    }

    #[tokio::test]
    async fn a_running_clock_is_not_paused() {
        assert!(!tokio_clock_is_paused());
    }
}
