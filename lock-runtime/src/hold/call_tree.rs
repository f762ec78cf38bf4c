//! The locks under which the current code runs, and the handle to a held lock. A call tree is the
//! code that a body runs in its own task, during its poll: code in another task is inside none of
//! the bodies on the thread's stack, since a task that a body drives for another caller is not
//! cancelled with the body. A body learns of a loss only from its own questions.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::EndCause;
use crate::error::{LockError, LostReason, RequestProblem};
use crate::hold::backend::Backend;
use crate::hold::{Hold, Shield};
use crate::host::{self, TaskId};
use crate::key::Keys;
use crate::store::{self, Fence, FencingToken, LockMode, Ownership, StoreError};

thread_local! {
    /// The bodies being polled on this thread, the innermost last. A nested call that re-enters a
    /// lock adds that lock once more.
    static CURRENT: RefCell<Vec<Polled>> = const { RefCell::new(Vec::new()) };
}

/// A body that is being polled.
///
/// A body may itself poll tasks of other callers, in a `LocalSet` or a runtime of its own. Such
/// tasks are not part of the body, so each body records the task in which it is polled.
struct Polled {
    held: Arc<Hold>,
    /// The task in which the body is polled; `None` directly inside `block_on`, which is no task.
    task: Option<TaskId>,
    /// `true` once the body has learned of the loss of its lock from a method of [`HeldLock`].
    notified: Cell<bool>,
}

/// Makes `held` the current lock until the returned value is dropped.
pub(super) fn enter(held: &Arc<Hold>) -> Entered {
    let polled = Polled {
        held: Arc::clone(held),
        task: host::task(),
        notified: Cell::new(false),
    };
    let enter = |current: &RefCell<Vec<Polled>>| {
        let mut current = current.borrow_mut();
        current.push(polled);
        current.len() - 1
    };
    Entered {
        at: CURRENT.try_with(enter).unwrap_or_default(),
    }
}

pub(super) struct Entered {
    at: usize,
}

impl Entered {
    /// Returns `true` if the body learned of the loss of its lock during this poll.
    pub(super) fn was_notified(&self) -> bool {
        let notified = CURRENT.try_with(|current| {
            current
                .borrow()
                .get(self.at)
                .is_some_and(|polled| polled.notified.get())
        });
        notified.unwrap_or_default()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // The thread-local may already be gone while the thread ends. The popped body is dropped
        // after the borrow.
        drop(CURRENT.try_with(|current| current.borrow_mut().pop()));
    }
}

/// Returns the locks around the calling code, the innermost first.
pub(crate) fn around() -> Vec<Arc<Hold>> {
    look(|bodies| bodies.rev().map(|polled| Arc::clone(&polled.held)).collect())
}

pub(crate) fn innermost() -> Option<Arc<Hold>> {
    look(|bodies| bodies.next_back().map(|polled| Arc::clone(&polled.held)))
}

/// Records that the calling code learned of the loss of `held`, for each body of that lock that
/// contains the code.
fn acknowledge_loss(held: &Arc<Hold>) {
    look(|bodies| {
        bodies
            .filter(|polled| Arc::ptr_eq(&polled.held, held))
            .for_each(|polled| polled.notified.set(true));
    });
}

/// Calls `look` with the bodies that contain the calling code, the innermost last.
fn look<T: Default>(look: impl FnOnce(&mut dyn DoubleEndedIterator<Item = &Polled>) -> T) -> T {
    let looked = CURRENT.try_with(|current| {
        let current = current.borrow();
        if current.is_empty() {
            return T::default();
        }
        let task = host::task();
        look(&mut current.iter().filter(|polled| polled.task == task))
    });
    looked.unwrap_or_default()
}

/// The relation of a call to the locks around it.
pub(crate) enum Relation {
    /// No lock around the call has its keys.
    None,
    /// This lock already covers the request.
    Within(Arc<Hold>),
    /// The call would wait for itself.
    Deadlock,
}

/// Returns the relation of a call that requests `keys` to the locks around it.
pub(crate) fn relation(backend: &Backend, keys: Keys<'_>, mode: &LockMode, reentrant: bool) -> Relation {
    let mut relation = Relation::None;
    for held in &around() {
        let holds = |key: &Arc<str>| held.tenure.keys().iter().any(|held| held == key);
        // A lock that has ended blocks no other call.
        if held.tenure.manager.shares_locks_with(backend)
            && held.end_cause().is_none()
            && !held.has_ended()
            && keys.iter().any(holds)
        {
            if keys.iter().all(holds) && includes(held.tenure.value.mode(), mode, reentrant) {
                return Relation::Within(Arc::clone(held));
            }
            relation = Relation::Deadlock;
        }
    }
    relation
}

impl Hold {
    /// Shields the bodies of this lock, of the locks around it and of those around the calling
    /// code: the step is part of all of them.
    pub(super) fn shield(self: &Arc<Self>) -> Shield {
        let mut shielded: Vec<_> = std::iter::successors(Some(Arc::clone(self)), |held| held.parent.clone()).collect();
        for held in around() {
            if !shielded.iter().any(|other| Arc::ptr_eq(other, &held)) {
                shielded.push(held);
            }
        }
        for held in &shielded {
            held.shields.fetch_add(1, Ordering::AcqRel);
        }
        Shield(shielded)
    }
}

/// Returns `true` if a holder in mode `outer` may continue in mode `inner`.
fn includes(outer: &LockMode, inner: &LockMode, reentrant: bool) -> bool {
    match (outer, inner) {
        // A reader inside a reader must not wait behind a writer that waits for the outer reader.
        (LockMode::Read | LockMode::Write, LockMode::Read) => true,
        (LockMode::Owner(outer), LockMode::Owner(inner)) => outer == inner,
        // Regardless of the numbers of permits: both calls mean the same semaphore.
        (LockMode::Semaphore(_), LockMode::Semaphore(_)) => reentrant,
        (outer, inner) => reentrant && outer == inner,
    }
}

/// Returns the lock under which the calling code runs: the innermost one whose body contains it.
///
/// Returns `None` outside of any lock, and in a task that the body has spawned with
/// [`tokio::spawn`] or drives itself, for example in a [`LocalSet`](tokio::task::LocalSet): such a
/// task is not cancelled with the body, so it does not count as locked. Spawn it with
/// [`HeldLock::spawn`], or pass it a clone of the [`HeldLock`] if it must know. Futures polled by
/// one task are not told apart: a future that the body polls on behalf of another caller, without
/// spawning it, is part of that body.
///
/// ```
/// # use lock_runtime::LockManager;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::connect("memory://").await?;
/// assert!(lock_runtime::current().is_none());
/// let key = locks.lock("inventory:7").run(async {
///     lock_runtime::current().map(|lock| lock.key().to_owned())
/// }).await?;
/// assert_eq!(key.as_deref(), Some("inventory:7"));
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[must_use]
pub fn current() -> Option<HeldLock> {
    innermost().map(HeldLock::new)
}

/// A handle to a held lock. It does not keep the lock held: the guard or the annotated function
/// does.
///
/// Under [`OnLost::Signal`](crate::OnLost::Signal), a body that learned of the loss of its lock
/// decides itself what to return. It learns of the loss from [`lost`](Self::lost), or from an error
/// of [`ensure`](Self::ensure), [`verify`](Self::verify), [`fencing_token`](Self::fencing_token) or
/// [`shielded`](Self::shielded), called by the body or by a function that it awaits. Results that
/// another task gets from a clone of the handle do not count, and neither do `Debug` and the
/// getters.
#[derive(Clone)]
pub struct HeldLock {
    held: Arc<Hold>,
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLock")
            .field("key", &self.key())
            .field("remaining", &self.remaining())
            .finish()
    }
}

impl HeldLock {
    pub(crate) fn new(held: Arc<Hold>) -> Self {
        Self { held }
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.held
    }

    /// Returns the key without the manager's prefix; of several keys, the first in order.
    #[must_use]
    pub fn key(&self) -> &str {
        self.held.tenure.manager.name(&self.held.tenure.key)
    }

    /// Returns the keys without the manager's prefix, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.held
            .tenure
            .keys()
            .iter()
            .map(|key| self.held.tenure.manager.name(key))
    }

    /// Returns the mode, which determines which holders can share the lock.
    #[must_use]
    pub fn mode(&self) -> &LockMode {
        self.held.tenure.value.mode()
    }

    /// Returns the number of calls in this call tree that hold the lock: one, plus those that have
    /// re-entered it (see [`reentrant`](crate::LockRequest::reentrant)).
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        // Each task of the lock has a guard as well.
        let tasks = self.held.known_tasks().map_or(0, |tasks| tasks.count());
        self.held
            .guards()
            .saturating_sub(u32::try_from(tasks).unwrap_or(u32::MAX))
    }

    /// Returns the time for which the lock is certainly valid from now, by this host's clock alone:
    /// the lease, counted from just before the last command that set it was sent, minus 1 % and 2
    /// ms for clock drift, and minus the manager's [`skew`](crate::LockManagerBuilder::skew). Zero
    /// once the lock is lost or released. The next renewal extends it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.held.is_over() {
            Duration::ZERO
        } else {
            self.held.tenure.deadline().since(self.held.tenure.now())
        }
    }

    /// Returns `true` while the lock is held, as far as this process knows.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.held.is_over()
    }

    /// Checks that the lock is certainly valid for at least `min` from now. Call it before a step
    /// that must not overlap another holder's, such as an external call.
    ///
    /// # Errors
    /// [`LockError::Lost`] if less than `min` is left, or the error that ended the lock.
    pub fn ensure(&self, min: Duration) -> Result<(), LockError> {
        self.still_held()?;
        if self.remaining() < min {
            return Err(self.held.error(EndCause::Lost(LostReason::Expired), false));
        }
        Ok(())
    }

    /// Asks the store if the lock is still held, and returns the time for which it is certainly
    /// valid from now.
    ///
    /// If the lock turns out to be lost, it ends at once: its body is cancelled.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock is no longer held, or the error that ended it.
    /// [`LockError::Store`] if the store does not answer within the response time-out, which does
    /// not end the lock.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future has no effect on the lock.
    pub async fn verify(&self) -> Result<Duration, LockError> {
        host::take_part().await;
        self.still_held()?;
        let requests: Vec<_> = self.held.tenure.renew_requests(None).collect();
        let verdicts = self.ask(self.held.tenure.manager.store().renew(&requests)).await?;
        if verdicts.len() != requests.len() {
            return Err(self.store_error(StoreError::unknown("the store gave a wrong number of verdicts")));
        }
        match verdicts.into_iter().find(|verdict| *verdict != Ownership::Owned) {
            None => self.still_held().map(|()| self.remaining()),
            Some(verdict) => Err(self.not_owned(&verdict)),
        }
    }

    /// Returns a fencing token for this hold: greater than every token taken before for this key,
    /// in any process; across a failover only if the servers' clocks agree.
    ///
    /// Send it along with each write, and let the store of record reject a token smaller than one
    /// it has seen. A holder that was paused and lost its lock without noticing then cannot
    /// overwrite its successor's work. All calls on one hold return the same token. It is taken
    /// with the lock under `fencing`, otherwise on the first call, by a script that first checks
    /// that the lock is still held.
    ///
    /// The server counts the tokens: each is one more than the last one, and at least the server's
    /// time in microseconds. The counter is replicated asynchronously, and what a new master has not
    /// got of it is made up for by that server's time. So if the former master's clock was ahead, a
    /// token may be smaller than an earlier one, by the difference of the clocks less the time of
    /// the outage; and so it may on one server that loses its data after its clock was set back. A
    /// former holder with the larger token is then not kept out. Keep the servers' clocks together
    /// by NTP, set `min-replicas-to-write`, and let the store of record keep the largest token that
    /// it has seen, and never lower it. `docs/operations.md`, "Fencing tokens", says more.
    ///
    /// See [How to do distributed
    /// locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock is no longer held, or the error that ended it, so that a
    /// former holder gets no token. [`LockError::Store`] if the store does not answer.
    /// [`LockError::InvalidRequest`] under a read lock or a semaphore, which have many holders at
    /// once.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future has no effect on the lock; a token may be skipped.
    pub async fn fencing_token(&self) -> Result<FencingToken, LockError> {
        host::take_part().await;
        self.still_held()?;
        if let Some(fence) = self.held.fencing_token() {
            return Ok(fence);
        }
        if !self.held.tenure.value.mode().is_fenced() {
            return Err(LockError::InvalidRequest {
                key: self.held.tenure.name(),
                problem: RequestProblem::ManyToFence,
            });
        }
        let (store, value) = (self.held.tenure.manager.store(), &self.held.tenure.value);
        let answer = if self.held.tenure.keys().others.is_empty() {
            self.ask(store.fence(&self.held.tenure.key, value)).await?
        } else {
            let keys: Vec<_> = self.held.tenure.keys().iter().cloned().collect();
            self.ask(store.fence_all(&keys, value)).await?
        };
        match answer {
            Fence::Token(fence) => {
                // Not every key may have been checked. A call that owns the other keys now owned
                // them then, too.
                if !self.held.tenure.keys().others.is_empty() {
                    self.verify().await?;
                }
                self.still_held()?;
                let fence = self.held.set_fence(fence);
                self.held.span.record("fence", fence.get());
                Ok(fence)
            }
            Fence::NotOwned(verdict) => Err(self.not_owned(&verdict)),
        }
    }

    /// Completes when the lock is lost, and returns the reason. Never completes for a lock that is
    /// released in time.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future has no effect on the lock.
    pub async fn lost(&self) -> LockError {
        host::take_part().await;
        loop {
            let mut lost = std::pin::pin!(self.held.lost().notified());
            // Listens before looking, so that no loss falls between the two.
            lost.as_mut().enable();
            if !self.held.has_ended()
                && let Some(cause) = self.held.check_deadline()
            {
                return self.report(cause);
            }
            lost.await;
        }
    }

    /// Runs a critical step that must not be cancelled midway, such as a commit. While it runs, a
    /// lost lock does not cancel the body; right after it does.
    ///
    /// The step may therefore finish without the lock, and so may anything else the body does
    /// meanwhile. Keep it short, [`ensure`](Self::ensure) enough time for it, and
    /// [`fencing_token`](Self::fencing_token) its writes. Dropping the whole call, as a web server
    /// does when its client disconnects, still drops the step: spawn whatever must survive that.
    ///
    /// # Errors
    /// The error that ended the lock, if it ended before the step began. No part of the step has
    /// then run.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropping the future drops the step where it is. A lost lock does not drop
    /// it.
    pub async fn shielded<F: Future>(&self, step: F) -> Result<F::Output, LockError> {
        host::take_part().await;
        self.still_held()?;
        let shield = self.held.shield();
        let output = step.await;
        drop(shield);
        Ok(output)
    }

    /// Returns a token that is cancelled when the lock is lost, whatever `on_lost` says, and when
    /// its body has ended, before the release.
    ///
    /// Use it for code that is not cancelled at an await: loops that do not await,
    /// [`spawn_blocking`](tokio::task::spawn_blocking), libraries that accept a token. The lock
    /// does not wait for such code: await it in the body, and let it check
    /// [`is_cancelled`](CancellationToken::is_cancelled) often. The lock thread cancels the token
    /// at the end of the lease at the latest; [`is_held`](Self::is_held) reads the clock itself.
    /// Cancelling the token has no effect on the lock.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::connect("memory://").await?;
    /// let sum = locks.lock("report").run(async {
    ///     let lost = lock_runtime::current()?.cancellation_token();
    ///     let rows = (1..=10).take_while(move |_| !lost.is_cancelled());
    ///     tokio::task::spawn_blocking(|| rows.sum::<u64>()).await.ok()
    /// }).await?;
    /// assert_eq!(sum, Some(55));
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.held.tasks().token()
    }

    /// Returns the number of times the lease was renewed since this call got the lock.
    #[must_use]
    pub fn renewals(&self) -> u32 {
        self.held.renewals()
    }

    fn still_held(&self) -> Result<(), LockError> {
        if self.held.has_ended() {
            return Err(self.held.error(EndCause::Lost(LostReason::Expired), false));
        }
        self.held
            .check_deadline()
            .map_or(Ok(()), |cause| Err(self.report(cause)))
    }

    /// Returns the error for `cause`, and records that the calling code learned of the loss.
    fn report(&self, cause: EndCause) -> LockError {
        acknowledge_loss(&self.held);
        self.held.error(cause, false)
    }

    async fn ask<T>(&self, question: impl Future<Output = Result<T, StoreError>>) -> Result<T, LockError> {
        let timer = self.held.tenure.watchdog.timer();
        let answer = store::within(
            self.held.tenure.manager.host(),
            timer,
            self.held.tenure.manager.access.response_timeout,
            question,
        )
        .await;
        answer.map_err(|error| self.store_error(error))
    }

    fn not_owned(&self, verdict: &Ownership) -> LockError {
        let reason = if *verdict == Ownership::Gone {
            LostReason::Deleted
        } else {
            LostReason::Taken
        };
        self.held.tenure.end_with(EndCause::Lost(reason));
        self.report(self.held.end_cause().unwrap_or(EndCause::Lost(reason)))
    }

    fn store_error(&self, source: StoreError) -> LockError {
        LockError::Store {
            key: self.held.tenure.name(),
            began: true,
            source: source.after_the_grant(),
        }
    }

    /// Returns the last moment at which the lock is certainly valid, on the manager's clock: for
    /// tests that set that clock.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn deadline(&self) -> crate::host::Moment {
        self.held.tenure.deadline()
    }
}
