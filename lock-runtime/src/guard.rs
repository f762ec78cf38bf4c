//! The guard of one held lock: it ends, and the lock is given back.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::context::HeldLock;
use crate::engine::is_forked;
use crate::error::{LockError, LostReason};
use crate::held::{Fate, Held, OnLost};
use crate::line::Place;
use crate::releaser::{release_later, release_once};
use crate::store::{Receipt, StoreError, Verdict};

/// The owner of a held lock inside the runtime. Dropped, it releases in the background.
pub(crate) struct Guard {
    held: Arc<Held>,
    /// What becomes of its body when the lock is lost.
    pub(crate) on_lost: OnLost,
    /// Whether it was the last guard of its lock, and has ended.
    last: bool,
    /// Whether the release has been confirmed, or is of no use.
    done: bool,
    /// Lets `shutdown` wait for this lock.
    _tracked: TaskTrackerToken,
}

impl Guard {
    pub(crate) fn new(held: Arc<Held>) -> Self {
        held.watchdog.watch(&held);
        #[cfg(feature = "testing")]
        crate::testing::note(&held);
        let on_lost = held.terms.on_lost;
        Self::of(held, on_lost)
    }

    /// One more guard of a lock that is held. `None`: its last one has ended.
    pub(crate) fn nested(held: Arc<Held>, on_lost: OnLost) -> Option<Self> {
        held.add_guard().then(|| Self::of(held, on_lost))
    }

    fn of(held: Arc<Held>, on_lost: OnLost) -> Self {
        Self {
            on_lost,
            last: false,
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
        let lost = match fate {
            Some(fate @ Fate::Lost(_)) => Some(self.held.error(fate, true)),
            _ => None,
        };
        self.last = self.held.drop_guard();
        if !self.last {
            // A call around this one holds the lock.
            self.done = true;
            return Released::Done(lost.map_or(Ok(()), Err));
        }
        self.end(Held::outcome(fate));
        if let Some(lost) = lost {
            // The store is told in the background: it may be out of reach.
            return Released::Done(Err(lost));
        }
        // Kept until the release is sent, unless the lock passes on.
        let place = match self.pass() {
            Ok(()) => return Released::Done(Ok(())),
            Err(place) => place,
        };
        if self.held.terms.pipelined && self.send() {
            return Released::Done(Ok(()));
        }
        match self.give_back_now() {
            Some(verdict) => {
                self.done = true;
                Released::Done(told(&self.held, Ok(verdict)))
            }
            None => Released::InStore(self, place),
        }
    }

    /// Releases in a store that does so without waiting.
    fn give_back_now(&self) -> Option<Verdict> {
        let mut worst = Verdict::Owned;
        for key in self.held.keys().iter() {
            let receipt = Receipt::default();
            let request = self.held.release_request(key, &receipt);
            worst = worst.or(self.held.manager.store.release_now(&request)?);
        }
        Some(worst)
    }

    /// Has the store release it.
    pub(crate) async fn release_in_store(mut self, place: Option<Place>) -> Result<(), LockError> {
        let held = Arc::clone(&self.held);
        let answer = if held.keys().others.is_empty() {
            give_back(&held, &held.key, place).await
        } else {
            Box::pin(give_back_all(&held)).await
        };
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
        let mut keys = self.held.keys().iter();
        self.done = keys.next().is_some_and(|first| self.send_one(first));
        if self.done && !keys.all(|key| self.send_one(key)) {
            // The connection has gone in between. Releasing once more what was sent has no effect.
            release_later(&self.held);
        }
        self.done
    }

    fn send_one(&self, key: &str) -> bool {
        let held = Arc::clone(&self.held);
        let tracked = held.manager.held.token();
        let report = Box::new(move |answer| {
            if let Err(error) = told(&held, answer) {
                held.manager.stats.count_unconfirmed();
                tracing::warn!(parent: &held.span, key = &*held.name(), %error, "a release that was not waited for has failed");
                if matches!(error, LockError::Store { .. }) {
                    release_later(&held);
                }
            }
            drop(tracked);
        });
        let receipt = Receipt::default();
        let request = self.held.release_request(key, &receipt);
        self.held.manager.store.release_in_order(&request, report).is_ok()
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
        if self.done || !(self.last || self.held.drop_guard()) {
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

/// Has the store release one key.
async fn give_back(held: &Held, key: &str, place: Option<Place>) -> Result<Verdict, StoreError> {
    let receipt = Receipt::default();
    let request = held.release_request(key, &receipt);
    let mut answer = pin!(release_once(&held.manager, held.watchdog.timer(), &request));
    let mut place = place;
    poll_fn(|cx| {
        let polled = answer.as_mut().poll(cx);
        // Once it is sent, the next in line may ask: on the same connection its request stays behind.
        if receipt.connection().is_some() {
            drop(place.take());
        }
        polled
    })
    .await
}

/// Has the store release all keys at once. The worst answer is that for all.
async fn give_back_all(held: &Held) -> Result<Verdict, StoreError> {
    let mut answers: Vec<_> = held
        .keys()
        .iter()
        .map(|key| (Box::pin(give_back(held, key, None)), None))
        .collect();
    poll_fn(|cx| {
        for (asked, answer) in &mut answers {
            if answer.is_none()
                && let Poll::Ready(ready) = asked.as_mut().poll(cx)
            {
                *answer = Some(ready);
            }
        }
        if answers.iter().all(|(_, answer)| answer.is_some()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    let mut answers = answers.into_iter().filter_map(|(_, answer)| answer);
    answers.try_fold(Verdict::Owned, |worst, answer| Ok(worst.or(answer?)))
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
                key: held.name(),
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
