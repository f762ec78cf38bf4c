//! Offers to waiting calls, and their signs of life. A call may stop being polled at any await, and only its own
//! polls can show that it has not. So a sweep of the watchdog asks for a sign of life, which wakes the call's
//! task, and each poll gives it. An offer becomes the call's own when the call is polled; one that the call has
//! not accepted goes elsewhere, and so does one whose call has left.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use atomic_waker::AtomicWaker;

use crate::host::{Moment, Mutex, contained};

/// A call's sign of life, and its task.
///
/// A call that was asked once counts as awake until it is asked again: otherwise something that comes just
/// after all calls were asked would find all of them asleep.
#[derive(Debug, Default)]
pub(super) struct Sign {
    task: AtomicWaker,
    state: AtomicU8,
    /// The time at which it was asked for last, in nanoseconds; 0 if never.
    asked: AtomicU64,
}

impl Sign {
    const GIVEN: u8 = 0;
    const ASKED_FOR: u8 = 1;
    const MISSING: u8 = 2;

    /// Notes the task that polls the call.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    pub(super) fn wake(&self) {
        // Of a call that another one, or the lock thread, wakes.
        contained(|| self.task.wake());
    }

    /// Gives the sign. Returns `true` if it was asked for.
    pub(super) fn give(&self) -> bool {
        // Most polls find that nobody has asked.
        self.is_owed() && self.state.swap(Self::GIVEN, Ordering::Relaxed) != Self::GIVEN
    }

    /// Asks for the sign; the caller then wakes the call. Returns `true` if the call owes it already, and
    /// counts as asleep from then on.
    pub(super) fn ask(&self, now: Moment) -> bool {
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
    pub(super) fn miss(&self) {
        self.state.store(Self::MISSING, Ordering::Relaxed);
    }

    /// Begins the call's time to give the sign anew, or notes that it need not be asked for a while.
    pub(super) fn restart(&self, now: Moment) {
        self.asked.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn is_owed(&self) -> bool {
        self.state.load(Ordering::Relaxed) != Self::GIVEN
    }

    /// Returns `true` if the call counts as asleep.
    pub(super) fn is_missing(&self) -> bool {
        self.state.load(Ordering::Relaxed) == Self::MISSING
    }

    /// Returns the time for which the call has owed the sign, if it owes it.
    pub(super) fn owed_for(&self, now: Moment) -> Option<Duration> {
        let asked = Moment::from_nanos(self.asked.load(Ordering::Relaxed));
        self.is_owed().then(|| now.since(asked))
    }

    pub(super) fn was_asked_within(&self, span: Duration, now: Moment) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        asked != 0 && now.since(Moment::from_nanos(asked)) < span
    }
}

/// The place for an offer to a waiting call.
#[derive(Debug)]
pub(super) struct Offer<T>(Mutex<State<T>>);

#[derive(Debug)]
enum State<T> {
    /// Nothing is offered so far.
    Open,
    Made(T),
    /// The call has accepted what it waited for, or has left.
    Over,
}

impl<T> Default for Offer<T> {
    fn default() -> Self {
        Self(Mutex::new(State::Open))
    }
}

impl<T> Offer<T> {
    /// Offers something; the caller then wakes the call. If the call has left, the offer is dropped.
    pub(super) fn make(&self, offered: T) {
        let mut state = self.0.lock();
        if matches!(*state, State::Over) {
            drop(state);
            drop(offered);
            return;
        }
        *state = State::Made(offered);
    }

    /// Returns `true` if the call has accepted what it waited for, or has left.
    pub(super) fn is_over(&self) -> bool {
        matches!(*self.0.lock(), State::Over)
    }

    /// Looks at what is offered.
    pub(super) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        match &*self.0.lock() {
            State::Made(offered) => Some(look(offered)),
            State::Open | State::Over => None,
        }
    }

    /// Accepts what is offered, if it is the right thing.
    pub(super) fn accept_if(&self, is_right: impl FnOnce(&T) -> bool) -> Option<T> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Made(offered) if is_right(&offered) => Some(offered),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Takes back what is offered, if the call is asleep, which is asked while it cannot accept.
    pub(super) fn take_back_if(&self, is_asleep: impl FnOnce(&T) -> bool) -> TakenBack<T> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Open) {
            State::Open => TakenBack::NotMade,
            State::Made(offered) if is_asleep(&offered) => TakenBack::Yes(offered),
            State::Made(offered) => {
                *state = State::Made(offered);
                TakenBack::No
            }
            State::Over => {
                *state = State::Over;
                TakenBack::Over
            }
        }
    }

    /// Ends the wait. Returns what was offered at the last moment.
    pub(super) fn close(&self) -> Option<T> {
        match std::mem::replace(&mut *self.0.lock(), State::Over) {
            State::Made(offered) => Some(offered),
            State::Open | State::Over => None,
        }
    }
}

/// The outcome of [`Offer::take_back_if`].
pub(super) enum TakenBack<T> {
    Yes(T),
    /// The call is awake.
    No,
    /// The offer is about to be made.
    NotMade,
    /// The offer was accepted, or the call has left.
    Over,
}
