//! The state of a call that holds a lock, shared by its guard, its handles and everything that can
//! end the lock early. A lock has one `Hold`, and a guard for each call and task that is inside it.
//! The last guard releases, since a nested call that outlives the outer one still needs the lock.

mod backend;
pub(crate) mod call_tree;
pub(crate) mod guard;
mod handover;
mod margins;
mod options;
mod plan;
mod queue_head;
mod tasks;
mod tenure;
pub(crate) mod upkeep;

pub use self::handover::HandoverLimits;
pub use self::options::OnLost;
pub(crate) use self::{
    backend::Backend,
    options::LockOptions,
    queue_head::{Known, LineKey, LocalQueues, QueueHead},
    tenure::{Keeper, Tenure},
};

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use tokio::sync::Notify;

use crate::error::{EndCause, LockError, LostReason};
use crate::hold::tasks::Tasks;
use crate::host::{Moment, Mutex, contained};
use crate::stats::metrics;
use crate::store::holder::Holder;
use crate::store::{FencingToken, LeaveFree, Ownership, Receipt, ReleaseRequest, StoreError};

impl EndCause {
    /// Returns `true` if this end of the lock cancels the body. `on_lost` only decides about a lost
    /// lock: a body that hangs or outlasts a shutdown is always cancelled.
    fn cancels(self, on_lost: OnLost) -> bool {
        on_lost == OnLost::Cancel || !matches!(self, Self::Lost(_))
    }
}

/// One call's share of a lock. The state of the lock itself is in the [`Tenure`].
pub(crate) struct Hold {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) options: LockOptions,
    /// The time at which the call got the lock.
    since: Moment,
    /// The number of renewals before `since`.
    renewed_before: u32,
    /// The lock in whose body this call was made.
    parent: Option<Arc<Hold>>,
    pub(crate) span: tracing::Span,
    /// The place at the front of the line for the key, until the lock has ended.
    place: Mutex<Option<QueueHead>>,
    end_cause: OnceLock<EndCause>,
    /// The first fencing token that the call has taken.
    fence: OnceLock<FencingToken>,
    /// The number of [`shielded`](crate::HeldLock::shielded) sections in progress.
    shields: AtomicU32,
    /// The number of guards: one for the call itself, and one for each nested call and task.
    guards: AtomicU32,
    /// `true` once the guard has ended.
    ended: AtomicBool,
    /// `true` while the lock counts as held in the manager's statistics.
    counts: AtomicBool,
    /// `true` if the guard ended after the deadline of a lock with a `lock_delay`.
    late: AtomicBool,
    /// The conditions on which the release may leave the lock free for a while.
    leave_free: OnceLock<LeaveFree>,
    /// The waker of the task that runs the body of the first call.
    runner: AtomicWaker,
    /// Notifies the callers that await the loss.
    lost: Notify,
    /// The tasks that the body has spawned under its lock, and a flag: `true` once the body has
    /// ended.
    tasks: Mutex<(Option<Arc<Tasks>>, bool)>,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.tenure.key)
            .field("end_cause", &self.end_cause())
            .finish_non_exhaustive()
    }
}

/// A lock that a call has got, from the store or from another call of this process.
pub(crate) struct Grant {
    tenure: Arc<Tenure>,
    /// The time at which the call got the lock.
    pub(crate) since: Moment,
    /// The number of renewals before `since`.
    renewed_before: u32,
    pub(crate) fence: Option<FencingToken>,
    /// The place at the front of the line, if the call stood in one.
    pub(crate) place: Option<QueueHead>,
}

impl Grant {
    /// Creates the first grant of a tenure.
    pub(crate) fn new(tenure: Tenure, fence: Option<FencingToken>) -> Self {
        Self {
            since: tenure.granted,
            tenure: Arc::new(tenure),
            renewed_before: 0,
            fence,
            place: None,
        }
    }

    /// Creates the grant of a lock that another call passed on at `since` to one with `options`.
    pub(crate) fn passed(
        tenure: Arc<Tenure>,
        options: &LockOptions,
        since: Moment,
        fence: Option<FencingToken>,
        place: Option<QueueHead>,
    ) -> Self {
        Self {
            renewed_before: tenure.pass(options, since),
            tenure,
            since,
            fence,
            place,
        }
    }
}

impl Hold {
    /// Makes a call the one that holds the lock.
    pub(crate) fn new(grant: Grant, options: LockOptions, parent: Option<Arc<Self>>, span: tracing::Span) -> Arc<Self> {
        let is_passed = grant.tenure.passes() > 0;
        grant.tenure.manager.stats.holds();
        let held = Arc::new(Self {
            tenure: grant.tenure,
            place: Mutex::default(),
            end_cause: OnceLock::new(),
            fence: grant.fence.map_or_else(OnceLock::new, OnceLock::from),
            shields: AtomicU32::new(0),
            guards: AtomicU32::new(1),
            ended: AtomicBool::new(false),
            counts: AtomicBool::new(true),
            late: AtomicBool::new(false),
            leave_free: OnceLock::new(),
            runner: AtomicWaker::new(),
            lost: Notify::new(),
            tasks: Mutex::default(),
            options,
            since: grant.since,
            renewed_before: grant.renewed_before,
            parent,
            span,
        });
        // Before the lock can end, which gives the place to the next call.
        if let Some(place) = grant.place {
            place.show(&held);
            *held.place.lock() = Some(place);
        }
        held.tenure.belongs_to(&held);
        if !is_passed {
            held.tenure.watchdog.watch(&held.tenure);
        }
        held
    }

    fn guards(&self) -> u32 {
        self.guards.load(Ordering::Acquire)
    }

    /// Counts one more guard. Returns `false` if the last one has already ended.
    fn add_guard(&self) -> bool {
        let more = |guards: u32| guards.checked_add(1).filter(|_| guards > 0);
        self.guards
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// Counts one guard less. Returns `true` if it was the last one.
    fn drop_guard(&self) -> bool {
        self.guards.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Takes the place at the front of the line out of this lock. Dropping the returned place lets
    /// the next call move up.
    fn leave_place(&self) -> Option<QueueHead> {
        self.place.lock().take()
    }

    /// Returns `true` if the lock, whose guard has ended, may be handed to another call of this
    /// process. Passing it on ends this call's part in it.
    fn may_pass(&self) -> bool {
        let now = self.tenure.now();
        self.options.renew
            && self
                .tenure
                .manager
                .handover
                .allows(self.tenure.passes(), now.since(self.tenure.granted))
            && !self.tenure.manager.closed.is_closed()
            && self.keep().is_none()
            && self.check_deadline().is_none()
            && !self.tenure.plan().is_failing(now)
            && !self.tenure.is_checked_in_vain(now)
    }

    /// Returns the holder, as shown to other calls of this process.
    pub(crate) fn holder(&self) -> Holder {
        if self.tenure.passes() == 0 {
            Holder::of(self.tenure.value.as_str())
        } else {
            Holder::passed_to(&self.tenure.value, self.options.site.function)
        }
    }

    /// Returns the number of renewals while this call held the lock.
    fn renewals(&self) -> u32 {
        self.tenure.renewals().saturating_sub(self.renewed_before)
    }

    fn fencing_token(&self) -> Option<FencingToken> {
        self.fence.get().copied()
    }

    /// Stores the first token taken, and returns the one to use.
    fn set_fence(&self, fence: FencingToken) -> FencingToken {
        *self.fence.get_or_init(|| fence)
    }

    /// Returns the way in which the lock has ended, if that was noticed.
    pub(crate) fn end_cause(&self) -> Option<EndCause> {
        self.end_cause.get().copied()
    }

    /// Returns the way in which the lock has ended, after checking the clock. A lock whose deadline
    /// has passed ends here even if no other part of the process has noticed.
    pub(crate) fn check_deadline(&self) -> Option<EndCause> {
        if let Some(cause) = self.end_cause() {
            return Some(cause);
        }
        if self.tenure.manager.host().is_forked() {
            // In a forked child, the tenure may have been locked by a thread that does not exist
            // here.
            let cause = EndCause::Lost(LostReason::Forked);
            if self.end(cause) {
                self.tenure.log_end(Some(self), cause);
            }
        } else {
            self.tenure.look_at_the_clock();
        }
        self.end_cause()
    }

    /// Ends the lock for this call. Wakes the body's task, so that the body is dropped, and every
    /// caller that awaits the loss. Returns `false` if it had ended before: the first cause is kept.
    fn end(&self, cause: EndCause) -> bool {
        let is_first = self.end_cause.set(cause).is_ok();
        let was_held = self.uncount();
        // The next call in line does not wait for a guard whose lock has ended.
        drop(self.leave_place());
        // A waker that panics keeps neither the tasks from being woken, nor the lock thread from going on.
        contained(|| self.runner.wake());
        contained(|| self.lost.notify_waiters());
        if let Some(tasks) = self.known_tasks() {
            tasks.lose();
        }
        // Last: a recorder may take its time, and the body must not run on meanwhile.
        if was_held {
            self.record_end();
        }
        is_first
    }

    /// Returns the tasks of this lock, which are created on first use.
    fn tasks(&self) -> Arc<Tasks> {
        let (tasks, ended) = {
            let mut tasks = self.tasks.lock();
            (Arc::clone(tasks.0.get_or_insert_default()), tasks.1)
        };
        // If the lock ends after this point, `end` finds the tasks by itself.
        if ended {
            tasks.stop();
        } else if self.end_cause().is_some() {
            tasks.lose();
        }
        tasks
    }

    /// Calls `share` to register a share in the tasks of this lock. Returns `None` if the body has
    /// ended.
    // Checks and registers while the tasks are locked: `stop_tasks` either sees the share or comes
    // first.
    fn share_tasks<T>(&self, share: impl FnOnce(&Arc<Tasks>) -> Option<T>) -> Option<T> {
        let mut tasks = self.tasks.lock();
        if tasks.1 {
            return None;
        }
        share(tasks.0.get_or_insert_default())
    }

    /// Returns the tasks of this lock, if any were created.
    fn known_tasks(&self) -> Option<Arc<Tasks>> {
        self.tasks.lock().0.clone()
    }

    /// Tells the tasks that the body has ended. Returns them if any are still running.
    fn stop_tasks(&self) -> Option<Arc<Tasks>> {
        let tasks = {
            let mut tasks = self.tasks.lock();
            tasks.1 = true;
            tasks.0.clone()
        }?;
        tasks.stop();
        Some(tasks).filter(|tasks| tasks.count() > 0)
    }

    /// Returns the name of `cause` for log fields, `ok` without one.
    const fn outcome(cause: Option<EndCause>) -> &'static str {
        match cause {
            None => "ok",
            Some(EndCause::Lost(_)) => "lost",
            Some(EndCause::Hung) => "hung",
            Some(EndCause::Closed) => "closed",
        }
    }

    /// Returns the end of a lock that the store has found to be another's, or gone.
    fn found(&self, ownership: &Ownership) -> EndCause {
        EndCause::Lost(match ownership {
            Ownership::Foreign => LostReason::Taken,
            // The lock expired while the request was on its way.
            _ if self.tenure.now() >= self.tenure.deadline() => LostReason::Expired,
            _ => LostReason::Deleted,
        })
    }

    fn error(&self, cause: EndCause, completed: bool) -> LockError {
        let key = self.tenure.name();
        match cause {
            EndCause::Lost(reason) => LockError::Lost {
                key,
                reason,
                completed,
                renew: self.options.renew,
            },
            EndCause::Hung => LockError::Hung {
                key,
                renewals: self.renewals(),
                // A body that kept its thread may end long after its lock.
                held: self.tenure.now().min(self.tenure.ends_at()).since(self.since),
            },
            EndCause::Closed => LockError::Closed { key, began: true },
        }
    }

    fn lost(&self) -> &Notify {
        &self.lost
    }

    fn is_shielded(&self) -> bool {
        self.shields.load(Ordering::Acquire) > 0
    }

    /// Marks the guard as ended: from here on the lock counts as over for this call.
    fn end_guard(&self) {
        // Needed only with a `lock_delay`, and reading the clock is not free.
        if !self.options.lock_delay.is_zero() && self.tenure.now() >= self.tenure.deadline() {
            self.late.store(true, Ordering::Release);
        }
        self.ended.store(true, Ordering::Release);
        if self.uncount() {
            self.record_end();
        }
    }

    /// Takes the lock out of the number of held locks, when it or its guard ends. Returns `false` if that was done
    /// before.
    fn uncount(&self) -> bool {
        let was_held = self.counts.swap(false, Ordering::Relaxed);
        if was_held {
            self.tenure.manager.stats.ends();
        }
        was_held
    }

    /// Gives the recorder the end of the lock for this call.
    fn record_end(&self) {
        // In a forked child, a thread of the parent may have locked the recorder.
        if !self.tenure.manager.host().is_forked() {
            metrics::ends(self.options.site, || self.tenure.now().since(self.since));
        }
    }

    /// Returns `true` if the guard of a lock with a `lock_delay` ended after the deadline,
    /// regardless of any earlier end of the lock.
    fn was_late(&self) -> bool {
        self.late.load(Ordering::Acquire)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns `true` if the lock has ended. Unlike [`check_deadline`](Self::check_deadline),
    /// changes nothing.
    fn is_over(&self) -> bool {
        self.has_ended()
            || self.end_cause().is_some()
            || self.tenure.manager.host().is_forked()
            || self.tenure.now() >= self.tenure.deadline()
    }

    /// Returns the rest of the minimum hold, for which the key must stay, or `None` if that is less
    /// than 1 ms, or if the call was refused its lock because too few replicas had it.
    fn keep(&self) -> Option<Duration> {
        if self.options.at_least.is_zero() {
            return None;
        }
        if self.tenure.replicas() < u32::from(self.options.min_replicas) {
            return None;
        }
        let keep = self
            .options
            .at_least
            .saturating_sub(self.tenure.now().since(self.since));
        (keep >= Duration::from_millis(1)).then_some(keep)
    }

    fn release_request<'a>(&'a self, key: &'a Arc<str>, receipt: &'a Receipt) -> ReleaseRequest<'a> {
        ReleaseRequest {
            key,
            value: &self.tenure.value,
            keep: self.keep(),
            unanswered_on: None,
            elsewhere: false,
            queued: None,
            leave_free: self.leave_free(),
            receipt,
        }
    }

    /// Decides if the release may leave the lock free for a while, given the calls that wait behind
    /// `place`.
    fn may_be_left_free(&self, place: Option<&QueueHead>) {
        let leave_free = match place {
            Some(place) => place.leave_free(),
            None => self.tenure.manager.leave_free,
        };
        if let Some(leave_free) = leave_free {
            // A lock is released once.
            let _ = self.leave_free.set(leave_free);
        }
    }

    /// Returns the conditions on which the release may leave the lock free for a while, if it may.
    fn leave_free(&self) -> Option<LeaveFree> {
        self.leave_free.get().copied()
    }

    /// Returns a time by which no key of this lock can be left in the store: every command that
    /// could have set an expiry was sent before now.
    fn gone_by(&self) -> Moment {
        self.tenure
            .now()
            .after(self.options.time_to_live().max(self.options.at_least))
    }
}

/// A [`shielded`](crate::HeldLock::shielded) section in progress, and the locks whose bodies
/// contain it.
struct Shield(Vec<Arc<Hold>>);

impl Drop for Shield {
    fn drop(&mut self) {
        for held in &self.0 {
            if held.shields.fetch_sub(1, Ordering::AcqRel) > 1 {
                continue;
            }
            // A loss that the section deferred takes effect now.
            let is_over = held.end_cause().is_some();
            if is_over {
                contained(|| held.runner.wake());
            }
            // The section may have deferred the end of a task as well.
            if let Some(tasks) = held.known_tasks().filter(|tasks| is_over || tasks.is_stopped()) {
                tasks.wake();
            }
        }
    }
}

/// Converts the store's answer to a release into the result of the call.
fn outcome_of(held: &Hold, answer: Result<Ownership, StoreError>) -> Result<(), LockError> {
    let cause = match answer {
        Ok(Ownership::Owned) => return Ok(()),
        Ok(ownership) => held.end_cause().unwrap_or_else(|| held.found(&ownership)),
        Err(source) => {
            metrics::release_failed(held.options.site);
            let (key, function) = (held.tenure.name(), held.options.site.function);
            // The call may end well.
            tracing::warn!(
                parent: &held.span,
                key = &*key,
                error = %source.clone().without_another_try(),
                function,
                "a release was not confirmed, and goes on in the background"
            );
            return Err(LockError::Store {
                key,
                began: true,
                source: source.after_the_grant(),
            });
        }
    };
    held.tenure.report_end(Some(held), cause);
    held.span.record("outcome", Hold::outcome(Some(cause)));
    Err(held.error(cause, true))
}
