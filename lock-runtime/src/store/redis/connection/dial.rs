//! Makes connections to servers.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError, Value,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::oneshot;

use super::failure::{NEEDS_HELLO, Reason, ReasonKind};
use super::handshake;
#[cfg(feature = "tls")]
use super::tls::{self, Tls};
use super::transcript::{self, ReasonOf};
use crate::host::{Host, Moment, Mutex, caught};
use crate::store::health::ServerRole;
use crate::store::redis::credentials::Provider;
use crate::store::redis::settings::RedisSettings;
use crate::store::redis::url;

type Dialled = Pin<Box<dyn Future<Output = Result<MultiplexedConnection, RedisError>> + Send>>;

/// Makes connections to servers. Clones are cheap.
///
/// The usual one connects over TCP, TLS or a Unix socket. Another one may hand any stream of bytes to
/// [`MultiplexedConnection::new_with_config`].
#[derive(Clone)]
pub(in crate::store::redis) struct Dial {
    make: Arc<dyn Fn(ConnectionInfo, AsyncConnectionConfig) -> Dialled + Send + Sync>,
    /// The name that the connections are to have at the server, or an empty one for none.
    client_name: Arc<str>,
}

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
        Self {
            make: Arc::new(move |info, config| Box::pin(dial(info, config))),
            client_name: Arc::default(),
        }
    }

    /// Returns one whose connections are to have this name at the server.
    pub(in crate::store::redis) fn named(mut self, client_name: Arc<str>) -> Self {
        self.client_name = client_name;
        self
    }

    /// Returns the command that gives a new connection its name, or `None` if it has none. Who makes a
    /// connection sends it together with what is asked there first, so that it takes no time of its own.
    pub(in crate::store::redis) fn naming(&self) -> Option<Cmd> {
        handshake::naming(&self.client_name)
    }

    /// Returns a `Dial` that connects over TCP, TLS or a Unix socket, to servers like that of `info`.
    ///
    /// # Errors
    /// Fails with the problem, if the settings for TLS are not understood.
    pub(in crate::store::redis) fn usual(
        host: &Host,
        info: &ConnectionInfo,
        settings: &RedisSettings,
    ) -> Result<Self, String> {
        let transport = Arc::new(Transport::new(host, info.addr(), settings)?);
        Ok(Self::new(move |info, config| {
            let transport = Arc::clone(&transport);
            async move { transport.connect(&info, config).await }
        }))
    }

    /// Returns one that connects to servers in this role with the credentials that are valid then.
    pub(in crate::store::redis) fn with(self, credentials: Provider, role: ServerRole) -> Self {
        let credentials = Arc::new(credentials);
        let client_name = Arc::clone(&self.client_name);
        let with = Self::new(move |info, config| {
            let (dial, credentials) = (self.clone(), Arc::clone(&credentials));
            async move {
                let info = credentials.apply(role, &info).await?;
                dial.dial(&info, config).await
            }
        });
        with.named(client_name)
    }

    /// Makes a connection. A panic is an error: it would end the task that asks.
    pub(in crate::store::redis) async fn dial(
        &self,
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let dialled = caught(async move { (self.make)(info.clone(), config).await });
        dialled
            .await
            .unwrap_or_else(|panic| Err(Reason::panicked(&panic).into()))
    }
}

/// The time for which it counts whether a server [hangs up at `HELLO`](Transport::hangs_up_at_hello).
/// To find that out takes another connection, and redials are paced.
const FOUND_FOR: Duration = Duration::from_secs(1);

/// Makes connections over TCP, TLS and Unix sockets.
struct Transport {
    host: Host,
    /// The addresses that have closed a connection without a word, with the last time at which it was
    /// found out whether they do so at `HELLO` only.
    hung_up: Mutex<BTreeMap<String, (Moment, bool)>>,
    /// `true` once `HELLO` was answered at any address. What hangs up at it from then on is in trouble that
    /// may pass.
    has_said_hello: AtomicBool,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Transport {
    /// Creates one for servers like that at `addr`.
    fn new(host: &Host, addr: &ConnectionAddr, settings: &RedisSettings) -> Result<Self, String> {
        if let ConnectionAddr::TcpTls { insecure: true, .. } = addr {
            return Err(format!("`insecure` has no effect: {}", url::ALWAYS_CHECKED));
        }
        let is_tls = matches!(addr, ConnectionAddr::TcpTls { .. });
        #[cfg(not(feature = "tls"))]
        if is_tls {
            let _ = settings;
            return Err(url::NEEDS_TLS.to_owned());
        }
        Ok(Self {
            host: host.clone(),
            hung_up: Mutex::default(),
            has_said_hello: AtomicBool::new(false),
            #[cfg(feature = "tls")]
            tls: is_tls.then(|| Tls::new(settings)).transpose()?,
        })
    }

    async fn connect(
        &self,
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let made = self.log_in(info.addr(), info.redis_settings(), config).await;
        match &made {
            Ok(_) => {
                self.has_said_hello.store(true, Ordering::Relaxed);
                made
            }
            Err(error) if Reason::of(error).is_some_and(|reason| reason.kind == ReasonKind::HungUp) => {
                if self.has_said_hello.load(Ordering::Relaxed) || !self.hangs_up_at_hello(info.addr()).await {
                    return made;
                }
                Err(Reason::lasting(
                    "what answers at this address closes the connection at `HELLO 3`, as a proxy does that knows the \
                     commands of older clients only",
                    NEEDS_HELLO,
                )
                .into())
            }
            _ => made,
        }
    }

    /// Connects, and lets `redis` send what begins a connection with these settings.
    async fn log_in(
        &self,
        addr: &ConnectionAddr,
        redis: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        match addr {
            ConnectionAddr::Tcp(host, port) => {
                let stream = self.tcp(host, *port).await?;
                self.begin(stream, |_| None, redis, config).await
            }
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let Some(tls) = &self.tls else {
                    return Err((
                        ErrorKind::InvalidClientConfig,
                        "this address has TLS, and the first one has not",
                    )
                        .into());
                };
                let stream = tls.connect(host, self.tcp(host, *port).await?).await?;
                self.begin(stream, tls::reason, redis, config).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                self.begin(stream, |_| None, redis, config).await
            }
            _ => Err((ErrorKind::InvalidClientConfig, "this kind of address is not supported").into()),
        }
    }

    /// Connects to the first of a host's addresses that answers.
    async fn tcp(&self, host: &str, port: u16) -> Result<TcpStream, RedisError> {
        let found = self.look_up(host, port).await.map_err(|error| {
            Reason::passing(
                format!("the address of `{host}` was not found: {error}"),
                "check the host in the URL and the name servers (DNS), then try again",
            )
        })?;
        let tries: Vec<_> = found.into_iter().map(|address| Box::pin(tcp_at(address))).collect();
        if tries.is_empty() {
            let text = format!("`{host}` has no address");
            return Err(Reason::passing(text, "check the host in the URL, then try again").into());
        }
        Ok(select_ok(tries).await?.0)
    }

    /// Returns the addresses of a host. The lock thread looks a name up: tokio does so by a blocking call,
    /// and the runtime of a connection may have no thread left for it, or only some that wait for a lock
    /// themselves.
    async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let host = host.to_owned();
        let (answer, answered) = oneshot::channel();
        self.host.spawn(async move {
            let found = lookup_host((host, port)).await;
            drop(answer.send(found.map(Iterator::collect)));
        })?;
        answered
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the lock thread has ended")))
    }

    async fn begin<S>(
        &self,
        stream: S,
        reason_of: ReasonOf,
        redis: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (stream, transcript) = transcript::record(stream, reason_of);
        match MultiplexedConnection::new_with_config(redis, stream, config).await {
            Ok((connection, driver)) => {
                // Ends with the last clone of the connection.
                drop(self.host.spawn_here(driver));
                Ok(connection)
            }
            Err(error) => Err(transcript.explain(error)),
        }
    }

    /// Returns `true` if what has closed a connection without a word does so at `HELLO` only. A server
    /// that is about to end, or a balancer without one, closes every connection.
    async fn hangs_up_at_hello(&self, addr: &ConnectionAddr) -> bool {
        let name = addr.to_string();
        let now = self.host.now();
        {
            let mut hung_up = self.hung_up.lock();
            hung_up.retain(|_, (found, _)| now.since(*found) < FOUND_FOR);
            if let Some((_, at_hello)) = hung_up.get(&name) {
                return *at_hello;
            }
            hung_up.insert(name.clone(), (now, false));
        }
        let at_hello = self.takes_all_but_hello(addr).await;
        self.hung_up.lock().insert(name, (now, at_hello));
        at_hello
    }

    /// Asks, on another connection, for something that clients of every age ask, and then for `HELLO`.
    async fn takes_all_but_hello(&self, addr: &ConnectionAddr) -> bool {
        // With these, `redis` sends nothing by itself.
        let bare = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let Ok(mut connection) = self.log_in(addr, &bare, config).await else {
            return false;
        };
        match redis::cmd("PING").query_async::<Value>(&mut connection).await {
            Ok(_) => {}
            Err(error) if matches!(error.code(), Some("NOAUTH" | "NOPERM")) => {}
            Err(_) => return false,
        }
        let hello = redis::cmd("HELLO").arg(3).query_async::<Value>(&mut connection).await;
        hello.is_err_and(|error| error.is_connection_dropped())
    }
}

/// Connects with settings for small urgent commands that also detect a peer that vanished silently.
async fn tcp_at(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    // The releaser relies on this: the system gives the connection up after this long without an
    // acknowledgement.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(3)))?;
    Ok(stream)
}
