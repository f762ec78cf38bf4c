//! The manager: a store, its settings, and the locks taken through it.

mod builder;
pub(crate) mod config;
pub(crate) mod global;
mod operators;
mod request;
mod url;

use std::fmt;
use std::sync::Arc;

use crate::acquire::Shared;
use crate::error::ConfigError;
use crate::host;
use crate::key::{CallSite, Names};
pub use crate::manager::builder::{LockManagerBuilder, QuorumMaster};
pub use crate::manager::request::LockRequest;
use crate::stats::Stats;
use crate::store::health::{Health, HealthChanges, IsClosed};

/// Takes locks in one store.
///
/// Clones are cheap, and all clones share one manager.
///
/// Most services create one manager at start-up by [`init`](crate::init), for all annotated
/// functions. A manager that your code passes around is created by [`connect`](Self::connect) or
/// [`builder`](Self::builder), and named by `manager = self.locks` in the attribute.
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<Shared>,
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.shared.store())
            .field("prefix", &self.shared.backend.prefix)
            .finish_non_exhaustive()
    }
}

impl LockManager {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Creates a manager for the store at `url`, with the default settings, connects it and checks
    /// it.
    ///
    /// | url | store |
    /// |---|---|
    /// | `memory://` | the memory of this process; each manager has a store of its own |
    /// | `redis://user:password@host:port/db`, `valkey://…` | one server, Redis 6.2 or later, or Valkey; all parts except the host are optional, and `?db=…` may replace `/db` |
    /// | `rediss://…`, `valkeys://…` | the same over TLS, with the feature `tls` |
    /// | `redis+sentinel://user:password@host:port,host:port/master?db=0&sentinel_user=…&sentinel_password=…`, `rediss+sentinel://…` | the master that these sentinels name; the user before the addresses is that of the master, and the sentinels' default port is 26379 |
    /// | `redis+cluster://user:password@host:port,host:port`, `rediss+cluster://…` | the cluster of these nodes, of which one that answers is enough |
    /// | `redlock://user:password@host:port,host:port,host:port/db`, `redlocks://…` | these three or five independent masters, of which a majority decides; over TLS with `redlocks` |
    /// | `unix:///path?db=0&user=…&pass=…`, `redis+unix://…`, `valkey+unix://…` | the same over a Unix socket |
    ///
    /// Each can name the prefix of all keys in the store: `redis://cache.example?prefix=shop:`. Without one,
    /// it is `dist_lock:`. A URL with a part that the store does not read, such as another parameter, is not
    /// understood.
    ///
    /// # Errors
    /// [`ConfigError::Url`] when the URL is not understood. [`ConfigError::Server`] when the server
    /// cannot be reached within the connect time-out, or does not permit a command that this crate
    /// uses. Of the masters of a quorum, a majority has to be reached, and each that is reached has to
    /// permit the commands. [`ConfigError::Settings`] when the lock thread cannot be started.
    ///
    /// # Cancel safety
    /// If the future is dropped, no manager is created, and its connection is closed.
    pub async fn connect(url: &str) -> Result<Self, ConfigError> {
        Self::builder(url).connect().await
    }

    /// Returns a builder for a manager with other settings than the defaults.
    pub fn builder(url: &str) -> LockManagerBuilder {
        LockManagerBuilder::new(url)
    }

    /// Returns a builder for a manager on the server that `server` describes, with all that it has:
    /// address, TLS, database, user and password. `server` is of the crate `redis`, version 1.
    ///
    /// The manager chooses the protocol and the TCP settings itself.
    ///
    /// ```
    /// use lock_runtime::LockManager;
    /// use redis::IntoConnectionInfo;
    ///
    /// let server = "redis://cache.example:6379/1".into_connection_info()?;
    /// let locks = LockManager::builder_for(server).prefix("shop:").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder_for(server: redis::ConnectionInfo) -> LockManagerBuilder {
        LockManagerBuilder::on(server)
    }

    /// Returns a builder for a manager whose locks are kept on several independent masters, and held by
    /// the caller with the votes of a majority of them: RedLock. Each master is given by its URL, or with the
    /// feature `custom-store` as an `Arc<dyn LockStore>`. All processes give the same masters in the same
    /// order, three or five of them. [`build`](LockManagerBuilder::build) refuses an even number, and fewer
    /// than three.
    ///
    /// Locks are granted, renewed and kept while a majority of the masters answers. They are exclusive: a
    /// request that is [`fair`](LockRequest::fair) or in another mode fails with
    /// [`LockError::InvalidRequest`](crate::LockError::InvalidRequest), and one with
    /// [`min_replicas`](LockRequest::min_replicas) with [`LockError::Store`](crate::LockError::Store).
    ///
    /// Masters that share one user, password and database can be named by one URL instead:
    /// `redlock://user:password@one,two,three/0`.
    ///
    /// A URL of `memory://` is a master in the memory of this process, for examples and tests.
    ///
    /// ```
    /// use lock_runtime::LockManager;
    ///
    /// let locks = LockManager::builder_quorum(["redis://one:6379", "redis://two:6379", "redis://three:6379"])
    ///     .prefix("shop:")
    ///     .build()?;
    /// # Ok::<(), lock_runtime::ConfigError>(())
    /// ```
    pub fn builder_quorum<M: Into<QuorumMaster>>(masters: impl IntoIterator<Item = M>) -> LockManagerBuilder {
        LockManagerBuilder::of_quorum(masters.into_iter().map(Into::into).collect())
    }

    /// Connects if necessary and verifies that the server permits every command this crate uses.
    ///
    /// # Errors
    /// [`ConfigError::Server`] when the server does not answer, or does not permit one of the
    /// commands.
    ///
    /// # Cancel safety
    /// Cancel safe: the manager can be used as before, and connects on its next use.
    pub async fn check_connection(&self) -> Result<(), ConfigError> {
        host::take_part().await;
        let connected = self.shared.store().connect().await;
        connected.map_err(|source| ConfigError::Server {
            url: self.shared.backend.url.clone(),
            source,
        })
    }

    /// Connects if necessary, and returns advice on settings of the server that endanger locks, each a
    /// sentence that says what to do: an eviction policy that drops keys, fewer replicas than
    /// [`min_replicas`](LockManagerBuilder::min_replicas) asks for, a clock that is far from this
    /// process's, and a master of a cluster that accepts writes without a replica. Empty for a server
    /// that is set up well, and for one whose user may not run `INFO`.
    ///
    /// [`connect`](Self::connect) and [`init`](crate::init) log the same advice as warnings.
    ///
    /// # Errors
    /// [`ConfigError::Server`] when the server does not answer.
    ///
    /// # Cancel safety
    /// Cancel safe: the manager can be used as before.
    pub async fn check_setup(&self) -> Result<Vec<String>, ConfigError> {
        host::take_part().await;
        let min_replicas = self.shared.defaults.min_replicas.into();
        let advice = self.shared.store().check_setup(min_replicas).await;
        advice.map_err(|source| ConfigError::Server {
            url: self.shared.backend.url.clone(),
            source,
        })
    }

    /// Logs the advice on settings of the server.
    async fn warn_of_setup(&self) {
        match self.check_setup().await {
            Ok(advice) => {
                for advice in advice {
                    tracing::warn!(url = %self.shared.backend.url, "{advice}");
                }
            }
            Err(error) => tracing::debug!(%error, "the server's settings could not be looked at"),
        }
    }

    /// Returns a request for the lock `key`. Nothing happens until
    /// [`acquire`](LockRequest::acquire) or [`run`](LockRequest::run) is called on it and awaited.
    ///
    /// The key is used as it is. The one that an attribute's template makes of a value has that value by
    /// [`encode_value`](crate::encode_value).
    pub fn lock(&self, key: impl Into<String>) -> LockRequest {
        LockRequest::new(Some(self.clone()), Names::one(key.into()), CallSite::default())
    }

    /// Returns a request for the locks of several keys: all of them or none.
    ///
    /// Keys that are given twice count once. Deadlock-free: concurrent calls may request
    /// overlapping keys in any order. The keys are used as they are, as by [`lock`](Self::lock).
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::connect("memory://").await?;
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// assert_eq!(both.handle().keys().collect::<Vec<_>>(), ["account:3", "account:7"]);
    /// both.release().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn lock_all<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) -> LockRequest {
        let names = Names::all(keys.into_iter().map(Into::into));
        LockRequest::new(Some(self.clone()), names, CallSite::default())
    }

    /// Returns a snapshot of this manager's gauges and counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.backend.stats.read()
    }

    /// Returns the health of the servers that this manager uses, as it is known without asking them: each
    /// connection notes when it fails and when it works again, and an idle one is asked about once a
    /// second. For a store in memory there is no server to tell of.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = lock_runtime::LockManager::connect("memory://").await?;
    /// assert!(locks.health().is_ready());
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        let servers = self.shared.store().health();
        let servers = servers.map(|servers| servers.borrow().clone()).unwrap_or_default();
        Health {
            servers,
            may_miss: self.shared.store().may_miss(),
            is_closed: self.shared.backend.closed.is_closed(),
        }
    }

    /// Returns the changes of the [health](Self::health), the present one first.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # async fn example(locks: LockManager) {
    /// let mut changes = locks.health_changes();
    /// while let Some(health) = changes.next().await {
    ///     for server in &health.servers {
    ///         println!("{} {} is {}", server.role, server.address, server.state);
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn health_changes(&self) -> HealthChanges {
        // Without keeping the manager.
        let backend = Arc::downgrade(&self.shared.backend);
        let is_closed = move || backend.upgrade().is_none_or(|backend| backend.closed.is_closed());
        let store = self.shared.store();
        HealthChanges::new(store.health(), store.may_miss(), IsClosed(Box::new(is_closed)))
    }

    /// Returns the prefix of every key in the store.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.shared.backend.prefix
    }

    /// Shuts this manager down: from now on every call fails with
    /// [`LockError::Closed`](crate::LockError::Closed).
    ///
    /// Waits for the bodies that are running, cancels those that are still running after the [grace
    /// period](LockManagerBuilder::shutdown_grace), and returns when every lock has been released
    /// or its lease has run out. If the store cannot be reached, it waits for the releases until
    /// the grace period and one response time-out have passed; a lock that the store then still
    /// keeps expires with its lease.
    ///
    /// A call that asks for a lock at that moment is waited for as well, until its answer or the response
    /// time-out, and for up to a second more if there was no answer. An acquire that the store never
    /// answered may still reach it up to five seconds later; the shutdown does not wait for that, and the
    /// clean-up goes on in the background. In a process that was forked from one with locks, it returns at
    /// once.
    ///
    /// Call it before the process ends: a lock whose release has not been sent blocks other holders
    /// until its lease ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, the manager stays closed. Call `shutdown` again to continue
    /// waiting.
    pub async fn shutdown(&self) {
        host::take_part().await;
        self.shared.shut_down().await;
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn into_shared(self) -> Arc<Shared> {
        self.shared
    }
}

/// The pages of [`LockManager::list_pages`].
#[derive(Debug)]
#[must_use = "nothing is listed until `next` is awaited"]
pub struct LockPages {
    locks: LockManager,
    pattern: Box<str>,
    /// The pattern with the manager's prefix.
    whole: String,
    /// The start of the next page, or `None` after the last one.
    next: Option<u64>,
}
