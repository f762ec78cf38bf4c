//! The votes for one holder, as this process knows them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::requests::{Request, Requests};
use crate::host::{Moment, Mutex};
use crate::store::holder::Holder;
use crate::store::{FencingToken, HolderValue, Receipt, StoreError};

/// The time, beyond the lease, for which the votes of an attempt that has ended are remembered: a call
/// that stands still may send a request that late, and gives it back then.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The number of ballots from which on those that are over are looked for.
const SWEEP_AT: usize = 256;

/// An answer of a master to an attempt.
#[derive(Debug)]
pub(super) enum Answer {
    Granted(Option<FencingToken>),
    Busy {
        /// The index of the busy key.
        key: usize,
        holder: Option<Holder>,
        remaining: Option<Duration>,
    },
    Failed(StoreError),
}

/// The votes under one value of the runtime.
#[derive(Debug)]
pub(super) struct Ballot {
    pub(super) keys: Arc<[Arc<str>]>,
    state: Mutex<State>,
}

struct State {
    /// `true` once the lock was released or the attempt given up. No vote counts from then on.
    over: bool,
    /// The master in whose queue the value stands or has stood, or whose vote is kept while the others are
    /// asked again. It knows the value as the runtime does.
    stood_at: Option<usize>,
    /// The value at the other masters: a new one after each time that their votes were given back, since a
    /// late release of the one before would take the new vote as well.
    value: HolderValue,
    /// The value at the master of `stood_at`.
    first: HolderValue,
    /// The request that each master was asked by under the present value.
    asked: Box<[Option<Arc<Receipt>>]>,
    /// The masters that had some of the keys before the attempt.
    had: Box<[bool]>,
    /// The requests that had not been answered when the lock was granted.
    late: Requests<Answer>,
    /// The masters at which a lost vote is being won back.
    returning: Box<[bool]>,
    /// The number of its keys that were released.
    released: usize,
    ttl: Duration,
    forget_at: Moment,
}

/// Omits the values, which contain the holder's token.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("over", &self.over)
            .field("late", &self.late)
            .finish_non_exhaustive()
    }
}

impl Ballot {
    pub(super) fn new(keys: &[Arc<str>], value: &HolderValue, masters: usize) -> Arc<Self> {
        Arc::new(Self {
            keys: keys.into(),
            state: Mutex::new(State {
                over: false,
                stood_at: None,
                value: value.clone(),
                first: value.clone(),
                asked: (0..masters).map(|_| None).collect(),
                had: (0..masters).map(|_| false).collect(),
                late: Requests::default(),
                returning: (0..masters).map(|_| false).collect(),
                released: 0,
                ttl: Duration::ZERO,
                forget_at: Moment::NEVER,
            }),
        })
    }

    /// Returns the same votes for these keys, of which some have been granted already.
    pub(super) fn for_keys(&self, keys: &[Arc<str>]) -> Arc<Self> {
        let before = self.state.lock();
        let ballot = Self::new(keys, &before.first, before.asked.len());
        let mut state = ballot.state.lock();
        state.over = before.over;
        state.stood_at = before.stood_at;
        state.value = before.value.clone();
        state.asked.clone_from(&before.asked);
        let asked = before.asked.iter().enumerate();
        state.had = asked
            .map(|(at, asked)| asked.is_some() || before.stood_at == Some(at))
            .collect();
        (state.ttl, state.forget_at) = (before.ttl, before.forget_at);
        drop(state);
        ballot
    }

    /// Remembers the ballot while the value may be held: for `ttl` from `now`.
    pub(super) fn remember(&self, now: Moment, ttl: Duration) {
        let mut state = self.state.lock();
        state.ttl = ttl;
        state.forget_at = now.after(ttl.saturating_add(REMEMBERED));
    }

    /// Returns the time to live that was asked for last.
    pub(super) fn ttl(&self) -> Duration {
        self.state.lock().ttl
    }

    /// Records the master in whose queue the value stands, or whose vote is kept.
    pub(super) fn stand_at(&self, at: usize) {
        self.state.lock().stood_at = Some(at);
    }

    pub(super) fn stood_at(&self) -> Option<usize> {
        self.state.lock().stood_at
    }

    /// Returns `true` if the value stands in a queue, and has not got the lock there.
    pub(super) fn waits(&self) -> bool {
        let state = self.state.lock();
        state.stood_at.is_some() && state.asked.iter().all(Option::is_none)
    }

    /// Returns the value that a master knows.
    pub(super) fn value_at(&self, at: usize) -> HolderValue {
        let state = self.state.lock();
        let value = if state.stood_at == Some(at) {
            &state.first
        } else {
            &state.value
        };
        value.clone()
    }

    /// Begins a request to a master. Returns its receipt, or `None` if the lock was released or given up
    /// in the meantime.
    pub(super) fn ask(&self, at: usize) -> Option<Arc<Receipt>> {
        let mut state = self.state.lock();
        if state.over {
            return None;
        }
        let receipt = Arc::<Receipt>::default();
        *state.asked.get_mut(at)? = Some(Arc::clone(&receipt));
        Some(receipt)
    }

    /// Returns the request that a master was asked by last.
    pub(super) fn asked(&self, at: usize) -> Option<Arc<Receipt>> {
        self.state.lock().asked.get(at).cloned().flatten()
    }

    /// Returns `true` if a master may have had some of the keys before the attempt.
    pub(super) fn had(&self, at: usize) -> bool {
        self.state.lock().had.get(at).copied().unwrap_or_default()
    }

    /// Begins another round, after the votes of all masters but the one of [`stood_at`](Self::stood_at)
    /// were given back: from here on they know the lock by another value.
    pub(super) fn begin_round(&self, round: u32) {
        let mut state = self.state.lock();
        state.value = state.first.variant(round);
        let kept = state.stood_at;
        for (at, asked) in state.asked.iter_mut().enumerate() {
            if kept != Some(at) {
                *asked = None;
            }
        }
    }

    /// Keeps the requests that were not answered when the lock was granted.
    pub(super) fn keep(&self, late: Requests<Answer>) {
        self.state.lock().late = late;
    }

    /// Returns the masters to which no request could be sent before the grant.
    pub(super) fn unsent(&self) -> Vec<usize> {
        let state = self.state.lock();
        let is_unsent = |at: &usize| {
            let asked = state.asked.get(*at).and_then(Option::as_ref);
            asked.is_some_and(|receipt| receipt.connection().is_none())
        };
        state.late.owing().filter(is_unsent).collect()
    }

    /// Takes the request out that has not been answered by this master since the grant.
    pub(super) fn late(&self, at: usize) -> Option<Request<Answer>> {
        self.state.lock().late.take(at)
    }

    /// Returns `true` if the caller is to win a lost vote back at a master.
    pub(super) fn may_return(&self, at: usize) -> bool {
        let mut state = self.state.lock();
        if state.over {
            return false;
        }
        let place = state.returning.get_mut(at);
        place.is_some_and(|returning| !std::mem::replace(returning, true))
    }

    pub(super) fn has_returned(&self, at: usize) {
        if let Some(returning) = self.state.lock().returning.get_mut(at) {
            *returning = false;
        }
    }

    /// Ends the ballot: from here on no request is sent for it.
    pub(super) fn end(&self) {
        self.state.lock().over = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Records that one of its keys was released. Returns `true` if all are.
    pub(super) fn has_released(&self) -> bool {
        let mut state = self.state.lock();
        state.released += 1;
        state.released >= self.keys.len()
    }
}

/// The ballots of one store in this process, by the runtime's value.
#[derive(Debug, Default)]
pub(super) struct Ballots(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// Most values have one ballot, for one key or several.
    by_value: HashMap<Arc<str>, Vec<Arc<Ballot>>>,
    sweep_at: usize,
}

/// Omits the values, which contain tokens.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.by_value.len()).finish()
    }
}

impl Table {
    /// Forgets the ballots that are over, once there are enough to make that worthwhile.
    fn sweep(&mut self, now: Moment) {
        if self.by_value.len() >= self.sweep_at.max(SWEEP_AT) {
            self.by_value.retain(|_, ballots| {
                // A call that waits in a queue refers to its own.
                ballots.retain(|ballot| Arc::strong_count(ballot) > 1 || ballot.state.lock().forget_at > now);
                !ballots.is_empty()
            });
            self.sweep_at = self.by_value.len() * 2;
        }
    }
}

impl Ballots {
    /// Returns a ballot for an attempt to get these keys. If one of them has been handed to the value by a
    /// queue, it begins with that.
    pub(super) fn enter(
        &self,
        keys: &[Arc<str>],
        value: &HolderValue,
        masters: usize,
        now: Moment,
        ttl: Duration,
    ) -> Arc<Ballot> {
        let mut table = self.0.lock();
        table.sweep(now);
        let ballots = table.by_value.entry(Arc::clone(value.text())).or_default();
        let is_about = |ballot: &Arc<Ballot>| ballot.keys.iter().any(|key| keys.contains(key));
        let known = ballots
            .iter()
            .position(is_about)
            .map(|place| ballots.swap_remove(place));
        let ballot = match known.filter(|known| !known.is_over()) {
            Some(known) if *known.keys == *keys => known,
            Some(known) if known.stood_at().is_some() => known.for_keys(keys),
            _ => Ballot::new(keys, value, masters),
        };
        ballots.push(Arc::clone(&ballot));
        drop(table);
        ballot.remember(now, ttl);
        ballot
    }

    /// Returns the ballot for a key and a value.
    pub(super) fn get(&self, key: &str, value: &str) -> Option<Arc<Ballot>> {
        let table = self.0.lock();
        let ballots = table.by_value.get(value)?;
        ballots
            .iter()
            .find(|ballot| ballot.keys.iter().any(|its| **its == *key))
            .cloned()
    }

    /// Forgets a ballot.
    pub(super) fn remove(&self, value: &str, ballot: &Arc<Ballot>) {
        let mut table = self.0.lock();
        if let Some(ballots) = table.by_value.get_mut(value) {
            ballots.retain(|its| !Arc::ptr_eq(its, ballot));
            if ballots.is_empty() {
                table.by_value.remove(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballots_of_locks_that_nobody_released_are_forgotten() {
        let ballots = Ballots::default();
        let lease = Duration::from_secs(30);
        for number in 0..1_000_u64 {
            let now = Moment::from_nanos(0).after(Duration::from_secs(number));
            let value = HolderValue::of(number.to_string());
            ballots.enter(&["k".into()], &value, 3, now, lease);
        }
        let left = ballots.0.lock().by_value.len();
        assert!(left <= SWEEP_AT, "{left} ballots");
    }

    #[test]
    fn the_ballot_of_a_call_that_waits_for_long_is_not_forgotten() {
        let ballots = Ballots::default();
        let lease = Duration::from_secs(1);
        let enter = |number: u64| {
            let now = Moment::from_nanos(0).after(Duration::from_secs(number));
            ballots.enter(&["k".into()], &HolderValue::of(number.to_string()), 3, now, lease)
        };
        let waits = enter(0);
        (1..1_000).for_each(|number| drop(enter(number)));
        let known = ballots.get("k", "0");
        assert!(known.is_some_and(|known| Arc::ptr_eq(&known, &waits)));
    }
}
