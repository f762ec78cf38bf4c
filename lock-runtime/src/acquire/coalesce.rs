//! Coalescing: calls of one annotated function that arrive while another one is under way receive a
//! clone of its result instead of running. The first call is the leader, the only one that asks for
//! the lock; later calls follow it. Together they are a flight, which lands when the leader shares
//! its result: after the release, and only if its body ended under its lock. The leader owns a
//! `Leader`; dropping it gives the lead to the next call.
//!
//! The idea is that of Go's [`singleflight`](https://pkg.go.dev/golang.org/x/sync/singleflight),
//! with two differences: the result of a leader that lost its lock is not shared, and if a leader
//! fails, one of its followers takes its place.
//!
//! A flight is closed before its lock is released. A later call may arrive after another process
//! has held the lock, and must not receive data read before that.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::acquire::callers::{Ahead, Asking, Caller, Lead};
use crate::acquire::line::{self, Line, Numbers};
use crate::acquire::shared::Shared;
use crate::error::LockError;
use crate::hold::call_tree::{self, Relation};
use crate::hold::guard::Leave;
use crate::hold::{Hold, LockOptions};
use crate::host::{Moment, Mutex, contained};
use crate::key::{self, CallSite, Keys, Names};
use crate::stats::Event;
use crate::store::LockMode;
use crate::store::holder::Holder;

/// The result of a leader, which each follower clones.
pub(crate) type Landed = Arc<dyn Any + Send + Sync>;

/// The identity of a flight: the same keys in the same mode, for the same function and result type.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Flight {
    names: Names,
    mode: LockMode,
    function: Function,
    result: TypeId,
}

/// An annotated function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Function {
    /// The type of an item inside it. Its name and its place in the source are no identity: one
    /// macro may write several functions of one name, all in the place of its call.
    pub(super) item: TypeId,
    /// The type name of its body, which distinguishes generic parameters and implementing types.
    pub(super) body: &'static str,
    /// The address of the body's code, if the body is generic: the types of several closures have
    /// one name, as have items of several blocks and of several versions of a crate. The compiler
    /// may merge the code of two bodies only if both do the same. It may also write the code of one
    /// body once for each crate that calls it; those calls do not coalesce.
    pub(super) code: Option<usize>,
}

impl Function {
    /// Returns the function that contains an item of the type `I`, and whose body has the type `F`.
    pub(super) fn of<F: Future, I: 'static>() -> Self {
        let body = std::any::type_name::<F>();
        // The item alone identifies a function without generic parameters, also across crates. Some
        // other names have angle brackets too, such as those of trait methods.
        let is_generic = body.contains('<');
        Self {
            item: TypeId::of::<I>(),
            body,
            code: is_generic.then(|| (F::poll as *const ()).addr()),
        }
    }
}

/// The flights of one manager.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    parties: HashMap<Arc<Flight>, Party>,
    /// The numbers of all parties, since followers may move to another one.
    numbers: Numbers,
}

/// The calls on one flight. It exists while the flight has a leader or is vacant, and is not
/// closed.
#[derive(Debug, Default)]
struct Party {
    /// The leader is in front, and its followers wait.
    calls: Line<Turn, ()>,
    /// The holder, once the leader has the lock.
    holder: Option<Holder>,
}

type Follower = line::Waiter<Turn, ()>;
type Offered = line::Offered<Turn, ()>;

enum Turn {
    /// The call leads, since the leader before it has failed.
    Lead(Leader),
    Landed(Landed),
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lead(_) => "Lead",
            Self::Landed(_) => "Landed",
        })
    }
}

impl Flights {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// Takes back a lead on offer if its call has not been polled since the last sweep. Returns `false`
    /// if the flight needs no further sweep.
    fn sweep(&self, flight: &Arc<Flight>, watch: u64, now: Moment) -> bool {
        let swept = {
            let mut inner = self.inner();
            let party = inner.parties.get_mut(flight);
            party.map(|party| party.calls.sweep(watch, now))
        };
        swept.is_some_and(line::Swept::end)
    }
}

impl Inner {
    /// Returns the party that has this leader.
    fn led_by(&mut self, flight: &Arc<Flight>, lead: u64) -> Option<&mut Party> {
        self.parties.get_mut(flight).filter(|party| party.calls.place == lead)
    }

    /// Takes out a party without calls, to be dropped once the flights are unlocked.
    fn take_if_over(&mut self, flight: &Arc<Flight>) -> Option<Party> {
        let is_over = self.parties.get(flight).is_some_and(|party| party.calls.is_over());
        if is_over { self.parties.remove(flight) } else { None }
    }
}

/// The lead of a flight, as the lock thread sees it.
struct Led {
    manager: Arc<Shared>,
    flight: Arc<Flight>,
    lead: u64,
}

impl Lead for Led {
    fn revoke(&self) {
        let woken = {
            let mut inner = self.manager.flights.inner();
            inner.led_by(&self.flight, self.lead).map(|party| party.calls.revoke())
        };
        line::wake(woken.unwrap_or_default());
    }

    fn is_followed(&self) -> bool {
        let mut inner = self.manager.flights.inner();
        inner
            .led_by(&self.flight, self.lead)
            .is_some_and(|party| !party.calls.waiting.is_empty())
    }
}

/// The followers of a closed flight, until its leader has landed. The lock thread sees it as a lead: a leader that is
/// not polled while it waits for its release loses them.
struct Closed {
    manager: Arc<Shared>,
    flight: Arc<Flight>,
    /// `None` once the leader or the lock thread has taken them out.
    party: Mutex<Option<Party>>,
}

impl Closed {
    fn take(&self) -> Option<Party> {
        self.party.lock().take()
    }

    /// Has the followers follow the call that leads now, or lets the first of them lead.
    fn hand_over(&self) {
        let next = self.take().and_then(|party| self.leave(party));
        if let Some((next, lead)) = next {
            // If the next call has left meanwhile, its turn is dropped and the call behind it leads.
            let leader = Leader::new(&self.manager, &self.flight, lead);
            give(&self.manager, &self.flight, next, leader);
        }
    }

    /// Returns the next leader and the number of its lead.
    fn leave(&self, mut closed: Party) -> Option<(Offered, u64)> {
        let mut inner = self.manager.flights.inner();
        // Those that have left a closed flight have not found themselves in it. Each says so while the flights are locked.
        let gone = closed.calls.close_up();
        let Inner { parties, numbers } = &mut *inner;
        let next = match parties.entry(Arc::clone(&self.flight)) {
            Entry::Vacant(free) => next_of(free.insert(closed), numbers),
            // Another call leads by now, and the followers of this leader follow that one.
            Entry::Occupied(mut party) => {
                let woken = party.get_mut().calls.adopt(closed.calls);
                drop(inner);
                drop(gone);
                line::wake(woken);
                return None;
            }
        };
        let over = inner.take_if_over(&self.flight);
        drop(inner);
        drop((over, gone));
        next
    }
}

impl Lead for Closed {
    fn revoke(&self) {
        self.hand_over();
    }

    fn is_followed(&self) -> bool {
        let party = self.party.lock();
        let mut waiting = party.iter().flat_map(|party| party.calls.waiting.values());
        waiting.any(|follower| !follower.turn.is_over())
    }
}

/// Leaves the lead of a party.
fn next_of(party: &mut Party, numbers: &mut Numbers) -> Option<(Offered, u64)> {
    party.holder = None;
    party.calls.leave(numbers)
}

/// The call that asks for the lock and runs. If it is dropped before it has [landed](Self::land),
/// its first follower leads. Until it [holds](Self::holds) the lock, the lead may be [taken
/// away](crate::acquire::callers::Lead::revoke), and dropping it then has no effect. While it waits for
/// its [release](Self::watched), its followers may be taken away, and it then lands without them.
pub(crate) struct Leader {
    manager: Arc<Shared>,
    flight: Arc<Flight>,
    number: u64,
    /// Makes the lock thread check that the call is polled: before it has the lock, and during its release.
    // Boxed for the same reason as `closed`.
    asking: Option<Box<Asking>>,
    /// The followers at the time the flight was closed.
    // Behind a pointer to keep the futures of callers small, which contain a leader.
    closed: Option<Arc<Closed>>,
    landed: bool,
}

impl Leader {
    fn new(manager: &Arc<Shared>, flight: &Arc<Flight>, number: u64) -> Self {
        Self {
            manager: Arc::clone(manager),
            flight: Arc::clone(flight),
            number,
            asking: None,
            closed: None,
            landed: false,
        }
    }

    /// Makes the lock thread check from here on that the call is polled.
    fn begin(mut self) -> Self {
        let front = Arc::new(Led {
            manager: Arc::clone(&self.manager),
            flight: Arc::clone(&self.flight),
            lead: self.number,
        });
        self.watch(front);
        self
    }

    fn watch(&mut self, front: Arc<dyn Lead>) {
        let (watchdog, _) = self.manager.pace();
        let front = Some(Ahead::Lead(front));
        let asking = Asking::begin(&self.manager.callers, &watchdog, Arc::default(), front);
        self.asking = Some(Box::new(asking));
    }

    /// Makes the lock thread check that the call is polled while it waits for the release of its lock, if calls wait
    /// for its result. If it is not, they no longer wait for it. Call it when the flight is closed.
    pub(crate) fn watched(&mut self, release: Leave) -> Leave {
        let followed = self
            .closed
            .as_ref()
            .filter(|closed| closed.is_followed())
            .map(Arc::clone);
        match (release, followed) {
            (Leave::InStore(mut release), Some(closed)) if !self.manager.host().is_forked() => {
                self.watch(closed);
                let caller = self.caller();
                Leave::InStore(Box::pin(async move {
                    match caller {
                        Some(caller) => caller.attend(Pin::new(&mut release)).await,
                        None => release.await,
                    }
                }))
            }
            (release, _) => release,
        }
    }

    /// Closes the flight: later calls do not follow this leader. Call it before the lock is
    /// released.
    pub(crate) fn close(&mut self) {
        if !self.manager.host().is_forked() && self.closed.is_none() {
            let mut inner = self.manager.flights.inner();
            let leads = inner.led_by(&self.flight, self.number).is_some();
            let party = if leads {
                inner.parties.remove(&self.flight)
            } else {
                None
            };
            drop(inner);
            self.closed = Some(Arc::new(Closed {
                manager: Arc::clone(&self.manager),
                flight: Arc::clone(&self.flight),
                party: Mutex::new(party),
            }));
        }
    }

    /// Returns the call that the lock thread watches until it has the lock.
    pub(super) fn caller(&self) -> Option<Arc<Caller>> {
        self.asking.as_ref().map(|asking| Arc::clone(&asking.caller))
    }

    /// Tells the followers which call has the lock.
    pub(super) fn holds(&mut self, held: &Hold) {
        self.asking = None;
        if let Some(party) = self.manager.flights.inner().led_by(&self.flight, self.number) {
            party.holder = Some(held.holder());
        }
    }

    /// Gives every follower a clone of the result. `copy` is called only if there is a follower.
    pub(crate) fn land(mut self, copy: impl FnOnce() -> Landed) {
        self.close();
        if !self.manager.host().is_forked()
            && let Some(closed) = &self.closed
            && closed.is_followed()
        {
            // User code: if it panics, this leader is dropped like any leader that fails.
            let landed = copy();
            // None of them waits any more if the lock thread has come first.
            for follower in closed.take().unwrap_or_default().calls.waiting.into_values() {
                follower.give(Turn::Landed(Arc::clone(&landed)));
            }
        }
        self.landed = true;
    }

    /// Leaves the lead of a flight that is not closed. Returns the next leader and the number of its lead.
    fn leave(&mut self) -> Option<(Offered, u64)> {
        let mut inner = self.manager.flights.inner();
        let Inner { parties, numbers } = &mut *inner;
        let party = parties.get_mut(&self.flight);
        let party = party.filter(|party| party.calls.place == self.number)?;
        let next = next_of(party, numbers);
        let over = inner.take_if_over(&self.flight);
        drop(inner);
        drop(over);
        next
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // In a forked child, the flights may have been locked by a thread that does not exist here.
        if self.landed || self.manager.host().is_forked() {
            return;
        }
        if let Some(closed) = self.closed.take() {
            closed.hand_over();
            return;
        }
        if let Some((next, lead)) = self.leave() {
            // If the next call has left meanwhile, its turn is dropped and the call behind it
            // leads.
            give(
                &self.manager,
                &self.flight,
                next,
                Self::new(&self.manager, &self.flight, lead),
            );
        }
    }
}

/// Offers the lead to a follower, and has the watchdog take it back if that is not polled.
fn give(manager: &Arc<Shared>, flight: &Arc<Flight>, next: Offered, leader: Leader) {
    next.give(Turn::Lead(leader), |(), watch| {
        let (watchdog, _) = manager.pace();
        let (shared, flight) = (Arc::downgrade(manager), Arc::clone(flight));
        watchdog.watch_calls(manager.host(), move |now| {
            let manager = shared.upgrade();
            manager.is_some_and(|manager| manager.flights.sweep(&flight, watch, now))
        });
    });
}

/// The role of a call.
pub(super) enum Joined {
    /// It asks for the lock, and later calls follow it.
    Leads(Leader),
    /// It asks for the lock on its own, outside of any flight.
    Alone,
    /// It takes the result of another call.
    Landed(Landed),
}

/// Joins the other calls of `function` with the same request and waits for their result, or leads
/// with the rest of its `wait`.
///
/// A call inside a call tree that holds the lock neither follows nor leads: as a follower it would
/// wait for itself.
///
/// Cancel safe: if dropped, it stops following, and a lead meant for it goes to another call.
pub(super) async fn join<R: 'static>(
    manager: &Arc<Shared>,
    names: &Names,
    options: &mut LockOptions,
    function: Function,
) -> Result<Joined, LockError> {
    if manager.host().is_forked() || is_nested(manager, names, options) {
        return Ok(Joined::Alone);
    }
    let flight = Flight {
        names: names.clone(),
        mode: options.mode().clone(),
        function,
        result: TypeId::of::<R>(),
    };
    let following = match board(manager, flight, options.site) {
        Boarded::Leads(leader) => return Ok(Joined::Leads(leader)),
        Boarded::Follows(following) => following,
    };
    let (_, timer) = manager.pace();
    let turn = tokio::select! {
        biased;
        turn = following.turn() => turn,
        () = manager.backend.closed.wait() => {
            return Err(LockError::Closed { key: following.name(), began: false });
        }
        () = manager.host().sleep(timer, options.wait) => return Err(following.busy()),
    };
    match turn {
        Promotion::Leads(leader) => {
            let left = options.wait.saturating_sub(following.waited());
            // The store cannot answer in less than a round trip, and with nothing left the call would
            // try once for up to the response time-out. The lead goes on to the next call.
            if left <= manager.backend.access.usual_round_trip() && !options.wait.is_zero() {
                return Err(following.busy());
            }
            options.wait = left;
            Ok(Joined::Leads(leader))
        }
        Promotion::Landed(landed) => {
            manager.backend.stats.count(Event::Coalesced, options.site);
            tracing::debug!(
                key = &*following.name(),
                function = options.site.function,
                "took the result of a call that was under way"
            );
            Ok(Joined::Landed(landed))
        }
    }
}

/// Returns `true` if the call tree already holds a requested key: the call then re-enters the lock,
/// or fails because it would wait for itself.
fn is_nested(manager: &Arc<Shared>, names: &Names, options: &LockOptions) -> bool {
    if call_tree::innermost().is_none() {
        return false;
    }
    let whole = |name: &String| key::whole(&manager.backend.prefix, name);
    let (first, others) = (whole(&names.first), names.others.iter().map(whole));
    let others: Vec<_> = others.collect();
    let keys = Keys {
        first: &first,
        others: &others,
    };
    let relation = call_tree::relation(&manager.backend, keys, options.mode(), options.reentrant);
    !matches!(relation, Relation::None)
}

/// The position of a call on its flight.
enum Boarded {
    Leads(Leader),
    Follows(Following),
}

fn board(manager: &Arc<Shared>, flight: Flight, site: CallSite) -> Boarded {
    let flight = Arc::new(flight);
    let mut inner = manager.flights.inner();
    let Inner { parties, numbers } = &mut *inner;
    let entry = parties.entry(flight);
    let flight = Arc::clone(entry.key());
    let calls = &mut entry.or_default().calls;
    if calls.vacant {
        let lead = calls.new_place(numbers);
        drop(inner);
        return Boarded::Leads(Leader::new(manager, &flight, lead).begin());
    }
    let (number, follower) = calls.join(numbers, ());
    drop(inner);
    let following = Following {
        start: manager.now(),
        site,
        manager: Arc::clone(manager),
        flight,
        number,
        follower,
    };
    // In this order, so that it never counts as one that asks.
    manager.backend.stats.follows();
    manager.backend.stats.waits(site);
    Boarded::Follows(following)
}

/// A call that follows. Dropping it leaves no trace.
struct Following {
    start: Moment,
    site: CallSite,
    manager: Arc<Shared>,
    flight: Arc<Flight>,
    number: u64,
    follower: Arc<Follower>,
}

/// The way in which a call has ceased to follow.
enum Promotion {
    Leads(Leader),
    Landed(Landed),
}

impl Following {
    /// Waits for a result, or for the lead. Cancel safe.
    async fn turn(&self) -> Promotion {
        poll_fn(|cx| self.poll(cx).map_or(Poll::Pending, Poll::Ready)).await
    }

    fn poll(&self, cx: &Context<'_>) -> Option<Promotion> {
        let sign = &self.follower.sign;
        sign.register(cx);
        let was_asked = sign.give();
        self.come().or_else(|| if was_asked { self.step_in() } else { None })
    }

    fn come(&self) -> Option<Promotion> {
        Some(match self.follower.turn.accept_if(|_| true)? {
            Turn::Lead(leader) => Promotion::Leads(leader.begin()),
            Turn::Landed(landed) => Promotion::Landed(landed),
        })
    }

    /// Takes the lead if no other call has it.
    fn step_in(&self) -> Option<Promotion> {
        let mut inner = self.manager.flights.inner();
        let Inner { parties, numbers } = &mut *inner;
        let calls = &mut parties.get_mut(&self.flight)?.calls;
        if !calls.vacant {
            return None;
        }
        // Returns if the follower is no longer listed: it has been given a turn meanwhile.
        calls.take_out(self.number)?;
        let lead = calls.new_place(numbers);
        drop(inner);
        Some(Promotion::Leads(Leader::new(&self.manager, &self.flight, lead).begin()))
    }

    fn waited(&self) -> Duration {
        self.manager.now().since(self.start)
    }

    fn busy(&self) -> LockError {
        self.manager.backend.stats.count(Event::Busy, self.site);
        let waited = self.waited();
        let inner = self.manager.flights.inner();
        let holder = inner.parties.get(&self.flight).and_then(|party| party.holder.clone());
        LockError::Busy {
            key: self.name(),
            waited,
            holder: holder.map(Box::new),
            retry_after: None,
        }
    }

    /// Returns the keys as shown in messages.
    fn name(&self) -> Box<str> {
        self.flight.names.name()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // A clock or a recorder of the user's that panics keeps this call neither in the flight nor among those that follow.
        let time = contained(|| self.waited()).unwrap_or_default();
        if self.manager.host().is_forked() {
            self.manager.backend.stats.waited(None, time);
            self.manager.backend.stats.followed();
            return;
        }
        let mut inner = self.manager.flights.inner();
        let party = inner.parties.get_mut(&self.flight);
        let waited = party.and_then(|party| party.calls.take_out(self.number));
        // A lead that arrived as this call left is in `turn`; dropping it passes it to the next
        // follower. Closed while the flights are locked, so a sweep cannot take the lead back in
        // between, which would make this call follow again. A lead that arrives later goes to the next
        // follower too.
        let turn = self.follower.turn.close();
        let party = inner.take_if_over(&self.flight);
        drop(inner);
        drop((turn, party, waited));
        contained(|| self.manager.backend.stats.waited(Some(self.site), time));
        self.manager.backend.stats.followed();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::{ConfigError, LockManager};

    /// Under a paused clock, no lead of this manager's calls is taken away while a test stands still.
    fn manager() -> Result<Arc<Shared>, ConfigError> {
        Ok(Arc::clone(LockManager::builder("memory://").build()?.shared()))
    }

    fn flight() -> Flight {
        Flight {
            names: Names {
                first: "k".to_owned(),
                others: Box::default(),
            },
            mode: LockMode::Exclusive,
            function: Function {
                item: TypeId::of::<()>(),
                body: "",
                code: None,
            },
            result: TypeId::of::<u32>(),
        }
    }

    /// Lets a call board the flight.
    fn boarded(manager: &Arc<Shared>) -> Boarded {
        board(manager, flight(), CallSite::default())
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

    fn came(following: Option<&Following>) -> Option<Promotion> {
        following.and_then(Following::come)
    }

    #[test]
    fn one_that_follows_waits_until_it_is_dropped() -> Result<(), ConfigError> {
        let manager = manager()?;
        let leader = leads(boarded(&manager));
        assert_eq!(
            manager.backend.stats.read().waiting,
            0,
            "a leader waits once it asks for the lock"
        );
        let following = [(); 2].map(|()| follows(boarded(&manager)));
        assert_eq!(manager.backend.stats.read().waiting, 2);
        land(leader);
        drop(following);
        assert_eq!(manager.backend.stats.read().waiting, 0);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_leaves_while_it_is_called_to_lead_gives_the_lead_on() -> Result<(), ConfigError> {
        let manager = manager()?;
        let mut leader = leads(boarded(&manager));
        let first = follows(boarded(&manager));
        let second = follows(boarded(&manager));
        // The drop of a leader, step by step: the next leader leaves between the two steps.
        let next = leader.as_mut().and_then(Leader::leave);
        drop(first);
        if let (Some((next, lead)), Some(mut leader)) = (next, leader) {
            leader.landed = true;
            give(
                &manager,
                &leader.flight,
                next,
                Leader::new(&manager, &leader.flight, lead),
            );
        }
        assert!(matches!(came(second.as_ref()), Some(Promotion::Leads(_))));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_leaves_late_takes_nobody_of_the_next_flight_along() -> Result<(), ConfigError> {
        let manager = manager()?;
        let leader = leads(boarded(&manager));
        let before = follows(boarded(&manager));
        land(leader);
        let leader = leads(boarded(&manager));
        let after = follows(boarded(&manager));
        // Both calls are the first of their flights.
        assert!(matches!(came(before.as_ref()), Some(Promotion::Landed(_))));
        drop(before);
        land(leader);
        assert!(matches!(came(after.as_ref()), Some(Promotion::Landed(_))));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn those_of_a_closed_flight_that_fails_follow_the_one_that_leads_now() -> Result<(), ConfigError> {
        let manager = manager()?;
        let mut failing = leads(boarded(&manager));
        let first = follows(boarded(&manager));
        if let Some(failing) = &mut failing {
            failing.close();
        }
        let leader = leads(boarded(&manager));
        assert!(leader.is_some(), "a call that comes after the end does not follow");
        let second = follows(boarded(&manager));
        drop(failing);
        assert!(came(first.as_ref()).is_none());
        drop(leader);
        // They lead in the order in which they came, and without calls there is no flight.
        let leader = came(first.as_ref());
        assert!(matches!(leader, Some(Promotion::Leads(_))));
        drop(second);
        drop(leader);
        assert!(manager.flights.inner().parties.is_empty());
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn those_of_a_closed_flight_lead_if_it_fails_and_no_other_does() -> Result<(), ConfigError> {
        let manager = manager()?;
        let mut failing = leads(boarded(&manager));
        let follower = follows(boarded(&manager));
        if let Some(failing) = &mut failing {
            failing.close();
        }
        drop(failing);
        assert!(matches!(came(follower.as_ref()), Some(Promotion::Leads(_))));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_have_left_a_closed_flight_are_not_called_to_lead_when_it_fails() -> Result<(), ConfigError> {
        let manager = manager()?;
        let mut failing = leads(boarded(&manager));
        // So many that the stack would not do, if each was called and called the next one.
        let gone: Vec<_> = (0..50_000).map(|_| follows(boarded(&manager))).collect();
        let stays = follows(boarded(&manager));
        if let Some(failing) = &mut failing {
            failing.close();
        }
        drop(gone);
        drop(failing);
        let leader = came(stays.as_ref());
        assert!(matches!(leader, Some(Promotion::Leads(_))));
        drop((leader, stays));
        assert!(manager.flights.inner().parties.is_empty());
        Ok(())
    }

    /// Lets a call take its turn while the lock thread runs, for up to so long.
    fn comes_within(following: Option<&Following>, most: Duration) -> Option<Promotion> {
        let began = std::time::Instant::now();
        let cx = Context::from_waker(std::task::Waker::noop());
        loop {
            let turn = following.and_then(|following| following.poll(&cx));
            if turn.is_some() || began.elapsed() > most {
                return turn;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_leader_that_is_not_polled_during_its_release_loses_those_that_wait() -> Result<(), ConfigError> {
        let manager = manager()?;
        let mut frozen = leads(boarded(&manager));
        let first = follows(boarded(&manager));
        let second = follows(boarded(&manager));
        let release = frozen.as_mut().map(|leader| {
            // It has the lock.
            leader.asking = None;
            leader.close();
            leader.watched(Leave::InStore(Box::pin(std::future::pending())))
        });
        let mut release = release.unwrap_or(Leave::Done(Ok(())));
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        // While it is polled it keeps them, for longer than the lock thread waits for a sign.
        for _ in 0..100 {
            assert!(Pin::new(&mut release).poll(cx).is_pending());
            assert!(
                comes_within(first.as_ref(), Duration::ZERO).is_none(),
                "a leader that is polled loses them"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let leader = comes_within(first.as_ref(), Duration::from_secs(20));
        assert!(
            matches!(leader, Some(Promotion::Leads(_))),
            "it waits for one that is not polled"
        );
        // What the former leader has in the end is not for those that it has lost.
        land(frozen);
        assert!(came(second.as_ref()).is_none());
        if let Some(Promotion::Leads(leader)) = leader {
            land(Some(leader));
        }
        assert!(matches!(came(second.as_ref()), Some(Promotion::Landed(_))));
        drop((first, second, release));
        assert!(manager.flights.inner().parties.is_empty());
        Ok(())
    }

    /// Counts the wake-ups of a follower.
    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicU64);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn those_of_a_closed_flight_that_fails_are_woken_to_lead_where_no_call_leads() -> Result<(), ConfigError> {
        let manager = manager()?;
        let mut failing = leads(boarded(&manager));
        let first = follows(boarded(&manager));
        if let Some(failing) = &mut failing {
            failing.close();
        }
        // The leader of the next flight is no longer polled, and neither is its follower.
        let frozen = leads(boarded(&manager));
        let second = follows(boarded(&manager));
        let lead = frozen.as_ref().map_or(0, |leader| leader.number);
        let flight = Arc::new(flight());
        Led {
            manager: Arc::clone(&manager),
            flight,
            lead,
        }
        .revoke();

        let woken = Arc::new(Woken::default());
        let waker = Arc::clone(&woken).into();
        let cx = Context::from_waker(&waker);
        let poll = || first.as_ref().and_then(|first| first.poll(&cx));
        assert!(poll().is_none(), "it follows the one that is about to fail");
        drop(failing);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "the follower is not woken");
        let leader = poll();
        assert!(
            matches!(leader, Some(Promotion::Leads(_))),
            "the follower is woken for nothing"
        );
        drop((leader, first, second, frozen));
        assert!(manager.flights.inner().parties.is_empty());
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_time_for_a_round_trip_passes_the_lead_on() -> Result<(), ConfigError> {
        let manager = manager()?;
        manager.backend.access.note_round_trip(Duration::from_secs(60));
        let leader = leads(boarded(&manager));
        let mut options = LockOptions::default();
        options.wait = Duration::from_secs(30);
        let Flight { names, function, .. } = flight();
        let mut short = Box::pin(join::<u32>(&manager, &names, &mut options, function));
        let mut unwoken = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(short.as_mut().poll(&mut unwoken).is_pending(), "it does not follow");
        let behind = follows(boarded(&manager));
        drop(leader);
        let outcome = tokio::time::timeout(Duration::from_secs(10), short).await;
        assert!(
            matches!(outcome, Ok(Err(LockError::Busy { .. }))),
            "it leads with less time than the store takes to answer"
        );
        assert!(matches!(came(behind.as_ref()), Some(Promotion::Leads(_))));
        Ok(())
    }

    #[test]
    fn nothing_is_copied_for_nobody_and_nothing_stays() -> Result<(), ConfigError> {
        let manager = manager()?;
        let mut copies = 0;
        if let Some(leader) = leads(boarded(&manager)) {
            leader.land(|| {
                copies += 1;
                Arc::new(1_u32)
            });
        }
        drop(leads(boarded(&manager)));
        assert!(manager.flights.inner().parties.is_empty());
        assert_eq!(copies, 0);
        Ok(())
    }

    #[cfg(feature = "metrics")]
    #[test]
    fn one_that_has_left_counts_no_more_though_the_recorder_panics() -> Result<(), ConfigError> {
        use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

        use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

        struct Panicking;

        impl Recorder for Panicking {
            fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

            fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

            fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

            fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
                Counter::noop()
            }

            fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
                resume_unwind(Box::new("the recorder is full"))
            }

            fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
                Histogram::noop()
            }
        }

        let manager = manager()?;
        let leader = leads(boarded(&manager));
        let following = follows(boarded(&manager));
        let leave = || catch_unwind(AssertUnwindSafe(|| drop(following)));
        let left = metrics::with_local_recorder(&Panicking, leave);
        manager.backend.stats.waits(CallSite::default());
        assert_eq!(
            manager.backend.stats.asking(),
            1,
            "one that follows no more counts as one"
        );
        assert!(left.is_ok(), "dropping the call has panicked");
        drop(leader);
        Ok(())
    }
}
