//! One scheduler for all held locks: it renews them in time, many per round trip, and ends those that are lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use once_cell::sync::Lazy;
use tokio::sync::Notify;

use crate::clock::{BootClock, Clock, Moment, TokioClock};
use crate::engine::{Engine, Timer};
use crate::error::LostReason;
use crate::held::{Fate, Held};
use crate::manager::Shared;
use crate::store::{LockStore, LossHint, Mode, StoreError, Verdict};

/// How many locks one round trip renews at most: a script over more would hold up the server's other clients.
const BATCH: usize = 100;
/// How many round trips to one store are under way at once. The rest waits here, the most urgent first: sent all at
/// once, the last ones would time out behind the others, be sent again, and bring the server to its knees.
const AT_ONCE: usize = 4;
/// How long after the grant a lock is first checked, where the store reports losses: short sections are not
/// worth the command.
const CHECK_AFTER: Duration = Duration::from_millis(20);
/// How often a lock with many holders is checked at most because its key has changed.
const CHECK_SHARED_EVERY: Duration = Duration::from_millis(250);
/// The scheduler looks at its clock at least this often while locks are held: its timer stands still while the
/// host sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The pause before a failed renewal is tried again; it doubles up to a tenth of the lease.
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// A renewal without an answer counts as failed when half of the time left is over, and after this at the latest.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(2);
/// Where less than this is left, one attempt may take all of it: an answer that is late is better than a second
/// question.
const NO_SECOND_ATTEMPT: Duration = Duration::from_millis(200);

/// The watchdog's notes on one lock. Changed only while the schedule is locked, or by the one batch that has
/// the lock in flight.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The lock's place in the schedule.
    due: Option<Moment>,
    /// When to renew. `None`: never.
    renew_at: Option<Moment>,
    /// When to check without renewing. `None`: no need.
    check_at: Option<Moment>,
    /// When it was last put on the way to be checked or renewed.
    checked_at: Option<Moment>,
    /// Whether this lock is in its store's lane, or in a batch under way.
    in_flight: bool,
    /// The lock's place in its store's lane.
    waiting: Option<Moment>,
    /// The pause before the next attempt, while attempts fail.
    retry: Option<Duration>,
    /// Whether the lock can be found by its key, for hints.
    indexed: bool,
    /// Whether the store has the lock under a shorter lease than its own, which the first renewal puts right.
    claimed: bool,
}

impl Plan {
    pub(crate) fn new(renew_at: Option<Moment>, claimed: bool) -> Self {
        Self {
            renew_at,
            claimed,
            ..Self::default()
        }
    }

    /// When to renew next, and whether that is to put the lease right.
    pub(crate) fn renewal(&self) -> (Option<Moment>, bool) {
        (self.renew_at, self.claimed)
    }

    /// Whether one more renewal would be too many.
    fn is_hung(&self, held: &Held) -> bool {
        !self.claimed && held.renewals() >= held.terms.max_renewals
    }

    /// Whether the lock was to be renewed by now and could not be.
    pub(crate) fn is_failing(&self, now: Moment) -> bool {
        let overdue = self.renew_at.is_some_and(|at| at <= now);
        self.renew_at.is_some() && (self.retry.is_some() || (self.in_flight && overdue))
    }

    /// The next moment at which there is something to do.
    fn next(&self, deadline: Moment) -> Moment {
        if self.in_flight {
            return deadline;
        }
        let renew = self.renew_at.unwrap_or(Moment::NEVER);
        let check = self.check_at.unwrap_or(Moment::NEVER);
        renew.min(check).min(deadline)
    }
}

#[derive(Debug, Default)]
struct Schedule {
    /// All held locks by the moment of their next event; the id keeps equal moments apart.
    queue: BTreeMap<(Moment, u64), Arc<Held>>,
    /// Locks of stores that report losses, by store and key.
    index: HashMap<(usize, Arc<str>), Vec<Arc<Held>>>,
    /// What is due, by store.
    lanes: HashMap<usize, Lane>,
    /// When the scheduler will wake by itself. `None`: not before it is told.
    armed: Option<Moment>,
    /// Whether a scheduler is running.
    running: bool,
}

/// The locks of one store that are due.
#[derive(Debug, Default)]
struct Lane {
    /// By deadline.
    waiting: BTreeMap<(Moment, u64), Arc<Held>>,
    /// How many batches are under way.
    running: usize,
}

/// A scheduler of locks that live by one clock.
#[derive(Debug)]
pub(crate) struct Watchdog {
    clock: Arc<dyn Clock>,
    timer: Timer,
    /// Whether the scheduler stays when there is nothing left to do.
    lasting: bool,
    schedule: Mutex<Schedule>,
    wake: Notify,
}

/// A lock that is due, and whether it is to be renewed or only checked.
#[derive(Debug)]
struct Due {
    held: Arc<Held>,
    extend: bool,
}

impl Watchdog {
    pub(crate) fn new(clock: Arc<dyn Clock>, timer: Timer) -> Arc<Self> {
        Self::make(clock, timer, false)
    }

    fn make(clock: Arc<dyn Clock>, timer: Timer, lasting: bool) -> Arc<Self> {
        Arc::new(Self {
            clock,
            timer,
            lasting,
            schedule: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// Whose timer a wait for one of its locks runs on.
    pub(crate) fn timer(&self) -> Timer {
        self.timer
    }

    /// The process's watchdog for locks in real stores.
    pub(crate) fn global() -> Arc<Self> {
        static GLOBAL: Lazy<Arc<Watchdog>> = Lazy::new(|| Watchdog::make(Arc::new(BootClock), Timer::Engine, true));
        Arc::clone(&GLOBAL)
    }

    /// The process's watchdog for locks in memory stores.
    pub(crate) fn global_tokio() -> Arc<Self> {
        static GLOBAL: Lazy<Arc<Watchdog>> = Lazy::new(|| Watchdog::make(Arc::new(TokioClock), Timer::Engine, true));
        Arc::clone(&GLOBAL)
    }

    /// Takes charge of a lock that was just granted.
    pub(crate) fn watch(self: &Arc<Self>, held: &Arc<Held>) {
        let start = {
            let mut schedule = self.schedule();
            let mut plan = held.plan();
            plan.check_at = held.manager.reports_losses.then(|| held.since.after(CHECK_AFTER));
            let due = plan.next(held.deadline());
            plan.due = Some(due);
            drop(plan);
            schedule.queue.insert((due, held.id), Arc::clone(held));
            if schedule.armed.is_none_or(|armed| due < armed) {
                schedule.armed = Some(due);
                self.wake.notify_one();
            }
            !std::mem::replace(&mut schedule.running, true)
        };
        if start {
            self.start();
        }
    }

    /// Lets go of a lock whose guard has ended. Returns at once; a renewal under way no longer has any effect
    /// on the guard.
    pub(crate) fn forget(&self, held: &Held) {
        let mut schedule = self.schedule();
        let mut plan = held.plan();
        if let Some(due) = plan.due.take() {
            schedule.queue.remove(&(due, held.id));
        }
        if let Some(place) = plan.waiting.take()
            && let Some(lane) = schedule.lanes.get_mut(&store_id(&*held.manager.store))
        {
            lane.waiting.remove(&(place, held.id));
        }
        if std::mem::take(&mut plan.indexed) {
            for key in held.keys().iter() {
                let key = (store_id(&*held.manager.store), Arc::clone(key));
                if let Some(all) = schedule.index.get_mut(&key) {
                    all.retain(|other| other.id != held.id);
                    if all.is_empty() {
                        schedule.index.remove(&key);
                    }
                }
            }
        }
    }

    /// Whether it watches no lock.
    pub(crate) fn is_idle(&self) -> bool {
        self.schedule().queue.is_empty()
    }

    /// Acts on a store's hint: the locks it may be about are checked at once.
    pub(crate) fn hint(&self, store: &dyn LockStore, hint: &LossHint) {
        let store = store_id(store);
        let now = self.clock.now();
        let mut schedule = self.schedule();
        let suspects: Vec<Arc<Held>> = match hint {
            LossHint::Key(key) => schedule
                .index
                .get(&(store, Arc::from(&**key)))
                .cloned()
                .unwrap_or_default(),
            LossHint::All => schedule
                .queue
                .values()
                .filter(|held| store_id(&*held.manager.store) == store)
                .cloned()
                .collect(),
        };
        for held in suspects {
            let mut plan = held.plan();
            let at = match (hint, plan.checked_at) {
                // The other holders' coming and going changes the key all the time.
                (LossHint::Key(_), Some(checked)) if held.mode != Mode::Exclusive => {
                    now.max(checked.after(CHECK_SHARED_EVERY))
                }
                _ => now,
            };
            // The answer to what is under way may be from before the hint.
            let before = plan.check_at.filter(|_| !plan.in_flight);
            plan.check_at = Some(before.map_or(at, |before| before.min(at)));
            Self::reschedule(&mut schedule, &mut plan, &held);
        }
        self.rearm(&mut schedule);
    }

    /// Ends every lock of one manager, for its shutdown: none is renewed any more. Returns the latest deadline
    /// of them.
    pub(crate) fn end_all(&self, manager: &Shared, fate: Fate) -> Option<Moment> {
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
        drop(schedule);
        for held in &ended {
            held.end_with(fate);
        }
        ended.iter().map(|held| held.deadline()).max()
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a lock to the place its plan asks for. No effect on a lock that was let go.
    fn reschedule(schedule: &mut Schedule, plan: &mut Plan, held: &Arc<Held>) {
        let Some(due) = plan.due else { return };
        let next = plan.next(held.deadline());
        if next != due {
            schedule.queue.remove(&(due, held.id));
            schedule.queue.insert((next, held.id), Arc::clone(held));
            plan.due = Some(next);
        }
    }

    /// Wakes the scheduler if there is something to do before it would wake by itself.
    fn rearm(&self, schedule: &mut Schedule) {
        if let Some((&(due, _), _)) = schedule.queue.first_key_value()
            && schedule.armed.is_none_or(|armed| due < armed)
        {
            schedule.armed = Some(due);
            self.wake.notify_one();
        }
    }

    fn start(self: &Arc<Self>) {
        let supervisor = Supervisor {
            watchdog: Arc::clone(self),
            finished: false,
        };
        match (self.timer, Engine::get()) {
            (Timer::Engine, Ok(engine)) => drop(engine.handle().spawn(supervisor.run())),
            (Timer::Caller, _) if tokio::runtime::Handle::try_current().is_ok() => drop(tokio::spawn(supervisor.run())),
            // No thread and no runtime: the guards' own look at the clock is left.
            _ => drop(supervisor),
        }
    }

    async fn run(self: Arc<Self>) {
        loop {
            let Some(next) = self.take_due() else {
                if !self.lasting {
                    // A task in the user's runtime, or for one manager's own clock, must not outlive the locks
                    // it serves.
                    return;
                }
                self.wake.notified().await;
                continue;
            };
            let pause = next.since(self.clock.now()).min(LONGEST_SLEEP);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Ends the locks whose deadline has passed and sends those to renew or check. Returns the moment of the next
    /// event.
    fn take_due(self: &Arc<Self>) -> Option<Moment> {
        let now = self.clock.now();
        let mut ended = Vec::new();
        let mut schedule = self.schedule();
        while let Some(entry) = schedule.queue.first_entry()
            && entry.key().0 <= now
        {
            let held = entry.remove();
            let mut plan = held.plan();
            plan.due = None;
            if now >= held.deadline() {
                drop(plan);
                ended.push((held, None));
                continue;
            }
            let renew = !plan.in_flight && plan.renew_at.is_some_and(|at| at <= now);
            let check = !plan.in_flight && plan.check_at.is_some_and(|at| at <= now);
            if renew && plan.is_hung(&held) {
                drop(plan);
                ended.push((held, Some(Fate::Hung)));
                continue;
            }
            if renew || check {
                plan.in_flight = true;
                plan.checked_at = Some(now);
                if held.manager.reports_losses && !plan.indexed {
                    plan.indexed = true;
                    for key in held.keys().iter() {
                        let key = (store_id(&*held.manager.store), Arc::clone(key));
                        schedule.index.entry(key).or_default().push(Arc::clone(&held));
                    }
                }
                let lane = schedule.lanes.entry(store_id(&*held.manager.store)).or_default();
                plan.waiting = Some(held.deadline());
                lane.waiting.insert((held.deadline(), held.id), Arc::clone(&held));
            }
            let next = plan.next(held.deadline());
            plan.due = Some(next);
            drop(plan);
            schedule.queue.insert((next, held.id), held);
        }
        let next = schedule.queue.first_key_value().map(|(&(due, _), _)| due);
        schedule.armed = next;
        if next.is_none() && !self.lasting {
            schedule.running = false;
        }
        let stores: Vec<_> = schedule.lanes.keys().copied().collect();
        let batches: Vec<_> = stores
            .into_iter()
            .flat_map(|store| self.load(&mut schedule, store))
            .collect();
        drop(schedule);
        // Whoever is woken may let go of a lock at once, which takes the schedule.
        for (held, fate) in ended {
            match fate {
                Some(fate) => held.end_with(fate),
                // The look tells why.
                None => drop(held.look()),
            }
        }
        for batch in batches {
            drop(tokio::spawn(batch.run()));
        }
        next
    }

    /// Takes as many batches out of a store's lane as may be under way. To be spawned after the schedule is unlocked.
    fn load(self: &Arc<Self>, schedule: &mut Schedule, store: usize) -> Vec<Batch> {
        let mut batches = Vec::new();
        let now = self.clock.now();
        let Some(lane) = schedule.lanes.get_mut(&store) else {
            return batches;
        };
        while lane.running < AT_ONCE {
            let mut due = Vec::new();
            let mut keys = 0;
            while keys < BATCH
                && let Some((_, held)) = lane.waiting.pop_first()
            {
                let mut plan = held.plan();
                plan.waiting = None;
                let watched = plan.due.is_some();
                // A check that had to wait may have become a renewal.
                let extend = plan.renew_at.is_some_and(|at| at <= now) && !plan.is_hung(&held);
                drop(plan);
                if watched {
                    keys += held.keys().iter().count();
                    due.push(Due { held, extend });
                }
            }
            if due.is_empty() {
                break;
            }
            lane.running += 1;
            batches.push(Batch {
                watchdog: Arc::clone(self),
                store,
                due,
            });
        }
        if lane.running == 0 {
            schedule.lanes.remove(&store);
        }
        batches
    }
}

/// Restarts the scheduler if it panics, and notes its end if its runtime ends.
struct Supervisor {
    watchdog: Arc<Watchdog>,
    /// Whether the scheduler came to its own end, and has said so itself.
    finished: bool,
}

impl Supervisor {
    async fn run(mut self) {
        while let Err(error) = tokio::spawn(Arc::clone(&self.watchdog).run()).await {
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
        // After its own end another scheduler may have started since.
        if !self.finished {
            self.watchdog.schedule().running = false;
        }
    }
}

/// Some locks of one store that are renewed or checked together, on a task of their own: a slow store holds up nobody
/// else's.
struct Batch {
    watchdog: Arc<Watchdog>,
    store: usize,
    due: Vec<Due>,
}

impl Batch {
    async fn run(mut self) {
        let Some(first) = self.due.first() else { return };
        let store = Arc::clone(&first.held.manager.store);
        let requests: Vec<_> = self
            .due
            .iter()
            .flat_map(|due| due.held.renew_requests(due.extend))
            .collect();
        // The new deadlines count from here: the store cannot have set the expiry earlier.
        let sent = self.watchdog.clock.now();
        let left = self.due.iter().map(|due| due.held.deadline().since(sent)).min();
        let answer = tokio::time::timeout(budget(left.unwrap_or_default()), store.renew(&requests)).await;
        let due = std::mem::take(&mut self.due);
        match answer {
            Ok(Ok(verdicts)) if verdicts.len() == requests.len() => {
                let mut verdicts = verdicts.into_iter();
                for due in due {
                    let keys = due.held.keys().iter().count();
                    let verdict = verdicts.by_ref().take(keys).fold(Verdict::Owned, Verdict::or);
                    self.settle(&due, sent, Some(verdict));
                }
            }
            failure => {
                let error = match failure {
                    Ok(Ok(_)) => StoreError::unknown("the store gave a wrong number of verdicts"),
                    Ok(Err(error)) => error,
                    Err(elapsed) => StoreError::unknown(elapsed),
                };
                tracing::debug!(%error, locks = due.len(), "renewal failed, trying again until the deadline");
                for due in due {
                    self.settle(&due, sent, None);
                }
            }
        }
    }

    /// Enters one lock's verdict. `None`: no answer, which leaves the deadline as it is.
    fn settle(&self, due: &Due, sent: Moment, verdict: Option<Verdict>) {
        let held = &due.held;
        let mut schedule = self.watchdog.schedule();
        let mut plan = held.plan();
        plan.in_flight = false;
        if plan.due.is_none() {
            return;
        }
        if held.fate().is_some() {
            // Somebody else has found out: whatever the store says, it is not renewed again.
            if let Some(place) = plan.due.take() {
                schedule.queue.remove(&(place, held.id));
            }
            return;
        }
        match verdict {
            Some(Verdict::Owned) => {
                plan.retry = None;
                plan.check_at = plan.check_at.filter(|at| *at > sent);
                if due.extend {
                    held.extend(held.manager.margins.deadline(sent, held.terms.lease));
                    plan.renew_at = held.terms.renew.then(|| held.terms.renew_at(sent));
                    if !std::mem::take(&mut plan.claimed) {
                        held.count_renewal();
                        held.manager.stats.count_renewal();
                    }
                }
            }
            Some(lost @ (Verdict::Gone | Verdict::Foreign)) => {
                if let Some(place) = plan.due.take() {
                    schedule.queue.remove(&(place, held.id));
                }
                drop(plan);
                drop(schedule);
                let reason = if lost == Verdict::Gone {
                    LostReason::Deleted
                } else {
                    LostReason::Taken
                };
                held.end_with(Fate::Lost(reason));
                return;
            }
            None => {
                let pause = plan.retry.map_or(FIRST_RETRY, |pause| pause.saturating_mul(2));
                let pause = pause.min(held.terms.lease / 10).max(Duration::from_millis(1));
                plan.retry = Some(pause);
                let again = Some(self.watchdog.clock.now().after(pause));
                if due.extend {
                    plan.renew_at = again;
                } else {
                    plan.check_at = again;
                }
            }
        }
        Watchdog::reschedule(&mut schedule, &mut plan, held);
        self.watchdog.rearm(&mut schedule);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // A store that panicked, or a runtime that ended, counts as no answer.
        let sent = self.watchdog.clock.now();
        for due in std::mem::take(&mut self.due) {
            self.settle(&due, sent, None);
        }
        let mut schedule = self.watchdog.schedule();
        let Some(lane) = schedule.lanes.get_mut(&self.store) else {
            return;
        };
        lane.running = lane.running.saturating_sub(1);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            // The runtime has ended; another one's scheduler may take over.
            for held in std::mem::take(&mut lane.waiting).into_values() {
                let mut plan = held.plan();
                (plan.waiting, plan.in_flight) = (None, false);
            }
            return;
        };
        let batches = self.watchdog.load(&mut schedule, self.store);
        drop(schedule);
        for batch in batches {
            drop(runtime.spawn(batch.run()));
        }
    }
}

/// How long to wait for the answer to a renewal while so much of the leases is left.
fn budget(left: Duration) -> Duration {
    (left / 2).max(left.min(NO_SECOND_ATTEMPT)).min(LONGEST_ATTEMPT)
}

/// Tells stores apart by where they live.
fn store_id(store: &dyn LockStore) -> usize {
    std::ptr::from_ref(store).cast::<()>().addr()
}
