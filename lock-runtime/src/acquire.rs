//! Taking a lock: attempts, the pauses between them, and cleaning up after an attempt whose outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::Moment;
use crate::context;
use crate::engine::{Engine, Timer};
use crate::error::LockError;
use crate::guard::Guard;
use crate::held::{Granted, Held, Terms};
use crate::holder::{self, Holder};
use crate::manager::Shared;
use crate::releaser::Pending;
use crate::store::{AcquireRequest, Attempt, Outcome, StoreError};
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
    /// The key as the user knows it.
    pub(crate) name: String,
    /// The template it was made from, where there is one.
    pub(crate) template: &'static str,
    /// Who asks, for the stored value.
    pub(crate) function: &'static str,
    pub(crate) terms: Terms,
    pub(crate) wait: Duration,
    pub(crate) fencing: bool,
}

/// What the last attempts have shown.
#[derive(Default)]
struct Seen {
    attempts: u32,
    holder: Option<Holder>,
    remaining: Option<Duration>,
    /// The last answer was an error, not "busy".
    error: Option<StoreError>,
}

/// Takes a lock.
///
/// Cancel safe: dropped at any await it leaves nothing behind, since an attempt under way is then released.
pub(crate) async fn acquire(manager: Arc<Shared>, wanted: Wanted) -> Result<Guard, LockError> {
    let span = tracing::debug_span!(
        "distributed_lock",
        template = wanted.template,
        key = %wanted.name,
        wait = tracing::field::Empty,
        attempts = tracing::field::Empty,
        holder = tracing::field::Empty,
        fence = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    let acquisition = Acquisition::new(manager, wanted, span);
    match acquisition {
        Ok(acquisition) => acquisition.run().await,
        Err(error) => Err(error),
    }
}

struct Acquisition {
    manager: Arc<Shared>,
    wanted: Wanted,
    key: Arc<str>,
    parent: Option<Arc<Held>>,
    timer: Timer,
    watchdog: Arc<Watchdog>,
    span: tracing::Span,
    start: Moment,
    /// Lets `shutdown` wait for the outcome.
    _tracked: TaskTrackerToken,
}

impl Acquisition {
    fn new(manager: Arc<Shared>, wanted: Wanted, span: tracing::Span) -> Result<Self, LockError> {
        let lease = wanted.terms.lease;
        // A server takes even an expiry that never comes: then the key would stay for ever.
        let at_least = wanted.terms.at_least;
        let invalid = if !(MIN_LEASE..=MAX_LEASE).contains(&lease) || manager.margins.validity(lease).is_zero() {
            Some(lease)
        } else {
            Some(at_least).filter(|at_least| *at_least > MAX_LEASE)
        };
        if let Some(lease) = invalid {
            return Err(LockError::InvalidLease {
                key: wanted.name.into(),
                lease,
            });
        }
        let key: Arc<str> = format!("{}{}", manager.prefix, wanted.name).into();
        let parent = context::innermost();
        if context::holds(parent.as_ref(), &manager, &key) {
            return Err(LockError::WouldDeadlock {
                key: wanted.name.into(),
            });
        }
        let (watchdog, timer) = manager.pace();
        if timer == Timer::Engine
            && let Err(error) = Engine::get()
        {
            return Err(LockError::Store {
                key: wanted.name.into(),
                source: StoreError::permanent(error),
            });
        }
        Ok(Self {
            start: manager.clock.now(),
            _tracked: manager.held.token(),
            manager,
            wanted,
            key,
            parent,
            timer,
            watchdog,
            span,
        })
    }

    async fn run(self) -> Result<Guard, LockError> {
        let mut seen = Seen::default();
        let closed = self.manager.closed.clone();
        let mut closed = std::pin::pin!(closed.cancelled());
        let result = loop {
            if self.manager.closed.is_cancelled() {
                break Err(LockError::Closed { key: self.name() });
            }
            seen.attempts += 1;
            match self.attempt(&mut seen).await {
                Ok(Some(granted)) => break Ok(granted),
                Ok(None) => {}
                Err(error) => {
                    break Err(LockError::Store {
                        key: self.name(),
                        source: error,
                    });
                }
            }
            let Some(pause) = self.pause(&seen) else {
                break Err(self.give_up(&mut seen));
            };
            tokio::select! {
                biased;
                () = &mut closed => {}
                () = self.manager.store.released(&self.key) => {}
                () = self.timer.sleep(pause) => {}
            }
            // An attempt that cannot be waited for would only keep others out for a moment.
            if self.left(self.manager.clock.now()).is_zero() {
                break Err(self.give_up(&mut seen));
            }
        };
        self.record(&seen, result.as_ref());
        result.map(|won| self.hold(won))
    }

    /// One attempt. `Ok(None)`: not now. An error is one that trying again does not cure.
    async fn attempt(&self, seen: &mut Seen) -> Result<Option<Won>, StoreError> {
        let Ok(value) = holder::new_value(self.wanted.function).map(Arc::<str>::from) else {
            return Err(StoreError::permanent(
                "the operating system gave no random bytes for the lock's token",
            ));
        };
        let lease = self.wanted.terms.lease;
        // From here until the outcome is known, being dropped means to release.
        let pending = Pending::arm(&self.manager, &self.key, value, lease);
        let sent = self.manager.clock.now();
        let request = AcquireRequest {
            key: &self.key,
            value: pending.value(),
            lease,
            fence: self.wanted.fencing,
            // On the cheap path only where the answer is of use: for the next pause, or to whoever tries just once.
            tell_remaining: seen.attempts > 1 || self.wanted.wait.is_zero(),
            receipt: pending.receipt(),
        };
        let answer = self
            .timer
            .timeout(self.budget(sent), self.manager.store.acquire(&request))
            .await;
        match answer {
            Some(Ok(Attempt::Granted { fence })) => {
                if self.manager.closed.is_cancelled() {
                    drop(pending);
                    return Ok(None);
                }
                let deadline = self.manager.margins.deadline(sent, lease);
                if self.manager.clock.now() >= deadline {
                    // Too late to be of use: the answer took as long as the lease.
                    drop(pending);
                    seen.error = Some(StoreError::unknown(
                        "the store took longer to answer than the whole lease",
                    ));
                    return Ok(None);
                }
                let value = pending.disarm();
                Ok(Some(Won {
                    value,
                    since: sent,
                    deadline,
                    fence,
                }))
            }
            Some(Ok(Attempt::Busy { holder, remaining })) => {
                pending.disarm();
                seen.holder = holder;
                seen.remaining = remaining;
                seen.error = None;
                Ok(None)
            }
            Some(Err(error)) => {
                if error.outcome() == Outcome::NotApplied {
                    pending.disarm();
                }
                if error.is_permanent() {
                    return Err(error);
                }
                seen.error = Some(error);
                Ok(None)
            }
            None => {
                // The end of `wait` cuts the last attempt short; what the store said before is then still the
                // answer.
                let has_answer = seen.holder.is_some() || seen.error.is_some();
                if !has_answer || self.budget(sent) >= self.manager.response_timeout {
                    let limit = "the response time-out, or the rest of `wait`";
                    seen.error = Some(match pending.receipt().connection() {
                        None => StoreError::transient(format!("no connection within {limit}")),
                        Some(_) => StoreError::unknown(format!("no answer within {limit}")),
                    });
                }
                Ok(None)
            }
        }
    }

    /// How long one attempt may take: `wait` bounds the whole acquisition, but one try is always made.
    fn budget(&self, now: Moment) -> Duration {
        let limit = self.manager.response_timeout;
        if self.wanted.wait.is_zero() {
            limit
        } else {
            limit.min(self.left(now))
        }
    }

    fn left(&self, now: Moment) -> Duration {
        self.wanted.wait.saturating_sub(now.since(self.start))
    }

    /// The pause before the next attempt; `None` when the time is up.
    fn pause(&self, seen: &Seen) -> Option<Duration> {
        let left = self.left(self.manager.clock.now());
        if left.is_zero() {
            return None;
        }
        let mut pause = self.manager.backoff.pause(seen.attempts);
        if let Some(remaining) = seen.remaining {
            // Just after the holder's lease ends is a good moment, and later than that never a better one.
            pause = pause.min(remaining.saturating_add(Duration::from_millis(1)));
        }
        Some(pause.min(left))
    }

    fn give_up(&self, seen: &mut Seen) -> LockError {
        let key = self.name();
        if self.manager.closed.is_cancelled() {
            return LockError::Closed { key };
        }
        match seen.error.take() {
            Some(source) => LockError::Store { key, source },
            None => LockError::Busy {
                key,
                waited: self.manager.clock.now().since(self.start),
                holder: seen.holder.take().map(Box::new),
                retry_after: seen.remaining,
            },
        }
    }

    fn hold(self, won: Won) -> Guard {
        let granted = Granted {
            key: self.key,
            value: won.value,
            terms: self.wanted.terms,
            since: won.since,
            deadline: won.deadline,
            fence: won.fence,
            watchdog: self.watchdog,
            parent: self.parent,
            span: self.span,
        };
        Guard::new(Arc::new(Held::new(self.manager, granted)))
    }

    fn name(&self) -> Box<str> {
        self.wanted.name.as_str().into()
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
            _ => seen.holder.as_ref(),
        };
        if let Some(holder) = holder {
            self.span.record("holder", tracing::field::display(holder));
        }
        match result {
            Ok(won) => {
                if let Some(fence) = won.fence {
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

/// A granted attempt.
struct Won {
    value: Arc<str>,
    since: Moment,
    deadline: Moment,
    fence: Option<u64>,
}
