//! The manager: one store, its settings, and the locks taken through it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::builder::LockManagerBuilder;
use crate::clock::{Clock, Moment, TokioClock, tokio_clock_is_paused};
use crate::coalesce::Flights;
use crate::engine::Timer;
use crate::error::LockError;
use crate::held::Fate;
use crate::key::{self, Names};
use crate::line::{Handover, Lines};
use crate::request::LockRequest;
use crate::stats::{Counters, Stats};
use crate::store::{LockStore, LossHint};
use crate::watchdog::Watchdog;

/// What a call that says nothing else gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) max_renewals: u32,
}

/// How much of a lease is not relied on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Margins {
    pub(crate) skew: Duration,
}

impl Margins {
    /// How far two clocks drift apart during one lease at most: 1 %, and 2 ms for their granularity.
    fn drift(lease: Duration) -> Duration {
        lease / 100 + Duration::from_millis(2)
    }

    pub(crate) fn validity(self, lease: Duration) -> Duration {
        lease.saturating_sub(Self::drift(lease)).saturating_sub(self.skew)
    }

    /// Until when a lock is valid whose expiry was set by a command sent at `sent`, or any time later.
    pub(crate) fn deadline(self, sent: Moment, lease: Duration) -> Moment {
        sent.after(self.validity(lease))
    }
}

/// How the watchdog and the waits of a manager keep time.
#[derive(Debug)]
pub(crate) enum Pace {
    /// On the lock thread.
    Engine(Arc<Watchdog>),
    /// On the lock thread, but in the caller's runtime while that runtime's clock is paused.
    Virtual {
        engine: Arc<Watchdog>,
        paused: Mutex<Vec<(tokio::runtime::Id, Arc<Watchdog>)>>,
    },
}

/// The manager's inside, shared with its locks.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) prefix: String,
    pub(crate) defaults: Defaults,
    pub(crate) backoff: Backoff,
    pub(crate) margins: Margins,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pace: Pace,
    pub(crate) reports_losses: bool,
    pub(crate) response_timeout: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) stats: Counters,
    /// Held locks and releases under way.
    pub(crate) held: TaskTracker,
    pub(crate) closed: CancellationToken,
    pub(crate) handover: Handover,
    pub(crate) flights: Flights,
    pub(crate) lines: Lines,
    /// What a testing kit wants to know.
    #[cfg(feature = "testing")]
    pub(crate) record: Option<Arc<crate::testing::Record>>,
}

impl Shared {
    /// The watchdog for a lock taken now, and whose timer a wait runs on.
    pub(crate) fn pace(&self) -> (Arc<Watchdog>, Timer) {
        match &self.pace {
            Pace::Virtual { paused, .. } if tokio_clock_is_paused() => {
                // Two paused clocks do not agree, so each runtime has a watchdog of its own.
                let runtime = tokio::runtime::Handle::current().id();
                let mut paused = paused.lock().unwrap_or_else(PoisonError::into_inner);
                let known = paused.iter().position(|(id, _)| *id == runtime);
                let at = known.unwrap_or_else(|| {
                    paused.retain(|(_, watchdog)| !watchdog.is_idle());
                    paused.push((runtime, Watchdog::new(Arc::new(TokioClock), Timer::Caller)));
                    paused.len() - 1
                });
                (Arc::clone(&paused[at].1), Timer::Caller)
            }
            Pace::Engine(watchdog) | Pace::Virtual { engine: watchdog, .. } => (Arc::clone(watchdog), Timer::Engine),
        }
    }

    /// A key as the user knows it.
    pub(crate) fn name<'a>(&self, key: &'a str) -> &'a str {
        key::without(&self.prefix, key)
    }

    /// Hands a hint of the store to everybody who watches its locks.
    pub(crate) fn hint(&self, hint: &LossHint) {
        for watchdog in self.watchdogs() {
            watchdog.hint(&*self.store, hint);
        }
    }

    fn watchdogs(&self) -> Vec<Arc<Watchdog>> {
        match &self.pace {
            Pace::Engine(watchdog) => vec![Arc::clone(watchdog)],
            Pace::Virtual { engine, paused } => {
                let paused = paused.lock().unwrap_or_else(PoisonError::into_inner);
                let paused = paused.iter().map(|(_, watchdog)| Arc::clone(watchdog));
                std::iter::once(Arc::clone(engine)).chain(paused).collect()
            }
        }
    }
}

/// Takes locks in one store. Cheap to clone; all clones are one manager.
///
/// Most services make one at start-up by [`init`](crate::init), for all annotated functions. One that is to be
/// passed around is made by [`connect`](Self::connect) or
/// [`builder`](Self::builder), and named by `manager = self.locks` in the attribute.
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<Shared>,
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.shared.store)
            .field("prefix", &self.shared.prefix)
            .finish_non_exhaustive()
    }
}

impl LockManager {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// A manager for the store at `url`, with the default settings, connected and checked.
    ///
    /// | url | store |
    /// |---|---|
    /// | `memory://` | inside this process, a new one each time |
    /// | `redis://host:port/db`, `rediss://…`, `unix:///path` | Redis 6.2 or later, or Valkey |
    ///
    /// # Errors
    /// [`LockError::Store`] when the URL is not understood, the server cannot be reached within the connect
    /// time-out, or it does not allow a command that locks need.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        let manager = Self::builder(url).build()?;
        manager.check().await?;
        Ok(manager)
    }

    /// Starts a manager with other settings.
    pub fn builder(url: &str) -> LockManagerBuilder {
        LockManagerBuilder::new(url)
    }

    /// Connects if need be, which also checks that the store allows every command that locks need, and waits for an
    /// answer.
    ///
    /// # Errors
    /// [`LockError::Store`] when it does not answer or does not allow one.
    pub async fn check(&self) -> Result<(), LockError> {
        let store_error = |source| LockError::Store {
            key: format!("{}*", self.shared.prefix).into(),
            source,
        };
        self.shared.store.connect().await.map_err(store_error)
    }

    /// Asks for a lock. Nothing happens until the request is awaited by [`acquire`](LockRequest::acquire) or
    /// [`run`](LockRequest::run).
    pub fn lock(&self, key: impl Into<String>) -> LockRequest {
        LockRequest::new(self.clone(), Names::one(key.into()))
    }

    /// Asks for the locks of several keys: all of them or none. Keys that are given twice count once. However many calls ask for
    /// whichever of them in whichever order, none of them waits for ever.
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager};
    /// # async fn example() -> Result<(), LockError> {
    /// let locks = LockManager::connect("memory://").await?;
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// assert_eq!(both.keys().collect::<Vec<_>>(), ["account:3", "account:7"]);
    /// both.release().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn lock_all<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) -> LockRequest {
        LockRequest::new(self.clone(), Names::all(keys.into_iter().map(Into::into)))
    }

    /// What this manager's locks have gone through.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats.read()
    }

    /// The prefix of every key in the store.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.shared.prefix
    }

    /// Ends this manager: from now on every call gets [`LockError::Closed`]. Waits until the bodies under way
    /// have ended, cancels those that are still running after the [grace
    /// period](LockManagerBuilder::shutdown_grace), and returns when every lock has been released or its lease
    /// has run out. A store that cannot be reached is waited for during the grace period and one response
    /// time-out; what it then still holds goes with its lease.
    ///
    /// To be called before the process ends: a lock whose release has not been sent then blocks others until
    /// its lease ends.
    ///
    /// # Cancel safety
    /// Dropped, the manager stays closed; call it again to wait on.
    pub async fn shutdown(&self) {
        let shared = &self.shared;
        shared.closed.cancel();
        shared.held.close();
        let (_, timer) = shared.pace();
        if timer.timeout(shared.shutdown_grace, shared.held.wait()).await.is_some() {
            return;
        }
        let latest = shared
            .watchdogs()
            .iter()
            .filter_map(|watchdog| watchdog.end_all(shared, Fate::Closed))
            .max();
        // Bodies end at once. A guard that somebody keeps ends with its lease, which is no longer renewed.
        let rest = latest.map_or(Duration::ZERO, |latest| latest.since(shared.clock.now()));
        timer
            .timeout(rest.saturating_add(shared.response_timeout), shared.held.wait())
            .await;
    }

    pub(crate) fn defaults(&self) -> Defaults {
        self.shared.defaults
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn into_shared(self) -> Arc<Shared> {
        self.shared
    }
}
