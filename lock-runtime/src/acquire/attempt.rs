//! Asks the store for a lock: attempts, waits in the store's queue, pauses in between, and accepts
//! the grant.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::futures::Notified;

use crate::acquire::Acquisition;
use crate::acquire::callers::{Asking, Caller};
use crate::acquire::local_queue::{self, Contention};
use crate::acquire::unconfirmed::UnconfirmedAcquire;
use crate::error::LockError;
use crate::hold::upkeep::Stake;
use crate::hold::{Grant, QueueHead, Tenure};
use crate::host::Moment;
use crate::key::Keys;
use crate::store::holder;
use crate::store::{
    AcquireRequest, Attempt, ContentionSlot, Effect, FencingToken, HolderValue, Limited, QueueOutcome, QueueRequest,
    Queued, StoreError,
};

/// The call's knowledge of the store so far.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) attempts: u32,
    pub(super) contention: Contention,
    /// `true` if the next step is to stand in the store's queue.
    queues: bool,
    /// The number of places in that queue that the call has lost.
    lapses: u32,
}

impl Progress {
    pub(super) fn knows_nothing(&self) -> bool {
        self.contention.holder.is_none() && self.contention.error.is_none()
    }

    /// Counts a lost place in the queue. A single loss is an accident; many retries would overload
    /// the store.
    fn lapsed(&mut self) -> Step {
        self.lapses += 1;
        if self.lapses > 2 { Step::Pause } else { Step::Queue }
    }
}

/// The next step after an answer of the store.
pub(super) enum Step {
    Won(Grant),
    /// Stand in the store's queue.
    Queue,
    /// Try again after a pause.
    Pause,
}

/// The result of a place in the store's queue.
pub(super) enum Queuing<'a> {
    /// The queue has handed the lock over.
    Granted {
        pending: UnconfirmedAcquire<'a>,
        since: Moment,
        fence: Option<FencingToken>,
    },
    Over(Step),
}

impl Acquisition {
    /// Makes one attempt at a store that answers at once. Returns `None` if the store does not.
    pub(super) fn attempt_now(&self, seen: &mut Progress) -> Option<Result<Step, StoreError>> {
        if !self.manager.store().release_is_immediate() || self.manager.backend.closed.is_closed() {
            return None;
        }
        let (pending, sent) = match self.ask(seen, &Arc::default()) {
            Ok(asked) => asked,
            Err(error) => return Some(Err(error)),
        };
        let Some(answer) = self.manager.store().acquire_now(&self.request(seen, &pending)) else {
            seen.attempts -= 1;
            return None;
        };
        Some(self.settle(seen, pending, sent, Some(answer)))
    }

    /// Makes the first attempt. Returns `None` if there is no time for one.
    // Not an `async fn`, whose future would hold the arguments twice.
    #[allow(clippy::manual_async_fn)]
    pub(super) fn attempt_first<'a>(
        &'a self,
        caller: &'a Arc<Caller>,
        seen: &'a mut Progress,
    ) -> impl Future<Output = Option<Result<Step, StoreError>>> + Send + 'a {
        async move {
            if self.is_over(seen) {
                return None;
            }
            let (pending, sent) = match self.ask(seen, caller) {
                Ok(asked) => asked,
                Err(error) => return Some(Err(error)),
            };
            let mut is_first_try = false;
            let answer = {
                let asked = pending.send(&self.request(seen, &pending));
                let access = &self.manager.backend.access;
                let mut answer = asked.map(|asked| {
                    is_first_try = asked.is_first_try;
                    access.in_time(self.timer, self.budget(sent), asked)
                });
                match &mut answer {
                    Some(answer) => Some(answer.await),
                    None => None,
                }
            };
            // What a batch has not done, perhaps for the sake of another lock in it, or a node that does not have the
            // lock's slot, is asked for again.
            let is_undone = |answer: &Option<Result<_, StoreError>>| {
                is_first_try && matches!(answer, Some(Err(error)) if error.effect() == Effect::None)
            };
            if let Some(answer) = answer.filter(|answer| !is_undone(answer)) {
                return Some(self.settle(seen, pending, sent, answer));
            }
            // Boxed, since it is much larger, and not needed where many locks are taken.
            let attempt = Box::pin(self.attempt(seen, caller, Some(pending)));
            Some(caller.attend(pin!(attempt)).await)
        }
    }

    /// Asks the store until it grants the lock or the time is up. `first` is the result of a first
    /// attempt, during which the store may have come `back`.
    pub(super) async fn contend(
        &self,
        place: Option<&QueueHead>,
        asking: Option<Asking>,
        first: Option<Result<Step, StoreError>>,
        back: Notified<'_>,
        seen: &mut Progress,
    ) -> Result<Grant, LockError> {
        let asking = asking.unwrap_or_else(|| self.asking(place));
        let caller = &asking.caller;
        let asked = pin!(self.ask_again(place, caller, first, back, seen));
        caller.attend(asked).await
    }

    /// Returns the time for which the call in front before this one may have left the lock to other
    /// clients.
    pub(super) fn left_free(&self, place: Option<&QueueHead>) -> Option<Duration> {
        local_queue::left_free(&self.manager.backend, place?)
    }

    /// Makes the lock thread check from here on that the call is polled.
    pub(super) fn asking(&self, place: Option<&QueueHead>) -> Asking {
        let front = place.map(local_queue::ahead);
        Asking::begin(&self.manager.callers, &self.watchdog, Arc::default(), front)
    }

    async fn ask_again(
        &self,
        place: Option<&QueueHead>,
        caller: &Arc<Caller>,
        mut first: Option<Result<Step, StoreError>>,
        back: Notified<'_>,
        seen: &mut Progress,
    ) -> Result<Grant, LockError> {
        let mut since_the_first = Some(back);
        // A lock left free by the previous call in front is for other clients: in the store's queue
        // this call gets its turn after them.
        let mut left_free = self.left_free(place);
        let has_time = |pause| pause < self.left(self.manager.now());
        seen.queues |= left_free.is_some_and(has_time) && first.is_none();
        loop {
            // A return of the store during the step counts.
            let back = since_the_first
                .take()
                .unwrap_or_else(|| self.manager.backend.access.back.notified());
            let step = if let Some(step) = first.take() {
                step
            } else {
                if self.is_over(seen) {
                    return Err(self.give_up(seen));
                }
                if seen.queues {
                    self.stand_in_queue(place, seen, caller).await
                } else {
                    self.attempt(seen, caller, None).await
                }
            };
            match step {
                Ok(Step::Won(grant)) => return Ok(grant),
                Ok(Step::Queue) => seen.queues = true,
                Ok(Step::Pause) => seen.queues = false,
                Err(source) => {
                    let key = self.name();
                    return Err(LockError::Store {
                        key,
                        began: false,
                        source,
                    });
                }
            }
            if let Some(place) = place {
                self.manager.lines.report(place, &seen.contention);
            }
            let Some(mut pause) = self.pause(seen) else {
                return Err(self.give_up(seen));
            };
            if let Some(left_free) = left_free.take() {
                // Without a place in the store's queue, the pause leaves the lock to the other
                // clients.
                pause = pause.max(left_free.min(self.left(self.manager.now())));
            }
            if !seen.queues {
                self.rest(pause, back).await;
            }
        }
    }

    /// Returns `true` if the call must make no further attempt: the manager is closed, or the
    /// call's time is up and it has asked before, or knows the answer that the call in front got. A
    /// lock granted now would only block other callers for a moment.
    pub(super) fn is_over(&self, seen: &Progress) -> bool {
        let knows = seen.attempts > 0 || !seen.knows_nothing();
        self.manager.backend.closed.is_closed() || knows && self.left(self.manager.now()).is_zero()
    }

    /// Waits for `pause`, or until the store answers again after an outage.
    pub(super) async fn rest(&self, pause: Duration, back: Notified<'_>) {
        tokio::select! {
            biased;
            () = self.manager.backend.closed.wait() => {}
            () = back => {}
            () = self.sleep(pause) => {}
        }
    }

    /// Waits until the store has room for a request. Returns `false` if there is none within the
    /// call's time, or the manager is closed first. An error is permanent: retrying does not help.
    pub(super) async fn is_ready(&self, seen: &mut Progress) -> Result<bool, StoreError> {
        let most = if self.options.wait.is_zero() {
            self.manager.backend.access.response_timeout
        } else {
            self.left(self.manager.now())
        };
        let Some(ready) = self.manager.store().ready(Limited::Acquires, &self.key, most) else {
            return Ok(true);
        };
        let ready = tokio::select! {
            biased;
            () = self.manager.backend.closed.wait() => return Ok(false),
            ready = ready => ready,
        };
        let Err(error) = ready else { return Ok(true) };
        seen.attempts += 1;
        if error.is_permanent() {
            return Err(error);
        }
        // If the rest of `wait` was shorter than the response time-out, the store's earlier answer
        // is the better one to report.
        if seen.knows_nothing() || most >= self.manager.backend.access.response_timeout {
            seen.contention.error = Some(error);
        }
        Ok(false)
    }

    /// Makes one attempt, which may have begun. An error is permanent: retrying does not help.
    async fn attempt(
        &self,
        seen: &mut Progress,
        caller: &Arc<Caller>,
        begun: Option<UnconfirmedAcquire<'_>>,
    ) -> Result<Step, StoreError> {
        seen.attempts -= u32::from(begun.is_some());
        if !self.is_ready(seen).await? {
            return Ok(Step::Pause);
        }
        let (pending, sent) = match begun {
            None => self.ask(seen, caller)?,
            Some(pending) => {
                seen.attempts += 1;
                (pending, self.manager.now())
            }
        };
        let answer = {
            let request = self.request(seen, &pending);
            let asked = self.manager.store().acquire(&request);
            self.manager
                .backend
                .access
                .timeout(self.timer, self.budget(sent), asked)
                .await
        };
        self.settle(seen, pending, sent, answer)
    }

    /// Begins an attempt, and returns it with the moment from which its grant counts. Dropping it
    /// before its outcome is known releases whatever it took.
    fn ask(&self, seen: &mut Progress, caller: &Arc<Caller>) -> Result<(UnconfirmedAcquire<'_>, Moment), StoreError> {
        seen.attempts += 1;
        let ttl = self.options.time_to_live();
        let keys = Keys::from(&self.key);
        let stake = Stake::new(keys, self.value()?, ttl, None);
        let pending = UnconfirmedAcquire::arm(&self.manager.backend, caller, stake);
        Ok((pending, self.manager.now()))
    }

    fn request<'a>(&'a self, seen: &Progress, pending: &'a UnconfirmedAcquire<'_>) -> AcquireRequest<'a> {
        AcquireRequest {
            key: &self.key,
            value: pending.value(),
            ttl: self.options.time_to_live(),
            fence: self.options.fencing,
            // Costs a second command, and is useful only for the pause before the next attempt, or
            // in the error of a call that tries just once.
            tell_remaining: seen.attempts > 1 || self.options.wait.is_zero(),
            fair: self.options.fair,
            receipt: pending.receipt(),
        }
    }

    /// Records the answer to an attempt; `None` if there was none in time.
    fn settle(
        &self,
        seen: &mut Progress,
        pending: UnconfirmedAcquire<'_>,
        sent: Moment,
        answer: Option<Result<Attempt, StoreError>>,
    ) -> Result<Step, StoreError> {
        match answer {
            Some(Ok(Attempt::Granted { fence })) => {
                let now = self.note_round_trip(&pending, sent);
                Ok(self.granted(seen, pending, (sent, now), fence))
            }
            Some(Ok(Attempt::Busy { holder, remaining })) => {
                self.note_round_trip(&pending, sent);
                pending.disarm();
                seen.contention = Contention {
                    holder,
                    remaining,
                    error: None,
                };
                Ok(Step::Queue)
            }
            Some(Err(error)) => Self::failed(seen, pending, error),
            None => {
                self.unanswered(seen, &pending, sent);
                Ok(Step::Pause)
            }
        }
    }

    /// Records the time that the store took to answer an attempt made at `sent`. Returns the moment of the answer.
    pub(super) fn note_round_trip(&self, pending: &UnconfirmedAcquire<'_>, sent: Moment) -> Moment {
        let now = self.manager.now();
        let took = match pending.receipt().waited_until() {
            Some(sent) => self.manager.host().now().since(sent),
            None => now.since(sent),
        };
        self.manager.backend.access.note_round_trip(took);
        now
    }

    /// Records that an attempt had no answer in time.
    pub(super) fn unanswered(&self, seen: &mut Progress, pending: &UnconfirmedAcquire<'_>, sent: Moment) {
        // If the rest of `wait` was shorter than the response time-out, the store's earlier answer
        // is the better one to report.
        if seen.knows_nothing() || self.budget(sent) >= self.manager.backend.access.response_timeout {
            let limit = "the response time-out, or the rest of `wait`";
            let receipt = pending.receipt();
            seen.contention.error = Some(match (receipt.refusal(), receipt.connection()) {
                (Some(refusal), _) => refusal.into_unknown(),
                (None, None) => StoreError::transient(format!("no connection within {limit}")),
                (None, Some(_)) => StoreError::unknown(format!("no answer within {limit}")),
            });
        }
    }

    /// Waits in the store's queue.
    async fn stand_in_queue(
        &self,
        place: Option<&QueueHead>,
        seen: &mut Progress,
        caller: &Arc<Caller>,
    ) -> Result<Step, StoreError> {
        match self
            .queue_for(&self.key, self.options.fencing, place, caller, seen)
            .await?
        {
            Queuing::Granted { pending, since, fence } => {
                let now = self.manager.now();
                Ok(self.granted(seen, pending, (since, now), fence))
            }
            Queuing::Over(step) => Ok(step),
        }
    }

    /// Waits in the store's queue for one key. The calls behind `place` are told who has the lock.
    pub(super) async fn queue_for(
        &self,
        key: &Arc<str>,
        fence: bool,
        place: Option<&QueueHead>,
        caller: &Arc<Caller>,
        seen: &mut Progress,
    ) -> Result<Queuing<'_>, StoreError> {
        seen.attempts += 1;
        let ttl = self.options.time_to_live();
        let queued = Queued { ttl, fence };
        let keys = Keys::from(key);
        let stake = Stake::new(keys, self.value()?, ttl, Some(queued));
        let pending = UnconfirmedAcquire::arm(&self.manager.backend, caller, stake);
        let contention = ContentionSlot::default();
        let request = QueueRequest {
            key,
            value: pending.value(),
            ttl,
            fence,
            clock: &self.manager.backend.access.clock,
            receipt: pending.receipt(),
            contention: &contention,
        };
        let left = self.left(self.manager.now());
        let turn = {
            let mut queue = self.manager.store().queue(&request);
            let mut reported = false;
            let queue = poll_fn(|cx| {
                let turn = queue.as_mut().poll(cx);
                let found = contention.take().map(|(holder, remaining)| Contention {
                    holder: Some(holder),
                    remaining,
                    error: None,
                });
                let receipt = pending.receipt();
                let is_answered = receipt.connection().is_some() && receipt.unanswered_on().is_none();
                // A lock that was left free has no holder to name, and is busy all the same.
                if found.is_some() || is_answered && !reported {
                    reported = true;
                    seen.contention = found.unwrap_or_else(|| Contention {
                        error: None,
                        ..seen.contention.clone()
                    });
                    if let Some(place) = place {
                        self.manager.lines.report(place, &seen.contention);
                    }
                }
                turn
            });
            tokio::select! {
                biased;
                () = self.manager.backend.closed.wait() => None,
                turn = queue => Some(turn),
                () = self.sleep(left) => None,
            }
        };
        Ok(Queuing::Over(match turn {
            Some(Ok(QueueOutcome::Granted { fence, since })) => {
                return Ok(Queuing::Granted { pending, since, fence });
            }
            Some(Ok(QueueOutcome::Lapsed)) => seen.lapsed(),
            Some(Ok(QueueOutcome::Unavailable)) => {
                seen.attempts -= 1;
                Step::Pause
            }
            Some(Err(error)) => Self::failed(seen, pending, error)?,
            None => {
                // If the rest of `wait` was shorter than the response time-out, the store's earlier
                // answer is the better one to report.
                let cut_short = left < self.manager.backend.access.response_timeout && !seen.knows_nothing();
                if pending.receipt().unanswered_on().is_some() && !cut_short {
                    seen.contention.error = Some(StoreError::unknown("no answer within the rest of `wait`"));
                }
                Step::Pause
            }
        }))
    }

    /// Accepts a grant whose lease counts from `since`, and whose answer came at `now`.
    pub(super) fn granted(
        &self,
        seen: &mut Progress,
        pending: UnconfirmedAcquire<'_>,
        (since, now): (Moment, Moment),
        fence: Option<FencingToken>,
    ) -> Step {
        if self.manager.backend.closed.is_closed() {
            return Step::Pause;
        }
        if self.options.is_too_late(&self.manager.backend, since, now) {
            let late = StoreError::unknown("the store's grant came when the lease was over or about to end");
            seen.contention.error = Some(late.advise("try again, or give a longer lease"));
            return Step::Pause;
        }
        let Some(value) = pending.claim() else {
            seen.contention.error = Some(StoreError::unknown(
                "the call was not polled for a second after it had asked for the lock, which was given back",
            ));
            return seen.lapsed();
        };
        // The minimum hold and the watchdog's first check count from now: the grant may have come
        // long after `since`.
        let tenure = Tenure::new(
            self.keys(),
            value,
            &self.options,
            since,
            now,
            Arc::clone(&self.manager.backend),
            Arc::clone(&self.watchdog) as _,
        );
        Step::Won(Grant::new(tenure, fence))
    }

    pub(super) fn failed(
        seen: &mut Progress,
        pending: UnconfirmedAcquire<'_>,
        error: StoreError,
    ) -> Result<Step, StoreError> {
        // An answered request has a place in the queue, and the store may have handed it the lock
        // since. It is therefore cleaned up even if the question that failed changed nothing.
        let stands = pending.receipt().connection() != pending.receipt().unanswered_on();
        if error.effect() == Effect::None && !stands {
            pending.disarm();
        }
        if error.is_permanent() {
            return Err(error);
        }
        seen.contention.error = Some(error);
        Ok(Step::Pause)
    }

    /// Creates a value that was never used before. Each attempt has its own: an attempt with an
    /// unknown outcome is left to the releaser, and cannot be confused with the next one.
    pub(super) fn value(&self) -> Result<HolderValue, StoreError> {
        holder::new_value(self.manager.host(), self.options.site.function, self.options.mode())
            .map_err(|_| StoreError::permanent("the operating system gave no random bytes for the lock's token"))
    }

    /// Returns the maximum time for one attempt: `wait` limits the whole acquisition, but one try
    /// is always made.
    pub(super) fn budget(&self, now: Moment) -> Duration {
        let limit = self.manager.backend.access.response_timeout;
        if self.options.wait.is_zero() {
            limit
        } else {
            limit.min(self.left(now))
        }
    }

    pub(super) fn left(&self, now: Moment) -> Duration {
        self.options.wait.saturating_sub(now.since(self.start))
    }

    /// Returns the pause before the next attempt, or `None` if the time is up.
    pub(super) fn pause(&self, seen: &Progress) -> Option<Duration> {
        let left = self.left(self.manager.now());
        if left.is_zero() {
            return None;
        }
        let mut pause = self.manager.backoff.pause(self.manager.host(), seen.attempts);
        // A store that fails has not said how much is left by now.
        if let Some(remaining) = seen.contention.remaining.filter(|_| seen.contention.error.is_none()) {
            // The best moment is just after the holder's lease ends; later ones are never better.
            pause = pause.min(remaining.saturating_add(Duration::from_millis(1)));
        }
        Some(pause.min(left))
    }
}
