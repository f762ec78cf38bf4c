//! Coalescing: calls of one annotated function that come while another one is under way get a copy of its result instead
//! of running. The first one is the leader, and the only one that asks for the lock; those that come after it follow.
//!
//! The idea is that of Go's [`singleflight`](https://pkg.go.dev/golang.org/x/sync/singleflight), with two differences: what a
//! leader returns without its lock is nobody else's, and when it fails, one of those who follow takes its place.

use std::any::{Any, TypeId};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;

use crate::acquire::Wanted;
use crate::clock::Moment;
use crate::context::{self, Relation};
use crate::engine::is_forked;
use crate::error::LockError;
use crate::held::Held;
use crate::holder::Holder;
use crate::key::{Keys, Names};
use crate::manager::Shared;
use crate::store::Mode;

/// A result that calls take copies of.
pub(crate) type Landed = Arc<dyn Any + Send + Sync>;

/// What makes two calls one: the same keys, taken in the same mode by the same function, for a result of the same type.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Flight {
    keys: Box<[String]>,
    mode: Mode,
    function: Function,
    result: TypeId,
}

/// An annotated function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    /// Where it was written.
    pub(crate) site: usize,
    /// The name of its body's type, which tells apart what generic parameters, and the types of a trait, have made of it.
    pub(crate) body: &'static str,
}

/// The flights of one manager.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<Arc<Flight>, Party>>);

/// Those on one flight. It is there while it has a leader.
#[derive(Debug, Default)]
struct Party {
    /// By when they came.
    followers: BTreeMap<u64, Arc<Follower>>,
    next: u64,
    /// How the leader holds the lock, once it does.
    holder: Option<Holder>,
}

/// One that follows.
#[derive(Debug)]
struct Follower {
    turn: Mutex<Turn>,
    task: AtomicWaker,
}

enum Turn {
    NotYet,
    /// The leader before it has failed.
    Lead(Leader),
    Landed(Landed),
    /// It has been told.
    Over,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotYet => "NotYet",
            Self::Lead(_) => "Lead",
            Self::Landed(_) => "Landed",
            Self::Over => "Over",
        })
    }
}

impl Follower {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, turn: Turn) {
        *self.turn() = turn;
        self.task.wake();
    }
}

impl Flights {
    fn flights(&self) -> MutexGuard<'_, HashMap<Arc<Flight>, Party>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one that asks for the lock, and runs. Dropped before it has [landed](Self::land), the first of those who follow leads.
pub(crate) struct Leader {
    manager: Arc<Shared>,
    flight: Arc<Flight>,
    landed: bool,
}

impl Leader {
    fn new(manager: &Arc<Shared>, flight: &Arc<Flight>) -> Self {
        Self {
            manager: Arc::clone(manager),
            flight: Arc::clone(flight),
            landed: false,
        }
    }

    /// Lets those who follow know who has the lock.
    pub(crate) fn holds(&self, held: &Held) {
        if let Some(party) = self.manager.flights.flights().get_mut(&self.flight) {
            party.holder = Some(Holder::new(&*held.value));
        }
    }

    /// Gives everybody who follows a copy, made only if there is anybody.
    pub(crate) fn land(mut self, copy: impl FnOnce() -> Landed) {
        if is_forked() || self.leave_alone() {
            self.landed = true;
            return;
        }
        // The user's code: should it panic, this leader is dropped like any that fails.
        let landed = copy();
        self.landed = true;
        let party = self.manager.flights.flights().remove(&self.flight);
        for follower in party.unwrap_or_default().followers.into_values() {
            follower.give(Turn::Landed(Arc::clone(&landed)));
        }
    }

    /// Ends the flight if nobody follows.
    fn leave_alone(&self) -> bool {
        let mut flights = self.manager.flights.flights();
        let alone = flights.get(&self.flight).is_none_or(|party| party.followers.is_empty());
        let party = alone.then(|| flights.remove(&self.flight));
        drop(flights);
        drop(party);
        alone
    }

    /// Leaves the lead, and returns who is next.
    fn leave(&self) -> Option<Arc<Follower>> {
        let mut flights = self.manager.flights.flights();
        let Entry::Occupied(mut party) = flights.entry(Arc::clone(&self.flight)) else {
            return None;
        };
        party.get_mut().holder = None;
        let next = party.get_mut().followers.pop_first();
        if next.is_none() {
            party.remove();
        }
        next.map(|(_, follower)| follower)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // In a forked child the flights may have been locked by a thread that is not there.
        if self.landed || is_forked() {
            return;
        }
        if let Some(next) = self.leave() {
            // Should it have left meanwhile, its turn is dropped with it, and the one behind it leads.
            next.give(Turn::Lead(Self::new(&self.manager, &self.flight)));
        }
    }
}

/// What a call has become.
pub(crate) enum Joined {
    /// It asks for the lock, and those who come after it follow.
    Leads(Leader),
    /// It asks for the lock as if nobody else were there.
    Alone,
    /// Another call's result is its own.
    Landed(Landed),
}

/// Joins the other calls of `function` that want the same, and waits for their result; or leads, with the rest of its `wait`.
///
/// A call inside the call tree that holds the lock neither follows nor leads: following, it would wait for itself.
///
/// Cancel safe: dropped, it follows nobody, and whatever it was to lead, another one leads.
pub(crate) async fn join<R: 'static>(
    manager: &Arc<Shared>,
    names: &Names,
    wanted: &mut Wanted,
    function: Function,
) -> Result<Joined, LockError> {
    if is_forked() || is_nested(manager, names, wanted) {
        return Ok(Joined::Alone);
    }
    let flight = Flight {
        keys: std::iter::once(&names.first).chain(&names.others).cloned().collect(),
        mode: wanted.mode.clone(),
        function,
        result: TypeId::of::<R>(),
    };
    let following = match board(manager, flight) {
        Boarded::Leads(leader) => return Ok(Joined::Leads(leader)),
        Boarded::Follows(following) => following,
    };
    let start = manager.clock.now();
    let (_, timer) = manager.pace();
    let turn = tokio::select! {
        biased;
        turn = following.turn() => turn,
        () = manager.closed.cancelled() => {
            return Err(LockError::Closed { key: following.name() });
        }
        () = timer.sleep(wanted.wait) => return Err(following.busy(start)),
    };
    match turn {
        Came::Leads(leader) => {
            wanted.wait = wanted.wait.saturating_sub(manager.clock.now().since(start));
            Ok(Joined::Leads(leader))
        }
        Came::Landed(landed) => {
            manager.stats.count_coalesced();
            tracing::debug!(
                key = &*following.name(),
                function = wanted.function,
                "took the result of a call that was under way"
            );
            Ok(Joined::Landed(landed))
        }
    }
}

/// Whether the call tree holds what is wanted: then it passes through, or is told that it would wait for itself.
fn is_nested(manager: &Arc<Shared>, names: &Names, wanted: &Wanted) -> bool {
    if context::innermost().is_none() {
        return false;
    }
    let whole = |key: &String| Arc::<str>::from(format!("{}{key}", manager.prefix));
    let (first, others) = (whole(&names.first), names.others.iter().map(whole));
    let others: Vec<_> = others.collect();
    let keys = Keys {
        first: &first,
        others: &others,
    };
    let relation = context::relation(manager, keys, &wanted.mode, wanted.reentrant);
    !matches!(relation, Relation::None)
}

/// Where a call stands.
enum Boarded {
    Leads(Leader),
    Follows(Following),
}

fn board(manager: &Arc<Shared>, flight: Flight) -> Boarded {
    let flight = Arc::new(flight);
    let mut flights = manager.flights.flights();
    match flights.entry(flight) {
        Entry::Vacant(free) => {
            let flight = Arc::clone(free.key());
            free.insert(Party::default());
            drop(flights);
            Boarded::Leads(Leader::new(manager, &flight))
        }
        Entry::Occupied(mut party) => {
            let flight = Arc::clone(party.key());
            let party = party.get_mut();
            let number = party.next;
            party.next += 1;
            let follower = Arc::new(Follower {
                turn: Mutex::new(Turn::NotYet),
                task: AtomicWaker::new(),
            });
            party.followers.insert(number, Arc::clone(&follower));
            drop(flights);
            Boarded::Follows(Following {
                manager: Arc::clone(manager),
                flight,
                number,
                follower,
            })
        }
    }
}

/// A call that follows. Dropped, it leaves no trace.
struct Following {
    manager: Arc<Shared>,
    flight: Arc<Flight>,
    number: u64,
    follower: Arc<Follower>,
}

/// How a call has ceased to follow.
enum Came {
    Leads(Leader),
    Landed(Landed),
}

impl Following {
    /// Waits for a result, or for the lead. Cancel safe.
    async fn turn(&self) -> Came {
        poll_fn(|cx| {
            self.follower.task.register(cx.waker());
            self.come().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn come(&self) -> Option<Came> {
        let mut turn = self.follower.turn();
        match std::mem::replace(&mut *turn, Turn::Over) {
            Turn::Lead(leader) => Some(Came::Leads(leader)),
            Turn::Landed(landed) => Some(Came::Landed(landed)),
            Turn::NotYet => {
                *turn = Turn::NotYet;
                None
            }
            Turn::Over => None,
        }
    }

    fn busy(&self, start: Moment) -> LockError {
        self.manager.stats.count_busy();
        let waited: Duration = self.manager.clock.now().since(start);
        let flights = self.manager.flights.flights();
        let holder = flights.get(&self.flight).and_then(|party| party.holder.clone());
        LockError::Busy {
            key: self.name(),
            waited,
            holder: holder.map(Box::new),
            retry_after: None,
        }
    }

    /// What the keys are called in messages.
    fn name(&self) -> Box<str> {
        self.flight.keys.join(", ").into()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        let mut flights = self.manager.flights.flights();
        let waited = flights.get_mut(&self.flight).and_then(|party| {
            // The flight may be another one by now, and the number another call's.
            let ours = party.followers.get(&self.number)?;
            Arc::ptr_eq(ours, &self.follower).then(|| party.followers.remove(&self.number))
        });
        drop(flights);
        // One that was called to lead as it left gives the lead to the next.
        if waited.is_none() {
            drop(self.come());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockManager;

    fn manager() -> Result<Arc<Shared>, LockError> {
        Ok(LockManager::builder("memory://").build()?.into_shared())
    }

    fn flight() -> Flight {
        Flight {
            keys: ["k".to_owned()].into(),
            mode: Mode::Exclusive,
            function: Function { site: 0, body: "" },
            result: TypeId::of::<u32>(),
        }
    }

    fn leads(boarded: Boarded) -> Option<Leader> {
        match boarded {
            Boarded::Leads(leader) => Some(leader),
            Boarded::Follows(_) => None,
        }
    }

    fn follows(boarded: Boarded) -> Option<Following> {
        match boarded {
            Boarded::Follows(following) => Some(following),
            Boarded::Leads(_) => None,
        }
    }

    fn land(leader: Option<Leader>) {
        if let Some(leader) = leader {
            leader.land(|| Arc::new(1_u32));
        }
    }

    fn came(following: Option<&Following>) -> Option<Came> {
        following.and_then(Following::come)
    }

    #[test]
    fn one_that_leaves_while_it_is_called_to_lead_gives_the_lead_on() -> Result<(), LockError> {
        let manager = manager()?;
        let leader = leads(board(&manager, flight()));
        let first = follows(board(&manager, flight()));
        let second = follows(board(&manager, flight()));
        // What a leader's drop does, step by step: the one who is next leaves between the two.
        let next = leader.as_ref().and_then(Leader::leave);
        drop(first);
        if let (Some(next), Some(mut leader)) = (next, leader) {
            leader.landed = true;
            next.give(Turn::Lead(Leader::new(&manager, &leader.flight)));
        }
        assert!(matches!(came(second.as_ref()), Some(Came::Leads(_))));
        Ok(())
    }

    #[test]
    fn one_that_leaves_late_takes_nobody_of_the_next_flight_along() -> Result<(), LockError> {
        let manager = manager()?;
        let leader = leads(board(&manager, flight()));
        let before = follows(board(&manager, flight()));
        land(leader);
        let leader = leads(board(&manager, flight()));
        let after = follows(board(&manager, flight()));
        // Both are the first of their flights.
        assert!(matches!(came(before.as_ref()), Some(Came::Landed(_))));
        drop(before);
        land(leader);
        assert!(matches!(came(after.as_ref()), Some(Came::Landed(_))));
        Ok(())
    }

    #[test]
    fn nothing_is_copied_for_nobody_and_nothing_stays() -> Result<(), LockError> {
        let manager = manager()?;
        let mut copies = 0;
        if let Some(leader) = leads(board(&manager, flight())) {
            leader.land(|| {
                copies += 1;
                Arc::new(1_u32)
            });
        }
        drop(leads(board(&manager, flight())));
        assert!(manager.flights.flights().is_empty());
        assert_eq!(copies, 0);
        Ok(())
    }
}
