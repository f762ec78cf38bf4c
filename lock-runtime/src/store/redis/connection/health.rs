//! The health of a store's servers, as its connections report it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::host::{Host, Moment, Mutex};
use crate::store::health::{ServerHealth, ServerRole, ServerState};
use crate::store::{Lane, LossHint, LossReceiver, StoreError};

/// The number of response time-outs after which a connection that works, and of which nothing has
/// been heard, no longer counts: its runtime stands still, so it would not notice its end. A connection
/// that is driven reports within twice the response time-out.
const COUNTS_FOR: u32 = 3;
/// The number of failed attempts in a row, on one connection, that make an outage. A connection that is
/// made anew at once is none.
const OUTAGE: u32 = 2;

/// The board on which the connections to one server note its state, as a row in the health of a store's
/// servers. The row is the first one, or in a cluster the one with the server's address.
///
/// [`report`](Self::report) reports what they have noted. It wakes tasks and logs, and so is called without any
/// lock: a waker may act at once, and a subscriber may use the manager.
pub(in crate::store::redis) struct Board {
    host: Host,
    /// The time for which a connection that works counts.
    counts_for: Duration,
    slots: Mutex<Slots>,
    /// The receivers of [`LossHint::Down`] and [`LossHint::Up`].
    receivers: Mutex<Vec<LossReceiver>>,
    servers: Arc<watch::Sender<Vec<ServerHealth>>>,
    /// The address of a node of a cluster, which no other server can take.
    node: Option<Box<str>>,
    /// `true` if a change of the row has not been told.
    is_untold: AtomicBool,
}

#[derive(Default)]
struct Slots {
    /// The connections that are wanted, by their slot.
    wanted: BTreeMap<u64, Wanted>,
    outage: Option<Outage>,
    /// The beginnings and ends of outages that have not been told.
    untold: Vec<LossHint>,
}

/// A connection that is wanted.
struct Wanted {
    is_up: bool,
    /// The time at which its slot last told of it.
    reported: Moment,
    /// The time at which it went down, or was first wanted.
    since: Moment,
    /// The number of attempts that have failed since then.
    failures: u32,
}

/// An outage of the server that has been told.
struct Outage {
    since: Moment,
    /// `true` if it has been told that the server refuses for a lasting reason.
    is_lasting: bool,
}

/// A change of a connection.
#[derive(Clone, Copy)]
enum Change<'a> {
    Up,
    /// It has ended.
    Ended,
    /// It could not be made.
    Failed(&'a StoreError),
    Forgotten,
}

impl Slots {
    /// Notes a change. Returns the state of the server, if there is a connection that counts.
    fn note(&mut self, slot: u64, change: Change<'_>, now: Moment, counts_for: Duration) -> Option<ServerState> {
        let is_up = matches!(change, Change::Up);
        if matches!(change, Change::Forgotten) {
            self.wanted.remove(&slot);
        } else {
            let before = self.wanted.get(&slot).filter(|before| before.is_up == is_up);
            let failures = before.map_or(0, |before| before.failures);
            let wanted = Wanted {
                is_up,
                reported: now,
                since: before.map_or(now, |before| before.since),
                failures: failures.saturating_add(u32::from(matches!(change, Change::Failed(_)))),
            };
            self.wanted.insert(slot, wanted);
        }
        let up = self.wanted.values().filter(|slot| slot.is_up);
        let up = up.filter(|slot| now.since(slot.reported) < counts_for).count();
        let failed = self.wanted.values().filter(|slot| !slot.is_up).count();
        match (up, failed) {
            (0, 0) => None,
            (0, _) => Some(ServerState::Down),
            (_, 0) => Some(ServerState::Connected),
            _ => Some(ServerState::Degraded),
        }
    }

    /// Notes the beginning or the end of an outage of the server at `address`, after a change. It ends when
    /// all connections work again, but for those whose runtimes stand still.
    fn judge(&mut self, address: &str, change: Change<'_>, now: Moment, counts_for: Duration) {
        let reported = self
            .wanted
            .values()
            .filter(|slot| now.since(slot.reported) < counts_for);
        let failing = reported.filter(|slot| !slot.is_up && slot.failures >= OUTAGE);
        let since = failing.map(|slot| slot.since).min();
        match (&mut self.outage, since, change) {
            (None, Some(since), Change::Failed(error)) => {
                let is_lasting = error.is_permanent();
                self.outage = Some(Outage { since, is_lasting });
                self.untold.push(down(address, error));
            }
            (Some(outage), _, Change::Failed(error)) if error.is_permanent() && !outage.is_lasting => {
                outage.is_lasting = true;
                self.untold.push(down(address, error));
            }
            (Some(outage), None, Change::Up) => {
                let (lane, address) = (Lane::default(), address.into());
                let lasted = now.since(outage.since);
                self.untold.push(LossHint::Up { lane, address, lasted });
                self.outage = None;
            }
            _ => {}
        }
    }
}

fn down(address: &str, error: &StoreError) -> LossHint {
    LossHint::Down {
        lane: Lane::default(),
        address: address.into(),
        error: error.to_string().into(),
    }
}

impl Board {
    /// `response` is the response time-out of the connections.
    pub(in crate::store::redis) fn new(host: &Host, address: &str, response: Duration) -> Self {
        let server = ServerHealth::new(address, ServerRole::Master);
        Self {
            host: host.clone(),
            counts_for: response.saturating_mul(COUNTS_FOR),
            slots: Mutex::default(),
            receivers: Mutex::default(),
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

    /// Adds a receiver for the beginnings and ends of outages.
    pub(super) fn report_to(&self, receiver: LossReceiver) {
        let mut receivers = self.receivers.lock();
        receivers.push(receiver);
    }

    /// Tells the watchers and the receivers what was noted. Must not be called while a lock is held.
    pub(super) fn report(&self) {
        if self.is_untold.swap(false, Ordering::AcqRel) {
            self.servers.send_modify(|_| ());
        }
        let untold = std::mem::take(&mut self.slots.lock().untold);
        if untold.is_empty() {
            return;
        }
        let receivers = self.receivers.lock().clone();
        for (hint, receiver) in untold
            .iter()
            .flat_map(|hint| receivers.iter().map(move |to| (hint, to)))
        {
            receiver(hint.clone());
        }
    }

    /// Notes that a slot has a connection to the server at `address`.
    pub(super) fn connected(&self, slot: u64, address: &str, role: ServerRole) {
        self.note(slot, Change::Up, |server| {
            let is_another = *server.address != *address || server.role != role;
            if is_another {
                (server.address, server.role) = (address.into(), role);
            }
            is_another
        });
    }

    /// Notes that the connection of a slot has ended, or that none could be made.
    pub(super) fn failed(&self, slot: u64, error: Option<&StoreError>) {
        let change = error.map_or(Change::Ended, Change::Failed);
        self.note(slot, change, |server| {
            if let Some(error) = error {
                server.last_error = Some(error.clone());
            }
            false
        });
    }

    /// Forgets a slot, which is no longer used.
    pub(super) fn forget(&self, slot: u64) {
        self.note(slot, Change::Forgotten, |_| false);
    }

    /// Notes that the runtime of a slot whose connection works goes on.
    pub(super) fn goes_on(&self, slot: u64) {
        self.note(slot, Change::Up, |_| false);
    }

    /// Changes the row, in step with the states of the connections.
    fn note(&self, slot: u64, change: Change<'_>, note: impl FnOnce(&mut ServerHealth) -> bool) {
        let noted = self.host.now();
        let mut slots = self.slots.lock();
        let state = slots.note(slot, change, noted, self.counts_for);
        let now = self.now();
        self.servers.send_if_modified(|servers| {
            let Some(server) = self.row(servers) else {
                // A node that keeps no locks any more.
                slots.outage = None;
                return false;
            };
            let is_another = note(server);
            slots.judge(&server.address, change, noted, self.counts_for);
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

    /// Notes the outcome of a question to a sentinel.
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
            board.report();
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

    /// Returns a board, and what it tells of outages, as text.
    fn told_of(counts_for: Duration) -> (Board, impl FnMut(&Board) -> Vec<String>) {
        let board = Board::new(&Host::process(), "redis.example:6379", counts_for / COUNTS_FOR);
        let told = Arc::<Mutex<Vec<String>>>::default();
        let hears = Arc::clone(&told);
        board.report_to(Arc::new(move |hint| {
            let text = match hint {
                LossHint::Down { address, error, .. } => {
                    format!("{address}: {}", error.split(';').next().unwrap_or_default())
                }
                LossHint::Up { address, .. } => format!("{address} is up"),
                other => format!("{other:?}"),
            };
            hears.lock().push(text);
        }));
        let take = move |board: &Board| {
            board.report();
            std::mem::take(&mut *told.lock())
        };
        (board, take)
    }

    const NOTHING: [&str; 0] = [];
    const DOWN: [&str; 1] = ["redis.example:6379: refused"];

    #[test]
    fn an_outage_begins_with_the_second_failure_and_ends_when_all_connections_work() {
        let (board, mut told) = told_of(Duration::MAX);
        let refused = StoreError::transient("refused");
        let up = |slot| board.connected(slot, "redis.example:6379", ServerRole::Master);
        up(1);
        up(2);
        board.failed(1, None);
        board.failed(1, Some(&refused));
        up(1);
        board.failed(1, None);
        board.failed(1, Some(&refused));
        assert_eq!(told(&board), NOTHING, "made anew by the second attempt");
        board.failed(1, Some(&refused));
        board.failed(2, None);
        for _ in 0..5 {
            board.failed(1, Some(&refused));
            board.failed(2, Some(&refused));
        }
        assert_eq!(told(&board), DOWN, "once for all connections");
        up(1);
        assert_eq!(told(&board), NOTHING, "another one fails");
        board.forget(2);
        board.goes_on(1);
        assert_eq!(told(&board), ["redis.example:6379 is up"]);
        board.failed(1, None);
        board.failed(1, Some(&refused));
        assert_eq!(told(&board), NOTHING);
        board.failed(1, Some(&refused));
        assert_eq!(told(&board), DOWN, "the next outage");
    }

    #[test]
    fn a_lasting_refusal_is_told_once_also_during_an_outage() {
        let (board, mut told) = told_of(Duration::MAX);
        let wrong = StoreError::permanent("WRONGPASS");
        board.failed(1, Some(&StoreError::transient("refused")));
        board.failed(1, Some(&StoreError::transient("refused")));
        assert_eq!(told(&board), DOWN);
        for _ in 0..5 {
            board.failed(1, Some(&wrong));
        }
        assert_eq!(told(&board), ["redis.example:6379: WRONGPASS"]);
        board.connected(1, "redis-2.example:6379", ServerRole::Master);
        assert_eq!(told(&board), ["redis-2.example:6379 is up"]);
    }

    /// It does not try again, so it does not find the server either.
    #[test]
    fn a_connection_whose_runtime_stands_still_prolongs_no_outage() {
        let (board, mut told) = told_of(Duration::from_millis(30));
        board.failed(1, Some(&StoreError::transient("refused")));
        board.failed(1, Some(&StoreError::transient("refused")));
        assert_eq!(told(&board), DOWN);
        std::thread::sleep(Duration::from_millis(40));
        board.connected(2, "redis.example:6379", ServerRole::Master);
        assert_eq!(told(&board), ["redis.example:6379 is up"]);
    }

    #[test]
    fn a_node_that_keeps_no_locks_any_more_has_no_outage() {
        let servers = Arc::new(watch::Sender::new(Vec::new()));
        let board = Board::of_node(&servers, &Host::process(), "n1:6379", Duration::MAX);
        let told = Arc::<Mutex<u32>>::default();
        let hears = Arc::clone(&told);
        board.report_to(Arc::new(move |_| {
            *hears.lock() += 1;
        }));
        board.enter();
        board.leave();
        board.failed(1, Some(&StoreError::transient("refused")));
        board.failed(1, Some(&StoreError::transient("refused")));
        board.report();
        assert_eq!(*told.lock(), 0);
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
