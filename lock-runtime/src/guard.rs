//! The guard of one held lock: it ends, and the lock is given back.

use std::ops::Deref;
use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::context::HeldLock;
use crate::error::{LockError, LostReason};
use crate::held::{Fate, Held};
use crate::releaser::{release_later, release_once};
use crate::store::{Receipt, Verdict};

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
    pub(crate) async fn release(mut self) -> Result<(), LockError> {
        let held = Arc::clone(&self.held);
        let fate = held.look();
        self.end(Held::outcome(fate));
        if let Some(fate @ Fate::Lost(_)) = fate {
            // The store is told in the background: it may be out of reach.
            return Err(held.error(fate, true));
        }
        let receipt = Receipt::default();
        let timer = held.watchdog.timer();
        let reason = match release_once(&held.manager, timer, &held.release_request(&receipt)).await {
            Ok(Verdict::Owned) => {
                self.done = true;
                return Ok(());
            }
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
        self.done = true;
        let fate = fate.unwrap_or(Fate::Lost(reason));
        held.manager.stats.count_fate(fate);
        held.span.record("outcome", Held::outcome(Some(fate)));
        Err(held.error(fate, true))
    }

    /// From here on nothing renews the lock or reports it lost.
    fn end(&self, outcome: &str) {
        self.held.end_guard();
        // In a forked child the schedule may have been locked by a thread that is not there.
        if self.held.is_ours() {
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
        release_later(&self.held);
    }
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
