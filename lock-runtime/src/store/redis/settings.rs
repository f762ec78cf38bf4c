//! The settings of a store on a server.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;

use super::connection::dial::Dial;
use super::credentials::{Credentials, Provider};
use crate::host::Host;
use crate::store::health::ServerRole;

/// The time-outs of a store's connections and commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOuts {
    /// The limit for making a connection, with all that is asked on it before its first use. By default
    /// 2 s, as for [`connect_timeout`](crate::LockManagerBuilder::connect_timeout).
    pub connect: Duration,
    /// The limit for the answer to a command. By default 1 s, as for
    /// [`response_timeout`](crate::LockManagerBuilder::response_timeout).
    pub response: Duration,
}

impl Default for TimeOuts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            response: Duration::from_secs(1),
        }
    }
}

/// The settings for making connections.
#[derive(Clone, Default)]
pub(crate) struct RedisSettings {
    pub(crate) time_outs: TimeOuts,
    /// The allowed difference between the clocks of servers that replace one another, or `None` for the
    /// store's own.
    pub(crate) skew: Option<Duration>,
    /// The longest lease of any lock, for a server that is one of several masters and keeps a mark.
    pub(super) longest_lease: Option<Duration>,
    /// The server, in place of the one that the URL names.
    pub(super) server: Option<Box<ConnectionInfo>>,
    pub(super) credentials: Provider,
    /// The name of the connections at the server, or `None` for that of the process.
    client_name: Option<Arc<str>>,
    /// Makes the connections, in place of the usual ones over TCP, TLS or a Unix socket.
    pub(super) dial: Option<Dial>,
    #[cfg(feature = "tls")]
    pub(super) root_certificate: Option<Vec<u8>>,
    #[cfg(feature = "tls")]
    pub(super) client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl RedisSettings {
    #[cfg(feature = "custom-store")]
    pub(super) fn within(time_outs: TimeOuts) -> Self {
        Self {
            time_outs,
            ..Self::default()
        }
    }

    /// Returns what is set, for tests.
    #[cfg(test)]
    #[allow(unused_mut)]
    pub(crate) fn all(&self) -> String {
        let mut shown = format!(
            "{:?}, skew: {:?}, client_name: {:?}, files: {:?}",
            self.time_outs,
            self.skew,
            self.client_name,
            self.credentials.paths()
        );
        #[cfg(feature = "tls")]
        shown.extend([
            format!(", root_certificate: {}", self.root_certificate.is_some()),
            format!(", client_certificate: {}", self.client_certificate.is_some()),
        ]);
        shown
    }

    /// Makes the server one of several masters, which gives no lock while it may have forgotten one. No
    /// lock may have a time to live longer than this.
    pub(crate) fn set_longest_lease(&mut self, longest_lease: Duration) {
        self.longest_lease = Some(longest_lease);
    }

    /// Sets the server, in place of the one that the URL names.
    pub(crate) fn set_server(&mut self, server: ConnectionInfo) {
        self.server = Some(Box::new(server));
    }

    /// Sets the name that the connections have at the server. With an empty one they have none.
    pub(crate) fn set_client_name(&mut self, name: &str) {
        self.client_name = Some(name.into());
    }

    /// Returns an error text if a server refuses the name of the connections.
    pub(crate) fn check_client_name(&self) -> Result<(), String> {
        match &self.client_name {
            Some(name) if !name.bytes().all(|byte| byte.is_ascii_graphic()) => Err(format!(
                "the client name {name:?} cannot be that of a connection: give ASCII letters, digits and punctuation, without spaces and line \
                 breaks"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the name that the connections have at the server: `lock-runtime:<host>:<pid>`, unless
    /// another one is set.
    pub(super) fn client_name(&self, host: &Host) -> Arc<str> {
        self.client_name.clone().unwrap_or_else(|| {
            let place = host.place().trim_matches(':');
            let place = place.replace(|c: char| !c.is_ascii_graphic(), "_");
            format!("lock-runtime:{place}").into()
        })
    }

    /// Sets the function that provides the credentials for each new connection.
    pub(crate) fn set_credentials<F, E>(&mut self, provide: impl Fn(ServerRole) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.credentials.set_function(provide);
    }

    /// Sets the file that has the password for each new connection to such servers.
    pub(crate) fn set_password_file(&mut self, of: ServerRole, path: PathBuf) {
        self.credentials.set_file(of, path);
    }

    /// Sets the certificate authority (PEM) to trust instead of the system's.
    #[cfg(feature = "tls")]
    pub(crate) fn set_root_certificate(&mut self, pem: Vec<u8>) {
        self.root_certificate = Some(pem);
    }

    /// Sets the client's certificate and key (PEM).
    #[cfg(feature = "tls")]
    pub(crate) fn set_client_certificate(&mut self, certificate: Vec<u8>, key: Vec<u8>) {
        self.client_certificate = Some((certificate, key));
    }

    /// Sets the function that connects to the server.
    #[cfg(any(lock_simulation, test))]
    pub(crate) fn set_dial<F>(
        &mut self,
        dial: impl Fn(redis::ConnectionInfo, redis::AsyncConnectionConfig) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<redis::aio::MultiplexedConnection, redis::RedisError>> + Send + 'static,
    {
        self.dial = Some(Dial::new(dial));
    }
}
