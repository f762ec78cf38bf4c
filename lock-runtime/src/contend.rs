//! Asking the store for a lock: attempts, its queue, the pauses in between, and what was granted.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Acquisition;
use crate::clock::Moment;
use crate::error::LockError;
use crate::held::{Chain, Grant, Terms};
use crate::holder;
use crate::line::{News, Place};
use crate::releaser::Pending;
use crate::store::{
    AcquireRequest, Attempt, Fence, Outcome, QueueRequest, Queued, RenewRequest, Sighting, StoreError, Turn, Verdict,
};

/// A lock handed over by the store's queue is renewed to its whole lease after this part of what it was handed with: short
/// calls need not.
const SECURE_AFTER: u32 = 16;
/// And before the body begins, if less than this part is left.
const SECURE_BELOW: u32 = 4;

/// What the call has seen of the store so far.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) attempts: u32,
    pub(crate) news: News,
    /// Whether to stand in the store's queue next.
    queues: bool,
    /// How often a place there was lost.
    lapses: u32,
}

impl Seen {
    pub(crate) fn knows_nothing(&self) -> bool {
        self.news.holder.is_none() && self.news.error.is_none()
    }

    /// A place in the queue was lost. Once is an accident; again and again would be a storm.
    fn lapsed(&mut self) -> Step {
        self.lapses += 1;
        if self.lapses > 2 { Step::Pause } else { Step::Queue }
    }
}

/// What to do after having asked the store.
pub(crate) enum Step {
    Won(Grant),
    /// Stand in the store's queue.
    Queue,
    /// Try again after a pause.
    Pause,
}

/// How a place in the store's queue has ended.
pub(crate) enum Queuing {
    Handed(Handed),
    Over(Step),
}

/// What the store's queue has handed over.
pub(crate) struct Handed {
    pub(crate) pending: Pending,
    since: Moment,
    /// The lease for now.
    lease: Duration,
    fence: Option<u64>,
}

impl Acquisition {
    /// One attempt with a store that answers at once. `None`: this one does not.
    pub(crate) fn attempt_now(&self, seen: &mut Seen) -> Option<Result<Step, StoreError>> {
        if !self.manager.store.release_is_immediate() || self.manager.closed.is_cancelled() {
            return None;
        }
        let (pending, sent) = match self.ask(seen) {
            Ok(asked) => asked,
            Err(error) => return Some(Err(error)),
        };
        let Some(answer) = self.manager.store.acquire_now(&self.request(seen, &pending)) else {
            seen.attempts -= 1;
            return None;
        };
        Some(self.settle(seen, pending, sent, Some(answer)))
    }

    /// Asks the store until it grants the lock or the time is up. `first`: what has come of a first attempt.
    pub(crate) async fn contend(
        &self,
        place: Option<&Place>,
        mut first: Option<Result<Step, StoreError>>,
        seen: &mut Seen,
    ) -> Result<Grant, LockError> {
        loop {
            let step = if let Some(step) = first.take() {
                step
            } else {
                if self.is_over(seen) {
                    return Err(self.give_up(seen));
                }
                if seen.queues {
                    self.stand_in_queue(seen).await
                } else {
                    self.attempt(seen).await
                }
            };
            match step {
                Ok(Step::Won(grant)) => return Ok(grant),
                Ok(Step::Queue) => seen.queues = true,
                Ok(Step::Pause) => seen.queues = false,
                Err(source) => {
                    let key = self.name();
                    return Err(LockError::Store { key, source });
                }
            }
            if let Some(place) = place {
                place.tell(&seen.news);
            }
            let Some(pause) = self.pause(seen) else {
                return Err(self.give_up(seen));
            };
            if !seen.queues {
                self.rest(pause).await;
            }
        }
    }

    /// Whether there is to be no further attempt: it would only keep others out for a moment.
    pub(crate) fn is_over(&self, seen: &Seen) -> bool {
        let knows = seen.attempts > 0 || !seen.knows_nothing();
        self.manager.closed.is_cancelled() || knows && self.left(self.manager.clock.now()).is_zero()
    }

    pub(crate) async fn rest(&self, pause: Duration) {
        tokio::select! {
            biased;
            () = self.manager.closed.cancelled() => {}
            () = self.timer.sleep(pause) => {}
        }
    }

    /// One attempt. An error is one that trying again does not cure.
    async fn attempt(&self, seen: &mut Seen) -> Result<Step, StoreError> {
        let (pending, sent) = self.ask(seen)?;
        let answer = {
            let request = self.request(seen, &pending);
            let asked = self.manager.store.acquire(&request);
            self.timer.timeout(self.budget(sent), asked).await
        };
        self.settle(seen, pending, sent, answer)
    }

    /// Begins an attempt: from here until its outcome is known, being dropped means to release.
    fn ask(&self, seen: &mut Seen) -> Result<(Pending, Moment), StoreError> {
        seen.attempts += 1;
        let lease = self.wanted.terms.time_to_live();
        let pending = Pending::arm(&self.manager, &self.key, self.value()?, lease, None);
        Ok((pending, self.manager.clock.now()))
    }

    fn request<'a>(&'a self, seen: &Seen, pending: &'a Pending) -> AcquireRequest<'a> {
        AcquireRequest {
            key: &self.key,
            value: pending.value(),
            lease: self.wanted.terms.time_to_live(),
            fence: self.wanted.fencing,
            // On the cheap path only where the answer is of use: for the next pause, or to whoever tries just once.
            tell_remaining: seen.attempts > 1 || self.wanted.wait.is_zero(),
            fair: self.wanted.fair,
            receipt: pending.receipt(),
        }
    }

    /// Enters the answer to an attempt; `None`: there was none in time.
    fn settle(
        &self,
        seen: &mut Seen,
        pending: Pending,
        sent: Moment,
        answer: Option<Result<Attempt, StoreError>>,
    ) -> Result<Step, StoreError> {
        match answer {
            Some(Ok(Attempt::Granted { fence })) => {
                Ok(self.granted(seen, pending, sent, self.wanted.terms.lease, fence))
            }
            Some(Ok(Attempt::Busy { holder, remaining })) => {
                pending.disarm();
                seen.news = News {
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

    /// Notes that an attempt had no answer in time.
    pub(crate) fn unanswered(&self, seen: &mut Seen, pending: &Pending, sent: Moment) {
        // The end of `wait` cuts the last attempt short; what the store said before is then still the answer.
        if seen.knows_nothing() || self.budget(sent) >= self.manager.response_timeout {
            let limit = "the response time-out, or the rest of `wait`";
            seen.news.error = Some(match pending.receipt().connection() {
                None => StoreError::transient(format!("no connection within {limit}")),
                Some(_) => StoreError::unknown(format!("no answer within {limit}")),
            });
        }
    }

    /// Waits in the store's queue.
    async fn stand_in_queue(&self, seen: &mut Seen) -> Result<Step, StoreError> {
        match self.queue_for(&self.key, self.wanted.fencing, seen).await? {
            Queuing::Handed(handed) => self.handed(seen, handed).await,
            Queuing::Over(step) => Ok(step),
        }
    }

    /// Waits in the store's queue for one key.
    pub(crate) async fn queue_for(&self, key: &Arc<str>, fence: bool, seen: &mut Seen) -> Result<Queuing, StoreError> {
        seen.attempts += 1;
        let lease = self.wanted.terms.time_to_live();
        let queued = Queued { lease, fence };
        let pending = Pending::arm(&self.manager, key, self.value()?, lease, Some(queued));
        let sighting = Sighting::default();
        let request = QueueRequest {
            key,
            value: pending.value(),
            lease,
            fence,
            clock: &self.manager.clock,
            receipt: pending.receipt(),
            sighting: &sighting,
        };
        let left = self.left(self.manager.clock.now());
        let turn = {
            let queue = self.manager.store.queue(&request);
            tokio::select! {
                biased;
                () = self.manager.closed.cancelled() => None,
                turn = queue => Some(turn),
                () = self.timer.sleep(left) => None,
            }
        };
        if let Some((holder, remaining)) = sighting.take() {
            seen.news = News {
                holder: Some(holder),
                remaining,
                error: None,
            };
        }
        Ok(Queuing::Over(match turn {
            Some(Ok(Turn::Granted { fence, since, lease })) => {
                return Ok(Queuing::Handed(Handed {
                    pending,
                    since,
                    lease,
                    fence,
                }));
            }
            Some(Ok(Turn::Lapsed)) => seen.lapsed(),
            Some(Ok(Turn::Unavailable)) => {
                seen.attempts -= 1;
                Step::Pause
            }
            Some(Err(error)) => Self::failed(seen, pending, error)?,
            None => {
                // As for an attempt: what the store said before is still the answer.
                let cut_short = left < self.manager.response_timeout && !seen.knows_nothing();
                if pending.receipt().unanswered_on().is_some() && !cut_short {
                    seen.news.error = Some(StoreError::unknown("no answer within the rest of `wait`"));
                }
                Step::Pause
            }
        }))
    }

    /// The lock is this call's since `since`, for now with this lease.
    pub(crate) fn granted(
        &self,
        seen: &mut Seen,
        pending: Pending,
        since: Moment,
        lease: Duration,
        fence: Option<u64>,
    ) -> Step {
        if self.manager.closed.is_cancelled() {
            return Step::Pause;
        }
        let now = self.manager.clock.now();
        let deadline = self.manager.margins.deadline(since, lease);
        if now >= deadline {
            // Too late to be of use: the answer took as long as the lease.
            seen.news.error = Some(StoreError::unknown(
                "the store took longer to answer than the whole lease",
            ));
            return Step::Pause;
        }
        let claimed = lease < self.wanted.terms.lease;
        let renew_at = if claimed {
            Some(now.after(lease / SECURE_AFTER))
        } else {
            self.wanted.terms.renew.then(|| self.wanted.terms.renew_at(since))
        };
        Step::Won(Grant {
            value: pending.disarm(),
            // The minimum hold counts from here, and the watchdog's first look: the grant may have come long after `since`.
            since: now,
            deadline,
            fence,
            renew_at,
            claimed,
            chain: Chain::begin(now),
        })
    }

    /// The store's queue has come to this call. What it was handed is good for a short time, in which the body can begin; if
    /// too much of that is over, it is renewed before.
    async fn handed(&self, seen: &mut Seen, handed: Handed) -> Result<Step, StoreError> {
        let Handed {
            pending,
            since,
            lease,
            fence,
        } = handed;
        let Terms { lease: wanted, .. } = self.wanted.terms;
        let fence = match fence {
            // The word that brought it may have been lost.
            None if self.wanted.fencing => {
                let answer = self.manager.store.fence(&self.key, pending.value());
                match self.timer.answer(self.budget(self.manager.clock.now()), answer).await {
                    Ok(Fence::Token(fence)) => Some(fence),
                    Ok(Fence::NotOwned(_)) => return Ok(seen.lapsed()),
                    Err(error) => return Self::failed(seen, pending, error),
                }
            }
            fence => fence,
        };
        let now = self.manager.clock.now();
        let left = self.manager.margins.deadline(since, lease.min(wanted)).since(now);
        // What was handed over for a short time lacks the delay.
        let whole = self.wanted.terms.lock_delay.is_zero() || lease >= self.wanted.terms.time_to_live();
        if whole && left >= lease.min(wanted) / SECURE_BELOW {
            return Ok(self.granted(seen, pending, since, lease.min(wanted), fence));
        }
        let request = [RenewRequest {
            key: Arc::clone(&self.key),
            value: Arc::clone(pending.value()),
            extend: Some(self.wanted.terms.time_to_live()),
        }];
        let answer = self.manager.store.renew(&request);
        match self.timer.answer(self.budget(now), answer).await {
            Ok(verdicts) if verdicts.first() == Some(&Verdict::Owned) => {
                Ok(self.granted(seen, pending, now, wanted, fence))
            }
            Ok(_) => Ok(seen.lapsed()),
            Err(error) => Self::failed(seen, pending, error),
        }
    }

    pub(crate) fn failed(seen: &mut Seen, pending: Pending, error: StoreError) -> Result<Step, StoreError> {
        if error.outcome() == Outcome::NotApplied {
            pending.disarm();
        }
        if error.is_permanent() {
            return Err(error);
        }
        seen.news.error = Some(error);
        Ok(Step::Pause)
    }

    /// A value never used before. One for each attempt: an attempt whose outcome is unknown is left to the releaser, and the
    /// next one cannot be confused with it.
    pub(crate) fn value(&self) -> Result<Arc<str>, StoreError> {
        holder::new_value(self.wanted.function, &self.wanted.mode)
            .map_err(|_| StoreError::permanent("the operating system gave no random bytes for the lock's token"))
    }

    /// How long one attempt may take: `wait` bounds the whole acquisition, but one try is always made.
    pub(crate) fn budget(&self, now: Moment) -> Duration {
        let limit = self.manager.response_timeout;
        if self.wanted.wait.is_zero() {
            limit
        } else {
            limit.min(self.left(now))
        }
    }

    pub(crate) fn left(&self, now: Moment) -> Duration {
        self.wanted.wait.saturating_sub(now.since(self.start))
    }

    /// The pause before the next attempt; `None` when the time is up.
    pub(crate) fn pause(&self, seen: &Seen) -> Option<Duration> {
        let left = self.left(self.manager.clock.now());
        if left.is_zero() {
            return None;
        }
        let mut pause = self.manager.backoff.pause(seen.attempts);
        if let Some(remaining) = seen.news.remaining {
            // Just after the holder's lease ends is a good moment, and later than that never a better one.
            pause = pause.min(remaining.saturating_add(Duration::from_millis(1)));
        }
        Some(pause.min(left))
    }
}
