//! Takes locks. A call first stands in line with the other calls of this process, and then gets the
//! lock from the call in front of it or from the store.

mod attempt;
mod callers;
mod coalesce;
mod line;
mod local_queue;
mod multi;
mod offer;
mod shared;
mod unconfirmed;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::acquire::attempt::{Progress, Step};
use crate::acquire::coalesce::{Function, Joined};
use crate::acquire::local_queue::{Contention, Position, Promotion, Waiting};
pub(crate) use crate::acquire::{
    coalesce::{Landed, Leader},
    shared::{Observer, Shared},
};
use crate::diagnostics;
use crate::error::LockError;
use crate::hold::call_tree::{self, HeldLock, Relation};
use crate::hold::guard::Guard;
use crate::hold::upkeep::Watchdog;
use crate::hold::{Grant, Hold, LockOptions, QueueHead};
use crate::host::{self, Moment, Sleep, Timer, contained};
use crate::key::{self, CallSite, Keys, Names};
use crate::stats::{Event, metrics};
use crate::store::holder::Holder;
use crate::store::{Fence, LockMode, StoreError};

/// Takes a lock.
///
/// Cancel safe: if dropped at any await, it leaves nothing behind, since dropping it releases an
/// attempt under way.
// Not an `async fn`, whose future would hold the arguments twice: thousands of calls may wait.
#[allow(clippy::manual_async_fn)]
pub(crate) fn acquire<T: 'static>(
    request: impl FnOnce() -> Result<(Arc<Shared>, Names, LockOptions), LockError> + Send + 'static,
    wrap: fn(Guard) -> T,
) -> impl Future<Output = Result<T, LockError>> + Send + 'static {
    async move {
        host::take_part().await;
        let mut acquisition = {
            let (manager, names, options) = request()?;
            Acquisition::new(manager, &names, options)?
        };
        if let Some(guard) = acquisition.within.take() {
            // Boxed, since it is rare.
            return Box::pin(acquisition.nested(*guard)).await.map(wrap);
        }
        let guard = {
            let mut seen = Progress::default();
            match acquisition.take(&mut seen).await {
                Ok(grant) if acquisition.options.min_replicas == 0 => return Ok(wrap(acquisition.hold(grant, &seen))),
                // Boxed, since it is rare.
                Ok(grant) => Box::pin(acquisition.hold_in_replicas(grant, &seen)),
                Err(error) => {
                    acquisition.record_failure(&seen, &error);
                    return Err(error);
                }
            }
        };
        guard.await.map(wrap)
    }
}

/// Takes the lock of a call whose body has the type `F` and whose function contains an item of the
/// type `I`. Returns its guard, and its lead if later calls follow it; or, as `Err`, the result of
/// another such call that was under way.
///
/// Cancel safe: if dropped, it leaves nothing behind.
pub(crate) async fn acquire_or_share<F, I: 'static>(
    manager: Arc<Shared>,
    names: Names,
    mut options: LockOptions,
) -> Result<(Guard, Option<Box<Leader>>), Result<F::Output, LockError>>
where
    F: Future,
    F::Output: Clone + Send + Sync + 'static,
{
    let function = Function::of::<F, I>();
    let joined = coalesce::join::<F::Output>(&manager, &names, &mut options, function).await;
    let leader = match joined.map_err(Err)? {
        Joined::Leads(leader) => Some(Box::new(leader)),
        Joined::Alone => None,
        Joined::Landed(landed) => match landed.downcast_ref::<F::Output>() {
            Some(result) => return Err(Ok(result.clone())),
            // Never happens: the type is part of the flight's identity.
            None => None,
        },
    };
    acquire_leading(manager, names, options, leader).await.map_err(Err)
}

// Not generic, so that it is compiled once.
async fn acquire_leading(
    manager: Arc<Shared>,
    names: Names,
    options: LockOptions,
    mut leader: Option<Box<Leader>>,
) -> Result<(Guard, Option<Box<Leader>>), LockError> {
    let mut acquired = pin!(acquire(move || Ok((manager, names, options)), |guard| guard));
    let guard = match leader.as_deref().and_then(Leader::caller) {
        Some(caller) => caller.attend(acquired.as_mut()).await?,
        None => acquired.await?,
    };
    if let Some(leader) = &mut leader {
        leader.holds(guard.held());
    }
    Ok((guard, leader))
}

/// Counts a call that has failed because of the store.
fn count_failure(manager: &Shared, site: CallSite, error: Option<&LockError>) {
    let event = match error {
        Some(LockError::Store { .. }) => Event::StoreFailed,
        Some(LockError::TooFewReplicas { .. }) => Event::TooFewReplicas,
        _ => return,
    };
    manager.backend.stats.count(event, site);
}

/// One call on its way to its lock.
struct Acquisition {
    manager: Arc<Shared>,
    options: LockOptions,
    key: Arc<str>,
    /// The other keys of a call for several locks, after the first in order.
    others: Box<[Arc<str>]>,
    parent: Option<Arc<Hold>>,
    /// The guard of a lock that the call tree already holds and the call may re-enter.
    within: Option<Box<Guard>>,
    timer: Timer,
    watchdog: Arc<Watchdog>,
    span: tracing::Span,
    start: Moment,
    /// `true` while the call counts as waiting in the manager's statistics.
    waits: bool,
    /// Lets `shutdown` wait for the outcome.
    tracked: Option<TaskTrackerToken>,
}

impl Acquisition {
    fn new(manager: Arc<Shared>, names: &Names, options: LockOptions) -> Result<Self, LockError> {
        let span = tracing::debug_span!(
            "distributed_lock",
            template = %options.site.templates.join(", "),
            key = %names.first,
            wait = tracing::field::Empty,
            attempts = tracing::field::Empty,
            holder = tracing::field::Empty,
            fence = tracing::field::Empty,
            outcome = tracing::field::Empty,
        );
        options.check(names, &manager.backend)?;
        let whole = |name: &String| key::whole(&manager.backend.prefix, name);
        let key = whole(&names.first);
        let others: Box<[_]> = names.others.iter().map(whole).collect();
        for key in std::iter::once(&key).chain(&others) {
            if let Some(problem) = manager.store().refuses(key) {
                let key = manager.backend.name(key).into();
                return Err(LockError::InvalidKey { key, problem });
            }
        }
        let name = || manager.backend.name(&key).into();
        let parent = call_tree::innermost();
        let mut within = None;
        if parent.is_some() {
            let keys = Keys {
                first: &key,
                others: &others,
            };
            match call_tree::relation(&manager.backend, keys, options.mode(), options.reentrant) {
                Relation::None => {}
                Relation::Within(outer)
                    if manager.backend.closed.is_closed() && !Arc::ptr_eq(&outer.tenure.manager, &manager.backend) =>
                {
                    let key = name();
                    return Err(LockError::Closed { key, began: false });
                }
                Relation::Within(outer) => within = Guard::nested(outer, options.on_lost).map(Box::new),
                Relation::Deadlock => return Err(LockError::WouldDeadlock { key: name() }),
            }
        }
        let (watchdog, timer) = manager.pace();
        if timer == Timer::LockThread
            && let Err(error) = manager.host().start()
        {
            return Err(LockError::Store {
                key: name(),
                began: false,
                source: StoreError::permanent(error).advise(manager.host().advice_to_start()),
            });
        }
        // Not in a forked child, which has failed above: a thread of its parent may hold that lock.
        // A call that does not wait cannot close a circle.
        if parent.is_some() && within.is_none() && !options.wait.is_zero() {
            diagnostics::note(manager.host(), options.site.templates, options.site.function);
        }
        // Read first: a clock of the user's may panic.
        let start = manager.now();
        let waits = within.is_none();
        let acquisition = Self {
            waits,
            start,
            tracked: Some(manager.backend.held.token()),
            manager,
            options,
            key,
            others,
            parent,
            within,
            timer,
            watchdog,
            span,
        };
        if waits {
            acquisition.manager.backend.stats.waits(acquisition.options.site);
        }
        Ok(acquisition)
    }

    async fn take(&self, seen: &mut Progress) -> Result<Grant, LockError> {
        if !self.others.is_empty() {
            return Box::pin(self.take_all(seen)).await;
        }
        // Fair calls, and calls in a mode that several may hold, each stand in the store's queue
        // themselves.
        let place = if self.options.fair || *self.options.mode() != LockMode::Exclusive {
            None
        } else if self.options.wait.is_zero() {
            local_queue::enter_if_free(&self.manager.lines, &self.key)
        } else {
            match local_queue::enter(&self.manager.lines, &self.key, &self.options, &self.watchdog) {
                Position::InFront(place) => Some(place),
                Position::Behind(waiting) => loop {
                    match self.stand_in_line(&waiting, seen).await? {
                        Promotion::InFront(place) => break Some(place),
                        Promotion::Handed(held) => match Box::pin(self.take_over(&waiting, &held, seen)).await {
                            Some(Ok(grant)) => return Ok(grant),
                            Some(Err(place)) => break place,
                            None => {}
                        },
                    }
                },
            }
        };
        // A return of the store during the first attempt counts.
        let back = self.manager.backend.access.back.notified();
        let mut asking = None;
        let first = if let Some(first) = self.attempt_now(seen) {
            Some(first)
        } else if self.left_free(place.as_ref()).is_some() {
            // It is for other clients first.
            None
        } else {
            let asking = &*asking.insert(self.asking(place.as_ref()));
            self.attempt_first(&asking.caller, seen).await
        };
        let mut grant = match first {
            Some(Ok(Step::Won(grant))) => grant,
            // Boxed for the same reason. It is much larger, and rarely needed.
            first => Box::pin(self.contend(place.as_ref(), asking, first, back, seen)).await?,
        };
        grant.place = place;
        Ok(grant)
    }

    /// Returns a future that completes after `span`.
    fn sleep(&self, span: Duration) -> Sleep {
        self.manager.host().sleep(self.timer, span)
    }

    /// Waits behind other calls of this process.
    async fn stand_in_line(&self, waiting: &Waiting, seen: &mut Progress) -> Result<Promotion, LockError> {
        tokio::select! {
            biased;
            () = self.manager.backend.closed.wait() => {}
            came = waiting.turn() => {
                // If no time is left to ask the store, this call reports the last answer that the
                // calls in front of it had.
                seen.contention = waiting.contention().unwrap_or_default();
                return Ok(came);
            }
            () = self.sleep(self.left(self.manager.now())) => {}
        }
        seen.contention = waiting.contention().unwrap_or_else(|| Contention {
            error: Some(StoreError::transient(
                "the store has not answered the call in front of this one within `wait`",
            )),
            ..Contention::default()
        });
        Err(self.give_up(seen))
    }

    /// Continues with a lock that another call of this process has finished with. Returns `None` if
    /// the lock was taken back because this call was not polled, and `Err` if the lock is of no
    /// more use.
    async fn take_over(
        &self,
        waiting: &Waiting,
        held: &Arc<Hold>,
        seen: &mut Progress,
    ) -> Option<Result<Grant, Option<QueueHead>>> {
        let answer = if self.options.fencing {
            let answer = self.manager.store().fence(&held.tenure.key, &held.tenure.value);
            // The lock stays on offer meanwhile. A token that comes too late is wasted.
            tokio::select! {
                biased;
                answer = self.manager.host().timeout(self.timer, self.budget(self.manager.now()), answer) => Some(answer),
                () = waiting.withdrawn(held) => return None,
            }
        } else {
            // If a check of the lock is late, the call waits for its answer before it takes the
            // lock over. The lock stays on offer meanwhile.
            let budget = || self.budget(self.manager.now());
            tokio::select! {
                biased;
                is_in_time = held.tenure.check_answered(self.timer, budget) => (!is_in_time).then_some(None),
                () = waiting.withdrawn(held) => return None,
            }
        };
        let passed = waiting.accept(held)?;
        let fence = match answer {
            None => None,
            Some(Some(Ok(Fence::Token(fence)))) => Some(fence),
            Some(Some(Err(error))) => {
                seen.contention.error = Some(error);
                return Some(Err(passed.give_back()));
            }
            Some(Some(Ok(Fence::NotOwned(_))) | None) => return Some(Err(passed.give_back())),
        };
        // If the lock was lost after it was passed on, this call does not fail. It gives the lock
        // back and asks the store.
        let since = self.manager.now();
        if self.manager.backend.closed.is_closed() || !held.tenure.is_of_use(since) {
            return Some(Err(passed.give_back()));
        }
        self.manager.backend.stats.count(Event::Passed, self.options.site);
        let (tenure, place) = passed.accept();
        Some(Ok(Grant::passed(tenure, &self.options, since, fence, place)))
    }

    fn give_up(&self, seen: &mut Progress) -> LockError {
        let key = self.name();
        if self.manager.backend.closed.is_closed() {
            return LockError::Closed { key, began: false };
        }
        match seen.contention.error.take() {
            Some(source) => LockError::Store {
                key,
                began: false,
                source,
            },
            None => LockError::Busy {
                key,
                waited: self.manager.now().since(self.start),
                holder: seen.contention.holder.take().map(Box::new),
                retry_after: seen.contention.remaining,
            },
        }
    }

    fn hold(mut self, grant: Grant, seen: &Progress) -> Guard {
        let (since, site, fence) = (grant.since, self.options.site, grant.fence);
        let options = std::mem::take(&mut self.options);
        let span = std::mem::replace(&mut self.span, tracing::Span::none());
        let held = Hold::new(grant, options, self.parent.take(), span);
        if let Some(observer) = &self.manager.observer {
            observer.granted(&held);
        }
        let tracked = self.tracked.take().unwrap_or_else(|| self.manager.backend.held.token());
        let guard = Guard::new(held, tracked);
        // Not before: a recorder or a subscriber that panics must not lose the lock.
        self.manager.backend.stats.count(Event::Acquired, site);
        let span = &guard.held().span;
        if !span.is_disabled() {
            self.record(span, seen, seen.contention.holder.as_ref());
            if let Some(fence) = fence {
                span.record("fence", fence.get());
            }
        }
        self.end_wait(site, since);
        metrics::holds(site, since.since(self.start));
        guard
    }

    /// Takes the call out of the number of waiting calls.
    fn end_wait(&mut self, site: CallSite, now: Moment) {
        if std::mem::take(&mut self.waits) {
            let site = (!self.manager.host().is_forked()).then_some(site);
            self.manager.backend.stats.waited(site, now.since(self.start));
        }
    }

    /// Re-enters a lock that the call tree holds.
    async fn nested(self, guard: Guard) -> Result<Guard, LockError> {
        let nested = async {
            if self.options.fencing {
                HeldLock::new(Arc::clone(guard.held())).fencing_token().await?;
            }
            let reached = guard.held().reach_replicas(self.options.min_replicas.into()).await;
            guard.if_reached(reached).await
        };
        let nested = nested.await;
        count_failure(&self.manager, self.options.site, nested.as_ref().err());
        nested
    }

    /// Returns the guard once as many replicas as wanted have the lock. If the call is not polled meanwhile, the
    /// lock thread gives the lock back. Fails once the manager is shut down.
    fn hold_in_replicas(
        self,
        grant: Grant,
        seen: &Progress,
    ) -> impl Future<Output = Result<Guard, LockError>> + Send + use<> {
        let (wanted, site) = (self.options.min_replicas.into(), self.options.site);
        let (manager, key) = (Arc::clone(&self.manager), self.name());
        let asking = self.asking(None);
        let guard = self.hold(grant, seen);
        let held = Arc::clone(guard.held());
        asking.caller.keep(guard);
        async move {
            let reached = async {
                tokio::select! {
                    biased;
                    () = manager.backend.closed.wait() => Err(LockError::Closed { key, began: false }),
                    reached = held.reach_replicas(wanted) => reached,
                }
            };
            let reached = asking.caller.attend(pin!(reached)).await;
            let guard = match asking.caller.claim_kept() {
                Some(guard) => guard.if_reached(reached).await,
                None => Err(reached.err().unwrap_or_else(|| held.replicas_are_late())),
            };
            count_failure(&manager, site, guard.as_ref().err());
            guard
        }
    }

    fn name(&self) -> Box<str> {
        self.keys().name(&self.manager.backend.prefix)
    }

    fn keys(&self) -> Keys<'_> {
        Keys {
            first: &self.key,
            others: &self.others,
        }
    }

    fn record_failure(&self, seen: &Progress, error: &LockError) {
        let holder = if let LockError::Busy { holder, .. } = error {
            self.manager.backend.stats.count(Event::Busy, self.options.site);
            holder.as_deref()
        } else {
            count_failure(&self.manager, self.options.site, Some(error));
            seen.contention.holder.as_ref()
        };
        if !self.span.is_disabled() {
            self.record(&self.span, seen, holder);
            self.span.record("outcome", error.kind());
            tracing::debug!(parent: &self.span, %error, "lock not taken");
        }
    }

    /// Records how the call has got its lock, or has not. `holder` is the one that it has waited for last.
    fn record(&self, span: &tracing::Span, seen: &Progress, holder: Option<&Holder>) {
        let waited = self.manager.now().since(self.start);
        span.record("wait", tracing::field::debug(waited));
        span.record("attempts", seen.attempts);
        if let Some(holder) = holder {
            span.record("holder", tracing::field::display(holder));
        }
    }
}

/// Takes a call out of the number of waiting calls that has failed, or was dropped.
impl Drop for Acquisition {
    fn drop(&mut self) {
        if self.waits {
            // A clock or a recorder of the user's may panic.
            let now = contained(|| self.manager.now()).unwrap_or(self.start);
            contained(|| self.end_wait(self.options.site, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use crate::host::Host;
    use crate::store::{
        AcquireRequest, Attempt, Dispatch, Fence, FencingToken, HolderValue, LockStore, LossReceiver, Ownership,
        ReleaseRequest, RenewRequest, Responder, StoreError, StoreFuture,
    };
    use crate::{ConfigError, LockManager};

    #[test]
    fn a_waiting_call_is_small() -> Result<(), ConfigError> {
        let locks = LockManager::builder("memory://").build()?;
        let waiting = size_of_val(&locks.lock("k").acquire());
        // Thousands may wait for one key: this is their memory, plus what the runtime adds per
        // task.
        assert!(waiting <= 896, "{waiting} bytes");
        Ok(())
    }

    /// A store that answers the attempts, which it counts from 0, as a test says.
    #[derive(Debug)]
    struct Scripted {
        attempts: AtomicUsize,
        answer: fn(usize) -> StoreFuture<'static, Attempt>,
        /// `true` to try each request at the wrong place first.
        is_misled: AtomicBool,
        /// The time that an attempt waits for its connection.
        connects_in: Duration,
    }

    impl Scripted {
        fn new(answer: fn(usize) -> StoreFuture<'static, Attempt>) -> Arc<Self> {
            Arc::new(Self {
                attempts: AtomicUsize::new(0),
                answer,
                is_misled: AtomicBool::new(false),
                connects_in: Duration::ZERO,
            })
        }

        fn first_try<T: Send + 'static>(&self) -> Dispatch<T> {
            if self.is_misled.load(Ordering::SeqCst) {
                Dispatch::Tried(Box::pin(ready(Err(StoreError::permanent("it is elsewhere")))))
            } else {
                Dispatch::Declined
            }
        }
    }

    impl LockStore for Scripted {
        fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
            let answer = (self.answer)(self.attempts.fetch_add(1, Ordering::SeqCst));
            if self.connects_in.is_zero() {
                return answer;
            }
            Box::pin(async {
                tokio::time::sleep(self.connects_in).await;
                request.receipt.sent_at(1, Host::process().now());
                answer.await
            })
        }

        fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
            Box::pin(ready(Ok(vec![Ownership::Owned; requests.len()])))
        }

        fn report_losses(&self, _: LossReceiver) -> bool {
            true
        }

        fn release<'a>(&'a self, _: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
            Box::pin(ready(Ok(Ownership::Owned)))
        }

        fn send_acquire(&self, _: &AcquireRequest<'_>, _: &dyn Fn() -> Responder<Attempt>) -> Dispatch<Attempt> {
            self.first_try()
        }

        fn send_release(&self, _: &ReleaseRequest<'_>, _: &dyn Fn() -> Responder<Ownership>) -> Dispatch<Ownership> {
            self.first_try()
        }

        fn fence<'a>(&'a self, _: &'a str, _: &'a HolderValue) -> StoreFuture<'a, Fence> {
            Box::pin(ready(Ok(Fence::Token(FencingToken::new(1)))))
        }
    }

    const ROUND_TRIP: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn the_usual_round_trip_lasts_from_the_request_to_its_answer() -> Result<(), Box<dyn std::error::Error>> {
        for keys in [&["a"][..], &["a", "b"]] {
            let store = Scripted::new(|_| {
                Box::pin(async {
                    tokio::time::sleep(ROUND_TRIP).await;
                    Ok(Attempt::Granted { fence: None })
                })
            });
            let locks = LockManager::builder("distant").with_store(store).build()?;
            locks.lock_all(keys.iter().copied()).acquire().await?.release().await?;
            let usual = locks.shared().backend.access.usual_round_trip();
            assert!(usual >= ROUND_TRIP, "{usual:?} for {keys:?}");
        }
        Ok(())
    }

    #[tokio::test]
    async fn the_wait_for_a_connection_is_no_part_of_the_usual_round_trip() -> Result<(), Box<dyn std::error::Error>> {
        let granted = |_| Box::pin(ready(Ok(Attempt::Granted { fence: None }))) as StoreFuture<'static, Attempt>;
        let store = Scripted {
            connects_in: ROUND_TRIP,
            ..Arc::into_inner(Scripted::new(granted)).ok_or("the store is shared")?
        };
        let locks = LockManager::builder("connects").with_store(Arc::new(store)).build()?;
        let began = std::time::Instant::now();
        let held = locks.lock("k").acquire().await?;
        let usual = locks.shared().backend.access.usual_round_trip();
        assert!(usual + ROUND_TRIP <= began.elapsed(), "{usual:?}");
        held.release().await?;
        Ok(())
    }

    /// A store that does not tell when it sends a request may have waited for its connection.
    #[tokio::test]
    async fn a_check_that_is_answered_sooner_shortens_the_usual_round_trip() -> Result<(), Box<dyn std::error::Error>> {
        let store = Scripted::new(|_| {
            Box::pin(async {
                tokio::time::sleep(ROUND_TRIP).await;
                Ok(Attempt::Granted { fence: None })
            })
        });
        let locks = LockManager::builder("connecting").with_store(store).build()?;
        let held = locks.lock("k").acquire().await?;
        let usual = || locks.shared().backend.access.usual_round_trip();
        let shorter = async {
            while usual() >= ROUND_TRIP {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), shorter).await?;
        held.release().await?;
        Ok(())
    }

    #[tokio::test]
    async fn what_was_tried_at_the_wrong_place_is_asked_for_again() -> Result<(), Box<dyn std::error::Error>> {
        let store = Scripted::new(|_| Box::pin(ready(Ok(Attempt::Granted { fence: None }))));
        store.is_misled.store(true, Ordering::SeqCst);
        let locks = LockManager::builder("misled").with_store(store.clone()).build()?;
        locks.lock("k").acquire().await?.release().await?;
        assert_eq!(store.attempts.load(Ordering::SeqCst), 1);
        Ok(())
    }

    #[tokio::test]
    async fn a_store_that_fails_is_not_asked_as_if_the_lock_were_about_to_be_free() -> Result<(), ConfigError> {
        let store = Scripted::new(|attempt| {
            Box::pin(ready(if attempt == 0 {
                Ok(Attempt::Busy {
                    holder: None,
                    remaining: Some(Duration::from_millis(1)),
                })
            } else {
                Err(StoreError::transient("loading"))
            }))
        });
        let locks = LockManager::builder("failing").with_store(store.clone()).build()?;
        let failed = locks.lock("k").wait(Duration::from_secs(4)).acquire().await;
        assert!(
            matches!(failed, Err(crate::LockError::Store { .. })),
            "{:?}",
            failed.err()
        );
        // The pauses are 125 ms on average.
        let attempts = store.attempts.load(Ordering::SeqCst);
        assert!((2..=240).contains(&attempts), "{attempts} attempts in four seconds");
        Ok(())
    }
}
