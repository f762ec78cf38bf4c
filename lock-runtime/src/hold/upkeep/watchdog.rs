//! One scheduler for all held locks: it renews them in time, many per round trip, and ends those
//! that are lost. No lock has a timer, task or thread of its own. The locks of each server are sent
//! apart from those of the others, a few batches at once and the most urgent locks first, so a
//! server that does not answer holds up no other server's locks. The schedule is locked before a
//! lock's plan, and a tenure's state last. While the schedule is locked, no code awaits and no
//! caller is woken: a waker may run any code at once, which may release a lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::EndCause;
use crate::error::LostReason;
use crate::hold::Hold;
use crate::hold::backend::Backend;
use crate::hold::plan::{Plan, Retry};
use crate::hold::tenure::Keeper;
use crate::hold::tenure::{Servers, Tenure};
use crate::hold::upkeep::checked::CheckedLocks;
use crate::hold::upkeep::pipelined::{self, Pipelined};
use crate::hold::upkeep::releaser;
use crate::host::{Clock, Host, Moment, Mutex, Timer, TokioClock, contained};
use crate::stats::{Event, metrics};
use crate::store::{Lane, LossHint, Ownership, StoreError};

/// The maximum size of one batch: a longer script would hold up the server's other clients. The
/// check of a key in exclusive mode, which is one read, counts as 1, and any other check or renewal
/// of a key as [`LONGER`].
const BATCH: usize = 1000;
const LONGER: usize = 10;
/// The number of batches of one kind that may be under way to one server at once. The other locks wait in the server's [`Queue`], the most urgent first:
/// if all were sent at once, the last ones would time out behind the others and be sent again, until
/// the server is overloaded.
const AT_ONCE: usize = 4;
/// The time after the grant at which a lock is first checked, if the store reports losses: shorter
/// sections are not worth the command.
const CHECK_AFTER: Duration = Duration::from_millis(20);
/// The interval of checks of a lock that passes from call to call, from the grant on: without them,
/// each of these calls could begin under a lock that is lost already, where the server does not report
/// changed keys or its report is slow. A chain of calls that ends sooner is not worth the command.
const CHECK_PASSED_EVERY: Duration = Duration::from_millis(4);
/// The minimum interval between two checks of a lock in a shared mode after reports that its key
/// was changed: every holder that comes or goes changes it.
const CHECK_SHARED_EVERY: Duration = Duration::from_millis(250);
/// The interval of the watchdog's sweeps. A sweep looks at the calls that ask the store, and at the
/// turns on offer in lines. The second sweep takes back a turn that its call has not accepted.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// The maximum time between two looks at the clock while locks are held: the scheduler's timer
/// stands still while the machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The longest pause before a failed check is retried, which limits how long a lost lock goes
/// unnoticed. The pause doubles up to this value; that of a renewal doubles up to a tenth of the
/// lease or a quarter of the remaining time, whichever is shorter.
const LONGEST_CHECK_RETRY: Duration = Duration::from_millis(250);
/// The time without an answer after which the watchdog tells the store that a renewal is late. A
/// quarter of the time left in the most urgent lease applies instead if that is shorter.
const LATE: Duration = Duration::from_millis(200);
/// The time after which a renewal without an answer counts as failed. Half of the remaining time
/// applies instead if that is shorter.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(2);
/// The time that an attempt may take in any case, if so much is left: a late answer is better than a
/// second question. Twice the usual round trip applies instead if that is longer.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct Schedule {
    /// All held locks by the moment of their next event; the id keeps equal moments apart.
    queue: BTreeMap<(Moment, u64), Arc<Tenure>>,
    /// Locks of stores that report losses, by store and key. A lock is listed from its first check
    /// or renewal on.
    index: HashMap<(u64, Arc<str>), BTreeMap<u64, Arc<Tenure>>>,
    /// The locks that are due, by server.
    due: BTreeMap<Servers, Queue>,
    /// The locks that the watchdog has checked before, by server.
    checked: BTreeMap<Servers, CheckedLocks>,
    /// The sweeps, in the order in which they are due.
    sweeps: VecDeque<Sweep>,
    /// The time at which the scheduler wakes by itself; `None` if it waits to be notified.
    armed: Option<Moment>,
    /// `true` while a scheduler is running.
    running: bool,
}

impl Schedule {
    /// Returns the time of the next event.
    fn next(&self) -> Option<Moment> {
        let lock = self.queue.first_key_value().map(|(&(due, _), _)| due);
        let sweep = self.sweeps.front().map(|sweep| sweep.due);
        let checked = self.checked.values().map(CheckedLocks::next);
        lock.into_iter().chain(sweep).chain(checked).min()
    }
}

/// A set of calls that is looked at regularly.
struct Sweep {
    due: Moment,
    /// Looks at the calls. Returns `false` once none is left to look at.
    look: Box<dyn FnMut(Moment) -> bool + Send>,
}

impl std::fmt::Debug for Sweep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sweep").field(&self.due).finish()
    }
}

/// The locks of one server that are due. A renewal does not wait for checks, whose answers may take as long over
/// a slow line as what is left of its lease.
#[derive(Debug, Default)]
struct Queue {
    renewals: Batches,
    /// All else. Some may have become renewals since.
    checks: Batches,
}

/// The batches of one kind.
#[derive(Debug, Default)]
struct Batches {
    /// The locks for the next ones, by deadline.
    waiting: BTreeMap<(Moment, u64), Arc<Tenure>>,
    /// The number under way.
    running: usize,
}

impl Batches {
    /// Takes out the locks of the next batch, the most urgent first. Returns none if those that wait are not watched any more.
    fn next(&mut self, now: Moment) -> Vec<Due> {
        let mut due = Vec::new();
        let mut keys = 0;
        while keys < BATCH
            && let Some((_, held)) = self.waiting.pop_first()
        {
            let mut plan = held.plan();
            plan.waiting = None;
            let watched = plan.due.is_some();
            let request = Request::of(&held, &plan, now);
            plan.restores = false;
            if watched {
                let is_a_read = request == Request::Check && !held.value.is_shared();
                keys += held.keys().iter().count() * if is_a_read { 1 } else { LONGER };
                request.is_under_way(&mut plan, true);
                drop(plan);
                due.push(Due { held, request });
            }
        }
        due
    }
}

impl Queue {
    fn batches(&mut self, renew: bool) -> &mut Batches {
        if renew { &mut self.renewals } else { &mut self.checks }
    }

    fn both(&mut self) -> [&mut Batches; 2] {
        [&mut self.renewals, &mut self.checks]
    }

    /// Takes out a lock that waits.
    fn remove(&mut self, held: &Tenure, place: Moment) {
        for batches in self.both() {
            batches.waiting.remove(&(place, held.id));
        }
    }
}

/// A scheduler for locks that use one clock.
#[derive(Debug)]
pub(crate) struct Watchdog {
    this: Weak<Self>,
    clock: Arc<dyn Clock>,
    timer: Timer,
    /// `true` if the scheduler keeps running when nothing is scheduled.
    lasting: bool,
    schedule: Mutex<Schedule>,
    wake: Notify,
    /// The releases sent without waiting for their outcome.
    pub(super) pipelined: Pipelined,
}

/// A lock that is due.
#[derive(Debug)]
struct Due {
    held: Arc<Tenure>,
    request: Request,
}

/// A request to the store about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// A check that the lock is still held.
    Check,
    /// A renewal up to the expiry that it has been promised already, at a server that may have an earlier one.
    Restore,
    /// A renewal for another lease.
    Renew,
}

impl Request {
    /// Returns the request for a lock that has waited in its server's queue until now. A check may have become a renewal.
    fn of(held: &Tenure, plan: &Plan, now: Moment) -> Self {
        if plan.renewal_due() <= now && !held.is_renewed_enough() {
            Self::Renew
        } else if plan.restores {
            Self::Restore
        } else {
            Self::Check
        }
    }

    /// Notes in a lock's plan if such a request is under way.
    fn is_under_way(self, plan: &mut Plan, is_under_way: bool) {
        match self {
            Self::Check => plan.under_way.check = is_under_way,
            Self::Restore | Self::Renew => plan.under_way.renewal = is_under_way,
        }
    }
}

impl Due {
    /// Returns the time to live that the key gets by a request sent at `sent`, if any.
    fn time_to_live(&self, sent: Moment) -> Option<Duration> {
        match self.request {
            Request::Check => None,
            Request::Restore => Some(self.held.time_to_live_left(sent)),
            Request::Renew => Some(self.held.time_to_live()),
        }
    }
}

impl Watchdog {
    pub(super) fn new(clock: Arc<dyn Clock>, timer: Timer) -> Arc<Self> {
        Self::make(clock, timer, false)
    }

    fn make(clock: Arc<dyn Clock>, timer: Timer, lasting: bool) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            clock,
            timer,
            lasting,
            schedule: Mutex::default(),
            wake: Notify::new(),
            pipelined: Pipelined::default(),
        })
    }

    /// Returns the host's watchdog for locks in real stores.
    pub(super) fn of(host: &Host) -> Arc<Self> {
        struct Kept(Arc<Watchdog>);
        let make = || Kept(Self::make(host.clock(), Timer::LockThread, true));
        Arc::clone(&host.keep(make).0)
    }

    /// Returns the host's watchdog for locks in memory stores.
    pub(super) fn for_tokio(host: &Host) -> Arc<Self> {
        struct Kept(Arc<Watchdog>);
        let make = || Kept(Self::make(Arc::new(TokioClock), Timer::LockThread, true));
        Arc::clone(&host.keep(make).0)
    }

    /// Calls `look` at regular intervals until it returns `false`. It looks at calls that may no
    /// longer be polled.
    pub(crate) fn watch_calls(self: &Arc<Self>, host: &Host, look: impl FnMut(Moment) -> bool + Send + 'static) {
        let sweep = Sweep {
            due: self.clock.now().after(SWEEP_EVERY),
            look: Box::new(look),
        };
        let start = {
            let mut schedule = self.schedule();
            schedule.sweeps.push_back(sweep);
            self.rearm(&mut schedule);
            !std::mem::replace(&mut schedule.running, true)
        };
        if start {
            self.start(host);
        }
    }

    fn sweep(&self) {
        // Read once: a sweep that is due again meanwhile is for the next time.
        let now = self.clock.now();
        loop {
            let mut schedule = self.schedule();
            let is_due = schedule.sweeps.front().is_some_and(|sweep| sweep.due <= now);
            let due = if is_due { schedule.sweeps.pop_front() } else { None };
            drop(schedule);
            let Some(mut sweep) = due else { return };
            // Looks again after a panic, at what is left of the calls.
            let again = contained(|| (sweep.look)(now)).unwrap_or(true);
            if again {
                // Counted from now, however long the look took, so that calls have that time to be
                // polled.
                sweep.due = self.clock.now().after(SWEEP_EVERY);
                self.schedule().sweeps.push_back(sweep);
            }
        }
    }

    /// Returns `true` if nothing is scheduled.
    pub(super) fn is_idle(&self) -> bool {
        self.schedule().next().is_none()
    }

    /// Returns the number of locks that are held at the server of a lane.
    pub(super) fn count_held(&self, backend: &Backend, lane: Lane) -> usize {
        self.schedule().held_on(backend.number, lane).len()
    }

    /// Acts on a store's hint: checks the locks that it may concern at once.
    pub(super) fn hint(&self, backend: &Backend, hint: &LossHint) {
        let store = backend.number;
        let now = self.clock.now();
        let mut schedule = self.schedule();
        let suspects: Vec<Arc<Tenure>> = match hint {
            LossHint::Key(key) => schedule
                .index
                .get(&(store, Arc::from(&**key)))
                .map(|all| all.values().cloned().collect())
                .unwrap_or_default(),
            LossHint::All(lane) | LossHint::Back(lane) | LossHint::Moved(lane) => schedule.held_on(store, *lane),
            LossHint::Relocated(lane) => {
                let mut suspects = schedule.held_on(store, *lane);
                suspects.retain(|held| schedule.relocate(held, now));
                suspects
            }
            LossHint::Down { .. } | LossHint::Up { .. } => return,
        };
        for held in suspects {
            let mut plan = held.plan();
            let at = match (hint, plan.checked_at) {
                // Other holders that come and go change the key all the time.
                (LossHint::Key(_), Some(checked)) if held.value.is_shared() => {
                    now.max(checked.after(CHECK_SHARED_EVERY))
                }
                _ => now,
            };
            // The answer to a check under way may be from before the hint.
            let before = plan.check_at.filter(|_| !plan.is_in_flight());
            if matches!(hint, LossHint::Key(_)) && before.is_some_and(|before| before <= at) {
                continue;
            }
            plan.check_at = Some(before.map_or(at, |before| before.min(at)));
            match hint {
                LossHint::Key(_) | LossHint::All(_) | LossHint::Down { .. } | LossHint::Up { .. } => {}
                LossHint::Back(_) => {
                    plan.check_retry = None;
                    plan.hurry(now);
                }
                LossHint::Moved(_) | LossHint::Relocated(_) => {
                    plan.restores = true;
                    held.has_moved();
                }
            }
            Self::reschedule(&mut schedule, &mut plan, &held);
        }
        self.rearm(&mut schedule);
    }

    /// Ends every lock of one manager for `cause`, and stops renewing them. Returns these locks.
    pub(super) fn end_all(&self, manager: &Backend, cause: EndCause) -> Vec<Arc<Tenure>> {
        let mut ended = Vec::new();
        let mut schedule = self.schedule();
        schedule.queue.retain(|_, held| {
            let theirs = std::ptr::eq(&raw const *held.manager, manager);
            if theirs {
                held.plan().due = None;
                ended.push(Arc::clone(held));
            }
            !theirs
        });
        for held in &ended {
            schedule.ends(held);
        }
        drop(schedule);
        for held in &ended {
            contained(|| held.end_with(cause));
        }
        ended
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock()
    }

    /// Moves a lock to the time that its plan asks for. Has no effect on a forgotten lock.
    fn reschedule(schedule: &mut Schedule, plan: &mut Plan, held: &Arc<Tenure>) {
        let Some(due) = plan.due else { return };
        let next = plan.next(held.ends_at());
        if next != due {
            schedule.queue.remove(&(due, held.id));
            schedule.queue.insert((next, held.id), Arc::clone(held));
            plan.due = Some(next);
        }
    }

    /// Wakes the scheduler if an event is due before it would wake by itself.
    fn rearm(&self, schedule: &mut Schedule) {
        if let Some(due) = schedule.next()
            && schedule.armed.is_none_or(|armed| due < armed)
        {
            schedule.armed = Some(due);
            self.wake.notify_one();
        }
    }

    fn start(self: &Arc<Self>, host: &Host) {
        let supervisor = Supervisor {
            host: host.clone(),
            watchdog: Arc::clone(self),
            finished: false,
        };
        // If this spawns no task because there is no thread or runtime, only the guards check the
        // clock.
        host.spawn_by(self.timer, supervisor.run());
    }

    async fn run(self: Arc<Self>, host: Host) {
        loop {
            let Some(next) = self.take_due(&host) else {
                if !self.lasting {
                    // A task in the user's runtime, or for one manager's own clock, must not
                    // outlive the locks that it serves.
                    return;
                }
                self.wake.notified().await;
                continue;
            };
            let pause = next.since(self.clock.now()).min(LONGEST_SLEEP);
            tokio::select! {
                () = host.sleep(self.timer, pause) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Ends the locks whose deadline has passed, and sends those that are due for renewal or a
    /// check. Returns the time of the next event.
    fn take_due(self: &Arc<Self>, host: &Host) -> Option<Moment> {
        self.sweep();
        let now = self.clock.now();
        let mut ended = Vec::new();
        let mut schedule = self.schedule();
        schedule.check_suspects(now);
        while let Some(entry) = schedule.queue.first_entry()
            && entry.key().0 <= now
        {
            let held = entry.remove();
            let mut plan = held.plan();
            plan.due = None;
            if now >= held.ends_at() {
                drop(plan);
                schedule.ends(&held);
                ended.push((held, None));
                continue;
            }
            let renew = plan.renews_at() <= now;
            let check = plan.checks_at() <= now;
            if renew && held.is_renewed_enough() {
                drop(plan);
                schedule.ends(&held);
                ended.push((held, Some(EndCause::Hung)));
                continue;
            }
            if renew || check {
                if held.manager.reports_losses && !plan.indexed {
                    plan.indexed = true;
                    for key in held.keys().iter() {
                        let key = (held.manager.number, Arc::clone(key));
                        schedule
                            .index
                            .entry(key)
                            .or_default()
                            .insert(held.id, Arc::clone(&held));
                    }
                }
                schedule.line_up(&mut plan, &held, now);
            }
            let next = plan.next(held.ends_at());
            plan.due = Some(next);
            drop(plan);
            schedule.queue.insert((next, held.id), held);
        }
        schedule.ask_about_the_oldest(now);
        let mut next = schedule.next();
        if self.lasting {
            // An alarm that nothing needs any more stays until the next wake: locks that are taken and
            // released one after the other would otherwise wake the lock thread each.
            let alarm = schedule.armed.filter(|armed| *armed > now);
            let alarm = alarm.map(|alarm| alarm.min(now.after(LONGEST_SLEEP)));
            next = next.into_iter().chain(alarm).min();
        } else if next.is_none() {
            schedule.running = false;
        }
        schedule.armed = next;
        let servers: Vec<_> = schedule.due.keys().cloned().collect();
        let batches: Vec<_> = servers
            .into_iter()
            .flat_map(|server| self.load(host, &mut schedule, &server))
            .collect();
        drop(schedule);
        // A woken call may release its lock at once, which locks the schedule.
        for (held, cause) in ended {
            // A subscriber or a recorder may panic, and the other locks must end as well.
            contained(|| match cause {
                Some(cause) => held.end_with(cause),
                // The clock shows which time limit has passed.
                None => held.look_at_the_clock(),
            });
        }
        for batch in batches {
            drop(host.spawn_here(batch.run()));
        }
        next
    }

    /// Takes as many batches for a server as may be under way. The caller spawns them after the
    /// schedule is unlocked.
    fn load(self: &Arc<Self>, host: &Host, schedule: &mut Schedule, server: &Servers) -> Vec<Batch> {
        let mut batches = Vec::new();
        let now = self.clock.now();
        let Some(queue) = schedule.due.get_mut(server) else {
            return batches;
        };
        for renews in [true, false] {
            let of_kind = queue.batches(renews);
            while of_kind.running < AT_ONCE && !of_kind.waiting.is_empty() {
                let due = of_kind.next(now);
                if due.is_empty() {
                    continue;
                }
                of_kind.running += 1;
                batches.push(Batch {
                    host: host.clone(),
                    watchdog: Arc::clone(self),
                    server: server.clone(),
                    renews,
                    due,
                });
            }
        }
        if queue.both().iter().all(|batches| batches.running == 0) {
            schedule.due.remove(server);
        }
        batches
    }
}

impl Keeper for Watchdog {
    fn timer(&self) -> Timer {
        self.timer
    }

    fn watch(&self, held: &Arc<Tenure>) {
        let start = {
            let mut schedule = self.schedule();
            let mut plan = held.plan();
            plan.check_at = held.manager.reports_losses.then(|| held.granted.after(CHECK_AFTER));
            let due = plan.next(held.ends_at());
            plan.due = Some(due);
            drop(plan);
            schedule.queue.insert((due, held.id), Arc::clone(held));
            if schedule.armed.is_none_or(|armed| due < armed) {
                schedule.armed = Some(due);
                self.wake.notify_one();
            }
            !std::mem::replace(&mut schedule.running, true)
        };
        if start && let Some(this) = self.this.upgrade() {
            this.start(held.manager.host());
        }
    }

    fn look_early(&self, held: &Arc<Tenure>) {
        let now = self.clock.now();
        if !held.manager.reports_losses || now.as_nanos() < held.looks_at.load(Ordering::Relaxed) {
            return;
        }
        let mut schedule = self.schedule();
        let mut plan = held.plan();
        // Not before now: a check counts as late from its due time on.
        let at = plan
            .checked_at
            .unwrap_or(held.granted)
            .after(CHECK_PASSED_EVERY)
            .max(now);
        held.looks_at.store(at.as_nanos(), Ordering::Relaxed);
        if plan.check_at.is_none_or(|due| due > at) {
            plan.check_at = Some(at);
            Self::reschedule(&mut schedule, &mut plan, held);
            drop(plan);
            self.rearm(&mut schedule);
        }
    }

    fn forget(&self, held: &Tenure) {
        let mut schedule = self.schedule();
        let mut plan = held.plan();
        if let Some(due) = plan.due.take() {
            schedule.queue.remove(&(due, held.id));
        }
        if plan.checked_at.is_some() {
            schedule.ends(held);
        }
        if let Some(place) = plan.waiting.take()
            && let Some(queue) = schedule.due.get_mut(&held.servers())
        {
            queue.remove(held, place);
        }
        if std::mem::take(&mut plan.indexed) {
            for key in held.keys().iter() {
                let key = (held.manager.number, Arc::clone(key));
                if let Some(all) = schedule.index.get_mut(&key) {
                    all.remove(&held.id);
                    if all.is_empty() {
                        schedule.index.remove(&key);
                    }
                }
            }
        }
    }

    fn end_in_time(&self, held: &Arc<Tenure>) {
        let mut schedule = self.schedule();
        Self::reschedule(&mut schedule, &mut held.plan(), held);
        self.rearm(&mut schedule);
    }

    fn release_later(&self, held: &Arc<Hold>) {
        releaser::release_later(held);
    }

    fn release_in_order(self: Arc<Self>, held: &Arc<Hold>, key: &Arc<str>) -> bool {
        pipelined::send(&self, held, key)
    }
}

impl Schedule {
    /// Puts a lock into its server's queue.
    fn line_up(&mut self, plan: &mut Plan, held: &Arc<Tenure>, now: Moment) {
        let renews = Request::of(held, plan, now) == Request::Renew;
        plan.checked_at = Some(now);
        let former = plan.waiting.replace(held.deadline());
        if held.manager.reports_losses && !held.manager.store().release_is_immediate() {
            self.watch_with_others(held, now);
        }
        let queue = self.due.entry(held.servers()).or_default();
        // A check that waits may have become a renewal.
        if let Some(former) = former {
            queue.remove(held, former);
        }
        let waiting = &mut queue.batches(renews).waiting;
        waiting.insert((held.deadline(), held.id), Arc::clone(held));
    }

    /// Returns the held locks of a store of which a key lies in this lane.
    fn held_on(&self, store: u64, lane: Lane) -> Vec<Arc<Tenure>> {
        let held = self.queue.values();
        held.filter(|held| held.servers().include(store, lane))
            .cloned()
            .collect()
    }

    /// Has a lock checked along with the others of its servers from now on.
    fn watch_with_others(&mut self, held: &Arc<Tenure>, now: Moment) {
        let servers = held.servers();
        match self.checked.get_mut(&servers) {
            Some(checked) => checked.insert(held),
            None => drop(self.checked.insert(servers, CheckedLocks::new(held, now))),
        }
    }

    /// Finds out again which servers have the keys of a lock. Returns `true` if these are others than
    /// before.
    fn relocate(&mut self, held: &Arc<Tenure>, now: Moment) -> bool {
        let before = held.servers();
        if !held.relocate() {
            return false;
        }
        if let Some(checked) = self.checked.get_mut(&before)
            && checked.includes(held)
        {
            if checked.remove(held) {
                self.checked.remove(&before);
            }
            self.watch_with_others(held, now);
        }
        let mut plan = held.plan();
        if let Some(place) = plan.waiting.take()
            && let Some(queue) = self.due.get_mut(&before)
        {
            queue.remove(held, place);
        }
        true
    }

    /// Forgets a lock that has ended, as far as other locks are checked on its account.
    fn ends(&mut self, held: &Tenure) {
        let servers = held.servers();
        if let Some(checked) = self.checked.get_mut(&servers)
            && checked.remove(held)
        {
            self.checked.remove(&servers);
        }
    }

    /// Has the other locks of these servers checked, since one was lost.
    fn suspect(&mut self, servers: &Servers) {
        for (others, checked) in &mut self.checked {
            if others.meet(servers) {
                checked.suspect();
            }
        }
    }

    /// Schedules a check of the oldest lock of each server that has not been asked about it for a
    /// while.
    fn ask_about_the_oldest(&mut self, now: Moment) {
        let chosen: Vec<_> = self
            .checked
            .values_mut()
            .filter_map(|checked| checked.ask(now))
            .collect();
        for held in chosen {
            let mut plan = held.plan();
            self.line_up(&mut plan, &held, now);
            Watchdog::reschedule(self, &mut plan, &held);
        }
    }

    /// Schedules a check of all locks of each server that has lost one.
    fn check_suspects(&mut self, now: Moment) {
        let mut suspected = Vec::new();
        for checked in self.checked.values_mut() {
            suspected.extend(checked.take_suspects(now));
        }
        for held in suspected {
            let mut plan = held.plan();
            plan.check_at = Some(plan.check_at.map_or(now, |at| at.min(now)));
            Watchdog::reschedule(self, &mut plan, &held);
        }
    }
}

/// Restarts the scheduler if it panics, and records its end if its runtime ends.
struct Supervisor {
    host: Host,
    watchdog: Arc<Watchdog>,
    /// `true` if the scheduler ended regularly and has recorded that itself.
    finished: bool,
}

impl Supervisor {
    async fn run(mut self) {
        loop {
            let run = Arc::clone(&self.watchdog).run(self.host.clone());
            let Err(error) = self.host.spawn_here(run).await else {
                break;
            };
            if error.is_cancelled() {
                return;
            }
            tracing::error!(%error, "the lock watchdog panicked and was restarted");
        }
        self.finished = true;
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // After a regular end, another scheduler may have started since.
        if !self.finished {
            self.watchdog.schedule().running = false;
        }
    }
}

/// Locks of one server that are renewed or checked together. Each batch is a task of its own, so
/// that a slow server does not delay the locks of another one.
struct Batch {
    host: Host,
    watchdog: Arc<Watchdog>,
    server: Servers,
    /// The kind of the batch: see [`Queue`].
    renews: bool,
    due: Vec<Due>,
}

impl Batch {
    async fn run(mut self) {
        let Some(first) = self.due.first() else { return };
        let manager = Arc::clone(&first.held.manager);
        let (store, timer) = (manager.store(), self.watchdog.timer);
        // The new deadlines count from here: the store cannot have set the expiry earlier.
        let sent = self.watchdog.clock.now();
        let requests: Vec<_> = self
            .due
            .iter()
            .flat_map(|due| due.held.renew_requests(due.time_to_live(sent)))
            .collect();
        let left = self.due.iter().map(|due| due.held.deadline().since(sent)).min();
        let left = left.unwrap_or_default();
        let answer = async {
            let mut answer = store.renew_each(&requests);
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = manager.host().sleep(timer, LATE.min(left / 4)) => {
                    for lane in self.server.lanes() {
                        store.renewal_is_late(lane);
                    }
                }
            }
            answer.await
        };
        let budget = budget(left, manager.access.usual_round_trip());
        let answer = manager.host().timeout(timer, budget, answer).await;
        let due = std::mem::take(&mut self.due);
        let lanes: Box<[Lane]> = self.server.lanes().collect();
        let renews = due.iter().any(|due| due.request == Request::Renew);
        match answer {
            Some(Ok(verdicts)) if verdicts.len() == requests.len() => {
                contained(|| manager.has_answered(&lanes, renews));
                manager.access.note_round_trip(self.watchdog.clock.now().since(sent));
                let mut verdicts = verdicts.into_iter();
                self.settle_all(due, sent, |due| {
                    let of_keys = verdicts.by_ref().take(due.held.keys().iter().count());
                    of_keys.fold(Some(Ownership::Owned), together)
                });
            }
            failure => {
                let error = match failure {
                    Some(Ok(_)) => StoreError::unknown("the store gave a wrong number of verdicts"),
                    Some(Err(error)) => error,
                    None => StoreError::unknown("no answer in time"),
                };
                let held = |lane: &Lane| self.watchdog.count_held(&manager, *lane);
                let locks = || lanes.iter().map(held).sum();
                contained(|| manager.has_failed(lanes.clone(), &error, renews, locks));
                self.settle_all(due, sent, |_| None);
            }
        }
    }

    /// Records the verdict on each lock.
    fn settle_all(&self, all: Vec<Due>, sent: Moment, mut verdict: impl FnMut(&Due) -> Option<Ownership>) {
        let took = self.watchdog.clock.now().since(sent);
        let mut renewals = Vec::new();
        for due in all {
            let verdict = verdict(&due);
            if let Some(is_confirmed) = self.settle(&due, sent, verdict)
                && metrics::RECORDS
            {
                renewals.push((due.held, is_confirmed.then_some(took)));
            }
        }
        // A recorder may take its time, and no lock waits for that.
        for (held, took) in renewals {
            contained(|| held.record_renewal(took));
        }
    }

    /// Records the verdict on one lock. `None` means no answer, which leaves the deadline as it is. Returns `true` if
    /// the lock is renewed, `false` if that has failed, and `None` if it was only checked or is no longer held.
    fn settle(&self, due: &Due, sent: Moment, verdict: Option<Ownership>) -> Option<bool> {
        let held = &due.held;
        // Dropped last, after the schedule and the plan are unlocked.
        let _answered = Answered(held);
        let mut is_renewed = None;
        let mut schedule = self.watchdog.schedule();
        let mut plan = held.plan();
        due.request.is_under_way(&mut plan, false);
        plan.due?;
        if held.end_cause().is_some() {
            // Another part of the process has ended the lock: it is not renewed again, whatever the
            // store's answer is.
            if let Some(place) = plan.due.take() {
                schedule.queue.remove(&(place, held.id));
            }
            schedule.ends(held);
            return None;
        }
        match verdict {
            Some(Ownership::Owned) => {
                // Another server may have taken over after this request was put together, which did
                // not restore the expiry then.
                let restores = plan.restores;
                plan.check_retry = None;
                plan.check_at = plan.check_at.filter(|at| restores || *at > sent);
                if due.request == Request::Renew {
                    plan.renewal_retry = None;
                    plan.renew_at = held.renewed(sent);
                    is_renewed = Some(true);
                } else {
                    plan.hurry(self.watchdog.clock.now());
                }
            }
            Some(lost @ (Ownership::Gone | Ownership::Foreign)) => {
                if let Some(place) = plan.due.take() {
                    schedule.queue.remove(&(place, held.id));
                }
                drop(plan);
                schedule.ends(held);
                schedule.suspect(&held.servers());
                self.watchdog.rearm(&mut schedule);
                drop(schedule);
                let reason = if lost == Ownership::Gone {
                    LostReason::Deleted
                } else {
                    LostReason::Taken
                };
                contained(|| held.end_with(EndCause::Lost(reason)));
                return None;
            }
            None => {
                let now = self.watchdog.clock.now();
                // The answer may have been that of the server before.
                plan.restores |= due.request != Request::Check;
                if due.request == Request::Renew {
                    is_renewed = Some(false);
                    held.manager.stats.tally(Event::RenewalFailed);
                    let longest = (held.lease / 10).min(held.deadline().since(now) / 4);
                    plan.renewal_retry = Some(Retry::after(plan.renewal_retry, now, longest));
                }
                // A check that became due after the send is not delayed.
                if plan.check_at.is_some_and(|at| at <= sent) {
                    plan.check_retry = Some(Retry::after(plan.check_retry, now, LONGEST_CHECK_RETRY));
                }
            }
        }
        Watchdog::reschedule(&mut schedule, &mut plan, held);
        self.watchdog.rearm(&mut schedule);
        is_renewed
    }
}

/// Wakes the calls that wait for the answer to a check or renewal.
struct Answered<'a>(&'a Tenure);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        contained(|| self.0.answered.notify_waiters());
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // The locks are still listed if the store panicked or the runtime ended. That counts as no
        // answer.
        let sent = self.watchdog.clock.now();
        let due = std::mem::take(&mut self.due);
        self.settle_all(due, sent, |_| None);
        let mut schedule = self.watchdog.schedule();
        let Some(queue) = schedule.due.get_mut(&self.server) else {
            return;
        };
        let of_kind = queue.batches(self.renews);
        of_kind.running = of_kind.running.saturating_sub(1);
        let Some(host) = Some(&self.host).filter(|host| host.has_runtime()) else {
            // The runtime has ended. A scheduler in another runtime may take over.
            for batches in queue.both() {
                for held in std::mem::take(&mut batches.waiting).into_values() {
                    held.plan().waiting = None;
                }
            }
            return;
        };
        let batches = self.watchdog.load(host, &mut schedule, &self.server);
        drop(schedule);
        for batch in batches {
            drop(host.spawn_here(batch.run()));
        }
    }
}

/// Combines the verdicts on two keys of one lock: a key that is lost counts more than one without a
/// verdict.
fn together(one: Option<Ownership>, other: Option<Ownership>) -> Option<Ownership> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.or(other)),
        (Some(known), None) | (None, Some(known)) => Some(known).filter(|known| *known != Ownership::Owned),
        (None, None) => None,
    }
}

/// Returns the time to wait for the answer to a renewal while `left` remains of the leases.
fn budget(left: Duration, usual_round_trip: Duration) -> Duration {
    let shortest = SHORTEST_ATTEMPT.max(usual_round_trip.saturating_mul(2));
    (left / 2).max(left.min(shortest)).min(LONGEST_ATTEMPT)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::LockManager;
    use crate::store::{
        AcquireRequest, Attempt, Fence, HolderValue, LockStore, LossReceiver, ReleaseRequest, RenewRequest, StoreFuture,
    };

    /// A store that answers no check.
    #[derive(Debug, Default)]
    struct AnswersNoCheck {
        asked: Notify,
        renewed: Notify,
    }

    impl LockStore for AnswersNoCheck {
        fn acquire<'a>(&'a self, _: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
            Box::pin(ready(Ok(Attempt::Granted { fence: None })))
        }

        fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
            if requests.iter().all(|request| request.extend.is_none()) {
                self.asked.notify_one();
                return Box::pin(pending());
            }
            self.renewed.notify_one();
            Box::pin(ready(Ok(vec![Ownership::Owned; requests.len()])))
        }

        fn report_losses(&self, _: LossReceiver) -> bool {
            true
        }

        fn release<'a>(&'a self, _: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
            Box::pin(ready(Ok(Ownership::Owned)))
        }

        fn fence<'a>(&'a self, _: &'a str, _: &'a HolderValue) -> StoreFuture<'a, Fence> {
            Box::pin(pending())
        }
    }

    /// The checks are given up after two seconds, later than the lock is lost.
    #[tokio::test]
    async fn a_renewal_does_not_wait_for_checks_of_other_locks() -> Result<(), Box<dyn std::error::Error>> {
        let store = Arc::new(AnswersNoCheck::default());
        let locks = LockManager::builder("slow").with_store(store.clone()).build()?;
        let mut others = Vec::new();
        for number in 0..AT_ONCE {
            others.push(locks.lock(format!("other:{number}")).acquire().await?);
            store.asked.notified().await;
        }
        let lease = Duration::from_millis(1_500);
        let sooner = locks.lock("sooner").lease(lease * 9 / 10).renew(false);
        others.push(sooner.acquire().await?);
        let held = locks.lock("k").lease(lease).acquire().await?;
        tokio::time::timeout(2 * lease, store.renewed.notified()).await?;
        assert!(held.handle().is_held());
        Ok(())
    }

    #[test]
    fn an_attempt_leaves_half_of_the_time_for_another_unless_an_answer_takes_longer() {
        let ms = Duration::from_millis;
        for (left, usual, expected) in [
            (10_000, 1, 2_000),
            (1_000, 1, 500),
            (300, 1, 200),
            (190, 1, 190),
            (1_300, 300, 650),
            (1_000, 300, 600),
            (500, 300, 500),
            (10_000, 5_000, 2_000),
        ] {
            assert_eq!(
                budget(ms(left), ms(usual)),
                ms(expected),
                "{left} ms, and {usual} ms for an answer"
            );
        }
        assert_eq!(budget(Duration::ZERO, Duration::MAX), Duration::ZERO);
    }
}
