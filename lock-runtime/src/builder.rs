//! Settings of a manager.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::{BootClock, Clock, TokioClock};
use crate::coalesce::Flights;
use crate::engine::{Engine, Timer};
use crate::error::LockError;
use crate::line::{Handover, Lines};
use crate::manager::{Defaults, LockManager, Margins, Pace, Shared};
use crate::stats::Counters;
use crate::store::memory::MemoryStore;
use crate::store::redis::{OldNeighbourStore, RedisSettings, RedisStore};
use crate::store::{LockStore, LossReceiver, StoreError};
use crate::watchdog::Watchdog;

/// Makes a [`LockManager`]. Started by [`LockManager::builder`].
///
/// ```
/// # use lock_runtime::{Backoff, LockManager};
/// # use std::time::Duration;
/// let locks = LockManager::builder("memory://")
///     .prefix("shop:")
///     .lease(Duration::from_secs(15))
///     .wait(Duration::from_secs(2))
///     .backoff(Backoff::new(Duration::from_millis(2), Duration::from_millis(100)))
///     .build()?;
/// assert_eq!(locks.prefix(), "shop:");
/// # Ok::<(), lock_runtime::LockError>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until `build`"]
pub struct LockManagerBuilder {
    url: String,
    store: Option<Arc<dyn LockStore>>,
    prefix: String,
    defaults: Defaults,
    backoff: Backoff,
    skew: Duration,
    clock: Option<Arc<dyn Clock>>,
    redis: RedisSettings,
    shutdown_grace: Duration,
    handover: Handover,
    old_neighbours: bool,
    #[cfg(feature = "testing")]
    record: Option<Arc<crate::testing::Record>>,
}

/// Without the URL, which may carry a password.
impl fmt::Debug for LockManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManagerBuilder")
            .field("store", &self.store)
            .field("prefix", &self.prefix)
            .field("defaults", &self.defaults)
            .field("redis", &self.redis)
            .finish_non_exhaustive()
    }
}

impl LockManagerBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            store: None,
            prefix: "dist_lock:".to_owned(),
            defaults: Defaults {
                lease: Duration::from_secs(30),
                wait: Duration::from_secs(10),
                max_renewals: 30,
            },
            backoff: Backoff::default(),
            skew: Duration::ZERO,
            clock: None,
            redis: RedisSettings::default(),
            shutdown_grace: Duration::from_secs(10),
            handover: Handover::default(),
            old_neighbours: false,
            #[cfg(feature = "testing")]
            record: None,
        }
    }

    /// What every key in the store starts with; `dist_lock:` unless said otherwise. May be empty.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The lease of a call that gives none; 30 s unless said otherwise.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.defaults.lease = lease;
        self
    }

    /// The wait of a call that gives none; 10 s unless said otherwise.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = wait;
        self
    }

    /// The `max_renewals` of a call that gives none; 30 unless said otherwise.
    pub fn max_renewals(mut self, max_renewals: u32) -> Self {
        self.defaults.max_renewals = max_renewals;
        self
    }

    /// How often, and for how long, a lock may pass from call to call inside this process before it goes back to the store;
    /// 128 times and 50 ms unless said otherwise. [`Handover::OFF`] switches it off.
    pub fn handover(mut self, handover: Handover) -> Self {
        self.handover = handover;
        self
    }

    /// The pauses between attempts where nothing tells when to try again: the store is out of reach, or has no queue.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Share the locks with services that still use the lock of before Redis 2.6.12: `SETNX <key>_lock <when it ends, in ms since
    /// 1970>`, taken over by `GETSET` once it has ended. Such services can then be moved over one at a time. Every manager
    /// that is to exclude them needs this; off unless said otherwise. The [`prefix`](Self::prefix) is what their names start
    /// with, most often nothing.
    ///
    /// Their pattern permits what ours does not:
    /// - A lock ends when the clock of whoever looks at it says so. A neighbour whose clock is ahead takes over what is still
    ///   held; where that is ours it is lost, and the body cancelled as soon as it is noticed. While the lease is renewed,
    ///   at least a third of it is left, so clocks that are ahead by less do no harm. For what is not renewed, give the
    ///   difference as [`skew`](Self::skew).
    /// - Neighbours do not renew, and do not stop what they do when their time is over.
    /// - Of several that take over what has ended, those that come late overwrite the winner's time by their own. A winner of
    ///   ours has then lost the lock.
    ///
    /// Ours take, renew and release in one step, by the server's clock, and are cancelled before their time is over. They cannot
    /// be `fair` or in a shared mode, and look again after a [pause](Self::backoff) instead of being woken. A key that holds
    /// no time in ms is [`LockError::Store`] and stays as it is.
    pub fn old_neighbours(mut self) -> Self {
        self.old_neighbours = true;
        self
    }

    /// How far the clocks of servers that can replace one another may differ; zero unless said otherwise, which
    /// is right for one server. Every lease is relied on for that much less, because expiries are replicated as
    /// wall-clock times.
    pub fn skew(mut self, skew: Duration) -> Self {
        self.skew = skew;
        self
    }

    /// How long a connection may take to be made; 2 s unless said otherwise.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.redis.connect_timeout = limit;
        self
    }

    /// How long one command may take; 1 s unless said otherwise. A connection that leaves a command unanswered
    /// for so long is replaced.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.redis.response_timeout = limit;
        self
    }

    /// How long [`shutdown`](LockManager::shutdown) lets bodies run on; 10 s unless said otherwise.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.shutdown_grace = grace;
        self
    }

    /// For `rediss://`: trust this certificate authority (PEM) instead of the system's.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.redis.root_certificate = Some(pem.into());
        self
    }

    /// For `rediss://`: show the server this certificate and key (PEM).
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.redis.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// The clock that deadlines are read from; [`BootClock`] unless said otherwise, and [`TokioClock`] for the
    /// memory store.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Keep the locks in this store; the URL is then only a name.
    pub fn store(mut self, store: Arc<dyn LockStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Has a testing kit's record kept of the locks taken.
    #[cfg(feature = "testing")]
    pub(crate) fn record(mut self, record: &Arc<crate::testing::Record>) -> Self {
        self.record = Some(Arc::clone(record));
        self
    }

    /// The manager. It connects on first use; [`LockManager::check`] does so at once.
    ///
    /// # Errors
    /// [`LockError::Store`] when the URL is not understood, or the lock thread cannot be started.
    pub fn build(self) -> Result<LockManager, LockError> {
        let store_error = |source| LockError::Store {
            key: format!("{}*", self.prefix).into(),
            source,
        };
        Engine::get().map_err(StoreError::permanent).map_err(store_error)?;
        let store: Arc<dyn LockStore> = match self.store {
            Some(_) if self.old_neighbours => return Err(store_error(no_neighbours())),
            Some(store) => store,
            None if self.url.starts_with("memory:") && self.old_neighbours => return Err(store_error(no_neighbours())),
            None if self.url.starts_with("memory:") => Arc::new(MemoryStore::new()),
            None if self.old_neighbours => {
                Arc::new(OldNeighbourStore::new(&self.url, &self.prefix, &self.redis).map_err(store_error)?)
            }
            None => Arc::new(RedisStore::new(&self.url, &self.prefix, &self.redis).map_err(store_error)?),
        };
        let (clock, pace): (Arc<dyn Clock>, _) = match self.clock {
            Some(clock) => {
                let watchdog = Watchdog::new(Arc::clone(&clock), Timer::Engine);
                (clock, Pace::Engine(watchdog))
            }
            None if store.release_is_immediate() => {
                let engine = Watchdog::global_tokio();
                (
                    Arc::new(TokioClock),
                    Pace::Virtual {
                        engine,
                        paused: Mutex::default(),
                    },
                )
            }
            None => (Arc::new(BootClock), Pace::Engine(Watchdog::global())),
        };
        let manager = |shared: &Weak<Shared>| {
            let reports_losses = store.report_losses(hint_receiver(Weak::clone(shared)));
            Shared {
                store,
                prefix: self.prefix,
                defaults: self.defaults,
                backoff: self.backoff,
                margins: Margins { skew: self.skew },
                clock,
                pace,
                reports_losses,
                response_timeout: self.redis.response_timeout,
                shutdown_grace: self.shutdown_grace,
                stats: Counters::default(),
                held: tokio_util::task::TaskTracker::new(),
                closed: tokio_util::sync::CancellationToken::new(),
                handover: self.handover,
                flights: Flights::default(),
                lines: Lines::default(),
                #[cfg(feature = "testing")]
                record: self.record,
            }
        };
        Ok(LockManager::new(Arc::new_cyclic(manager)))
    }
}

fn no_neighbours() -> StoreError {
    StoreError::permanent("`old_neighbours` are found on a Redis server only; give its URL, or leave them out")
}

/// A receiver for a store's hints that does not keep the manager or the store alive.
fn hint_receiver(manager: Weak<Shared>) -> LossReceiver {
    Arc::new(move |hint| {
        if let Some(manager) = manager.upgrade() {
            manager.hint(&hint);
        }
    })
}
