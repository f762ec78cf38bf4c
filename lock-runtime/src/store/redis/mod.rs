//! A store on a Redis or Valkey server, which may be the master that sentinels name.

mod cluster;
mod connection;
pub(crate) mod credentials;
mod keyspace;
#[cfg(feature = "legacy-setnx")]
mod legacy;
mod ops;
mod queue;
mod replicas;
mod reply;
mod scripts;
mod sentinel;
mod settings;
mod setup;
pub(in crate::store) mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;
use tokio::sync::watch;

use crate::host::Host;
use crate::store::health::{ServerHealth, ServerRole};
use crate::store::info::LockInfo;
use crate::store::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Dispatch, Fence, FencingToken, HolderValue, Lane, Limited,
    LockPage, LockStore, LossReceiver, Ownership, QueueOutcome, QueueRequest, Receipt, ReleaseReport, ReleaseRequest,
    RenewRequest, Replicated, Responder, StoreError, StoreFuture,
};
pub use cluster::ClusterStore;
pub(crate) use cluster::ClusterUrl;
use connection::dial::Dial;
use connection::mark;
use connection::{Board, ConnectionSlot, CurrentMaster, Endpoint, Mark, Purpose, RuntimeConnections, Server};
use keyspace::Keyspace;
#[cfg(feature = "legacy-setnx")]
pub use legacy::LegacySetnxStore;
use ops::apart::{known, renew_apart};
use queue::Queue;
use replicas::Replicas;
use sentinel::{SentinelUrl, Sentinels};
pub(crate) use settings::RedisSettings;
#[cfg(feature = "custom-store")]
pub use settings::TimeOuts;
pub(crate) use url::split_prefix;

/// The default of the allowed difference between the clocks of servers that can replace one another.
/// Clocks that NTP sets agree within a few milliseconds, or some tens after a restart.
const SKEW: Duration = Duration::from_millis(50);

/// A store that keeps its locks on one Redis or Valkey server, or on the master that sentinels name.
///
/// [`LockManager::connect`](crate::LockManager::connect) creates one from a `redis://` URL. This
/// type is only needed to use a store without a manager.
pub struct RedisStore {
    /// The connections for acquires and releases, which must not overtake each other.
    commands: RuntimeConnections,
    /// The connection for renewals, so that no crowd of acquires delays them. The server's push
    /// messages arrive on it too.
    background: ConnectionSlot,
    /// The calls that wait in the server's queues.
    queue: Queue,
    /// The calls that wait for replicas.
    replicas: Replicas,
    names: Arc<Keyspace>,
    /// The sentinels that name the server, if it is not always the same.
    sentinels: Option<Sentinels>,
    /// The server's address, or the master's name and its sentinels, with the database.
    address: String,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStore").field(&self.address).finish()
    }
}

impl RedisStore {
    /// Creates a store on the server at `url`. `prefix` is that of its keys: the store keeps its fencing
    /// counter under `<prefix>%lock-fence`. It connects on first use.
    ///
    /// # Errors
    /// Fails if the URL is not understood.
    #[cfg(feature = "custom-store")]
    pub fn open(url: &str, prefix: &str, time_outs: TimeOuts) -> Result<Self, StoreError> {
        Self::new(&Host::process(), url, prefix, &RedisSettings::within(time_outs))
    }

    /// Creates a store on a server that is one of several masters, of which a majority has to give a
    /// lock. Such a server gives none while it may have forgotten one: at its first use, after a restart
    /// and after a flush, for `longest_lease`. Until then requests for locks fail, and
    /// [`StoreError::opens_in`] tells for how long.
    ///
    /// The server's mark, by which it is known to have forgotten nothing, is the key
    /// `<prefix>%lock-mark`. `longest_lease` is the same in all processes, and no lock's time to live is
    /// longer. All locks are exclusive.
    ///
    /// # Errors
    /// Fails if the URL is not understood.
    #[cfg(feature = "custom-store")]
    pub fn open_as_master(
        url: &str,
        prefix: &str,
        longest_lease: Duration,
        time_outs: TimeOuts,
    ) -> Result<Self, StoreError> {
        let mut settings = RedisSettings::within(time_outs);
        settings.set_longest_lease(longest_lease);
        Self::new(&Host::process(), url, prefix, &settings)
    }

    pub(crate) fn new(host: &Host, url: &str, prefix: &str, settings: &RedisSettings) -> Result<Self, StoreError> {
        let time_outs = settings.time_outs;
        let mark = settings.longest_lease.map(Mark::new);
        if SentinelUrl::is_one(url) {
            let url = SentinelUrl::parse(url).map_err(StoreError::permanent)?;
            let dial = dial(host, url.server(), settings).map_err(StoreError::permanent)?;
            let current_master = Arc::new(CurrentMaster::new());
            let address = url.to_string();
            let database = url.server().redis_settings().db();
            let health = Arc::new(Board::new(host, &address, time_outs.response));
            let board = Arc::clone(&health);
            let of_sentinels = dial.clone().with(settings.credentials.clone(), ServerRole::Sentinel);
            let sentinels = Sentinels::follow(host, url, of_sentinels, time_outs, Arc::clone(&current_master), board);
            let sentinels = sentinels.map_err(StoreError::permanent)?;
            let endpoint = Endpoint::Followed(Arc::clone(&current_master));
            let server = Server {
                dial: dial.with(settings.credentials.clone(), ServerRole::Master),
                endpoint,
                time_outs,
                health,
                mark,
            };
            let mut store = Self::at(host, server, prefix, format!("{address}/{database}"));
            current_master.when_moved(store.commands.end_former());
            store.sentinels = Some(sentinels);
            return Ok(store);
        }
        let info = match &settings.server {
            Some(server) => url::for_locks(server),
            None => url::server(url).map_err(StoreError::permanent)?,
        };
        let address = info.addr().to_string();
        let dial = dial(host, &info, settings).map_err(StoreError::permanent)?;
        let database = info.redis_settings().db();
        let endpoint = Endpoint::Fixed(Box::new(info));
        let health = Arc::new(Board::new(host, &address, time_outs.response));
        let server = Server {
            dial: dial.with(settings.credentials.clone(), ServerRole::Master),
            endpoint,
            time_outs,
            health,
            mark,
        };
        Ok(Self::at(host, server, prefix, format!("{address}/{database}")))
    }

    fn at(host: &Host, server: Server, prefix: &str, address: String) -> Self {
        Self::with(host, server, Keyspace::new(host, prefix), address)
    }

    fn with(host: &Host, server: Server, names: Keyspace, address: String) -> Self {
        let response_timeout = server.time_outs.response;
        let server = Arc::new(server);
        let names = Arc::new(names);
        let purpose = Purpose::Background {
            losses: crate::host::Mutex::default(),
            pushes: std::sync::OnceLock::new(),
        };
        let background = ConnectionSlot::new(host, Arc::clone(&server), Arc::clone(&names), purpose, None);
        let shards = names.is_of_cluster().then(|| {
            let pushes = std::sync::OnceLock::new();
            let (server, names) = (Arc::clone(&server), Arc::clone(&names));
            ConnectionSlot::new(host, server, names, Purpose::Shards { pushes }, None)
        });
        Self {
            queue: Queue::new(background.clone(), shards, Arc::clone(&names), response_timeout),
            replicas: Replicas::new(|| {
                let (server, names) = (Arc::clone(&server), Arc::clone(&names));
                ConnectionSlot::new(host, server, names, Purpose::Replicas, None)
            }),
            commands: RuntimeConnections::new(host, server, Arc::clone(&names), background.clone()),
            background,
            names,
            sentinels: None,
            address,
        }
    }
}

impl RedisStore {
    /// Returns the same store, for commands that are sent behind `ASKING`.
    fn asking(&self) -> Self {
        Self {
            commands: self.commands.asking(),
            background: self.background.clone().asking(true),
            queue: self.queue.clone(),
            replicas: self.replicas.clone(),
            names: Arc::clone(&self.names),
            sentinels: None,
            address: self.address.clone(),
        }
    }

    /// Records a slot of the cluster that the server has.
    fn settle_in(&self, slot: u16) {
        self.names.settle_in(slot);
    }

    /// Tells the calls that wait for locks which this server no longer keeps that their places are lost.
    fn lapse(&self, is_elsewhere: impl Fn(&str) -> bool) {
        self.queue.lapse(is_elsewhere);
    }
}

/// Returns the function that makes connections to servers like that of `info`.
fn dial(host: &Host, info: &ConnectionInfo, settings: &RedisSettings) -> Result<Dial, String> {
    let dial = match &settings.dial {
        Some(dial) => dial.clone(),
        None => Dial::usual(host, info, settings)?,
    };
    Ok(dial.named(settings.client_name(host)))
}

impl LockStore for RedisStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(self.attempt(request))
    }

    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        Box::pin(self.acquire_together(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        if requests.iter().any(|request| request.value.is_shared()) {
            return Box::pin(self.renew_mixed(requests));
        }
        Box::pin(self.renew_by(&scripts::RENEW, requests))
    }

    fn renew_each<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Option<Ownership>>> {
        Box::pin(async move {
            known(
                self.background.host(),
                renew_apart(requests, &|some| self.renew(some)).await,
            )
        })
    }

    fn wait_for_replicas<'a>(&'a self, requests: &'a [RenewRequest], replicas: u32) -> StoreFuture<'a, Replicated> {
        Box::pin(self.replicas.wait_for(requests.to_vec(), replicas))
    }

    fn health(&self) -> Option<watch::Receiver<Vec<ServerHealth>>> {
        Some(self.background.health().watch())
    }

    fn place(&self) -> Option<&str> {
        Some(&self.address)
    }

    fn skew(&self) -> Duration {
        if self.sentinels.is_some() { SKEW } else { Duration::ZERO }
    }

    fn renewal_is_late(&self, _: Lane) {
        self.background.challenge();
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        Box::pin(self.give_back(request))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        Box::pin(self.next_token(key, value))
    }

    fn raise_fence<'a>(
        &'a self,
        key: &'a str,
        value: &'a HolderValue,
        fence: FencingToken,
    ) -> StoreFuture<'a, Ownership> {
        Box::pin(self.raise_own_fence(key, value, fence))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        Box::pin(async move {
            let outcome = self.queue.stand(self.commands.here(), request).await;
            if let Ok(QueueOutcome::Granted { .. }) = outcome {
                self.commands.note_released(|| self.leave_of(request));
            }
            outcome
        })
    }

    fn send_acquire(
        &self,
        request: &AcquireRequest<'_>,
        responder: &dyn Fn() -> Responder<Attempt>,
    ) -> Dispatch<Attempt> {
        let way = self.commands.way(Limited::Acquires);
        way.map_or(Dispatch::Declined, |way| self.send_attempt(way, request, responder))
    }

    fn send_release(
        &self,
        request: &ReleaseRequest<'_>,
        responder: &dyn Fn() -> Responder<Ownership>,
    ) -> Dispatch<Ownership> {
        let way = self.commands.way(Limited::Releases);
        way.map_or(Dispatch::Declined, |way| self.send_back(way, request, responder))
    }

    fn gave_up(&self, receipt: &Receipt, waited: Duration) {
        self.commands.has_given_up(receipt, waited);
    }

    fn release_in_order(&self, request: &ReleaseRequest<'_>, report: ReleaseReport) -> Result<(), ReleaseReport> {
        self.give_back_in_order(request, report)
    }

    fn ready(&self, what: Limited, _: &str, most: Duration) -> Option<StoreFuture<'_, ()>> {
        self.commands.ready(what, most)
    }

    fn connect(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            for slot in [&self.commands.here(), &self.background] {
                slot.check().await?;
            }
            if self.background.keeps_mark() {
                self.refuse_eviction().await?;
            }
            Ok(())
        })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.release_nothing())
    }

    fn identity(&self) -> StoreFuture<'_, Option<Box<str>>> {
        Box::pin(async {
            let info = self.commands.here().ask(mark::info()).await?;
            let info = redis::from_redis_value::<String>(info).unwrap_or_default();
            Ok(mark::run_id(&info).map(Box::from))
        })
    }

    fn open_now(&self) -> StoreFuture<'_, bool> {
        Box::pin(async { self.commands.here().open_now().await })
    }

    fn check_setup(&self, min_replicas: u32) -> StoreFuture<'_, Vec<String>> {
        Box::pin(self.look_at_setup(min_replicas))
    }

    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        Box::pin(self.inspect_one(key))
    }

    fn list<'a>(&'a self, pattern: &'a str, from: u64) -> StoreFuture<'a, LockPage> {
        Box::pin(self.list_page(pattern, from))
    }

    fn force_release<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(self.take_away(key))
    }

    fn report_losses(&self, receiver: LossReceiver) -> bool {
        self.background.report_to(receiver);
        true
    }
}

/// Returns every script by its name, with and without flags, for `tests/simulation`.
#[cfg(lock_simulation)]
pub fn script_texts() -> Vec<(&'static str, [&'static str; 2])> {
    let all = scripts::all().into_iter().chain(ops::inspect::all());
    #[cfg(feature = "legacy-setnx")]
    let all = all.chain(legacy::all());
    let texts = |script: &'static scripts::LockScript| [true, false].map(|flags| script.form(flags).source.as_str());
    all.map(|(name, script)| (name, texts(script))).collect()
}
