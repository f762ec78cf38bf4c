//! The settings of a manager.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};

use crate::acquire::{Observer, Shared};
use crate::error::ConfigError;
use crate::hold::upkeep::Pace;
use crate::hold::{Backend, HandoverLimits, LockOptions};
use crate::host::{self, Backoff, Clock, Host};
use crate::key::CallSite;
use crate::manager::url;
use crate::manager::{LockManager, LockRequest};
use crate::stats::metrics;
#[cfg(feature = "legacy-setnx")]
use crate::store::LockMode;
use crate::store::access::Access;
use crate::store::health::ServerRole;
use crate::store::memory::MemoryStore;
use crate::store::quorum::{self, QuorumStore};
#[cfg(feature = "legacy-setnx")]
use crate::store::redis::LegacySetnxStore;
use crate::store::redis::credentials::Credentials;
use crate::store::redis::{ClusterStore, ClusterUrl, RedisSettings, RedisStore, split_prefix};
use crate::store::{LeaveFree, LockStore, StoreError};

/// The prefix of all keys, unless another one is given.
const DEFAULT_PREFIX: &str = "dist_lock:";

/// For how long a contended lock is left free, unless another time is given.
pub(super) const LEAVE_FREE_PAUSE: Duration = Duration::from_millis(12);

/// The time after which that is due.
pub(super) const LEAVE_FREE_EVERY: Duration = Duration::from_millis(900);

/// Builds a [`LockManager`]. Created by [`LockManager::builder`].
///
/// ```
/// # use lock_runtime::{Backoff, LockManager};
/// # use std::time::Duration;
/// let locks = LockManager::builder("memory://")
///     .prefix("shop:")
///     .default_lease(Duration::from_secs(15))
///     .default_wait(Duration::from_secs(2))
///     .backoff(Backoff::new(Duration::from_millis(2), Duration::from_millis(100)))
///     .build()?;
/// assert_eq!(locks.prefix(), "shop:");
/// # Ok::<(), lock_runtime::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until `build`"]
pub struct LockManagerBuilder {
    url: String,
    store: Option<Arc<dyn LockStore>>,
    /// The masters of a quorum, in place of those that the URL names.
    masters: Vec<QuorumMaster>,
    longest_lease: Option<Duration>,
    /// Unless the URL names it.
    prefix: Option<String>,
    defaults: LockOptions,
    backoff: Backoff,
    clock: Option<Arc<dyn Clock>>,
    redis: RedisSettings,
    shutdown_grace: Duration,
    handover: HandoverLimits,
    leave_free: Option<LeaveFree>,
    #[cfg(feature = "legacy-setnx")]
    legacy_setnx: bool,
    host: Host,
    observer: Option<Arc<dyn Observer>>,
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for LockManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManagerBuilder")
            .field("store", &self.store)
            .field("prefix", &self.prefix)
            .field("defaults", &self.defaults)
            .field("connect_timeout", &self.redis.time_outs.connect)
            .field("response_timeout", &self.redis.time_outs.response)
            .finish_non_exhaustive()
    }
}

impl LockManagerBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            store: None,
            masters: Vec::new(),
            longest_lease: None,
            prefix: None,
            defaults: LockOptions::default(),
            backoff: Backoff::default(),
            clock: None,
            redis: RedisSettings::default(),
            shutdown_grace: Duration::from_secs(10),
            handover: HandoverLimits::default(),
            leave_free: Some(LeaveFree {
                pause: LEAVE_FREE_PAUSE,
                every: LEAVE_FREE_EVERY,
                is_due: false,
            }),
            #[cfg(feature = "legacy-setnx")]
            legacy_setnx: false,
            host: Host::process(),
            observer: None,
        }
    }

    /// Creates one for this server. Its address is shown in place of a URL.
    pub(super) fn on(server: ConnectionInfo) -> Self {
        let scheme = match server.addr() {
            ConnectionAddr::Unix(_) => "unix",
            ConnectionAddr::TcpTls { .. } => "rediss",
            _ => "redis",
        };
        let mut builder = Self::new(&format!("{scheme}://{}", server.addr()));
        builder.redis.set_server(server);
        builder
    }

    /// Creates one for a quorum of these masters. Their addresses are shown in place of a URL.
    pub(super) fn of_quorum(masters: Vec<QuorumMaster>) -> Self {
        let names: Vec<_> = masters.iter().map(QuorumMaster::name).collect();
        let mut builder = Self::new(&format!("redlock://{}", names.join(",")));
        builder.masters = masters;
        builder
    }

    /// Sets the prefix of every key in the store. Defaults to the one that the URL names, `?prefix=shop:`, or
    /// else to `dist_lock:`. May be empty.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the options of calls that are not given them, with the attribute and without it: every option of
    /// a [`LockRequest`]. An option that `set` does not touch keeps the default that it has.
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager, LockMode, distributed_lock};
    /// # use std::time::Duration;
    /// #[distributed_lock(key = "order:<id>", manager = locks)]
    /// async fn ship(locks: &LockManager, id: u64) -> Result<Duration, LockError> {
    ///     Ok(lock_runtime::current().map(|lock| lock.remaining()).unwrap_or_default())
    /// }
    ///
    /// #[distributed_lock(key = "order:<id>", fair = false, lease = 60, manager = locks)]
    /// async fn pack(locks: &LockManager, id: u64) -> Result<Duration, LockError> {
    ///     Ok(lock_runtime::current().map(|lock| lock.remaining()).unwrap_or_default())
    /// }
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::builder("memory://")
    ///     .defaults(|call| call.lease(Duration::from_secs(15)).fair(true).fencing(true))
    ///     .build()?;
    /// assert!(ship(&locks, 7).await?.as_secs() < 15);
    /// assert!(pack(&locks, 7).await?.as_secs() > 50);
    /// locks.lock("prices").read().fencing(false).acquire().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// An option that a call is given replaces the default: a mode replaces the default mode
    /// (`mode = exclusive`, or [`exclusive`](LockRequest::exclusive), if that is another one), `max_hold`
    /// replaces a default `max_renewals`, and `false` switches a flag off. Otherwise a default counts as if the
    /// call were given it. So a call for several keys is refused under a default of `fair`, or of a mode, that
    /// it does not switch off, and so is one with `read` under a default of `fencing`.
    ///
    /// [`default_lease`](Self::default_lease), [`default_wait`](Self::default_wait),
    /// [`default_max_renewals`](Self::default_max_renewals), [`default_max_hold`](Self::default_max_hold) and
    /// [`min_replicas`](Self::min_replicas) are short forms. Of several settings of one option, the last one
    /// counts. [`build`](Self::build) refuses defaults with which a call that is given none of its own would
    /// fail, as far as that is known of its store.
    ///
    /// The request that `set` is given is one for no lock: only its options are used.
    pub fn defaults(mut self, set: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        let request = LockRequest::of_defaults(self.defaults.of_call(CallSite::default()));
        self.defaults = set(request).into_options().in_place_of(&self.defaults);
        self
    }

    /// Sets the default lease. Defaults to 30 s.
    pub fn default_lease(mut self, lease: Duration) -> Self {
        self.defaults.lease = lease;
        self
    }

    /// Sets the default `wait`, the limit of an acquisition. Defaults to 10 s.
    pub fn default_wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = wait;
        self
    }

    /// Sets the default `max_renewals`, and removes a default
    /// [`default_max_hold`](Self::default_max_hold). Defaults to 30, which lets a body run for 2/3
    /// of its lease × 31: 620 s with a lease of 30 s.
    pub fn default_max_renewals(mut self, max_renewals: u32) -> Self {
        self.defaults.set_max_renewals(max_renewals);
        self
    }

    /// Sets the default `max_hold`, which replaces the default
    /// [`default_max_renewals`](Self::default_max_renewals). Unset by default.
    pub fn default_max_hold(mut self, max_hold: Duration) -> Self {
        self.defaults.set_max_hold(max_hold);
        self
    }

    /// Sets how many replicas of the server must have a lock before the body that it protects begins.
    /// Defaults to zero: the master alone grants it, and a failover to a replica that lags loses it.
    ///
    /// With `replicas` above zero, a call that has got the lock writes it once more and waits
    /// (`WAIT`) until so many replicas have acknowledged it, which all calls of the process that want
    /// as many do together. If fewer have it after 3/4 of the [`response_timeout`](Self::response_timeout), the
    /// call gives the lock back and fails with
    /// [`TooFewReplicas`](crate::LockError::TooFewReplicas). It may take up to two response time-outs
    /// longer than its `wait`. The server's user needs the permission `+wait`.
    ///
    /// This narrows the time in which a failover loses a lock, and does not end it: the replica that
    /// takes over may be one that did not acknowledge the lock, and renewals are not waited for. Let
    /// the resource check a [fencing token](crate::HeldLock::fencing_token) where two holders at once
    /// must never both succeed.
    pub fn min_replicas(mut self, replicas: u32) -> Self {
        self.defaults.min_replicas = u8::try_from(replicas).unwrap_or(u8::MAX);
        self
    }

    /// Sets how often, and for how long, a lock may be handed from call to call inside this process
    /// before it goes back to the store. Defaults to 128 times and 50 ms. [`HandoverLimits::OFF`]
    /// disables the handover.
    pub fn handover(mut self, handover: HandoverLimits) -> Self {
        self.handover = handover;
        self
    }

    /// Sets how often a contended lock is left free, so that clients that do not stand in its queue
    /// get a turn: for `pause`, once it has not been free for `every`. Defaults to 12 ms and 900
    /// ms.
    ///
    /// Normally a release hands the lock to the next waiting call in the same step. A client that
    /// does not stand in the queue, and tries `SET … NX` every few milliseconds instead, would
    /// hardly ever find the lock free. If it tries more often than `pause`, it is certain to find
    /// the lock free now and then: about once a second by default, which costs the waiting calls
    /// 1 to 2 % of their throughput. The order of [`fair`](crate::LockRequest::fair) calls among
    /// themselves does not change.
    ///
    /// While you migrate services from another client, an `every` of zero leaves the lock free
    /// after each release, which gives that client a fair share: it gets its turn between any two
    /// turns of this service, where one turn is as long as [`handover`](Self::handover) allows one
    /// process. A `pause` of zero disables this: the lock is never left free for other clients.
    ///
    /// A `pause` above half a second counts as half a second. Locks in a shared mode have no
    /// clients of other kinds, and are not left free.
    pub fn leave_free(mut self, pause: Duration, every: Duration) -> Self {
        self.leave_free = (!pause.is_zero()).then_some(LeaveFree {
            pause: pause.clamp(Duration::from_millis(1), Duration::from_millis(500)),
            every,
            is_due: false,
        });
        self
    }

    /// Sets the pauses between attempts where no message tells a waiter when to try again: the
    /// store is out of reach, or has no queue. Defaults to at most 5 ms at first, and at most 250
    /// ms later.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Shares the locks with services that still use the lock pattern from before Redis 2.6.12:
    /// `SETNX <key>_lock <end, in ms since 1970>`, taken over by `GETSET` once that time has
    /// passed. Off by default.
    ///
    /// Such services can then be migrated one at a time. Every manager that must exclude them needs
    /// this setting. The names of their keys start with the [`prefix`](Self::prefix), which is
    /// empty in most cases.
    ///
    /// Their pattern has weaknesses, which affect your locks as long as such a service runs:
    /// - A lock ends when the clock of the client that reads it says so. A service whose clock is
    ///   ahead takes over a lock that is still held. If that lock is held by this crate, it is
    ///   lost, and the body is cancelled as soon as the loss is noticed. At least a third of a
    ///   renewed lease is left at any time, so clocks that are ahead by less than that do no harm.
    ///   For locks that are not renewed, set the difference as [`skew`](Self::skew).
    /// - Such services do not renew their locks, and do not stop their work when their time is
    ///   over.
    /// - If several of them take over a lock that has ended, the late ones overwrite the winner's
    ///   end time with their own. If the winner is a call of this crate, it has then lost the lock.
    ///
    /// Calls of this crate acquire, renew and release in one atomic step each, by the server's
    /// clock, and are cancelled before their time is over. With this setting they cannot be `fair`
    /// or in a shared mode, and they try again after a [pause](Self::backoff) instead of being
    /// woken. A key whose value is not a time in ms results in
    /// [`LockError::Store`](crate::LockError::Store) and is left unchanged.
    #[cfg(feature = "legacy-setnx")]
    pub fn legacy_setnx(mut self) -> Self {
        self.legacy_setnx = true;
        self
    }

    /// Sets how far the clocks of servers that can replace one another may differ. Defaults to
    /// zero for a single server, and to 50 ms for servers behind sentinels and for a cluster.
    ///
    /// Every lease is relied on for that much less, because expiries are replicated as wall-clock
    /// times, and is renewed after 2/3 of the rest, so that `max_renewals` stands for less time.
    pub fn skew(mut self, skew: Duration) -> Self {
        self.redis.skew = Some(skew);
        self
    }

    /// Sets the longest lease of any lock on a quorum, with its `lock_delay`, and the longest `at_least`: a
    /// call that asks for more fails. Defaults to that of a call with the [`defaults`](Self::defaults), 30 s. All
    /// processes must have the same. Has no effect on other stores.
    ///
    /// A master that may have forgotten locks, since it was restarted or flushed or has never been used,
    /// gives no vote for that long. Until a majority votes, no call gets a lock: the first one on new
    /// masters waits for one longest lease. [`LockManager::open_quorum`] lets them vote at once.
    pub fn longest_lease(mut self, lease: Duration) -> Self {
        self.longest_lease = Some(lease);
        self
    }

    /// Sets the time limit for making a connection. Defaults to 2 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.redis.time_outs.connect = limit;
        self
    }

    /// Sets the time limit for one command, the response time-out. Defaults to 1 s. The manager
    /// replaces a connection that leaves a command unanswered for longer.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.redis.time_outs.response = limit;
        self
    }

    /// Sets a function that provides the user name and the password for each new connection, for
    /// credentials that change: rotated passwords, or tokens that expire. They replace those of the
    /// URL. [`Credentials::password`] keeps the URL's user.
    ///
    /// The manager calls the function each time it connects to a server, with
    /// [`ServerRole::Master`], or to a sentinel, with [`ServerRole::Sentinel`]. The time that it takes
    /// counts towards the [`connect_timeout`](Self::connect_timeout). If it fails or panics, the connection fails
    /// with the function's error, and is tried again like any other: calls wait for it as long as
    /// their `wait` allows, and held locks are lost at their deadlines. A connection that is up keeps
    /// the credentials it was made with.
    ///
    /// The function's error appears in errors and logs, so it must not contain a secret.
    /// The function must not block its thread, which may be the one that renews all locks: await, or use
    /// `tokio::task::spawn_blocking`.
    ///
    /// ```
    /// use lock_runtime::{Credentials, LockManager};
    ///
    /// # async fn token() -> Result<String, std::io::Error> { Ok("t0ken".to_owned()) }
    /// let locks = LockManager::builder("rediss://cache.example:6380")
    ///     .credentials(|_server| async { Ok::<_, std::io::Error>(Credentials::new("app", token().await?)) });
    /// ```
    pub fn credentials<F, E>(mut self, provide: impl Fn(ServerRole) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.redis.set_credentials(provide);
        self
    }

    /// Sets a file that contains the password of the URL's user, and is read for each new connection,
    /// as a mounted secret is. The end of its last line does not count. It replaces the URL's password
    /// and [`credentials`](Self::credentials), except for sentinels.
    ///
    /// If the file cannot be read, the connection fails with an error that says so, and is tried
    /// again.
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.redis.set_password_file(ServerRole::Master, path.into());
        self
    }

    /// Sets a file that contains the password of the sentinels' user, as
    /// [`password_file`](Self::password_file) does for the servers.
    pub fn sentinel_password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.redis.set_password_file(ServerRole::Sentinel, path.into());
        self
    }

    /// Sets the name that each connection of the manager has at the server, where `CLIENT LIST` shows it.
    /// Defaults to `lock-runtime:<host>:<pid>`, with the same host and process as the [`Holder`](crate::Holder)s
    /// of its locks. With an empty name, a connection has none.
    ///
    /// It is set by the `HELLO` that begins each connection, to sentinels and to the nodes of a cluster as well,
    /// and needs no permission. [`build`](Self::build) refuses a name with a space, a line break or a character
    /// that is not ASCII, which a server refuses.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// let locks = LockManager::builder("redis://cache.example").client_name("shop:web-1");
    /// assert!(locks.build().is_ok());
    /// let refused = LockManager::builder("redis://cache.example").client_name("web 1").build();
    /// assert!(refused.unwrap_err().to_string().contains("\"web 1\""));
    /// ```
    pub fn client_name(mut self, name: impl AsRef<str>) -> Self {
        self.redis.set_client_name(name.as_ref());
        self
    }

    /// Sets the time for which [`shutdown`](LockManager::shutdown) lets bodies run on. Defaults to
    /// 10 s.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.shutdown_grace = grace;
        self
    }

    /// Sets the certificate authority (PEM) that the manager trusts for `rediss://`, instead of those that
    /// the system trusts when the manager is built.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.redis.set_root_certificate(pem.into());
        self
    }

    /// Sets the certificate and key (PEM) by which the manager identifies itself to the server for
    /// `rediss://`.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.redis.set_client_certificate(certificate.into(), key.into());
        self
    }

    /// Sets the clock that deadlines are read from. Defaults to [`BootClock`](crate::clock::BootClock),
    /// and to [`TokioClock`](crate::clock::TokioClock) for the memory store.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets the store that keeps the locks. The URL is then only a name.
    #[cfg(feature = "custom-store")]
    pub fn store(self, store: Arc<dyn LockStore>) -> Self {
        self.with_store(store)
    }

    #[cfg(any(feature = "custom-store", feature = "testing", test))]
    pub(crate) fn with_store(mut self, store: Arc<dyn LockStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the simulated process that the manager lives in.
    #[cfg(lock_simulation)]
    pub fn world(mut self, world: Arc<dyn crate::world::World>) -> Self {
        self.host = Host::simulated(world);
        self
    }

    /// Sets the function that connects to the server.
    #[cfg(lock_simulation)]
    pub fn dial<F>(
        mut self,
        dial: impl Fn(redis::ConnectionInfo, redis::AsyncConnectionConfig) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<redis::aio::MultiplexedConnection, redis::RedisError>> + Send + 'static,
    {
        self.redis.set_dial(dial);
        self
    }

    /// Sets an observer of the locks taken.
    #[cfg(feature = "testing")]
    pub(crate) fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Builds the manager. It connects on first use; [`LockManager::check_connection`] connects at
    /// once.
    ///
    /// # Errors
    /// [`ConfigError::Url`] when the URL or a certificate is not understood, when the URL names another
    /// [`prefix`](Self::prefix) than the one set, or when `legacy_setnx` is set for a store other than a Redis
    /// server.
    /// [`ConfigError::Settings`] when no lock can be taken with the [`defaults`](Self::defaults), when a server
    /// refuses the [`client_name`](Self::client_name), or when the lock thread cannot be started.
    pub fn build(mut self) -> Result<LockManager, ConfigError> {
        let url = url::without_password(&self.url);
        let prefix = self.take_prefix().map_err(|problem| ConfigError::Url {
            url: url.clone(),
            problem: problem.into(),
        })?;
        let of_defaults = |problem: &dyn fmt::Display| ConfigError::Settings {
            problem: format!("the manager for `{url}` cannot be built with these defaults: {problem}").into(),
        };
        self.defaults.check_alone().map_err(|problem| of_defaults(&problem))?;
        self.check_defaults_of_store()
            .map_err(|problem| of_defaults(&problem))?;
        self.redis
            .check_client_name()
            .map_err(|problem| ConfigError::Settings {
                problem: problem.into(),
            })?;
        if let Err(error) = self.host.start() {
            let advice = self.host.advice_to_start();
            let problem = format!("the lock thread of the manager for `{url}` cannot be started: {error}; {advice}");
            return Err(ConfigError::Settings {
                problem: problem.into(),
            });
        }
        let store = self.open_store(&url, &prefix)?;
        metrics::describe();
        let skew = self.redis.skew.unwrap_or_else(|| store.skew());
        let pace = Pace::of(&self.host, self.clock.as_ref(), store.release_is_immediate());
        let access = Access::new(self.host.clone(), store, self.clock, self.redis.time_outs.response);
        let mut backend = Backend::new(access, url.clone(), prefix, skew, self.handover);
        self.defaults
            .check_in(&backend)
            .map_err(|problem| of_defaults(&problem))?;
        // No other kind of client polls for a lock in memory.
        backend.leave_free = self.leave_free.filter(|_| !backend.store().release_is_immediate());
        Ok(LockManager::new(Arc::new(Shared::new(
            pace.receive_hints(backend),
            self.defaults,
            self.backoff,
            pace,
            self.shutdown_grace,
            self.observer,
        ))))
    }

    /// Builds the manager, connects it and checks it, as [`LockManager::connect`] does for a URL alone.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # use std::time::Duration;
    /// # async fn example() -> Result<(), lock_runtime::ConfigError> {
    /// let locks = LockManager::builder("memory://").default_wait(Duration::from_secs(2)).connect().await?;
    /// lock_runtime::init_with(locks)?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Errors
    /// The errors of [`build`](Self::build), and of [`check_connection`](LockManager::check_connection).
    ///
    /// # Cancel safety
    /// If the future is dropped, no manager is created, and its connection is closed.
    pub async fn connect(self) -> Result<LockManager, ConfigError> {
        host::take_part().await;
        let manager = self.build()?;
        manager.check_connection().await?;
        manager.warn_of_setup().await;
        Ok(manager)
    }

    /// Returns all settings but the URL, for tests.
    #[cfg(test)]
    #[allow(unused_mut)]
    pub(super) fn all_settings(&self) -> String {
        let mut shown = format!(
            "prefix: {:?}, {:?}, {:?}, {:?}, longest_lease: {:?}, shutdown_grace: {:?}, leave_free: {:?}, {}",
            self.prefix,
            self.defaults,
            self.backoff,
            self.handover,
            self.longest_lease,
            self.shutdown_grace,
            self.leave_free,
            self.redis.all(),
        );
        #[cfg(feature = "legacy-setnx")]
        shown.extend([", legacy_setnx: ".to_owned(), self.legacy_setnx.to_string()]);
        shown
    }

    /// Takes the prefix of all keys out of the URL, or the one that was set.
    fn take_prefix(&mut self) -> Result<String, String> {
        let (url, of_url) = split_prefix(&self.url)?;
        self.url = url;
        match (self.prefix.take(), of_url) {
            (Some(set), Some(of_url)) if set != of_url => Err(format!(
                "it names the prefix `{of_url}`, and the settings (`LOCK_PREFIX`, a file, or the builder) give `{set}`: give the prefix in one of the two places"
            )),
            (set, of_url) => Ok(set.or(of_url).unwrap_or_else(|| DEFAULT_PREFIX.to_owned())),
        }
    }

    /// Refuses defaults that the store itself would refuse at each call.
    fn check_defaults_of_store(&self) -> Result<(), &'static str> {
        #[cfg(feature = "legacy-setnx")]
        if self.legacy_setnx && (self.defaults.fair || *self.defaults.mode() != LockMode::Exclusive) {
            return Err(
                "clients with the lock of `legacy_setnx` know neither a queue nor a mode; leave `fair` and the mode out, or use another \
                 manager, without `legacy_setnx`",
            );
        }
        #[cfg(feature = "legacy-setnx")]
        if self.legacy_setnx && self.defaults.min_replicas > 0 {
            return Err("the store of `legacy_setnx` asks no replicas; leave `min_replicas` out");
        }
        if self.is_quorum() && self.defaults.min_replicas > 0 {
            return Err(
                "the masters of a quorum have no replicas that count; leave `min_replicas` out: a majority of the masters has each lock",
            );
        }
        Ok(())
    }

    /// Returns the store that was set, or the one for the manager's URL, which `url` is without its
    /// password.
    fn open_store(&self, url: &str, prefix: &str) -> Result<Arc<dyn LockStore>, ConfigError> {
        let in_memory = self.url.starts_with("memory:");
        let not_understood = |error: StoreError| ConfigError::Url {
            url: url.into(),
            problem: error.cause().to_string().into(),
        };
        #[cfg(feature = "legacy-setnx")]
        if self.legacy_setnx {
            if self.store.is_some() || in_memory {
                return Err(ConfigError::Url {
                    url: url.into(),
                    problem: "`legacy_setnx` needs a Redis server; give its URL, or leave `legacy_setnx` out".into(),
                });
            }
            let store = LegacySetnxStore::new(&self.host, &self.url, prefix, &self.redis);
            return Ok(Arc::new(store.map_err(not_understood)?));
        }
        match &self.store {
            Some(store) => Ok(Arc::clone(store)),
            None if in_memory => {
                url::check_memory(&self.url).map_err(|problem| not_understood(StoreError::permanent(problem)))?;
                Ok(Arc::new(MemoryStore::on(&self.host)))
            }
            None if self.is_quorum() => Ok(Arc::new(self.open_quorum(prefix).map_err(not_understood)?)),
            None if ClusterUrl::is_one(&self.url) => {
                let store = ClusterStore::new(&self.host, &self.url, prefix, &self.redis);
                Ok(Arc::new(store.map_err(not_understood)?))
            }
            None => {
                let store = RedisStore::new(&self.host, &self.url, prefix, &self.redis);
                Ok(Arc::new(store.map_err(not_understood)?))
            }
        }
    }
}

impl LockManagerBuilder {
    /// Returns the store of one server of a quorum, by its address.
    fn quorum_server(&self, info: ConnectionInfo, prefix: &str) -> Result<(String, Arc<dyn LockStore>), StoreError> {
        let name = info.addr().to_string();
        let mut settings = self.redis.clone();
        settings.set_longest_lease(self.longest_lease_of_quorum());
        settings.set_server(info);
        let store = RedisStore::new(&self.host, "redis://", prefix, &settings);
        Ok((name.clone(), Arc::new(store.map_err(|error| error.about(&name))?)))
    }

    /// Returns the store of the masters that were given, or that the URL names.
    fn open_quorum(&self, prefix: &str) -> Result<QuorumStore, StoreError> {
        let mut masters = Vec::new();
        if self.masters.is_empty() {
            for info in quorum::url::masters(&self.url).map_err(StoreError::permanent)? {
                masters.push(self.quorum_server(info, prefix)?);
            }
        }
        for (nth, master) in self.masters.iter().enumerate() {
            let name = master.name();
            let of_url = |problem: String| StoreError::permanent(problem).about(&name);
            let store: Arc<dyn LockStore> = match &master.0 {
                Given::Url(url) if url.starts_with("memory:") => {
                    url::check_memory(url).map_err(|problem| of_url(problem.to_owned()))?;
                    Arc::new(MemoryStore::on(&self.host))
                }
                Given::Url(url) => {
                    let info = quorum::url::master(url).map_err(of_url)?;
                    masters.push(self.quorum_server(info, prefix)?);
                    continue;
                }
                #[cfg(feature = "custom-store")]
                Given::Store(store) => Arc::clone(store),
            };
            masters.push((format!("{name} {}", nth + 1), store));
        }
        let store = QuorumStore::new(&self.host, masters, self.redis.time_outs.response)?;
        Ok(store.with_longest_lease(self.longest_lease_of_quorum()))
    }

    fn is_quorum(&self) -> bool {
        self.store.is_none() && (!self.masters.is_empty() || quorum::url::is_one(&self.url))
    }

    /// Returns the longest lease of any lock on a quorum.
    fn longest_lease_of_quorum(&self) -> Duration {
        self.longest_lease.unwrap_or_else(|| self.defaults.longest())
    }
}

/// One of the masters of a quorum, for [`LockManager::builder_quorum`]: a URL, or with the feature
/// `custom-store` a store.
#[derive(Clone)]
pub struct QuorumMaster(Given);

#[derive(Clone)]
enum Given {
    Url(String),
    #[cfg(feature = "custom-store")]
    Store(Arc<dyn LockStore>),
}

impl QuorumMaster {
    /// Returns its name, for messages.
    fn name(&self) -> String {
        match &self.0 {
            Given::Url(url) if url.starts_with("memory:") => "memory".to_owned(),
            Given::Url(url) => {
                let shown = url::without_password(url);
                let address = shown.split_once("://").map_or(&*shown, |(_, address)| address);
                let address = address.rsplit_once('@').map_or(address, |(_, address)| address);
                address.split(['/', '?', '#']).next().unwrap_or_default().to_owned()
            }
            #[cfg(feature = "custom-store")]
            Given::Store(_) => "store".to_owned(),
        }
    }
}

/// Omits the password of a URL.
impl fmt::Debug for QuorumMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QuorumMaster").field(&self.name()).finish()
    }
}

impl From<&str> for QuorumMaster {
    fn from(url: &str) -> Self {
        Self(Given::Url(url.to_owned()))
    }
}

impl From<String> for QuorumMaster {
    fn from(url: String) -> Self {
        Self(Given::Url(url))
    }
}

#[cfg(feature = "custom-store")]
impl From<Arc<dyn LockStore>> for QuorumMaster {
    fn from(store: Arc<dyn LockStore>) -> Self {
        Self(Given::Store(store))
    }
}

#[cfg(test)]
#[allow(clippy::panic, clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::{LockManager, LockManagerBuilder};
    use crate::error::{ConfigError, LockError};

    /// Returns a manager whose connections panic, and how many it has begun to make.
    fn panicking(url: &str, response: Duration) -> (LockManager, Arc<AtomicUsize>) {
        let mut builder = LockManagerBuilder::new(url).response_timeout(response);
        let dials = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&dials);
        builder.redis.set_dial(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { panic!("there is no cryptography") }
        });
        (builder.build().unwrap(), dials)
    }

    /// Another try would panic again.
    #[tokio::test]
    async fn a_panic_in_a_connection_is_told_at_once_and_not_repeated() {
        for url in [
            "redis://one",
            "redis+sentinel://one,two/orders",
            "redis+cluster://one,two",
        ] {
            // After this time the call would ask again, and what keeps a connection up would ask too.
            let (locks, dials) = panicking(url, Duration::from_secs(60));
            let refused = locks.lock("k").wait(Duration::from_secs(600)).acquire().await;
            let Err(LockError::Store { source, .. }) = refused else {
                panic!("{url}: {refused:?}");
            };
            let said = source.to_string();
            assert!(source.is_permanent(), "{url}: {said}");
            for says in [
                "connecting panicked: there is no cryptography",
                "mend what the panic names",
            ] {
                assert!(said.contains(says), "{url}: {said}");
            }
            if url == "redis://one" {
                // On the call's runtime, and on the lock thread.
                let dials = dials.load(Ordering::Relaxed);
                assert!(dials <= 2, "{dials} times");
            }
        }
    }

    #[tokio::test]
    async fn what_keeps_a_connection_up_repeats_no_panic() {
        let (locks, dials) = panicking("redis://one", Duration::from_millis(100));
        // Waits for its connection however long that takes, so it asks once.
        locks.check_connection().await.unwrap_err();
        // What keeps the connection up would ask about ten times.
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Twice for the check, on its runtime and on the lock thread, and once more on each for what keeps a
        // connection up.
        let dials = dials.load(Ordering::Relaxed);
        assert!(dials <= 4, "{dials} times");
    }

    #[test]
    fn a_url_names_the_prefix_unless_the_builder_sets_another_one() {
        let prefix_of = |builder: LockManagerBuilder| builder.build().map(|locks| locks.prefix().to_owned());
        for (url, prefix) in [
            ("memory://", "dist_lock:"),
            ("memory://?prefix=shop:", "shop:"),
            ("redis://one/3?prefix=shop%3A", "shop:"),
            ("redis+sentinel://one/orders?db=3&prefix=", ""),
            ("redis+cluster://one,two?prefix=shop:", "shop:"),
            ("redlock://one,two,three/0?prefix=shop:", "shop:"),
        ] {
            assert_eq!(prefix_of(LockManagerBuilder::new(url)).unwrap(), prefix, "{url}");
        }
        let named = || LockManagerBuilder::new("redis://:s3cret@one?prefix=shop:");
        assert_eq!(prefix_of(named().prefix("shop:")).unwrap(), "shop:");
        let error = prefix_of(named().prefix("bank:")).unwrap_err().to_string();
        for said in ["`shop:`", "`bank:`", "in one of the two places"] {
            assert!(error.contains(said) && !error.contains("s3cret"), "{error}");
        }
        for url in ["redis://:s3cret@one?prefix=a&prefix=b", "redis://:s3cret@one?prefix=%"] {
            let error = prefix_of(LockManagerBuilder::new(url)).unwrap_err().to_string();
            assert!(error.contains("`prefix`") && !error.contains("s3cret"), "{error}");
        }
        let master = LockManager::builder_quorum(["redis://one?prefix=shop:", "redis://two", "redis://three"]);
        let error = prefix_of(master).unwrap_err().to_string();
        assert!(error.contains("give it to the manager, by its URL"), "{error}");
    }

    #[test]
    fn nothing_that_a_url_says_is_left_unread() {
        for url in [
            "memory://shop",
            "memory:///3",
            "memory://?db=3",
            "memory://app:s3cret@",
            "memory://#x",
            "memory:shop",
            "redis://one/3/x",
            "redis://one/3?db=4",
            "redis://one?timeout=5",
            "redis://one#insecure",
            "redis://one?protocol=2",
            "valkey://one/orders",
            "unix:///run/x?timeout=5",
            "unix://app:s3cret@localhost/run/x",
            "unix:///run/x#y",
            "redis+unix:///run/x?password=s3cret",
            "redis+sentinel://one/orders?db=",
            "redis+sentinel://one/orders#insecure",
            "redis+cluster://one?db=3",
            "redis+cluster://one#insecure",
        ] {
            let refused = LockManagerBuilder::new(url).build().map(drop);
            let Err(ConfigError::Url { url: shown, problem }) = refused else {
                panic!("{url} gives {refused:?}");
            };
            assert!(!format!("{shown} {problem}").contains("s3cret"), "{shown} {problem}");
            assert!(problem.contains("; give `"), "{url}: {problem}");
        }
    }
}
