//! What the connections of a store tell about its servers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::host::{Host, Moment};
use crate::store::StoreError;
use crate::store::health::{ServerHealth, ServerRole, ServerState};

/// The number of response time-outs after which a connection that works, and of which nothing has
/// been heard, no longer counts: its runtime stands still, so it would not notice its end. One that is
/// driven is heard of within twice the response time-out.
const COUNTS_FOR: u32 = 3;

/// What the connections to one server tell of it, in the health of a store's servers. Its row is the
/// first one, or in a cluster the one with its address.
///
/// What is noted is told by [`tell`](Self::tell), which wakes tasks and so is called without any lock:
/// a waker may act at once.
pub(in crate::store::redis) struct Board {
    host: Host,
    /// The time for which a connection that works counts.
    counts_for: Duration,
    /// The connections that are wanted, by their slot.
    slots: Mutex<BTreeMap<u64, Wanted>>,
    servers: Arc<watch::Sender<Vec<ServerHealth>>>,
    /// The address of a node of a cluster, which no other server can take.
    node: Option<Box<str>>,
    /// `true` if a change of the row has not been told.
    is_untold: AtomicBool,
}

/// A connection that is wanted.
struct Wanted {
    is_up: bool,
    /// The time at which its slot last told of it.
    told: Moment,
}

impl Board {
    /// `response` is the response time-out of the connections.
    pub(in crate::store::redis) fn new(host: &Host, address: &str, response: Duration) -> Self {
        let server = ServerHealth::new(address, ServerRole::Master);
        Self {
            host: host.clone(),
            counts_for: response.saturating_mul(COUNTS_FOR),
            slots: Mutex::default(),
            servers: Arc::new(watch::Sender::new(vec![server])),
            node: None,
            is_untold: AtomicBool::new(false),
        }
    }

    /// Creates one for the node of a cluster at `address`, whose row [`enter`](Self::enter) adds.
    pub(in crate::store::redis) fn of_node(
        servers: &Arc<watch::Sender<Vec<ServerHealth>>>,
        host: &Host,
        address: &str,
        response: Duration,
    ) -> Self {
        Self {
            servers: Arc::clone(servers),
            node: Some(address.into()),
            ..Self::new(host, address, response)
        }
    }

    /// Adds the row of a node. Must not be called while a lock is held.
    pub(in crate::store::redis) fn enter(&self) {
        if let Some(node) = &self.node {
            let row = ServerHealth::new(&**node, ServerRole::Master);
            self.servers.send_modify(|servers| servers.push(row));
        }
    }

    /// Removes the row of a node that keeps no locks any more.
    pub(in crate::store::redis) fn leave(&self) {
        let is_its = |server: &ServerHealth| Some(&server.address) == self.node.as_ref();
        self.servers
            .send_modify(|servers| servers.retain(|server| !is_its(server)));
    }

    /// Returns the row of the server.
    fn row<'a>(&self, servers: &'a mut [ServerHealth]) -> Option<&'a mut ServerHealth> {
        match &self.node {
            Some(node) => servers.iter_mut().find(|server| server.address == *node),
            None => servers.first_mut(),
        }
    }

    pub(in crate::store::redis) fn watch(&self) -> watch::Receiver<Vec<ServerHealth>> {
        self.servers.subscribe()
    }

    /// Tells of what was noted. Must not be called while a lock is held.
    pub(super) fn tell(&self) {
        if self.is_untold.swap(false, Ordering::AcqRel) {
            self.servers.send_modify(|_| ());
        }
    }

    /// Notes that a slot has a connection to the server at `address`.
    pub(super) fn connected(&self, slot: u64, address: &str, role: ServerRole) {
        self.note(slot, Some(true), |server| {
            let is_another = *server.address != *address || server.role != role;
            if is_another {
                (server.address, server.role) = (address.into(), role);
            }
            is_another
        });
    }

    /// Notes that the connection of a slot has ended, or that none could be made.
    pub(super) fn failed(&self, slot: u64, error: Option<&StoreError>) {
        self.note(slot, Some(false), |server| {
            if let Some(error) = error {
                server.last_error = Some(error.clone());
            }
            false
        });
    }

    /// Forgets a slot, which is no longer used.
    pub(super) fn forget(&self, slot: u64) {
        self.note(slot, None, |_| false);
    }

    /// Notes that the runtime of a slot whose connection works goes on.
    pub(super) fn goes_on(&self, slot: u64) {
        self.note(slot, Some(true), |_| false);
    }

    /// Changes the row, in step with what is known of the connections.
    fn note(&self, slot: u64, is_up: Option<bool>, change: impl FnOnce(&mut ServerHealth) -> bool) {
        let told = self.host.now();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        match is_up {
            Some(is_up) => drop(slots.insert(slot, Wanted { is_up, told })),
            None => drop(slots.remove(&slot)),
        }
        let up = slots.values().filter(|slot| slot.is_up);
        let up = up.filter(|slot| told.since(slot.told) < self.counts_for).count();
        let failed = slots.values().filter(|slot| !slot.is_up).count();
        let state = match (up, failed) {
            (0, 0) => None,
            (0, _) => Some(ServerState::Down),
            (_, 0) => Some(ServerState::Connected),
            _ => Some(ServerState::Degraded),
        };
        let now = self.now();
        self.servers.send_if_modified(|servers| {
            let Some(server) = self.row(servers) else {
                return false;
            };
            let is_another = change(server);
            // The last runtime that took locks may have ended, which says nothing about the server.
            if is(server, state.unwrap_or(server.state), now) || is_another {
                self.is_untold.store(true, Ordering::Release);
            }
            false
        });
    }

    /// Notes the usual round trip, which is no change to tell.
    pub(super) fn takes(&self, round_trip: Duration) {
        self.servers.send_if_modified(|servers| {
            if let Some(server) = self.row(servers) {
                server.round_trip = Some(round_trip);
            }
            false
        });
    }

    /// Notes what came of asking a sentinel.
    pub(in crate::store::redis) fn sentinel(&self, address: &str, failure: Option<StoreError>) {
        let now = self.now();
        self.servers.send_if_modified(|servers| {
            let is_it = |server: &ServerHealth| server.role == ServerRole::Sentinel && *server.address == *address;
            let at = servers.iter().position(is_it).unwrap_or_else(|| {
                servers.push(ServerHealth::new(address, ServerRole::Sentinel));
                servers.len() - 1
            });
            let Some(server) = servers.get_mut(at) else {
                return false;
            };
            let state = if failure.is_some() {
                ServerState::Down
            } else {
                ServerState::Connected
            };
            server.last_error = failure.or_else(|| server.last_error.take());
            is(server, state, now)
        });
    }

    /// Removes a sentinel that is not asked any more. Must not be called while a lock is held.
    pub(in crate::store::redis) fn no_sentinel(&self, address: &str) {
        let is_it = |server: &ServerHealth| server.role == ServerRole::Sentinel && *server.address == *address;
        self.servers
            .send_modify(|servers| servers.retain(|server| !is_it(server)));
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.host.unix_time()
    }
}

/// Sets the state of a server. Returns `true` if it was another one.
fn is(server: &mut ServerHealth, state: ServerState, now: SystemTime) -> bool {
    let is_another = server.state != state;
    if is_another {
        (server.state, server.since) = (state, now);
    }
    is_another
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_the_server_is_that_of_its_connections() {
        let board = Board::new(&Host::process(), "redis.example:6379", Duration::MAX);
        let mut watch = board.watch();
        let mut told = || {
            board.tell();
            let has_changed = watch.has_changed().unwrap_or_default();
            let servers = watch.borrow_and_update();
            (has_changed, servers.first().map(|server| server.state))
        };
        assert_eq!(told(), (false, Some(ServerState::Unused)));
        let error = StoreError::transient("refused");
        board.failed(1, Some(&error));
        assert_eq!(told(), (true, Some(ServerState::Down)));
        board.connected(1, "redis.example:6379", ServerRole::Master);
        assert_eq!(told(), (true, Some(ServerState::Connected)));
        board.connected(2, "redis.example:6379", ServerRole::Master);
        board.takes(Duration::from_millis(1));
        assert_eq!(told(), (false, Some(ServerState::Connected)));
        board.failed(1, None);
        assert_eq!(told(), (true, Some(ServerState::Degraded)));
        board.forget(1);
        assert_eq!(told(), (true, Some(ServerState::Connected)));
        board.forget(2);
        assert_eq!(told(), (false, Some(ServerState::Connected)), "no runtime uses it");
        board.connected(3, "redis-2.example:6379", ServerRole::Master);
        assert_eq!(told(), (true, Some(ServerState::Connected)), "it is another one");
        let last = board
            .watch()
            .borrow()
            .first()
            .and_then(|server| server.last_error.clone());
        assert!(last.is_some_and(|error| error.to_string().contains("refused")));
    }

    #[test]
    fn each_sentinel_has_a_row() {
        let board = Board::new(&Host::process(), "orders", Duration::MAX);
        let mut watch = board.watch();
        board.sentinel("s1:26379", None);
        board.sentinel("s2:26379", Some(StoreError::transient("refused")));
        board.sentinel("s1:26379", None);
        let rows = |watch: &mut watch::Receiver<Vec<ServerHealth>>| {
            let servers = watch.borrow_and_update();
            let sentinels = servers.iter().skip(1);
            sentinels
                .map(|server| (server.address.to_string(), server.state))
                .collect::<Vec<_>>()
        };
        let (up, down) = (ServerState::Connected, ServerState::Down);
        assert_eq!(
            rows(&mut watch),
            [("s1:26379".to_owned(), up), ("s2:26379".to_owned(), down)]
        );
        board.sentinel("s2:26379", None);
        assert!(watch.has_changed().unwrap_or_default());
        assert_eq!(
            rows(&mut watch),
            [("s1:26379".to_owned(), up), ("s2:26379".to_owned(), up)]
        );
    }
}
