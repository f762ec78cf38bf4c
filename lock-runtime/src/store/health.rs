//! The health of the servers of a store.

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::host;
use crate::store::StoreError;

/// The health of one server that a manager uses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerHealth {
    /// The server's address, or the path of its socket.
    pub address: Box<str>,
    /// The part that it plays.
    pub role: ServerRole,
    /// The state of the connections to it.
    pub state: ServerState,
    /// The time since which it has been in this state, by the clock of this process.
    pub since: SystemTime,
    /// The last failure of a connection to it, also if the server has answered since.
    pub last_error: Option<StoreError>,
    /// The usual time until an answer. `None` before the first one, and for sentinels.
    pub round_trip: Option<Duration>,
}

impl ServerHealth {
    /// Creates a row for a server that has not been asked yet. For authors of a `LockStore`.
    #[must_use]
    pub fn new(address: impl Into<Box<str>>, role: ServerRole) -> Self {
        Self {
            address: address.into(),
            role,
            state: ServerState::Unused,
            since: SystemTime::UNIX_EPOCH,
            last_error: None,
            round_trip: None,
        }
    }
}

/// The part that a server plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerRole {
    /// It keeps the locks.
    Master,
    /// It has said that it is a replica, which takes no locks.
    Replica,
    /// It tells which server is the master.
    Sentinel,
    /// It is a cluster as a whole, as long as no node has told which nodes it has.
    Cluster,
}

/// The state of a manager's connections to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerState {
    /// No connection to it has been wanted yet.
    Unused,
    /// Every connection to it works.
    Connected,
    /// Some connections to it work, and others have failed.
    Degraded,
    /// No connection to it works. One whose runtime stands still does not count.
    Down,
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unused => "unused",
            Self::Connected => "connected",
            Self::Degraded => "degraded",
            Self::Down => "down",
        })
    }
}

impl fmt::Display for ServerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Master => "master",
            Self::Replica => "replica",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        })
    }
}

/// The health of all servers that a manager uses: see
/// [`LockManager::health`](crate::LockManager::health).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Health {
    /// The servers, those that keep locks first. Empty for a store in memory.
    pub servers: Vec<ServerHealth>,
    /// The number of servers that keep locks without which locks can be taken all the same.
    pub(crate) may_miss: usize,
    /// `true` once the manager was shut down.
    pub(crate) is_closed: bool,
}

impl Health {
    /// Returns `true` if locks can be taken: each server that keeps locks is
    /// [connected](ServerState::Connected), or at least [degraded](ServerState::Degraded), and none has
    /// said that it is a [replica](ServerRole::Replica). From the beginning of its
    /// [shutdown](crate::LockManager::shutdown), a manager takes none.
    ///
    /// Of the masters of a quorum, a majority is enough. It says nothing about sentinels, of which locks need
    /// none while the master stays.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.is_closed {
            return false;
        }
        let servers = self.servers.iter().filter(|server| server.role != ServerRole::Sentinel);
        let missing = servers.filter(|server| {
            let works = matches!(server.state, ServerState::Connected | ServerState::Degraded);
            !works || server.role != ServerRole::Master
        });
        missing.count() <= self.may_miss
    }
}

/// One line for a log: whether locks can be taken, and for each server its role, its state, and the last failure if it is not connected.
impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_ready() { "ready" } else { "not ready" })?;
        if self.is_closed {
            f.write_str("; the manager is shut down")?;
        }
        for server in &self.servers {
            write!(f, "; {} {} {}", server.role, server.address, server.state)?;
            if let Some(error) = server
                .last_error
                .as_ref()
                .filter(|_| server.state != ServerState::Connected)
            {
                write!(f, " ({error})")?;
            }
        }
        Ok(())
    }
}

/// The changes of a manager's health: see
/// [`LockManager::health_changes`](crate::LockManager::health_changes).
#[derive(Debug)]
pub struct HealthChanges {
    servers: Option<watch::Receiver<Vec<ServerHealth>>>,
    may_miss: usize,
    is_closed: IsClosed,
}

/// Tells whether a manager was shut down.
pub(crate) struct IsClosed(pub(crate) Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for IsClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IsClosed").field(&(self.0)()).finish()
    }
}

impl HealthChanges {
    pub(crate) fn new(
        mut servers: Option<watch::Receiver<Vec<ServerHealth>>>,
        may_miss: usize,
        is_closed: IsClosed,
    ) -> Self {
        // The first call of `next` tells the present health.
        if let Some(servers) = &mut servers {
            servers.mark_changed();
        }
        Self {
            servers,
            may_miss,
            is_closed,
        }
    }

    /// Returns the present health at the first call. Each later one waits until a server has another
    /// [state](ServerHealth::state), address or role than the health that was returned last, and
    /// returns the newest. What a server was in between is not told: one that has changed and is again as it
    /// was is returned as it is. Returns `None` when the manager
    /// has been dropped, and for a store whose health does not change.
    ///
    /// # Cancel safety
    /// Cancel safe: a change that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Health> {
        host::take_part().await;
        let servers = self.servers.as_mut()?;
        servers.changed().await.ok()?;
        let servers = servers.borrow_and_update().clone();
        Some(Health {
            servers,
            may_miss: self.may_miss,
            is_closed: (self.is_closed.0)(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(states: &[ServerState], may_miss: usize) -> Health {
        let server = |state: &ServerState| ServerHealth {
            state: *state,
            ..ServerHealth::new("a", ServerRole::Master)
        };
        let servers = states.iter().map(server).collect();
        Health {
            servers,
            may_miss,
            is_closed: false,
        }
    }

    #[test]
    fn a_quorum_is_ready_while_a_majority_of_its_masters_works() {
        use ServerState::{Connected, Degraded, Down};
        assert!(!health(&[Connected, Connected, Down], 0).is_ready());
        assert!(health(&[Connected, Degraded], 0).is_ready());
        assert!(health(&[Connected, Degraded, Down], 1).is_ready());
        assert!(!health(&[Connected, Down, Down], 1).is_ready());
    }

    #[test]
    fn health_is_one_line_with_the_failures_that_last() {
        use ServerState::{Connected, Down};
        let mut health = health(&[Connected, Down], 1);
        for server in &mut health.servers {
            server.last_error = Some(StoreError::permanent("the password is wrong"));
        }
        assert_eq!(
            health.to_string(),
            "ready; master a connected; master a down (the password is wrong; correct the store or its configuration)"
        );
        health.may_miss = 0;
        assert!(health.to_string().starts_with("not ready; master a"), "{health}");
        assert_eq!(Health::default().to_string(), "ready");
        let closed = Health {
            is_closed: true,
            ..Health::default()
        };
        assert_eq!(closed.to_string(), "not ready; the manager is shut down");
    }
}
