//! The pauses of a waiter between two attempts.

use std::time::Duration;

use crate::host::Host;

/// Exponential backoff with full jitter: after the `n`-th failed attempt, the waiter pauses for a
/// random time between zero and `min(ceiling, base × 2ⁿ⁻¹)`.
///
/// Full jitter spreads the attempts of many waiters best; see
/// [Exponential Backoff And Jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    ceiling: Duration,
}

impl Backoff {
    /// Creates a backoff whose first pause is at most `base`, and no pause longer than `ceiling`.
    #[must_use]
    pub const fn new(base: Duration, ceiling: Duration) -> Self {
        Self { base, ceiling }
    }

    /// Returns one with these values, where they are given.
    pub(crate) fn with(self, base: Option<Duration>, ceiling: Option<Duration>) -> Self {
        Self::new(base.unwrap_or(self.base), ceiling.unwrap_or(self.ceiling))
    }

    /// Returns the pause before the next attempt, after `failures` failed ones.
    pub(crate) fn pause(&self, host: &Host, failures: u32) -> Duration {
        let step = self
            .base
            .saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
        step.min(self.ceiling).mul_f64(host.fraction())
    }
}

impl Default for Backoff {
    /// Returns a backoff with a first pause of at most 5 ms, and no pause longer than 250 ms.
    fn default() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_millis(250))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pause_is_above_the_ceiling_however_often_it_failed() {
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(80));
        for failures in 0..200 {
            assert!(backoff.pause(&Host::process(), failures) <= Duration::from_millis(80));
        }
    }
}
