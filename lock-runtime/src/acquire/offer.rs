//! Offers to waiting calls. An offer becomes the call's own when the call is polled; one that the call has not
//! accepted goes elsewhere, and so does one whose call has left.

use crate::host::Mutex;

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
