//! Compares the clocks of a cluster's nodes. Leases travel as times with the data, so that after a failover,
//! and of locks in a shared mode after a move, another node's clock decides when they are over.

use std::time::Duration;

use crate::host::Moment;
use crate::store::redis::connection::failure::Address;

/// A reading of a node's clock.
pub(super) struct Reading {
    address: Address,
    /// The time since 1970 that the node's clock had when the host's began, in microseconds. It lies between
    /// these two, since the node may have read its clock at any moment between the request and its answer.
    earliest: i128,
    latest: i128,
}

impl Reading {
    /// Creates one from the answer to `TIME`, in seconds and microseconds.
    pub(super) fn new(address: Address, (seconds, micros): (u64, u64), sent: Moment, answered: Moment) -> Self {
        let told = i128::from(seconds) * 1_000_000 + i128::from(micros);
        let at = |moment: Moment| i128::from(moment.as_nanos() / 1000);
        Self {
            address,
            earliest: told - at(answered),
            latest: told - at(sent),
        }
    }

    /// Returns how far this clock is ahead of the other one, at least.
    fn ahead_of(&self, other: &Self) -> Duration {
        let micros = self.earliest - other.latest;
        Duration::from_micros(u64::try_from(micros.max(0)).unwrap_or(u64::MAX))
    }
}

/// Two clocks that differ by more than is allowed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) ahead: Address,
    pub(super) behind: Address,
    /// At least.
    pub(super) by: Duration,
}

/// The differences that have been found, and that no later reading has refuted.
#[derive(Default)]
pub(super) struct Clocks {
    found: Vec<Difference>,
}

impl Clocks {
    /// Compares clocks that were read at about the same time. Returns the new differences above `skew`, one
    /// for each clock that is ahead of others, or behind them.
    pub(super) fn compare(&mut self, readings: &[Reading], skew: Duration) -> Vec<Difference> {
        let read = |address: &Address| readings.iter().find(|reading| reading.address == *address);
        self.found
            .retain(|found| match (read(&found.ahead), read(&found.behind)) {
                (Some(ahead), Some(behind)) => ahead.ahead_of(behind) > skew,
                _ => true,
            });
        let before = self.found.len();
        for one in readings {
            for other in readings {
                let by = one.ahead_of(other);
                let is_told = |found: &Difference| found.ahead == one.address || found.behind == other.address;
                if by > skew && !self.found.iter().any(is_told) {
                    let (ahead, behind) = (one.address.clone(), other.address.clone());
                    self.found.push(Difference { ahead, behind, by });
                }
            }
        }
        self.found.get(before..).unwrap_or_default().to_vec()
    }

    pub(super) fn found(&self) -> &[Difference] {
        &self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKEW: Duration = Duration::from_millis(50);

    /// A node whose clock is ahead of the first one's by so many ms.
    fn reading(name: &str, ahead: u64, sent: u64, answered: u64) -> Reading {
        let address = Address {
            host: name.to_owned(),
            port: 1,
        };
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let ms = ahead + sent.midpoint(answered);
        let told = (1_000 + ms / 1000, ms % 1000 * 1000);
        Reading::new(address, told, at(sent), at(answered))
    }

    fn told(found: &[Difference]) -> Vec<(&str, &str, u128)> {
        let told = |one: &Difference| {
            let name = |address: &Address| if address.host == "a" { "a" } else { "b" };
            (name(&one.ahead), name(&one.behind), one.by.as_millis())
        };
        found.iter().map(told).collect()
    }

    #[test]
    fn a_difference_counts_as_far_as_the_round_trips_do_not_explain_it() {
        let found = |ahead, answered| {
            let readings = [reading("a", 0, 10, 10), reading("b", ahead, 10, answered)];
            let found = Clocks::default().compare(&readings, SKEW);
            told(&found).iter().map(|(_, _, by)| *by).collect::<Vec<_>>()
        };
        assert_eq!(found(50, 10), [0; 0]);
        assert_eq!(found(60, 10), [60]);
        assert_eq!(found(60, 40), [0; 0]);
        assert_eq!(found(2_000, 40), [1_985]);
    }

    #[test]
    fn each_clock_that_is_wrong_is_told_once_until_it_is_right() {
        let mut clocks = Clocks::default();
        let ahead = |name, ahead| reading(name, ahead, 0, 0);
        let mut compare = |readings: &[Reading]| clocks.compare(readings, SKEW).len();
        assert_eq!(compare(&[ahead("a", 2_000), ahead("b", 0), ahead("c", 0)]), 1);
        assert_eq!(compare(&[ahead("a", 2_000), ahead("d", 0)]), 0);
        assert_eq!(compare(&[ahead("d", 0), ahead("e", 100)]), 1);
        assert_eq!(compare(&[ahead("a", 0), ahead("b", 0)]), 0);
        assert_eq!(clocks.found().len(), 1);
        assert_eq!(clocks.compare(&[ahead("a", 2_000), ahead("d", 0)], SKEW).len(), 0);
        assert_eq!(clocks.compare(&[ahead("a", 2_000), ahead("b", 0)], SKEW).len(), 1);
    }
}
