//! The guard of one held lock: it ends, and the lock is given back.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::context::HeldLock;
use crate::engine::is_forked;
use crate::error::{LockError, LostReason};
use crate::held::{Fate, Held};
use crate::line::Place;
use crate::releaser::{release_later, release_once};
use crate::store::{Receipt, StoreError, Verdict};

/// The owner of a held lock inside the runtime. Dropped, it releases in the background.
pub(crate) struct Guard {
    held: Arc<Held>,
    /// Whether the release has been confirmed, or is of no use.
    done: bool,
    /// Lets `shutdown` wait for this lock.
    _tracked: TaskTrackerToken,
}

impl Guard {
    pub(crate) fn new(held: Arc<Held>) -> Self {
        held.watchdog.watch(&held);
        Self {
            done: false,
            _tracked: held.manager.held.token(),
            held,
        }
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// Gives the lock back and tells whether it was still held until then.
    ///
    /// Cancel safe: dropped before the store has confirmed, the release goes on in the background.
    pub(crate) async fn release(self) -> Result<(), LockError> {
        match self.release_now() {
            Released::Done(result) => result,
            Released::InStore(guard, place) => guard.release_in_store(place).await,
        }
    }

    /// What can be done of the release without waiting.
    pub(crate) fn release_now(mut self) -> Released {
        let fate = self.held.look();
        self.end(Held::outcome(fate));
        if let Some(fate @ Fate::Lost(_)) = fate {
            // The store is told in the background: it may be out of reach.
            return Released::Done(Err(self.held.error(fate, true)));
        }
        // Kept until the release is sent, unless the lock passes on.
        let place = match self.pass() {
            Ok(()) => return Released::Done(Ok(())),
            Err(place) => place,
        };
        if self.held.terms.pipelined && self.send() {
            return Released::Done(Ok(()));
        }
        let receipt = Receipt::default();
        match self
            .held
            .manager
            .store
            .release_now(&self.held.release_request(&receipt))
        {
            Some(verdict) => {
                self.done = true;
                Released::Done(told(&self.held, Ok(verdict)))
            }
            None => Released::InStore(self, place),
        }
    }

    /// Has the store release it.
    pub(crate) async fn release_in_store(mut self, place: Option<Place>) -> Result<(), LockError> {
        let held = Arc::clone(&self.held);
        let receipt = Receipt::default();
        let timer = held.watchdog.timer();
        let request = held.release_request(&receipt);
        let mut answer = pin!(release_once(&held.manager, timer, &request));
        let mut place = place;
        let answer = poll_fn(|cx| {
            let polled = answer.as_mut().poll(cx);
            // Once it is sent, the next in line may ask: on the same connection its request stays behind.
            if receipt.connection().is_some() {
                drop(place.take());
            }
            polled
        })
        .await;
        let told = match told(&held, answer) {
            // It goes on in the background.
            Err(error @ LockError::Store { .. }) => return Err(error),
            told => told,
        };
        self.done = true;
        told
    }

    /// Puts the release on the way without waiting for its outcome. `false`: it has to be waited for.
    fn send(&mut self) -> bool {
        let held = Arc::clone(&self.held);
        let tracked = held.manager.held.token();
        let report = Box::new(move |answer| {
            if let Err(error) = told(&held, answer) {
                held.manager.stats.count_unconfirmed();
                tracing::warn!(parent: &held.span, key = held.name(), %error, "a release that was not waited for has failed");
                if matches!(error, LockError::Store { .. }) {
                    release_later(&held);
                }
            }
            drop(tracked);
        });
        let request = &self.held;
        let receipt = Receipt::default();
        let sent = request
            .manager
            .store
            .release_in_order(&request.release_request(&receipt), report);
        self.done = sent.is_ok();
        self.done
    }

    /// Lets the next call in line go on with the lock, if there is one and it may. `Err`: the lock is to be released, and
    /// the place in front of the line then left.
    fn pass(&mut self) -> Result<(), Option<Place>> {
        match self.held.leave_place() {
            Some(place) if place.is_followed() && self.held.may_pass() => {
                place.pass(&self.held).map_err(Some)?;
                self.done = true;
                Ok(())
            }
            place => Err(place),
        }
    }

    /// From here on nothing renews the lock or reports it lost.
    fn end(&self, outcome: &str) {
        self.held.end_guard();
        // In a forked child the schedule may have been locked by a thread that is not there.
        if !is_forked() {
            self.held.watchdog.forget(&self.held);
        }
        self.held.span.record("outcome", outcome);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if !self.held.has_ended() {
            self.end("dropped");
        }
        // The next in line asks the store once the release is on its way.
        if let Err(_place) = self.pass() {
            release_later(&self.held);
        }
    }
}

/// How far a release has got without waiting.
pub(crate) enum Released {
    Done(Result<(), LockError>),
    /// The store is to be asked, and the place in front of the line left after that.
    InStore(Guard, Option<Place>),
}

/// What the store's answer to a release says about the lock.
fn told(held: &Held, answer: Result<Verdict, StoreError>) -> Result<(), LockError> {
    let reason = match answer {
        Ok(Verdict::Owned) => return Ok(()),
        // It ran out while the release was on its way.
        Ok(Verdict::Gone) if held.now() >= held.deadline() => LostReason::Expired,
        Ok(Verdict::Gone) => LostReason::Deleted,
        Ok(Verdict::Foreign) => LostReason::Taken,
        Err(source) => {
            tracing::debug!(parent: &held.span, error = %source, "release goes on in the background");
            return Err(LockError::Store {
                key: held.name().into(),
                source,
            });
        }
    };
    let fate = held.fate().unwrap_or(Fate::Lost(reason));
    held.manager.stats.count_fate(fate);
    held.span.record("outcome", Held::outcome(Some(fate)));
    Err(held.error(fate, true))
}

/// A held lock. Dropping it releases the lock in the background; [`release`](Self::release) waits for that and
/// tells whether the lock was held to the end.
///
/// The watchdog renews the lock while the guard lives. Code under a bare guard is **not** cancelled when the
/// lock is lost: ask [`ensure`](HeldLock::ensure) before each step that needs it, await
/// [`lost`](HeldLock::lost) beside the work, or let [`LockRequest::run`](crate::LockRequest::run) or the
/// attribute do so.
///
/// ```
/// # use lock_runtime::{LockManager, LockError};
/// # async fn example() -> Result<(), LockError> {
/// let locks = LockManager::connect("memory://").await?;
/// let guard = locks.lock("inventory:7").acquire().await?;
/// guard.ensure(std::time::Duration::from_secs(1))?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    lock: HeldLock,
    guard: Guard,
}

impl LockGuard {
    pub(crate) fn new(guard: Guard) -> Self {
        Self {
            lock: HeldLock::new(Arc::clone(guard.held())),
            guard,
        }
    }

    pub(crate) fn into_guard(self) -> Guard {
        self.guard
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`LockError::Lost`], [`LockError::Hung`] or [`LockError::Closed`] when the lock had ended before: what
    /// was done under it may have overlapped another holder. [`LockError::Store`] when the store did not
    /// confirm; the release then goes on in the background.
    ///
    /// # Cancel safety
    /// Dropped before it is done, the release goes on in the background.
    pub async fn release(self) -> Result<(), LockError> {
        self.guard.release().await
    }
}

impl Deref for LockGuard {
    type Target = HeldLock;

    fn deref(&self) -> &HeldLock {
        &self.lock
    }
}

impl std::fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LockGuard").field(self.guard.held()).finish()
    }
}
