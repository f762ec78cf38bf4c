//! Taking a lock without the attribute.

use std::pin::pin;
use std::time::Duration;

use crate::acquire::{Wanted, acquire};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::held::{OnLost, Terms};
use crate::key::Names;
use crate::manager::LockManager;
use crate::run::{Ended, Run};
use crate::store::Mode;

/// What a call asks for; the rest comes from the manager's defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) reentrant: Option<bool>,
    pub(crate) lock_delay: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) renew: Option<bool>,
    pub(crate) max_renewals: Option<u32>,
    pub(crate) fencing: Option<bool>,
    pub(crate) fair: Option<bool>,
    pub(crate) pipelined: Option<bool>,
    pub(crate) on_lost: Option<OnLost>,
}

impl Settings {
    pub(crate) fn wanted(self, manager: &LockManager, template: &'static str, function: &'static str) -> Wanted {
        let defaults = manager.defaults();
        Wanted {
            mode: self.mode,
            reentrant: self.reentrant.unwrap_or(false),
            template,
            function,
            terms: Terms {
                lease: self.lease.unwrap_or(defaults.lease),
                renew: self.renew.unwrap_or(true),
                max_renewals: self.max_renewals.unwrap_or(defaults.max_renewals),
                at_least: self.at_least.unwrap_or_default(),
                on_lost: self.on_lost.unwrap_or_default(),
                pipelined: self.pipelined.unwrap_or(false),
                lock_delay: self.lock_delay.unwrap_or_default(),
            },
            wait: self.wait.unwrap_or(defaults.wait),
            fencing: self.fencing.unwrap_or(false),
            fair: self.fair.unwrap_or(false),
        }
    }
}

/// A lock to be taken; made by [`LockManager::lock`].
///
/// ```
/// # use lock_runtime::{LockError, LockManager};
/// # use std::time::Duration;
/// # async fn example() -> Result<(), LockError> {
/// let locks = LockManager::connect("memory://").await?;
/// let sum = locks
///     .lock("inventory:7")
///     .lease(Duration::from_secs(15))
///     .wait(Duration::from_secs(5))
///     .run(async { 2 + 2 })
///     .await?;
/// assert_eq!(sum, 4);
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until `acquire` or `run` is awaited"]
pub struct LockRequest {
    manager: LockManager,
    names: Names,
    settings: Settings,
    holder: &'static str,
}

impl LockRequest {
    pub(crate) fn new(manager: LockManager, names: Names) -> Self {
        Self {
            manager,
            names,
            settings: Settings::default(),
            holder: "",
        }
    }

    /// Time to live in the store, 30 s unless the manager's defaults say otherwise. The watchdog renews it: it
    /// bounds for how long a crash blocks others, not how long the lock can be held.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = Some(lease);
        self
    }

    /// The longest time that the whole acquisition may take, 10 s unless the manager's defaults say otherwise.
    /// Zero tries once.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = Some(wait);
        self
    }

    /// The lock stays taken for at least this long from when it was granted, even if it is released sooner.
    /// After a crash it goes with its lease.
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.settings.at_least = Some(at_least);
        self
    }

    /// Whether the watchdog renews the lease; `true` unless said otherwise.
    pub fn renew(mut self, renew: bool) -> Self {
        self.settings.renew = Some(renew);
        self
    }

    /// After this many renewals the lock counts as held by a hung call: it is no longer renewed, and its body
    /// is cancelled with [`LockError::Hung`].
    pub fn max_renewals(mut self, max_renewals: u32) -> Self {
        self.settings.max_renewals = Some(max_renewals);
        self
    }

    /// Takes the lock to read: any number of readers hold it together, while nobody writes. A writer that waits holds new readers
    /// back. Each reader has a lease of its own.
    pub fn read(self) -> Self {
        self.mode(Mode::Read)
    }

    /// Takes the lock to write: alone, with neither readers nor other writers. Under it, a nested call takes it to read without
    /// waiting; the other way round a nested call gets [`LockError::WouldDeadlock`].
    pub fn write(self) -> Self {
        self.mode(Mode::Write)
    }

    /// Takes one of `permits` permits: at most so many hold the lock at once, across all processes. Where deployed versions do not
    /// agree on the number, the smallest one counts as long as one of its holders is there. The permit of a holder that has died
    /// comes back after its lease.
    pub fn semaphore(self, permits: u32) -> Self {
        self.mode(Mode::Semaphore(permits))
    }

    /// Takes the lock for a logical owner, such as a workflow: any number of holders for the same owner hold it together, in any
    /// process, each with a lease of its own. It is free for others when the last of them has ended. Another holder for an owner
    /// that has the lock does not wait behind others.
    pub fn owner(self, name: &str) -> Self {
        self.mode(Mode::owner(name))
    }

    fn mode(mut self, mode: Mode) -> Self {
        self.settings.mode = mode;
        self
    }

    /// Where the call tree holds the lock already, in the same mode, passes through and is counted, instead of
    /// [`LockError::WouldDeadlock`]. The lock is released when the last one has ended. Tasks that a body has spawned are not part of
    /// its call tree.
    pub fn reentrant(mut self) -> Self {
        self.settings.reentrant = Some(true);
        self
    }

    /// If this holder's lease runs out without a release (the process has died, stands still, or cannot reach the store), nobody
    /// gets the lock for so much longer, in which requests that are still on their way arrive. A release ends it at once.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.settings.lock_delay = Some(lock_delay);
        self
    }

    /// Takes a [fencing token](crate::HeldLock::fence) in the same step as the lock.
    pub fn fencing(mut self) -> Self {
        self.settings.fencing = Some(true);
        self
    }

    /// First come, first served: the call takes its own place in the store's queue, and the fair calls of all
    /// processes get the lock in the order in which they came there. It overtakes nobody who stands in that queue, not even
    /// with a `wait` of zero, which then tries once and leaves. Calls that are not fair stand there with one place for each
    /// process. Waiters that have died are skipped.
    ///
    /// Every grant comes from the store, and none from hand to hand inside the process, which is slower; and each waiting
    /// call is one in the store.
    pub fn fair(mut self) -> Self {
        self.settings.fair = Some(true);
        self
    }

    /// The release returns once it is queued, in order, on the connection, and does not wait for the store's
    /// answer. If it fails, or finds the lock lost, that is not returned: it goes to `tracing` and is counted in
    /// [`Stats`](crate::Stats).
    pub fn pipelined(mut self) -> Self {
        self.settings.pipelined = Some(true);
        self
    }

    /// What becomes of the body of [`run`](Self::run) when the lock is lost.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.settings.on_lost = Some(on_lost);
        self
    }

    /// A name for the holder, stored with the lock beside host and process, so that an operator and a busy
    /// waiter can see who it is.
    pub fn holder(mut self, name: &'static str) -> Self {
        self.holder = name;
        self
    }

    /// Takes the lock and returns its guard.
    ///
    /// # Errors
    /// [`LockError::Busy`] when `wait` ends first, and every other variant but `Lost` and `Hung`.
    ///
    /// # Cancel safety
    /// Dropped at any point, it leaves nothing behind: what the store may have granted is released in the background.
    ///
    /// Kept without being polled, it may keep the other calls of this process for the same key waiting, as with any lock that
    /// is given on in order: await it, or drop it, before awaiting anything else for long.
    // Not an `async fn`, whose future would hold the request as well: there may be thousands who wait.
    pub fn acquire(self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static {
        let wanted = self.names.checked();
        let wanted = wanted.map(|names| (names, self.settings.wanted(&self.manager, "", self.holder)));
        acquire(self.manager.into_shared(), wanted, LockGuard::new)
    }

    /// Takes the lock, runs `body` under it, and releases it. The body is cancelled if the lock is lost, and
    /// dropped before the release.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire), with the body not run; [`LockError::Lost`], [`LockError::Hung`] and
    /// [`LockError::Closed`] when the lock ended before the body, which was then cancelled or, with
    /// `completed`, had just ended. A store that does not confirm the release is no error: that goes on in the
    /// background.
    ///
    /// # Cancel safety
    /// Dropped at any point, the body is dropped first, and the lock is then released in the background.
    pub async fn run<F: Future>(self, body: F) -> Result<F::Output, LockError> {
        let guard = Box::pin(self.acquire()).await?.into_guard();
        let ended = {
            let body = pin!(body);
            Run::new(&guard, body).await
        };
        let released = Box::pin(guard.release()).await;
        match (ended, released) {
            (Ended::Told(output), _) | (Ended::Done(output, None), Ok(()) | Err(LockError::Store { .. })) => Ok(output),
            (Ended::Cancelled(error) | Ended::Done(_, Some(error)), _) | (Ended::Done(_, None), Err(error)) => {
                Err(error)
            }
        }
    }
}
