//! The times of a connection's commands and answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::host::Moment;

/// The time without an answer or a look after which a runtime first reads what has arrived: one that is driven
/// only now and then has not seen yet that the server ended the connection.
const UNSEEN: Duration = Duration::from_millis(50);

/// The times of a connection's commands and answers, in nanoseconds of the host's clock, or 0 for never.
#[derive(Default)]
pub(super) struct Traffic {
    /// The time at which the oldest of the commands given up since the last answer was sent.
    stalled: AtomicU64,
    /// The time of the last answer.
    last_answer: AtomicU64,
    /// The time at which the last command was sent.
    asked: AtomicU64,
    /// The time at which the runtime has last read what had arrived, before a batch.
    looked: AtomicU64,
    /// The smoothed round-trip time. Rises fast, and falls slowly.
    round_trip: AtomicU64,
}

impl Traffic {
    /// Creates that of a connection that was made at `now`, by commands that took so long.
    pub(super) fn new(now: u64, round_trip: u64) -> Self {
        Self {
            last_answer: AtomicU64::new(now),
            round_trip: AtomicU64::new(round_trip),
            ..Self::default()
        }
    }

    pub(super) fn last_answer(&self) -> u64 {
        self.last_answer.load(Ordering::Relaxed)
    }

    /// Returns `true` if the runtime has seen nothing of the connection for so long that its end may be unseen. What
    /// another thread sends on it is no sign of life.
    pub(super) fn is_quiet(&self, now: Moment) -> bool {
        let seen = self.last_answer().max(self.looked.load(Ordering::Relaxed));
        Duration::from_nanos(now.as_nanos().saturating_sub(seen)) >= UNSEEN
    }

    /// Records that the runtime has read what had arrived.
    pub(super) fn looks(&self, now: u64) {
        self.looked.store(now, Ordering::Relaxed);
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// Records that a command is sent.
    pub(super) fn asks(&self, now: u64) {
        self.asked.store(now, Ordering::Relaxed);
    }

    /// Records that what was sent at `sent` was answered at `now`.
    pub(super) fn answered(&self, sent: u64, now: u64) {
        self.stalled.store(0, Ordering::Relaxed);
        self.last_answer.store(now, Ordering::Relaxed);
        let took = now.saturating_sub(sent);
        let before = self.round_trip.load(Ordering::Relaxed);
        let weight = if took > before { 2 } else { 8 };
        self.round_trip
            .store(before - before / weight + took / weight, Ordering::Relaxed);
    }

    /// Records that the answer to what was sent at `sent` is awaited no more. Returns the time since which
    /// the connection has left commands unanswered.
    pub(super) fn is_given_up(&self, sent: u64) -> u64 {
        // A connection that has answered other commands meanwhile is slow, not silent.
        let sent = sent.max(self.last_answer.load(Ordering::Relaxed));
        match self
            .stalled
            .compare_exchange(0, sent, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => sent,
            Err(earlier) => earlier,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a slow line, calls would otherwise each wait for the answer to the one before.
    #[test]
    fn a_connection_is_quiet_once_nothing_was_asked_and_nothing_heard() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let traffic = Traffic::new(at(1_000).as_nanos(), 0);
        let is_quiet = |ms| traffic.is_quiet(at(ms));
        assert!(!is_quiet(1_049) && is_quiet(1_050));
        traffic.asks(at(1_200).as_nanos());
        assert!(is_quiet(1_201));
        traffic.looks(at(1_200).as_nanos());
        assert!(!is_quiet(1_249) && is_quiet(1_250));
        traffic.answered(at(1_200).as_nanos(), at(1_300).as_nanos());
        assert!(!is_quiet(1_349) && is_quiet(1_350));
    }
}
