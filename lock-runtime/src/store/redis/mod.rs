//! Redis and Valkey, one server.

mod all;
mod exclusive;
mod failure;
mod homes;
mod inspect;
mod link;
mod names;
mod old;
mod queue;
mod scripts;
mod server;
mod shared;
mod values;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError};

use super::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Fence, LockPage, LockStore, LossReceiver, Mode,
    QueueRequest, ReleaseReport, ReleaseRequest, RenewRequest, StoreError, StoreFuture, Turn, Verdict,
};
use crate::inspect::LockInfo;
use homes::Homes;
use link::{Link, Purpose, TimeOuts};
use names::Names;
pub use old::OldNeighbourStore;
use queue::Queue;

/// How connections are made.
#[derive(Clone)]
pub(crate) struct RedisSettings {
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) root_certificate: Option<Vec<u8>>,
    #[cfg(feature = "tls")]
    pub(crate) client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(1),
            #[cfg(feature = "tls")]
            root_certificate: None,
            #[cfg(feature = "tls")]
            client_certificate: None,
        }
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

/// Locks kept by one Redis or Valkey server.
///
/// [`LockManager::connect`](crate::LockManager::connect) makes one from a `redis://` URL; there is no need to
/// name this type unless a store is to be used without a manager.
pub struct RedisStore {
    /// Acquires and releases, which must not overtake each other.
    commands: Homes,
    /// Renewals have a connection of their own, so that no crowd of acquires holds them up. What the server tells without
    /// being asked comes there too.
    background: Link,
    /// Those who wait.
    queue: Queue,
    names: Arc<Names>,
    /// For `Debug`, without the password.
    address: String,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStore").field(&self.address).finish()
    }
}

impl RedisStore {
    /// A store on the server at `url`, with the default time-outs. `prefix` is that of its keys: the store
    /// keeps its fencing counter under `<prefix>%lock-fence`. It connects on first use.
    ///
    /// # Errors
    /// When the URL is not understood.
    pub fn open(url: &str, prefix: &str) -> Result<Self, StoreError> {
        Self::new(url, prefix, &RedisSettings::default())
    }

    pub(crate) fn new(url: &str, prefix: &str, settings: &RedisSettings) -> Result<Self, StoreError> {
        let not_understood = |error: RedisError| {
            let problem = format!(
                "the URL is not understood ({error}); give `redis://host:port`, `rediss://…` (with the feature `tls`), `unix:///path` or `memory://`"
            );
            StoreError::permanent(problem)
        };
        let info = url.into_connection_info().map_err(not_understood)?;
        let address = info.addr().to_string();
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp());
        let client = client(info, settings).map_err(not_understood)?;
        let time_outs = TimeOuts {
            connect: settings.connect_timeout,
            response: settings.response_timeout,
        };
        let names = Arc::new(Names::new(prefix));
        let purpose = Purpose::Background {
            losses: std::sync::Mutex::default(),
            pushes: std::sync::OnceLock::new(),
        };
        let background = Link::new(client.clone(), purpose, None, time_outs);
        Ok(Self {
            queue: Queue::new(background.clone(), Arc::clone(&names), settings.response_timeout),
            commands: Homes::new(client, Arc::clone(&names), time_outs),
            background,
            names,
            address,
        })
    }
}

/// A lock's commands are small and urgent, and a peer that is gone without a word must be noticed.
fn tcp() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(10));
    settings
}

#[cfg(not(feature = "tls"))]
fn client(info: ConnectionInfo, _: &RedisSettings) -> Result<Client, RedisError> {
    Client::open(info)
}

#[cfg(feature = "tls")]
fn client(info: ConnectionInfo, settings: &RedisSettings) -> Result<Client, RedisError> {
    if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        return Client::open(info);
    }
    let client_tls = settings.client_certificate.clone();
    let client_tls = client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig {
        client_cert,
        client_key,
    });
    Client::build_with_tls(
        info,
        redis::TlsCertificates {
            client_tls,
            root_cert: settings.root_certificate.clone(),
        },
    )
}

impl LockStore for RedisStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        if Mode::is_shared(request.value) {
            return Box::pin(self.acquire_shared(request));
        }
        Box::pin(self.acquire_exclusive(request))
    }

    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        Box::pin(self.acquire_together(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Verdict>> {
        if requests.iter().any(|request| Mode::is_shared(&request.value)) {
            return Box::pin(self.renew_mixed(requests));
        }
        Box::pin(self.renew_exclusive(requests))
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Verdict> {
        if Mode::is_shared(request.value) {
            return Box::pin(self.release_shared(request));
        }
        Box::pin(self.release_exclusive(request))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a str) -> StoreFuture<'a, Fence> {
        if Mode::is_shared(value) {
            return Box::pin(self.fence_shared(key, value));
        }
        Box::pin(self.fence_exclusive(key, value))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, Turn> {
        Box::pin(self.queue.stand(self.commands.here(), request))
    }

    fn release_in_order(&self, request: &ReleaseRequest<'_>, report: ReleaseReport) -> Result<(), ReleaseReport> {
        self.send_release(request, report)
    }

    fn connect(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            for link in [&self.commands.here(), &self.background] {
                let mut get = redis::cmd("GET");
                get.arg(self.names.probe());
                link.ask(get).await?;
            }
            Ok(())
        })
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
