//! The lock that the running code is under.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{LockError, LostReason};
use crate::held::{Fate, Held};
use crate::key::Keys;
use crate::manager::Shared;
use crate::store::{Fence, Mode, StoreError, Verdict};

thread_local! {
    /// The locks whose bodies are being polled on this thread, the innermost last. One that a nested call passes through is there again.
    static CURRENT: RefCell<Vec<Arc<Held>>> = const { RefCell::new(Vec::new()) };
}

/// Makes `held` the current lock until the returned value is dropped.
pub(crate) fn enter(held: &Arc<Held>) -> Entered {
    let _ = CURRENT.try_with(|current| current.borrow_mut().push(Arc::clone(held)));
    Entered(())
}

pub(crate) struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        // The thread's locals may be gone already while it ends. What is taken out is dropped after the borrow.
        drop(CURRENT.try_with(|current| current.borrow_mut().pop()));
    }
}

/// The locks around the calling code, the innermost first.
pub(crate) fn around() -> Vec<Arc<Held>> {
    let all = CURRENT.try_with(|current| current.borrow().iter().rev().cloned().collect());
    all.unwrap_or_default()
}

pub(crate) fn innermost() -> Option<Arc<Held>> {
    CURRENT
        .try_with(|current| current.borrow().last().cloned())
        .ok()
        .flatten()
}

/// What a call has to do with the locks around it.
pub(crate) enum Relation {
    /// Nothing.
    None,
    /// One of them is what it asks for.
    Within(Arc<Held>),
    /// It would wait for itself.
    Deadlock,
}

/// What a call that asks for `keys` has to do with the locks around it.
pub(crate) fn relation(manager: &Arc<Shared>, keys: Keys<'_>, mode: &Mode, reentrant: bool) -> Relation {
    let mut relation = Relation::None;
    for held in &around() {
        let holds = |key: &Arc<str>| held.keys().iter().any(|held| held == key);
        // A lock that was lost is in nobody's way.
        if Arc::ptr_eq(&held.manager.store, &manager.store)
            && held.fate().is_none()
            && !held.has_ended()
            && keys.iter().any(holds)
        {
            if keys.iter().all(holds) && includes(&held.mode, mode, reentrant) {
                return Relation::Within(Arc::clone(held));
            }
            relation = Relation::Deadlock;
        }
    }
    relation
}

/// Whether who holds a lock in one mode can go on in another.
fn includes(outer: &Mode, inner: &Mode, reentrant: bool) -> bool {
    match (outer, inner) {
        // A reader in a reader must not wait behind a writer, who waits for the outer one.
        (Mode::Read | Mode::Write, Mode::Read) => true,
        (Mode::Owner(outer), Mode::Owner(inner)) => outer == inner,
        // Whatever their numbers of permits: there is one lock.
        (Mode::Semaphore(_), Mode::Semaphore(_)) => reentrant,
        (outer, inner) => reentrant && outer == inner,
    }
}

/// The lock that the calling code runs under: the innermost one whose body this is.
///
/// `None` outside of any, and in a task that the body has spawned: such a task is not cancelled with the body,
/// so it does not count as locked. Hand it a clone of the [`HeldLock`] where it must know.
///
/// ```
/// # use lock_runtime::{LockError, LockManager};
/// # async fn example() -> Result<(), LockError> {
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

/// A handle of a held lock. It does not keep the lock: that is the guard's, or the annotated function's.
#[derive(Clone)]
pub struct HeldLock {
    held: Arc<Held>,
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
    pub(crate) fn new(held: Arc<Held>) -> Self {
        Self { held }
    }

    /// The key, without the manager's prefix; of several, the first in order.
    #[must_use]
    pub fn key(&self) -> &str {
        self.held.manager.name(&self.held.key)
    }

    /// The keys, without the manager's prefix: one, or those that are held together, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.held.keys().iter().map(|key| self.held.manager.name(key))
    }

    /// Who may hold the lock at the same time.
    #[must_use]
    pub fn mode(&self) -> &Mode {
        &self.held.mode
    }

    /// How many calls of this call tree hold the lock: one, and those that have passed through it
    /// [reentrantly](crate::LockRequest::reentrant).
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.held.guards()
    }

    /// How long the lock is surely valid from now, by this host's clock alone: the lease counted from before
    /// the last command that set it was sent, less drift and skew. Zero once it is lost or released. The next
    /// renewal lengthens it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.end().is_some() {
            Duration::ZERO
        } else {
            self.held.deadline().since(self.held.now())
        }
    }

    /// Whether the lock is held, by this host's clock and what the watchdog has heard.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.end().is_none()
    }

    /// Whether the lock is surely valid for `min` from now. To be asked before a step that must not overlap
    /// another holder's, such as an external call.
    ///
    /// # Errors
    /// [`LockError::Lost`] when less is left, or what ended the lock.
    pub fn ensure(&self, min: Duration) -> Result<(), LockError> {
        self.still_held()?;
        if self.remaining() < min {
            return Err(self.held.error(Fate::Lost(LostReason::Expired), false));
        }
        Ok(())
    }

    /// Asks the store whether the lock is held, and returns how long it is surely valid from now.
    ///
    /// A lock that turns out to be lost is treated as such at once: its body is cancelled.
    ///
    /// # Errors
    /// [`LockError::Lost`] when it is not, [`LockError::Store`] when the store does not answer within the
    /// response time-out, which does not end the lock.
    ///
    /// # Cancel safety
    /// Dropping it has no effect on the lock.
    pub async fn verify(&self) -> Result<Duration, LockError> {
        self.still_held()?;
        let requests: Vec<_> = self.held.renew_requests(false).collect();
        let verdicts = self.ask(self.held.manager.store.renew(&requests)).await?;
        if verdicts.len() != requests.len() {
            return Err(self.store_error(StoreError::unknown("the store gave a wrong number of verdicts")));
        }
        match verdicts.into_iter().find(|verdict| *verdict != Verdict::Owned) {
            None => self.still_held().map(|()| self.remaining()),
            Some(verdict) => Err(self.not_owned(&verdict)),
        }
    }

    /// A fencing token for this hold: greater than every token of this key taken before, in any process.
    ///
    /// Send it along with each write, and let the store of record reject a smaller one than it has seen; then a
    /// holder that was paused and lost its lock without knowing cannot overwrite its successor's work. All
    /// calls on one hold return the same token. It is taken with the lock under `fencing`, and else on the
    /// first call, by a script that checks first that the lock is still held.
    ///
    /// See [How to do distributed
    /// locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
    ///
    /// # Errors
    /// [`LockError::Lost`] when the lock is no longer held, so that a former holder gets no number.
    /// [`LockError::Store`] when the store does not answer. [`LockError::InvalidMode`] under a read lock or a semaphore, which have
    /// many holders at once.
    ///
    /// # Cancel safety
    /// Dropping it has no effect on the lock; a number may be skipped.
    pub async fn fence(&self) -> Result<u64, LockError> {
        self.still_held()?;
        if let Some(fence) = self.held.fence() {
            return Ok(fence);
        }
        if !self.held.mode.is_fenced() {
            return Err(LockError::InvalidMode {
                key: self.held.name(),
                problem: "a fencing token tells one holder from the next, and in this mode there are many at once; write under `write` or an exclusive lock",
            });
        }
        let answer = self
            .ask(self.held.manager.store.fence(&self.held.key, &self.held.value))
            .await?;
        match answer {
            Fence::Token(fence) => {
                // The token was taken under the first key. Whoever has the others now had them then.
                if !self.held.keys().others.is_empty() {
                    self.verify().await?;
                }
                self.still_held()?;
                let fence = self.held.set_fence(fence);
                self.held.span.record("fence", fence);
                Ok(fence)
            }
            Fence::NotOwned(verdict) => Err(self.not_owned(&verdict)),
        }
    }

    /// Completes when the lock is lost, and returns why. Never completes for a lock that is released in time.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LockError {
        loop {
            let mut lost = std::pin::pin!(self.held.lost().notified());
            // Listen before looking, so that no loss falls between the two.
            lost.as_mut().enable();
            if !self.held.has_ended()
                && let Some(fate) = self.held.tell()
            {
                return self.held.error(fate, false);
            }
            lost.await;
        }
    }

    /// Runs a step that must not be cut in half, such as a commit: while it runs, a lost lock does not cancel
    /// the body; right after it does.
    ///
    /// The step may then end without the lock, and so may whatever else the body does meanwhile. Keep it short,
    /// [`ensure`](Self::ensure) enough time for it, and [`fence`](Self::fence) what it writes. Dropping the
    /// whole call, as a web server does when its client leaves, still drops the step: spawn what must survive
    /// that.
    ///
    /// # Errors
    /// What ended the lock, when that was before the step began. Then nothing of it has run.
    pub async fn shielded<F: Future>(&self, step: F) -> Result<F::Output, LockError> {
        self.still_held()?;
        let shield = self.held.shield();
        let output = step.await;
        drop(shield);
        Ok(output)
    }

    /// The number of times the lease has been renewed.
    #[must_use]
    pub fn renewals(&self) -> u32 {
        self.held.renewals()
    }

    fn end(&self) -> Option<Fate> {
        if self.held.has_ended() {
            Some(Fate::Lost(LostReason::Expired))
        } else {
            self.held.tell()
        }
    }

    fn still_held(&self) -> Result<(), LockError> {
        match self.end() {
            Some(fate) => Err(self.held.error(fate, false)),
            None => Ok(()),
        }
    }

    async fn ask<T>(&self, question: impl Future<Output = Result<T, StoreError>>) -> Result<T, LockError> {
        let timer = self.held.watchdog.timer();
        let answer = timer.answer(self.held.manager.response_timeout, question).await;
        answer.map_err(|error| self.store_error(error))
    }

    fn not_owned(&self, verdict: &Verdict) -> LockError {
        let reason = if *verdict == Verdict::Gone {
            LostReason::Deleted
        } else {
            LostReason::Taken
        };
        self.held.end_with(Fate::Lost(reason));
        self.held.error(self.held.tell().unwrap_or(Fate::Lost(reason)), false)
    }

    fn store_error(&self, source: StoreError) -> LockError {
        LockError::Store {
            key: self.held.name(),
            source,
        }
    }

    /// The last moment at which the lock is surely valid, on the manager's clock.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.held.deadline()
    }
}
