//! Taking a lock: in line with the other calls of this process, then from the one in front or from the store.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::Moment;
use crate::contend::{Seen, Step};
use crate::context::{self, HeldLock, Relation};
use crate::engine::{Engine, Timer};
use crate::error::LockError;
use crate::guard::Guard;
use crate::held::{Grant, Granted, Held, Terms};
use crate::holder::Holder;
use crate::key::{Keys, MAX_KEY, Names};
use crate::line::{Came, Entered, News, Passed, Place, Waiting};
use crate::manager::Shared;
use crate::order;
use crate::releaser::release_later;
use crate::store::{Fence, Mode, StoreError};
use crate::watchdog::Watchdog;

/// The shortest lease that can be asked for.
///
/// The watchdog renews when a third of the lease is left. Under 100 ms that is less than a busy host or network
/// takes now and then, so such a lease suits only bodies that end within it, with `renew = false`.
pub const MIN_LEASE: Duration = Duration::from_millis(10);
/// The longest lease that can be asked for: 366 days.
pub const MAX_LEASE: Duration = Duration::from_secs(366 * 86_400);

/// One acquisition, as asked for.
pub(crate) struct Wanted {
    pub(crate) mode: Mode,
    pub(crate) reentrant: bool,
    /// The template it was made from, where there is one.
    pub(crate) template: &'static str,
    /// Who asks, for the stored value.
    pub(crate) function: &'static str,
    pub(crate) terms: Terms,
    pub(crate) wait: Duration,
    pub(crate) fencing: bool,
    pub(crate) fair: bool,
}

impl Wanted {
    fn check(&self, names: &Names, manager: &Shared) -> Result<(), LockError> {
        let key = || names.first.as_str().into();
        let lease = self.terms.lease;
        // A server takes even an expiry that never comes: then the key would stay for ever.
        let spans = [self.terms.at_least, self.terms.lock_delay];
        let invalid = if !(MIN_LEASE..=MAX_LEASE).contains(&lease) || manager.margins.validity(lease).is_zero() {
            Some(lease)
        } else {
            spans.into_iter().find(|span| *span > MAX_LEASE)
        };
        if let Some(lease) = invalid {
            return Err(LockError::InvalidLease { key: key(), lease });
        }
        let several = !names.others.is_empty();
        let problem = match &self.mode {
            Mode::Semaphore(0) => "a semaphore has at least one permit; give one or more",
            Mode::Read | Mode::Semaphore(_) if self.fencing => {
                "a fencing token tells one holder from the next, and in this mode there are many at once; leave `fencing` out"
            }
            Mode::Owner(owner) if owner.is_empty() => "the owner's name is empty; give one that is not",
            Mode::Owner(owner) if owner.len() > MAX_KEY => {
                "the owner's name is longer than 1,024 bytes; give a shorter one"
            }
            mode if several && *mode != Mode::Exclusive => "several keys are locked exclusively; leave the mode out",
            _ if several && self.fair => "several keys have no common queue; leave `fair` out",
            _ => return Ok(()),
        };
        Err(LockError::InvalidMode { key: key(), problem })
    }
}

/// Takes a lock.
///
/// Cancel safe: dropped at any await it leaves nothing behind, since an attempt under way is then released.
// Not an `async fn`, whose future would hold the arguments twice: there may be thousands who wait.
#[allow(clippy::manual_async_fn)]
pub(crate) fn acquire<T: 'static>(
    manager: Arc<Shared>,
    wanted: Result<(Names, Wanted), LockError>,
    wrap: fn(Guard) -> T,
) -> impl Future<Output = Result<T, LockError>> + Send + 'static {
    async move {
        let (names, wanted) = wanted?;
        let mut acquisition = Acquisition::new(manager, names, wanted)?;
        if let Some(guard) = acquisition.within.take() {
            // Boxed, since it is rare.
            return Box::pin(nested(*guard, acquisition.wanted.fencing)).await.map(wrap);
        }
        let mut seen = Seen::default();
        let result = acquisition.take(&mut seen).await;
        acquisition.record(&seen, result.as_ref());
        result.map(|won| wrap(acquisition.hold(won)))
    }
}

/// Passes through a lock that the call tree holds.
async fn nested(guard: Guard, fencing: bool) -> Result<Guard, LockError> {
    if fencing {
        HeldLock::new(Arc::clone(guard.held())).fence().await?;
    }
    Ok(guard)
}

/// One call on its way to its lock.
pub(crate) struct Acquisition {
    pub(crate) manager: Arc<Shared>,
    pub(crate) wanted: Wanted,
    pub(crate) key: Arc<str>,
    /// The other keys of a call that wants several, behind the first in order.
    pub(crate) others: Box<[Arc<str>]>,
    parent: Option<Arc<Held>>,
    /// Where the call tree has the lock, and the call may pass through.
    within: Option<Box<Guard>>,
    pub(crate) timer: Timer,
    watchdog: Arc<Watchdog>,
    span: tracing::Span,
    pub(crate) start: Moment,
    /// Lets `shutdown` wait for the outcome.
    _tracked: TaskTrackerToken,
}

impl Acquisition {
    fn new(manager: Arc<Shared>, names: Names, wanted: Wanted) -> Result<Self, LockError> {
        let span = tracing::debug_span!(
            "distributed_lock",
            template = wanted.template,
            key = %names.first,
            wait = tracing::field::Empty,
            attempts = tracing::field::Empty,
            holder = tracing::field::Empty,
            fence = tracing::field::Empty,
            outcome = tracing::field::Empty,
        );
        wanted.check(&names, &manager)?;
        // In place: there is room for the prefix in most keys.
        let whole = |mut key: String| {
            key.insert_str(0, &manager.prefix);
            Arc::<str>::from(key)
        };
        let key = whole(names.first);
        let others: Box<[_]> = names.others.into_iter().map(whole).collect();
        let name = || manager.name(&key).into();
        let parent = context::innermost();
        let mut within = None;
        if parent.is_some() {
            let keys = Keys {
                first: &key,
                others: &others,
            };
            match context::relation(&manager, keys, &wanted.mode, wanted.reentrant) {
                Relation::None => {}
                Relation::Within(outer) => within = Guard::nested(outer, wanted.terms.on_lost).map(Box::new),
                Relation::Deadlock => return Err(LockError::WouldDeadlock { key: name() }),
            }
            // Who does not wait closes no circle.
            if within.is_none() && !wanted.wait.is_zero() {
                order::note(wanted.template, wanted.function);
            }
        }
        let (watchdog, timer) = manager.pace();
        if timer == Timer::Engine
            && let Err(error) = Engine::get()
        {
            return Err(LockError::Store {
                key: name(),
                source: StoreError::permanent(error),
            });
        }
        Ok(Self {
            start: manager.clock.now(),
            _tracked: manager.held.token(),
            manager,
            wanted,
            key,
            others,
            parent,
            within,
            timer,
            watchdog,
            span,
        })
    }

    async fn take(&self, seen: &mut Seen) -> Result<Won, LockError> {
        if !self.others.is_empty() {
            let grant = Box::pin(self.take_all(seen)).await?;
            return Ok(Won { grant, place: None });
        }
        // Calls that are fair, or of a mode that several may hold, stand in the store's queue, each for itself.
        let place = if self.wanted.fair || self.wanted.mode != Mode::Exclusive {
            None
        } else if self.wanted.wait.is_zero() {
            Place::enter_if_free(&self.manager, &self.key)
        } else {
            match Place::enter(&self.manager, &self.key, self.wanted.terms, &self.watchdog) {
                Entered::InFront(place) => Some(place),
                Entered::Behind(waiting) => match self.stand_in_line(&waiting, seen).await? {
                    Came::InFront(place) => Some(place),
                    Came::Handed(passed) => match Box::pin(self.take_over(passed, seen)).await {
                        Ok(won) => return Ok(won),
                        Err(place) => place,
                    },
                },
            }
        };
        let grant = match self.attempt_now(seen) {
            Some(Ok(Step::Won(grant))) => grant,
            // Boxed, since those who wait in line need none of it.
            first => Box::pin(self.contend(place.as_ref(), first, seen)).await?,
        };
        Ok(Won { grant, place })
    }

    /// Waits behind other calls of this process.
    async fn stand_in_line(&self, waiting: &Waiting, seen: &mut Seen) -> Result<Came, LockError> {
        tokio::select! {
            biased;
            () = self.manager.closed.cancelled() => {}
            came = waiting.turn() => {
                // What those in front have heard is the answer, should there be no time left to ask.
                seen.news = waiting.news().unwrap_or_default();
                return Ok(came);
            }
            () = self.timer.sleep(self.left(self.manager.clock.now())) => {}
        }
        seen.news = waiting.news().unwrap_or_else(|| News {
            error: Some(StoreError::transient(
                "the store has not answered the call in front of this one within `wait`",
            )),
            ..News::default()
        });
        Err(self.give_up(seen))
    }

    /// Goes on with a lock that another call of this process has ended with. `Err`: it is of no more use.
    async fn take_over(&self, passed: Passed, seen: &mut Seen) -> Result<Won, Option<Place>> {
        let held = Arc::clone(&passed.held);
        seen.news.holder = Some(Holder::new(&*held.value));
        let fence = if self.wanted.fencing {
            let answer = self.manager.store.fence(&held.key, &held.value);
            match self.timer.timeout(self.budget(self.manager.clock.now()), answer).await {
                Some(Ok(Fence::Token(fence))) => Some(fence),
                Some(Err(error)) => {
                    seen.news.error = Some(error);
                    return Err(give_back(passed));
                }
                Some(Ok(Fence::NotOwned(_))) | None => return Err(give_back(passed)),
            }
        } else {
            None
        };
        let now = self.manager.clock.now();
        if self.manager.closed.is_cancelled() || now >= held.deadline() {
            return Err(give_back(passed));
        }
        self.manager.stats.count_passed();
        let (renew_at, claimed) = held.plan().renewal();
        let grant = Grant {
            value: Arc::clone(&held.value),
            since: now,
            deadline: held.deadline(),
            fence,
            renew_at,
            claimed,
            chain: held.chain.next(),
        };
        Ok(Won {
            grant,
            place: passed.accept(),
        })
    }

    pub(crate) fn give_up(&self, seen: &mut Seen) -> LockError {
        let key = self.name();
        if self.manager.closed.is_cancelled() {
            return LockError::Closed { key };
        }
        match seen.news.error.take() {
            Some(source) => LockError::Store { key, source },
            None => LockError::Busy {
                key,
                waited: self.manager.clock.now().since(self.start),
                holder: seen.news.holder.take().map(Box::new),
                retry_after: seen.news.remaining,
            },
        }
    }

    fn hold(self, won: Won) -> Guard {
        let granted = Granted {
            grant: won.grant,
            key: self.key,
            others: self.others,
            mode: self.wanted.mode,
            template: self.wanted.template,
            function: self.wanted.function,
            terms: self.wanted.terms,
            watchdog: self.watchdog,
            parent: self.parent,
            span: self.span,
        };
        let held = Arc::new(Held::new(self.manager, granted));
        if let Some(place) = won.place {
            place.holds(&held);
            held.take_place(place);
        }
        Guard::new(held)
    }

    pub(crate) fn name(&self) -> Box<str> {
        self.keys().name(&self.manager.prefix)
    }

    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys {
            first: &self.key,
            others: &self.others,
        }
    }

    fn record(&self, seen: &Seen, result: Result<&Won, &LockError>) {
        let stats = &self.manager.stats;
        match result {
            Ok(_) => stats.count_acquired(),
            Err(LockError::Busy { .. }) => stats.count_busy(),
            Err(_) => {}
        }
        if self.span.is_disabled() {
            return;
        }
        let waited = self.manager.clock.now().since(self.start);
        self.span.record("wait", tracing::field::debug(waited));
        self.span.record("attempts", seen.attempts);
        let holder = match result {
            Err(LockError::Busy { holder, .. }) => holder.as_deref(),
            _ => seen.news.holder.as_ref(),
        };
        if let Some(holder) = holder {
            self.span.record("holder", tracing::field::display(holder));
        }
        match result {
            Ok(won) => {
                if let Some(fence) = won.grant.fence {
                    self.span.record("fence", fence);
                }
            }
            Err(error) => {
                self.span.record("outcome", error.kind());
                tracing::debug!(parent: &self.span, %error, "lock not taken");
            }
        }
    }
}

/// A lock that was granted, or passed on, and the place in front of the line that goes with it.
struct Won {
    grant: Grant,
    place: Option<Place>,
}

/// Has a lock released that was passed here, and stays in front.
fn give_back(passed: Passed) -> Option<Place> {
    release_later(&passed.held);
    passed.accept()
}

#[cfg(test)]
mod tests {
    use crate::{LockError, LockManager};

    #[test]
    fn a_waiting_call_is_small() -> Result<(), LockError> {
        let locks = LockManager::builder("memory://").build()?;
        let waiting = size_of_val(&locks.lock("k").acquire());
        // Thousands may wait for one key: their memory is this, and what the runtime adds to a task.
        assert!(waiting <= 1_040, "{waiting} bytes");
        Ok(())
    }
}
