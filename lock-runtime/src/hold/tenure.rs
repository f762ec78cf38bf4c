//! One grant of a lock by the store: the state that stays the same while the lock passes between
//! calls of this process. A finding of the watchdog concerns the call that has the lock when the
//! finding comes. Between two calls it stays with the tenure, and the next call asks the store
//! instead. A call that receives the lock while a check is late waits for the answer before its
//! body, so that few bodies begin under a lost lock however late the watchdog is. Without an answer
//! within 250 ms, or within the rest of its `wait`, the lock goes back to the store.

use std::fmt::{self, Debug};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::EndCause;
use crate::error::LostReason;
use crate::hold::Hold;
use crate::hold::backend::Backend;
use crate::hold::options::LockOptions;
use crate::hold::plan::Plan;
use crate::host::{Moment, Mutex, Timer};
use crate::key::Keys;
use crate::stats::{Event, metrics};
use crate::store::holder::Holder;
use crate::store::{HolderValue, Lane, RenewRequest};

/// Renews and checks locks, ends those that are lost, and releases those whose calls do not wait.
pub(crate) trait Keeper: Debug + Send + Sync {
    /// Returns the timer for waits on its locks.
    fn timer(&self) -> Timer;

    /// Starts watching a lock that was just granted.
    fn watch(&self, lock: &Arc<Tenure>);

    /// Schedules the next check of a lock that passes to another call.
    fn look_early(&self, lock: &Arc<Tenure>);

    /// Stops watching a lock that has ended or is to be released. Returns at once; a renewal under
    /// way no longer has any effect on the guard.
    fn forget(&self, lock: &Tenure);

    /// Reschedules a lock whose time limit has become earlier.
    fn end_in_time(&self, lock: &Arc<Tenure>);

    /// Releases a lock in the background. Does not block, and works on any thread, inside and
    /// outside of a runtime.
    fn release_later(&self, lock: &Arc<Hold>);

    /// Sends a release without waiting for its outcome. Returns `false` if it was not sent and has
    /// to be waited for.
    fn release_in_order(self: Arc<Self>, lock: &Arc<Hold>, key: &Arc<str>) -> bool;
}

/// The time, on top of two usual round trips, for which a check may be overdue before a call that
/// receives the lock waits for the answer. It limits how many calls begin under a lost lock,
/// however late the watchdog is.
const CHECK_IS_LATE: Duration = Duration::from_millis(2);
/// The time for which a check may be overdue before the lock is no longer passed on.
const CHECK_IS_IN_VAIN: Duration = Duration::from_millis(250);

/// One grant of the store. The watchdog renews and checks it, and reports to the call that holds
/// the lock at that time.
pub(crate) struct Tenure {
    pub(super) id: u64,
    /// The whole key, including the prefix.
    pub(crate) key: Arc<str>,
    /// The keys held together with it.
    others: Box<[Arc<str>]>,
    /// The servers of all these keys. Changed only while the schedule is locked.
    servers: Mutex<Servers>,
    pub(crate) value: HolderValue,
    /// The lease, the renewal setting and the key's expiry, the same for all calls that hold the
    /// lock in turn.
    pub(super) lease: Duration,
    pub(super) renew: bool,
    time_to_live: Duration,
    pub(crate) manager: Arc<Backend>,
    pub(crate) watchdog: Arc<dyn Keeper>,
    /// The time at which the first call got the lock.
    pub(super) granted: Moment,
    pub(super) plan: Mutex<Plan>,
    deadline: AtomicU64,
    /// The number of renewals so far.
    renewals: AtomicU32,
    /// The number of renewals that the current call may reach.
    renewals_allowed: AtomicU32,
    /// The time at which the current call counts as hung, regardless of its renewals.
    hangs_at: AtomicU64,
    /// The number of times the lock has passed to another call.
    passes: AtomicU32,
    /// The number of replicas that have the lock, as far as calls have asked.
    replicas: AtomicU32,
    /// `true` if these are replicas of the server that the store uses at present.
    replicas_are_present: AtomicBool,
    /// The earliest time at which a handover asks for another check.
    pub(super) looks_at: AtomicU64,
    /// Notified of each answer to a check or renewal.
    pub(super) answered: Notify,
    /// Always the innermost lock: while it is held, nothing else is locked and no task is woken.
    state: Mutex<State>,
}

/// The current call, and the way in which the lock has ended.
#[derive(Default)]
struct State {
    /// The call that holds the lock; empty while the lock is between two calls.
    call: Weak<Hold>,
    end_cause: Option<EndCause>,
    /// `true` once the lock is being released: later ends are ignored, since the release finds out
    /// if the lock was still held.
    over: bool,
    /// `true` once the end was counted and logged.
    is_reported: bool,
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Tenure {
    /// Creates the state of a lock that a call got at `granted`, by a command sent at `sent`.
    pub(crate) fn new(
        keys: Keys<'_>,
        value: HolderValue,
        options: &LockOptions,
        sent: Moment,
        granted: Moment,
        manager: Arc<Backend>,
        watchdog: Arc<dyn Keeper>,
    ) -> Self {
        let deadline = manager.deadline(sent, options.lease);
        let renew_at = options.renew.then(|| manager.margins.renew_at(sent, options.lease));
        Self {
            id: manager.host().number(),
            key: Arc::clone(keys.first),
            others: keys.others.into(),
            servers: Mutex::new(Servers::holding(keys, &manager)),
            value,
            lease: options.lease,
            renew: options.renew,
            time_to_live: options.time_to_live(),
            manager,
            watchdog,
            granted,
            plan: Mutex::new(Plan::new(renew_at)),
            deadline: AtomicU64::new(deadline.as_nanos()),
            renewals: AtomicU32::new(0),
            renewals_allowed: AtomicU32::new(options.limit.renewals()),
            hangs_at: AtomicU64::new(options.hangs_at(granted).as_nanos()),
            passes: AtomicU32::new(0),
            replicas: AtomicU32::new(0),
            replicas_are_present: AtomicBool::new(false),
            looks_at: AtomicU64::new(0),
            answered: Notify::new(),
            state: Mutex::default(),
        }
    }

    /// Makes `held` the call that has the lock. If the lock has already ended, it ends for this
    /// call at once.
    pub(super) fn belongs_to(&self, held: &Arc<Hold>) {
        let mut state = self.state.lock();
        state.call = Arc::downgrade(held);
        let cause = state.end_cause;
        drop(state);
        if let Some(cause) = cause {
            held.end(cause);
        }
    }

    /// Detaches the lock from a call that has ended, so that another one can continue with it.
    pub(crate) fn part(self: &Arc<Self>) {
        self.state.lock().call = Weak::new();
        // Between two calls the lock may be renewed once, whatever the limit of the first call was.
        self.renewals_allowed
            .store(self.renewals().saturating_add(1), Ordering::Relaxed);
        self.hangs_at.store(Moment::NEVER.as_nanos(), Ordering::Release);
        self.watchdog.look_early(self);
    }

    /// Stops renewals and loss reports. Call it before the release.
    pub(crate) fn forget(&self) {
        // In a forked child, all of this may have been locked by a thread that does not exist here.
        if !self.manager.host().is_forked() {
            self.watchdog.forget(self);
            self.state.lock().over = true;
        }
    }

    /// Counts one more call, which holds the lock from `since` on with these options. Returns the
    /// number of renewals before that.
    pub(super) fn pass(self: &Arc<Self>, options: &LockOptions, since: Moment) -> u32 {
        self.passes.fetch_add(1, Ordering::Relaxed);
        let renewals = self.renewals();
        self.renewals_allowed
            .store(renewals.saturating_add(options.limit.renewals()), Ordering::Relaxed);
        if options.limit.time().is_some() {
            self.hangs_at
                .store(options.hangs_at(since).as_nanos(), Ordering::Release);
            self.watchdog.end_in_time(self);
        }
        renewals
    }

    pub(super) fn passes(&self) -> u32 {
        self.passes.load(Ordering::Relaxed)
    }

    pub(super) fn renewals(&self) -> u32 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Returns `true` if the current call has used up its renewals.
    pub(super) fn is_renewed_enough(&self) -> bool {
        self.renewals() >= self.renewals_allowed.load(Ordering::Relaxed)
    }

    /// Waits until no check is late or the lock has ended, for 250 ms or `most`, whichever is
    /// shorter. Returns `false` if `most` has passed. `most` is called only if a check is late.
    /// Cancel safe.
    pub(crate) async fn check_answered(&self, timer: Timer, most: impl FnOnce() -> Duration) -> bool {
        let late = CHECK_IS_LATE + 2 * self.manager.access.usual_round_trip();
        let is_late = || self.plan().check_is_late_by(self.now()) > late;
        if !is_late() {
            return true;
        }
        let answered = async {
            loop {
                let mut answered = pin!(self.answered.notified());
                answered.as_mut().enable();
                if self.end_cause().is_some() || !is_late() {
                    return;
                }
                answered.await;
            }
        };
        let most = most();
        let limit = CHECK_IS_IN_VAIN.min(most);
        let answered = self.manager.host().timeout(timer, limit, answered).await;
        answered.is_some() || limit < most
    }

    /// Returns `true` if a call that receives the lock at `now` can use it.
    pub(crate) fn is_of_use(&self, now: Moment) -> bool {
        // A lock that the watchdog has just taken out of its schedule is about to end, or not watched any more.
        let is_watched = self.plan().due.is_some();
        is_watched && now < self.deadline() && self.end_cause().is_none() && !self.is_checked_in_vain(now)
    }

    pub(super) fn is_checked_in_vain(&self, now: Moment) -> bool {
        self.plan().check_is_late_by(now) > CHECK_IS_IN_VAIN
    }

    /// Returns the way in which the lock has ended, if it has.
    pub(super) fn end_cause(&self) -> Option<EndCause> {
        self.state.lock().end_cause
    }

    /// Returns `true` once the lock is being released.
    pub(super) fn is_being_released(&self) -> bool {
        self.state.lock().over
    }

    /// Ends the lock for the call that holds it, or for the one that gets it next. The first cause
    /// is kept.
    pub(crate) fn end_with(&self, cause: EndCause) {
        let mut state = self.state.lock();
        if state.over {
            return;
        }
        let first = state.end_cause.is_none();
        let cause = *state.end_cause.get_or_insert(cause);
        let call = state.call.upgrade();
        drop(state);
        let is_early = first && call.as_ref().is_none_or(|call| !call.has_ended());
        let is_new = is_early && self.count_end(cause);
        if let Some(call) = &call {
            call.end(cause);
        }
        // A subscriber may take its time, and the body must not run on meanwhile.
        if is_new {
            self.log_end(call.as_deref(), cause);
        }
    }

    /// Counts and logs an end of the lock before its guard, unless that was done before. `call` is the
    /// one that holds the lock, if it is not between two calls.
    pub(super) fn report_end(&self, call: Option<&Hold>, cause: EndCause) {
        if self.count_end(cause) {
            self.log_end(call, cause);
        }
    }

    /// Counts an end of the lock before its guard. Returns `false` if one was counted before.
    fn count_end(&self, cause: EndCause) -> bool {
        let is_new = !std::mem::replace(&mut self.state.lock().is_reported, true);
        if is_new {
            self.manager.stats.tally(Event::Ended(cause));
        }
        is_new
    }

    /// Logs an end of the lock before its guard, and gives it to the recorder. Must not be called while a lock is
    /// held, since a subscriber may use the manager.
    pub(super) fn log_end(&self, call: Option<&Hold>, cause: EndCause) {
        let site = call.map(|call| call.options.site).unwrap_or_default();
        metrics::count(Event::Ended(cause), site);
        let span = call.and_then(|call| call.span.id());
        let key = &*self.name();
        let age = self.now().since(self.granted);
        let holder = call.is_none().then(|| Holder::of(self.value.as_str()));
        let function = match call {
            Some(call) => Some(call.options.site.function),
            None => holder.as_ref().and_then(Holder::function),
        };
        match cause {
            EndCause::Lost(reason) => {
                let name = reason.name();
                tracing::warn!(parent: span, key, reason = name, ?age, function, "a lock was lost before its release: {reason}");
            }
            EndCause::Hung => {
                tracing::warn!(parent: span, key, ?age, function, "a call held its lock up to its limit, and is cancelled");
            }
            EndCause::Closed => {
                tracing::debug!(parent: span, key, ?age, function, "a lock was ended by the shutdown of its manager");
            }
        }
    }

    /// Returns the deadline, or the time at which the call counts as hung if that is earlier.
    pub(super) fn ends_at(&self) -> Moment {
        self.deadline().min(self.hangs_at())
    }

    fn hangs_at(&self) -> Moment {
        Moment::from_nanos(self.hangs_at.load(Ordering::Acquire))
    }

    /// Ends the lock if its deadline or the call's time limit has passed.
    pub(super) fn look_at_the_clock(&self) {
        let now = self.now();
        let hangs_at = self.hangs_at();
        if now >= hangs_at && hangs_at <= self.deadline() {
            self.end_with(EndCause::Hung);
        } else if now >= self.deadline() {
            let unreachable = self.plan().is_failing(now);
            let reason = if unreachable {
                LostReason::Unreachable
            } else {
                LostReason::Expired
            };
            self.end_with(EndCause::Lost(reason));
        }
    }

    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys {
            first: &self.key,
            others: &self.others,
        }
    }

    /// Returns the keys as shown in messages, without the prefix.
    pub(super) fn name(&self) -> Box<str> {
        self.keys().name(&self.manager.prefix)
    }

    pub(crate) fn now(&self) -> Moment {
        self.manager.now()
    }

    /// Returns the time until which the lock is valid.
    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Records a renewal that was sent at `sent`: moves the deadline forward, never back. Returns
    /// the time of the next renewal, if there is one.
    pub(super) fn renewed(&self, sent: Moment) -> Option<Moment> {
        let deadline = self.manager.deadline(sent, self.lease);
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.manager.stats.renewed();
        self.renew.then(|| self.manager.margins.renew_at(sent, self.lease))
    }

    /// Gives the recorder an attempt to renew that took so long, or was not confirmed. Must not be called while a lock
    /// is held.
    pub(super) fn record_renewal(&self, took: Option<Duration>) {
        let call = self.state.lock().call.upgrade();
        let site = call.map(|call| call.options.site).unwrap_or_default();
        match took {
            Some(took) => metrics::renewed(site, took),
            None => metrics::count(Event::RenewalFailed, site),
        }
    }

    /// Returns the number of replicas that have the lock, as far as calls have asked.
    pub(super) fn replicas(&self) -> u32 {
        self.replicas.load(Ordering::Relaxed)
    }

    /// Returns `true` if so many replicas of the present server have the lock, as far as calls have
    /// asked.
    pub(super) fn is_in_replicas(&self, wanted: u32) -> bool {
        wanted == 0 || (self.replicas() >= wanted && self.replicas_are_present.load(Ordering::Relaxed))
    }

    pub(super) fn has_reached(&self, replicas: u32) {
        self.replicas.fetch_max(replicas, Ordering::Relaxed);
        self.replicas_are_present.store(true, Ordering::Relaxed);
    }

    /// Notes that another server has taken over, whose replicas may not have the lock.
    pub(super) fn has_moved(&self) {
        self.replicas_are_present.store(false, Ordering::Relaxed);
    }

    /// Returns the servers of all keys.
    pub(super) fn servers(&self) -> Servers {
        self.servers.lock().clone()
    }

    /// Finds out again on which servers the keys are. Returns `true` if these are others than before.
    pub(super) fn relocate(&self) -> bool {
        let present = Servers::holding(self.keys(), &self.manager);
        let mut servers = self.servers.lock();
        let is_another = *servers != present;
        *servers = present;
        is_another
    }

    pub(super) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock()
    }

    /// Returns the expiry that each renewal sets on the keys.
    pub(super) fn time_to_live(&self) -> Duration {
        self.time_to_live
    }

    /// Returns what is left, at `sent`, of the expiry that the last grant or renewal set on the keys.
    pub(super) fn time_to_live_left(&self, sent: Moment) -> Duration {
        let of_another_lease = self.manager.deadline(sent, self.lease);
        let left = self
            .time_to_live
            .saturating_sub(of_another_lease.since(self.deadline()));
        left.max(Duration::from_millis(1))
    }

    /// Returns the requests that set this expiry on the keys, or only check them.
    pub(super) fn renew_requests(&self, extend: Option<Duration>) -> impl Iterator<Item = RenewRequest> {
        self.keys().iter().map(move |key| RenewRequest {
            key: Arc::clone(key),
            value: self.value.clone(),
            extend,
        })
    }
}

/// The servers that the keys of one lock lie on: a store and its lanes. Most locks have one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Servers {
    /// The store's number, which the host gives: an address could be that of a later store.
    store: u64,
    first: Lane,
    /// The other lanes, each once, in order.
    others: Box<[Lane]>,
}

impl Servers {
    /// Returns those that have these keys of a manager's store.
    fn holding(keys: Keys<'_>, manager: &Backend) -> Self {
        Self::of(manager.number, keys.iter().map(|key| manager.store().lane(key)))
    }

    fn of(store: u64, mut lanes: impl Iterator<Item = Lane>) -> Self {
        let mut first = lanes.next().unwrap_or_default();
        // Takes no memory if there are none.
        let mut others: Vec<_> = lanes.filter(|lane| *lane != first).collect();
        if !others.is_empty() {
            others.push(first);
            others.sort_unstable();
            others.dedup();
            first = others.remove(0);
        }
        Self {
            store,
            first,
            others: others.into(),
        }
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Returns `true` if a key lies in this lane of the store.
    pub(super) fn include(&self, store: u64, lane: Lane) -> bool {
        self.store == store && self.lanes().any(|its| its == lane)
    }

    /// Returns `true` if both include one server.
    pub(super) fn meet(&self, other: &Self) -> bool {
        other.lanes().any(|lane| self.include(other.store, lane))
    }
}
