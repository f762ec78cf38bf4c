//! The state of one lock that this process holds, shared by its guard, its handles and the watchdog.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use tokio::sync::Notify;

use crate::clock::Moment;
use crate::context;
use crate::engine::is_forked;
use crate::error::{LockError, LostReason};
use crate::key::Keys;
use crate::line::Place;
use crate::manager::Shared;
use crate::store::{Mode, Receipt, ReleaseRequest, RenewRequest};
use crate::watchdog::{Plan, Watchdog};

/// What becomes of the body when its lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLost {
    /// It is dropped at its next await, before another holder can be granted the lock.
    #[default]
    Cancel,
    /// It goes on, and [`HeldLock::lost`](crate::HeldLock::lost) tells it. A body that has asked, by that or
    /// another method of [`HeldLock`](crate::HeldLock), decides itself what to return; one that never asks
    /// still gets `Lost`.
    Signal,
}

/// How a lock is held: the settings of one acquisition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    pub(crate) renew: bool,
    pub(crate) max_renewals: u32,
    pub(crate) at_least: Duration,
    pub(crate) on_lost: OnLost,
    /// Whether the release is not waited for.
    pub(crate) pipelined: bool,
    /// For how long the key stays taken after the lease of a holder that does not release it.
    pub(crate) lock_delay: Duration,
}

impl Terms {
    /// What the key's expiry is set to.
    pub(crate) fn time_to_live(&self) -> Duration {
        self.lease.saturating_add(self.lock_delay)
    }

    /// When to renew a lease that was set by a command sent at `sent`: 2/3 of it later.
    pub(crate) fn renew_at(&self, sent: Moment) -> Moment {
        sent.after(self.lease.mul_f64(2.0 / 3.0))
    }
}

/// The calls of this process that a lock has passed through since the store granted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    since: Moment,
    passes: u32,
}

impl Chain {
    pub(crate) fn begin(now: Moment) -> Self {
        Self { since: now, passes: 0 }
    }

    pub(crate) fn next(self) -> Self {
        Self {
            passes: self.passes.saturating_add(1),
            ..self
        }
    }
}

/// The end of a lock before its guard's end. Set once; the first one stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost(LostReason),
    Hung,
    Closed,
}

const FATES: [Fate; 7] = [
    Fate::Lost(LostReason::Expired),
    Fate::Lost(LostReason::Taken),
    Fate::Lost(LostReason::Deleted),
    Fate::Lost(LostReason::Unreachable),
    Fate::Lost(LostReason::Forked),
    Fate::Hung,
    Fate::Closed,
];

impl Fate {
    fn code(self) -> u8 {
        let at = FATES.iter().position(|fate| *fate == self).unwrap_or_default();
        u8::try_from(at + 1).unwrap_or(1)
    }

    fn from_code(code: u8) -> Option<Self> {
        FATES.get(usize::from(code).checked_sub(1)?).copied()
    }
}

pub(crate) struct Held {
    pub(crate) id: u64,
    /// The whole key, prefix included.
    pub(crate) key: Arc<str>,
    /// The keys that are held together with it.
    others: Box<[Arc<str>]>,
    pub(crate) mode: Mode,
    /// The template of the key, and the function that took the lock, where there is one.
    pub(crate) template: &'static str,
    pub(crate) function: &'static str,
    pub(crate) value: Arc<str>,
    pub(crate) terms: Terms,
    /// When the call got it.
    pub(crate) since: Moment,
    pub(crate) manager: Arc<Shared>,
    pub(crate) watchdog: Arc<Watchdog>,
    /// The lock whose body this one was taken in.
    pub(crate) parent: Option<Arc<Held>>,
    pub(crate) span: tracing::Span,
    pub(crate) plan: Mutex<Plan>,
    pub(crate) chain: Chain,
    /// The place in front of the line for the key, until the lock has ended.
    place: Mutex<Option<Place>>,
    deadline: AtomicU64,
    renewals: AtomicU32,
    fate: AtomicU8,
    /// 0: none taken yet.
    fence: AtomicU64,
    /// How many [`shielded`](crate::HeldLock::shielded) sections are under way.
    shields: AtomicU32,
    /// How many guards there are: one, and those of nested calls.
    guards: AtomicU32,
    /// Whether the guard has ended.
    ended: AtomicBool,
    /// Whether that was too late, under a `lock_delay`.
    late: AtomicBool,
    /// Whether the body has been told of the end of its lock.
    told: AtomicBool,
    /// The task that runs the body.
    runner: AtomicWaker,
    /// Those who await the loss.
    lost: Notify,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("key", &self.key)
            .field("fate", &self.fate())
            .finish_non_exhaustive()
    }
}

/// A lock as it was granted, or passed on.
pub(crate) struct Grant {
    pub(crate) value: Arc<str>,
    pub(crate) since: Moment,
    pub(crate) deadline: Moment,
    pub(crate) fence: Option<u64>,
    /// When to renew first.
    pub(crate) renew_at: Option<Moment>,
    /// Whether the store has the lock under a shorter lease than was asked for.
    pub(crate) claimed: bool,
    pub(crate) chain: Chain,
}

/// What the acquisition knows when it has been granted a lock.
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    pub(crate) key: Arc<str>,
    pub(crate) others: Box<[Arc<str>]>,
    pub(crate) mode: Mode,
    pub(crate) template: &'static str,
    pub(crate) function: &'static str,
    pub(crate) terms: Terms,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) parent: Option<Arc<Held>>,
    pub(crate) span: tracing::Span,
}

impl Held {
    pub(crate) fn new(manager: Arc<Shared>, granted: Granted) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let grant = granted.grant;
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            manager,
            plan: Mutex::new(Plan::new(grant.renew_at, grant.claimed)),
            chain: grant.chain,
            place: Mutex::default(),
            deadline: AtomicU64::new(grant.deadline.as_nanos()),
            renewals: AtomicU32::new(0),
            fate: AtomicU8::new(0),
            fence: AtomicU64::new(grant.fence.unwrap_or(0)),
            shields: AtomicU32::new(0),
            guards: AtomicU32::new(1),
            ended: AtomicBool::new(false),
            late: AtomicBool::new(false),
            told: AtomicBool::new(false),
            runner: AtomicWaker::new(),
            lost: Notify::new(),
            key: granted.key,
            others: granted.others,
            mode: granted.mode,
            template: granted.template,
            function: granted.function,
            value: grant.value,
            terms: granted.terms,
            since: grant.since,
            watchdog: granted.watchdog,
            parent: granted.parent,
            span: granted.span,
        }
    }

    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys {
            first: &self.key,
            others: &self.others,
        }
    }

    /// The key, or keys, as the user knows them.
    pub(crate) fn name(&self) -> Box<str> {
        self.keys().name(&self.manager.prefix)
    }

    pub(crate) fn guards(&self) -> u32 {
        self.guards.load(Ordering::Acquire)
    }

    /// Counts one more guard. `false`: the last one has ended.
    pub(crate) fn add_guard(&self) -> bool {
        let more = |guards: u32| guards.checked_add(1).filter(|_| guards > 0);
        self.guards
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// Counts one guard less. `true`: it was the last one.
    pub(crate) fn drop_guard(&self) -> bool {
        self.guards.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn now(&self) -> Moment {
        self.manager.clock.now()
    }

    /// Until when the lock is valid.
    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Moves the deadline, never back.
    pub(crate) fn extend(&self, deadline: Moment) {
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
    }

    pub(crate) fn count_renewal(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps the place in front of the line.
    pub(crate) fn take_place(&self, place: Place) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
    }

    /// Leaves the front of the line: whoever gets the returned place is there, and once it is dropped, the next one is.
    pub(crate) fn leave_place(&self) -> Option<Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether another call of this process may go on with the lock, now that its guard has ended.
    pub(crate) fn may_pass(&self) -> bool {
        let now = self.now();
        self.terms.renew
            && self
                .manager
                .handover
                .allows(self.chain.passes, now.since(self.chain.since))
            && !self.manager.closed.is_cancelled()
            && self.keep().is_none()
            && self.look().is_none()
            && !self.plan().is_failing(now)
    }

    pub(crate) fn renewals(&self) -> u32 {
        self.renewals.load(Ordering::Relaxed)
    }

    pub(crate) fn fence(&self) -> Option<u64> {
        Some(self.fence.load(Ordering::Acquire)).filter(|fence| *fence != 0)
    }

    /// Remembers the first token taken, and returns the one to use.
    pub(crate) fn set_fence(&self, fence: u64) -> u64 {
        match self
            .fence
            .compare_exchange(0, fence, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => fence,
            Err(earlier) => earlier,
        }
    }

    /// How the lock has ended so far as anybody has noticed.
    pub(crate) fn fate(&self) -> Option<Fate> {
        Fate::from_code(self.fate.load(Ordering::Acquire))
    }

    /// How the lock has ended, by the clock too. This is the dead-man switch: it needs no message to arrive.
    pub(crate) fn look(&self) -> Option<Fate> {
        if let Some(fate) = self.fate() {
            return Some(fate);
        }
        if is_forked() {
            self.end_with(Fate::Lost(LostReason::Forked));
        } else if self.now() >= self.deadline() {
            let unreachable = self.plan().is_failing(self.now());
            let reason = if unreachable {
                LostReason::Unreachable
            } else {
                LostReason::Expired
            };
            self.end_with(Fate::Lost(reason));
        }
        self.fate()
    }

    /// Ends the lock, wakes the body's task so that the body is dropped, and everybody who awaits the loss.
    pub(crate) fn end_with(&self, fate: Fate) {
        let first = self
            .fate
            .compare_exchange(0, fate.code(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if first && !self.has_ended() {
            self.manager.stats.count_fate(fate);
            tracing::debug!(parent: &self.span, key = &*self.name(), ?fate, "lock ended before its guard");
        }
        // Nobody in this process is to wait for a guard whose lock is gone.
        drop(self.leave_place());
        self.runner.wake();
        self.lost.notify_waiters();
    }

    /// The fate's or, with none, the good end's name in log fields.
    pub(crate) const fn outcome(fate: Option<Fate>) -> &'static str {
        match fate {
            None => "ok",
            Some(Fate::Lost(_)) => "lost",
            Some(Fate::Hung) => "hung",
            Some(Fate::Closed) => "closed",
        }
    }

    pub(crate) fn error(&self, fate: Fate, completed: bool) -> LockError {
        let key = self.name();
        match fate {
            Fate::Lost(reason) => LockError::Lost { key, reason, completed },
            Fate::Hung => LockError::Hung {
                key,
                renewals: self.renewals(),
                held: self.now().since(self.since),
            },
            Fate::Closed => LockError::Closed { key },
        }
    }

    pub(crate) fn runner(&self) -> &AtomicWaker {
        &self.runner
    }

    pub(crate) fn lost(&self) -> &Notify {
        &self.lost
    }

    pub(crate) fn is_shielded(&self) -> bool {
        self.shields.load(Ordering::Acquire) > 0
    }

    /// Shields this lock's body, and those of the locks around it and around the calling code: the step is a part of all of them.
    pub(crate) fn shield(self: &Arc<Self>) -> Shield {
        let mut shielded: Vec<_> = std::iter::successors(Some(Arc::clone(self)), |held| held.parent.clone()).collect();
        for held in context::around() {
            if !shielded.iter().any(|other| Arc::ptr_eq(other, &held)) {
                shielded.push(held);
            }
        }
        for held in &shielded {
            held.shields.fetch_add(1, Ordering::AcqRel);
        }
        Shield(shielded)
    }

    /// The guard's end: from here on nothing renews the lock or reports it lost.
    pub(crate) fn end_guard(&self) {
        // Only then somebody asks, and the clock is not for nothing.
        if !self.terms.lock_delay.is_zero() && self.now() >= self.deadline() {
            self.late.store(true, Ordering::Release);
        }
        self.ended.store(true, Ordering::Release);
    }

    /// Whether the guard of a lock with a `lock_delay` ended after the deadline, whatever else had ended the lock before.
    pub(crate) fn was_late(&self) -> bool {
        self.late.load(Ordering::Acquire)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// How the lock has ended, for an answer to the body: from here on it knows.
    pub(crate) fn tell(&self) -> Option<Fate> {
        let fate = self.look();
        if fate.is_some() {
            self.told.store(true, Ordering::Release);
        }
        fate
    }

    pub(crate) fn was_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    pub(crate) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn renew_requests(&self, extend: bool) -> impl Iterator<Item = RenewRequest> {
        self.keys().iter().map(move |key| RenewRequest {
            key: Arc::clone(key),
            value: Arc::clone(&self.value),
            extend: extend.then(|| self.terms.time_to_live()),
        })
    }

    /// How much longer the key is to stay for the minimum hold.
    pub(crate) fn keep(&self) -> Option<Duration> {
        let keep = self.terms.at_least.saturating_sub(self.now().since(self.since));
        (keep >= Duration::from_millis(1)).then_some(keep)
    }

    pub(crate) fn release_request<'a>(&'a self, key: &'a str, receipt: &'a Receipt) -> ReleaseRequest<'a> {
        ReleaseRequest {
            key,
            value: &self.value,
            keep: self.keep(),
            unanswered_on: None,
            queued: None,
            receipt,
        }
    }

    /// When nothing of this lock can be left in the store: every command that could have set its expiry was
    /// sent before.
    pub(crate) fn gone_by(&self) -> Moment {
        self.now().after(self.terms.time_to_live().max(self.terms.at_least))
    }
}

/// A [`shielded`](crate::HeldLock::shielded) section under way, and the locks whose bodies it is a part of.
pub(crate) struct Shield(Vec<Arc<Held>>);

impl Drop for Shield {
    fn drop(&mut self) {
        for held in &self.0 {
            held.shields.fetch_sub(1, Ordering::AcqRel);
            // A loss that had to wait for the section is acted on now.
            if held.fate().is_some() {
                held.runner.wake();
            }
        }
    }
}
