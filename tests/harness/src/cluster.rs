//! Real processes that form a Redis Cluster: three masters, each with a third of the slots, and a replica of each, all of the version
//! under test.
//!
//! Each process is a [`Server`]: [`ClusterGroup::server`] returns the one at a port. What waits here is `async` and lets the test's
//! runtime go on.
//!
//! Every node has a second port for the others, its bus: its port and 10,000. Version 6.2 allows no other.

use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

use redis::from_redis_value;

use crate::certificates::Certificate;
use crate::clock::Stamp;
use crate::patience::{PATIENCE, within};
use crate::server::{self, Kind, Server};

/// The number of slots.
pub const SLOTS: u16 = 16_384;

/// The `cluster-node-timeout` of the nodes: a node that does not answer for so long counts as failed once most masters say so.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(1500);

/// The `cluster-node-timeout` of nodes that take no node for dead.
const NEVER: Duration = Duration::from_secs(600);

/// The time after which every wait of a cluster gives up.
const LIMIT: Duration = PATIENCE.saturating_mul(3);

/// The number of masters at the start, and of replicas.
pub const MASTERS: usize = 3;

/// A running cluster. Its processes end when it is dropped.
#[derive(Debug)]
pub struct ClusterGroup {
    /// The masters it began with, then a replica of each in the same order.
    nodes: [Server; 2 * MASTERS],
}

/// One line of `CLUSTER NODES`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    id: String,
    port: u16,
    flags: Vec<String>,
    epoch: u64,
    is_linked: bool,
    slots: Vec<RangeInclusive<u16>>,
}

impl Row {
    /// Reads `<id> 127.0.0.1:10001@20001,… myself,master - 0 0 1 connected 0-5460 [7->-<id>] …`.
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let id = fields.next()?.to_owned();
        let port = fields.next()?.split('@').next()?.rsplit(':').next()?.parse().ok()?;
        let flags = fields.next()?.split(',').map(str::to_owned).collect();
        // The master, and the times of the last question and answer.
        let epoch = fields.nth(3)?.parse().ok()?;
        let is_linked = fields.next()? == "connected";
        let slots = fields.filter(|field| !field.starts_with('[')).map(|field| {
            let (first, last) = field.split_once('-').unwrap_or((field, field));
            Some(first.parse().ok()?..=last.parse().ok()?)
        });
        Some(Self {
            id,
            port,
            flags,
            epoch,
            is_linked,
            slots: slots.collect::<Option<_>>()?,
        })
    }

    fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|is| is == flag)
    }

    fn is_well(&self) -> bool {
        self.is_linked
            && !["fail", "fail?", "handshake", "noaddr"]
                .iter()
                .any(|flag| self.is(flag))
    }

    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    fn slot_count(&self) -> usize {
        self.slots.iter().map(|range| range.clone().count()).sum()
    }
}

/// The slots of a master at the start, the first one being 0.
#[must_use]
pub fn third(nth: usize) -> Range<u16> {
    let first = |nth: usize| u16::try_from(usize::from(SLOTS) * nth / MASTERS).expect("at most all slots");
    first(nth)..first(nth + 1)
}

impl ClusterGroup {
    /// Starts a cluster of the version under test and returns once it is [settled](Self::settled).
    pub async fn start() -> Self {
        Self::start_with(NODE_TIMEOUT).await
    }

    /// Starts a cluster whose nodes take no node for dead, so that it never has a failover by itself, however busy the machine is.
    pub async fn start_steady() -> Self {
        Self::start_with(NEVER).await
    }

    /// Starts a [steady](Self::start_steady) cluster whose clocks are [slowed down](server::slow_down) once it is settled.
    pub async fn start_slow() -> Self {
        let cluster = Self::start_of(Server::builder().slow_clock(), NEVER, None).await;
        server::slow_down(&cluster.nodes);
        cluster
    }

    /// Starts a [steady](Self::start_steady) cluster whose first master has the first slots only, so many, and whose masters stay what they are
    /// without any slot. Version 6.2 knows no such masters.
    pub async fn start_uneven(first: u16) -> Self {
        let builder = Server::builder().arg("cluster-allow-replica-migration", "no");
        Self::start_of(builder, NEVER, Some(first)).await
    }

    /// Starts a [steady](Self::start_steady) cluster that serves TLS only, and asks its clients for a certificate.
    pub async fn start_with_tls() -> Self {
        let tls = Server::builder()
            .tls(Certificate::Valid)
            .arg("tls-auth-clients", "yes")
            .arg("tls-replication", "yes")
            .arg("tls-cluster", "yes");
        Self::start_of(tls, NEVER, None).await
    }

    async fn start_with(node_timeout: Duration) -> Self {
        Self::start_of(Server::builder(), node_timeout, None).await
    }

    /// `first` is the number of slots of the first master, if it is not a third.
    async fn start_of(builder: server::Builder, node_timeout: Duration, first: Option<u16>) -> Self {
        let timeout = node_timeout.as_millis().to_string();
        let node = || {
            builder
                .clone()
                .arg("cluster-enabled", "yes")
                .arg("cluster-node-timeout", &timeout)
                .arg("cluster-replica-validity-factor", "0")
                .arg("cluster-require-full-coverage", "no")
                // Nobody moves a replica to another master.
                .arg("cluster-migration-barrier", "100")
                .arg("repl-diskless-sync", "yes")
                .arg("repl-diskless-sync-delay", "0")
                .start()
        };
        let cluster = Self {
            nodes: [node(), node(), node(), node(), node(), node()],
        };
        let (masters, replicas) = cluster.nodes.split_at(MASTERS);
        for (nth, (epoch, master)) in (1_u16..).zip(masters).enumerate() {
            // Different ones from the beginning, or the nodes would have to agree on them.
            master.cmd(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
            let Range { mut start, mut end } = third(nth);
            match (first, nth) {
                (Some(first), 0) => end = first,
                (Some(first), 1) => start = first,
                _ => {}
            }
            let slots: Vec<String> = (start..end).map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            master.cmd(&command);
        }
        let mut asked: Option<Instant> = None;
        within(LIMIT, "every node of the cluster to know every other one", || {
            let met = cluster.nodes.iter().all(|node| {
                let rows = rows(node);
                rows.len() == 2 * MASTERS && rows.iter().all(Row::is_well)
            });
            // A node that stands still, or the first one, may have forgotten the other one before they have met.
            if !met && asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(5)) {
                for other in &cluster.nodes[1..] {
                    let port = other.port().to_string();
                    cluster.nodes[0].cmd(&["CLUSTER", "MEET", "127.0.0.1", &port]);
                }
                asked = Some(Instant::now());
            }
            async move { met.then_some(()) }
        })
        .await;
        for (master, replica) in masters.iter().zip(replicas) {
            replica.cmd(&["CLUSTER", "REPLICATE", &id(master)]);
        }
        cluster.settled().await;
        cluster
    }

    /// Returns the URL for clients: `redis+cluster://127.0.0.1:<port>,…`, with all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        let scheme = self.nodes[0].url().split("://").next().unwrap_or_default().to_owned();
        format!("{scheme}+cluster://{}", nodes.collect::<Vec<_>>().join(","))
    }

    /// The ports of all nodes: the masters it began with, then a replica of each in the same order.
    #[must_use]
    pub fn ports(&self) -> [u16; 2 * MASTERS] {
        self.nodes.each_ref().map(Server::port)
    }

    /// The masters it began with.
    #[must_use]
    pub fn masters(&self) -> &[Server] {
        &self.nodes[..MASTERS]
    }

    /// The port of a master that the cluster began with, other than the one at this port.
    #[must_use]
    pub fn other_master(&self, port: u16) -> u16 {
        let mut ports = self.masters().iter().map(Server::port);
        ports.find(|other| *other != port).expect("there are several masters")
    }

    /// The node at a port.
    #[must_use]
    pub fn server(&self, port: u16) -> &Server {
        let node = self.nodes.iter().find(|node| node.port() == port);
        node.unwrap_or_else(|| panic!("no node of the cluster has port {port}"))
    }

    /// Returns the slot of a key.
    #[must_use]
    pub fn slot_of(&self, key: &str) -> u16 {
        self.running().next().expect("a node runs").slot_of(key)
    }

    /// Waits until every running master names the same owner of a slot, one of them, and returns its port. A replica of version 6.2 may
    /// think otherwise for ever after slots have moved fast.
    pub async fn owner(&self, slot: u16) -> u16 {
        within(LIMIT, "all masters to name one owner of a slot", || {
            let agreed = self.agreed_owner(slot);
            async move { agreed }
        })
        .await
    }

    /// Waits until every node that runs sees every other one without a fault, all slots have an owner, on which all nodes agree, and every
    /// replica follows its master.
    pub async fn settled(&self) {
        within(LIMIT, "the cluster to be settled", || {
            let settled = self.is_settled();
            async move { settled.then_some(()) }
        })
        .await;
    }

    /// Moves a slot to the master at a port, with the keys in it, as `redis-cli --cluster reshard` does. The other nodes learn of it a
    /// little later; see [`ClusterGroup::owner`].
    pub async fn move_slot(&self, slot: u16, to: u16) {
        let from = self.owner(slot).await;
        if from == to {
            return;
        }
        self.open_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.close_move(slot, from, to).await;
    }

    /// Moves slots of one master to another one, like [`move_slot`](Self::move_slot), but looks only once whether the masters agree.
    pub async fn move_slots(&self, slots: RangeInclusive<u16>, to: u16) {
        let from = self.owner(*slots.start()).await;
        if from == to {
            return;
        }
        for slot in slots.clone() {
            self.open_move(slot, from, to);
            self.move_keys(slot, from, to);
            self.set_owner(slot, from, to);
        }
        within(
            LIMIT,
            "all masters to name one owner of some slots, and to know different epochs of each other",
            || {
                let agreed = [*slots.start(), *slots.end()].map(|slot| self.agreed_owner(slot)) == [Some(to); 2];
                let agreed = agreed && self.knows_epochs();
                async move { agreed.then_some(()) }
            },
        )
        .await;
    }

    /// Begins to move a slot: what is not at its owner is looked for at the target.
    pub fn open_move(&self, slot: u16, from: u16, to: u16) {
        let (source, target) = (self.server(from), self.server(to));
        set_slot(target, slot, ["IMPORTING", &id(source)]);
        set_slot(source, slot, ["MIGRATING", &id(target)]);
    }

    /// Moves the keys of a slot that is being moved.
    pub fn move_keys(&self, slot: u16, from: u16, to: u16) {
        let (source, number, port) = (self.server(from), slot.to_string(), to.to_string());
        let limit = limit();
        loop {
            let keys: Vec<String> = source.ask(&["CLUSTER", "GETKEYSINSLOT", &number, "100"]);
            if keys.is_empty() {
                return;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", &limit, "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            source.cmd(&migrate);
        }
    }

    /// Moves one key of a slot that is being moved.
    pub fn move_key(&self, key: &str, from: u16, to: u16) {
        let (port, limit) = (to.to_string(), limit());
        self.server(from)
            .cmd(&["MIGRATE", "127.0.0.1", &port, key, "0", &limit]);
    }

    /// Ends the move of a slot, with what is left of its keys.
    pub async fn close_move(&self, slot: u16, from: u16, to: u16) {
        self.move_keys(slot, from, to);
        // Two masters that get slots shortly after each other may take the same epoch. One of them then takes another, and a word of it that
        // is older than the move undoes the move at some nodes, for ever.
        within(LIMIT, "all masters to know different epochs of each other", || {
            let known = self.knows_epochs();
            async move { known.then_some(()) }
        })
        .await;
        self.set_owner(slot, from, to);
    }

    fn set_owner(&self, slot: u16, from: u16, to: u16) {
        let (source, target) = (self.server(from), self.server(to));
        let target_id = id(target);
        // The target first, so that no moment is without an owner, and the other masters at last, which would hear of it by gossip.
        let others = self.running().filter(|node| ![from, to].contains(&node.port()));
        let others: Vec<_> = others.filter(|node| node.info("role") == "master").collect();
        for node in [target, source].into_iter().chain(others) {
            set_slot(node, slot, ["NODE", &target_id]);
        }
    }

    /// Has the replica at a port take over from its master, which stays and follows it. Returns when it is a master.
    pub async fn failover(&self, replica: u16) {
        let promoted = self.server(replica);
        let mut asked: Option<Instant> = None;
        let mut refused = String::new();
        within(LIMIT, "a replica to be promoted", || {
            let is_master = promoted.info("role") == "master";
            // A replica that is not elected within five seconds gives up. One that takes its master for dead refuses.
            if !is_master && asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
                match promoted.try_cmd(&["CLUSTER", "FAILOVER"]) {
                    Ok(_) => asked = Some(Instant::now()),
                    Err(error) if error.to_string() != refused => {
                        refused = error.to_string();
                        eprintln!("CLUSTER FAILOVER on port {replica}: {refused}");
                    }
                    Err(_) => {}
                }
            }
            async move { is_master.then_some(()) }
        })
        .await;
    }

    /// Moves slots to the master at a port in one step for clients, as Valkey does from version 9.0. Returns `false` if the version cannot.
    pub async fn move_atomically(&self, slots: RangeInclusive<u16>, to: u16) -> bool {
        let (first, last) = (slots.start().to_string(), slots.end().to_string());
        let source = self.server(self.owner(*slots.start()).await);
        let target = id(self.server(to));
        let begun = source.try_cmd(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last, "NODE", &target]);
        match begun {
            Err(error) if error.to_string().to_lowercase().contains("unknown subcommand") => return false,
            Err(error) => panic!("CLUSTER MIGRATESLOTS: {error}"),
            Ok(_) => {}
        }
        within(LIMIT, "slots to be moved in one step", || {
            let has_moved = slots.clone().all(|slot| self.agreed_owner(slot) == Some(to));
            async move { has_moved.then_some(()) }
        })
        .await;
        true
    }

    /// The port of a running replica of a master, if there is one.
    #[must_use]
    pub fn replica_of(&self, master: u16) -> Option<u16> {
        let port = master.to_string();
        let follows = |node: &&Server| node.info("role") == "slave" && node.info("master_port") == port;
        self.running().find(follows).map(Server::port)
    }

    /// Returns when the first write that a node accepts was sent. The write is a key with this hash tag that expires at once.
    pub async fn wait_for_write(&self, port: u16, tag: &str) -> Stamp {
        let (node, key) = (self.server(port), format!("lock-test-probe:{{{tag}}}"));
        within(LIMIT, "a node to accept a write", || {
            let at = Stamp::now();
            let written = node.try_cmd(&["SET", &key, "", "PX", "1"]);
            async move { written.is_ok().then_some(at) }
        })
        .await
    }

    /// Starts a killed node again with the configuration that it had, and returns once the cluster is [settled](Self::settled).
    pub async fn restart(&self, port: u16) {
        self.server(port).start_again_as_left();
        self.settled().await;
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_running() && !node.is_paused())
    }

    fn agreed_owner(&self, slot: u16) -> Option<u16> {
        let mut named = self.running().filter(|node| node.info("role") == "master").map(|node| {
            let rows = rows(node);
            rows.into_iter()
                .find(|row| row.has(slot) && row.is_well())
                .map(|row| row.port)
        });
        let first = named.next()??;
        let is_master = self.server(first).is_running() && self.server(first).info("role") == "master";
        (is_master && named.all(|other| other == Some(first))).then_some(first)
    }

    fn knows_epochs(&self) -> bool {
        let mut views = self.running().filter(|node| node.info("role") == "master").map(|node| {
            let mut rows = rows(node);
            rows.retain(|row| row.is("master") && !row.is("fail"));
            rows.sort_by_key(|row| row.port);
            rows.iter().map(|row| (row.port, row.epoch)).collect::<Vec<_>>()
        });
        let first = views.next().unwrap_or_default();
        let mut epochs: Vec<_> = first.iter().map(|(_, epoch)| *epoch).collect();
        epochs.sort_unstable();
        epochs.dedup();
        epochs.len() == first.len() && views.all(|other| other == first)
    }

    fn is_settled(&self) -> bool {
        let running: Vec<u16> = self.running().map(Server::port).collect();
        let mut owners = None;
        self.running().all(|node| {
            let is_master = node.info("role") == "master";
            let mut rows = rows(node);
            rows.retain(|row| running.contains(&row.port));
            rows.sort_by_key(|row| row.port);
            let mut seen: Vec<_> = rows.iter().map(|row| (row.port, row.slots.clone())).collect();
            seen.retain(|(_, slots)| !slots.is_empty());
            rows.len() == running.len()
                && rows.iter().all(Row::is_well)
                && rows.iter().map(Row::slot_count).sum::<usize>() == usize::from(SLOTS)
                && *owners.get_or_insert_with(|| seen.clone()) == seen
                && is_master == seen.iter().any(|(owner, _)| *owner == node.port())
                && (is_master || node.info("master_link_status") == "up")
                && state(node) == "ok"
        })
    }
}

/// The limit for what a node does for long, as an argument in ms.
fn limit() -> String {
    PATIENCE.as_millis().to_string()
}

/// Sets the state of a slot at a node. Valkey has the node's replicas confirm it, and gives them two seconds unless it is told otherwise, for
/// which a busy machine may stand still.
fn set_slot(node: &Server, slot: u16, state: [&str; 2]) {
    let (slot, limit) = (slot.to_string(), limit());
    let mut command = vec!["CLUSTER", "SETSLOT", &slot];
    command.extend(state);
    if node.version().kind == Kind::Valkey {
        command.extend(["TIMEOUT", &limit]);
    }
    node.cmd(&command);
}

fn id(node: &Server) -> String {
    node.ask(&["CLUSTER", "MYID"])
}

fn state(node: &Server) -> String {
    let all: String = node.ask(&["CLUSTER", "INFO"]);
    let found = all.lines().find_map(|line| line.strip_prefix("cluster_state:"));
    found.unwrap_or_default().trim_end().to_owned()
}

fn rows(node: &Server) -> Vec<Row> {
    let reply = node.try_cmd(&["CLUSTER", "NODES"]).ok();
    let text: Option<String> = reply.and_then(|reply| from_redis_value(reply).ok());
    text.unwrap_or_default().lines().filter_map(Row::read).collect()
}

impl Drop for ClusterGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                eprintln!("{} at port {} wrote\n{}", node.name(), node.port(), node.log());
                if node.is_running() && !node.is_paused() {
                    eprintln!("CLUSTER NODES: {:?}", node.try_cmd(&["CLUSTER", "NODES"]));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_node_is_read() {
        let row =
            Row::read("0a 127.0.0.1:10001@20001,,shard-id=1f myself,master - 0 0 1 connected 0-5460 7000 [7->-0b]");
        let row = row.unwrap();
        assert_eq!((row.id.as_str(), row.port), ("0a", 10001));
        assert_eq!(row.slots, [0..=5460, 7000..=7000]);
        assert!(row.is("master") && row.is_well() && row.has(7000) && !row.has(5461));
        assert_eq!(row.slot_count(), 5462);
        let row = Row::read("0b 127.0.0.1:10002@20002 slave,fail 0a 1 2 1 disconnected").unwrap();
        assert!(!row.is_well());
        assert_eq!(Row::read("no node"), None);
    }
}
