//! Signs of life of waiting calls. A call may stop being polled at any await, and only its own polls can show
//! that it has not. So whoever it may hold up asks it for a sign of life, which wakes its task, and each poll
//! gives the sign.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use atomic_waker::AtomicWaker;

use crate::host::clock::Moment;
use crate::host::sleep::contained;

/// A call's sign of life, and its task.
///
/// In a line, a call that was asked once counts as awake until it is asked again: otherwise something that comes
/// just after all calls were asked would find all of them asleep.
#[derive(Debug, Default)]
pub(crate) struct SignOfLife {
    task: AtomicWaker,
    state: AtomicU8,
    /// The time at which it was asked for last, in nanoseconds; 0 if never.
    asked: AtomicU64,
}

impl SignOfLife {
    const GIVEN: u8 = 0;
    const ASKED_FOR: u8 = 1;
    const MISSING: u8 = 2;

    /// Notes the task that polls the call.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    pub(crate) fn wake(&self) {
        // Of a call that another one, or the lock thread, wakes.
        contained(|| self.task.wake());
    }

    /// Gives the sign. Returns `true` if it was asked for.
    pub(crate) fn give(&self) -> bool {
        // Most polls find that nobody has asked.
        self.is_owed() && self.state.swap(Self::GIVEN, Ordering::Relaxed) != Self::GIVEN
    }

    /// Asks for the sign; the caller then wakes the call. Returns `true` if the call owes it already, and
    /// counts as asleep from then on.
    pub(crate) fn ask(&self, now: Moment) -> bool {
        let ask = |state| match state {
            Self::GIVEN => Some(Self::ASKED_FOR),
            _ => Some(Self::MISSING),
        };
        let before = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ask);
        let is_owed = before != Ok(Self::GIVEN);
        if !is_owed {
            self.asked.store(now.as_nanos(), Ordering::Relaxed);
        }
        is_owed
    }

    /// Makes the call count as asleep until it gives the sign; the caller then wakes it.
    pub(crate) fn miss(&self) {
        self.state.store(Self::MISSING, Ordering::Relaxed);
    }

    /// Begins the call's time to give the sign anew, or notes that it need not be asked for a while.
    pub(crate) fn restart(&self, now: Moment) {
        self.asked.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn is_owed(&self) -> bool {
        self.state.load(Ordering::Relaxed) != Self::GIVEN
    }

    /// Returns `true` if the call counts as asleep.
    pub(crate) fn is_missing(&self) -> bool {
        self.state.load(Ordering::Relaxed) == Self::MISSING
    }

    /// Returns the time for which the call has owed the sign, if it owes it.
    pub(crate) fn owed_for(&self, now: Moment) -> Option<Duration> {
        let asked = Moment::from_nanos(self.asked.load(Ordering::Relaxed));
        self.is_owed().then(|| now.since(asked))
    }

    pub(crate) fn was_asked_within(&self, span: Duration, now: Moment) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        asked != 0 && now.since(Moment::from_nanos(asked)) < span
    }
}
