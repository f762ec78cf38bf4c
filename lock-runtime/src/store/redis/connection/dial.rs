//! Makes connections to servers.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::AsyncDNSResolver;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, RedisError, RedisFuture};
use tokio::sync::oneshot;

use crate::host::Host;
use crate::store::health::ServerRole;
use crate::store::redis::credentials::Provider;
use crate::store::redis::settings::RedisSettings;

type Dialled = Pin<Box<dyn Future<Output = Result<MultiplexedConnection, RedisError>> + Send>>;

/// Makes connections to servers. Clones are cheap.
///
/// The usual one is `redis`'s own client, which knows TCP, TLS and Unix sockets. Another one may
/// hand any stream of bytes to [`MultiplexedConnection::new_with_config`].
#[derive(Clone)]
pub(in crate::store::redis) struct Dial(Arc<dyn Fn(ConnectionInfo, AsyncConnectionConfig) -> Dialled + Send + Sync>);

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

impl Dial {
    pub(in crate::store::redis) fn new<F>(
        dial: impl Fn(ConnectionInfo, AsyncConnectionConfig) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<MultiplexedConnection, RedisError>> + Send + 'static,
    {
        Self(Arc::new(move |info, config| Box::pin(dial(info, config))))
    }

    /// Returns a `Dial` that connects by `redis`'s own client, to servers like that of `info`.
    ///
    /// # Errors
    /// Fails if the certificates of the settings are not understood.
    pub(in crate::store::redis) fn usual(
        host: &Host,
        info: &ConnectionInfo,
        settings: &RedisSettings,
    ) -> Result<Self, RedisError> {
        client(info.clone(), settings)?;
        let (host, settings) = (host.clone(), settings.clone());
        Ok(Self::new(move |info, config| {
            let client = client(info.set_tcp_settings(tcp()), &settings);
            let config = config.set_dns_resolver(Resolver(host.clone()));
            async move { client?.get_multiplexed_async_connection_with_config(&config).await }
        }))
    }

    /// Returns one that connects to servers in this role with the credentials that are valid then.
    pub(in crate::store::redis) fn with(self, credentials: Provider, role: ServerRole) -> Self {
        let credentials = Arc::new(credentials);
        Self::new(move |info, config| {
            let (dial, credentials) = (self.clone(), Arc::clone(&credentials));
            async move {
                let info = credentials.apply(role, &info).await?;
                dial.dial(&info, config).await
            }
        })
    }

    /// Makes a connection.
    pub(in crate::store::redis) async fn dial(
        &self,
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        (self.0)(info.clone(), config).await
    }
}

/// Looks names up on the lock thread: tokio does so by a blocking call, and the runtime of a connection
/// may have no thread left for it, or only threads that wait for a lock themselves.
struct Resolver(Host);

impl AsyncDNSResolver for Resolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = match host.parse::<IpAddr>() {
                Ok(address) => vec![SocketAddr::new(address, port)],
                Err(_) => self.look_up(host.to_owned(), port).await?,
            };
            Ok(Box::new(found.into_iter()) as _)
        })
    }
}

impl Resolver {
    async fn look_up(&self, host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
        let (answer, answered) = oneshot::channel();
        self.0.spawn(async move {
            let found = tokio::net::lookup_host((host, port)).await;
            drop(answer.send(found.map(Iterator::collect)));
        })?;
        answered
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the lock thread has ended")))
    }
}

/// Returns settings for small urgent commands that also detect a peer that vanished silently.
fn tcp() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    // The releaser relies on this: the system gives the connection up after this long without an
    // acknowledgement.
    let settings = settings.set_user_timeout(Duration::from_secs(3));
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
