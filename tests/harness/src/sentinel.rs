//! A group of real processes under Redis Sentinel: a master, two replicas and three sentinels, all of the version under test.
//!
//! Each process is a [`Server`]: [`SentinelGroup::server`] returns the one at a port, so a test can send it commands, connect to it,
//! read its log, or kill it. What waits here is `async` and lets the test's runtime go on.
//!
//! Four times in the behaviour of the sentinels decide how long a test takes:
//!
//! - A sentinel takes a process for dead after [`DOWN_AFTER`] without an answer.
//! - After an election, a sentinel that led or voted starts no failover by itself for twice [`FAILOVER_TIMEOUT`].
//!   [`SentinelGroup::failover`] is not held up by that.
//! - The old master of a manual failover is told to be a replica only about ten seconds later and accepts writes until then. The same
//!   is true of a killed master that [returns as a master](SentinelGroup::restart_as_left).
//! - A sentinel that stood still for two seconds or more only watches for the next [`TILT`] (its "tilt" mode).

use std::collections::HashMap;
use std::time::Duration;

use redis::from_redis_value;

use crate::certificates::Certificate;
use crate::clock::Stamp;
use crate::patience::{PATIENCE, within};
use crate::server::{self, Server};

/// The name under which the sentinels watch the master.
pub const MASTER_NAME: &str = "mymaster";

/// The `down-after-milliseconds` of the sentinels. After a failover a sentinel may take a second to reach the new master, and remembers that
/// the others took the old one for dead: with one second here, it sometimes begins another failover at once.
pub const DOWN_AFTER: Duration = Duration::from_millis(1500);

/// The `failover-timeout` of the sentinels: short, so that a test can have several failovers.
pub const FAILOVER_TIMEOUT: Duration = Duration::from_secs(3);

/// The `tilt-period` of the sentinels, where their version lets it be set. By default it is 30 seconds, and a replica that was without its
/// master for more than ten times [`DOWN_AFTER`] before the sentinels see that is never promoted.
pub const TILT: Duration = Duration::from_secs(3);

/// How long every wait of a group lasts before it gives up. A sentinel of an old version may rest for 30 seconds after a pause.
const LIMIT: Duration = PATIENCE.saturating_mul(3);

const QUORUM: usize = 2;
const REPLICAS: usize = 2;
const OTHER_SENTINELS: usize = 2;

/// A running group. Its processes end when it is dropped.
#[derive(Debug)]
pub struct SentinelGroup {
    // Dropped first, so that they see no master die.
    sentinels: [Server; OTHER_SENTINELS + 1],
    nodes: [Server; REPLICAS + 1],
    is_tls: bool,
    passwords: Option<[&'static str; 2]>,
}

/// How a group is to be started. Made by [`SentinelGroup::builder`].
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    down_after: Duration,
    asks_for_certificates: bool,
    passwords: Option<[&'static str; 2]>,
    has_slow_clocks: bool,
}

impl Builder {
    /// Has every process serve TLS and nothing else, also for the others of the group, and ask its clients for a certificate.
    #[must_use]
    pub const fn tls(mut self) -> Self {
        self.asks_for_certificates = true;
        self
    }

    /// Has the servers and the sentinels ask for a password each, also of each other.
    #[must_use]
    pub const fn passwords(mut self, server: &'static str, sentinel: &'static str) -> Self {
        self.passwords = Some([server, sentinel]);
        self
    }

    /// Starts the group and returns once it is [settled](SentinelGroup::settled).
    pub async fn start(self) -> SentinelGroup {
        let master = self.node().start();
        let following = format!("127.0.0.1 {}", master.port());
        let replica = || self.node().arg("replicaof", &following).start();
        let nodes = [replica(), replica(), master];
        // A sentinel that finds the master without its replicas looks for them again only ten seconds later.
        within(LIMIT, "both replicas to be online at the first master", || {
            let found = nodes
                .iter()
                .map(Replication::of)
                .any(|seen| seen.online.len() == REPLICAS);
            async move { found.then_some(()) }
        })
        .await;
        let sentinel = || {
            let sentinel = self.sentinel(&following).start();
            limit_tilt(&sentinel);
            sentinel
        };
        let group = SentinelGroup {
            sentinels: [sentinel(), sentinel(), sentinel()],
            nodes,
            is_tls: self.asks_for_certificates,
            passwords: self.passwords,
        };
        group.settled().await;
        if self.has_slow_clocks {
            server::slow_down(&group.nodes);
        }
        group
    }

    fn node(self) -> server::Builder {
        let node = self
            .process()
            .arg("databases", "1000")
            .arg("repl-diskless-sync", "yes")
            .arg("repl-diskless-sync-delay", "0")
            .arg("replica-read-only", "yes");
        let node = if self.has_slow_clocks { node.slow_clock() } else { node };
        match self.passwords {
            Some([password, _]) => node.password(password).arg("masterauth", password),
            None => node,
        }
    }

    fn sentinel(self, following: &str) -> server::Builder {
        let watched = |setting: &str| format!("{setting} {MASTER_NAME}");
        let (down_after, timeout) = (self.down_after.as_millis(), FAILOVER_TIMEOUT.as_millis());
        let sentinel = self
            .process()
            .sentinel()
            .arg("sentinel resolve-hostnames", "no")
            .arg(&watched("sentinel monitor"), &format!("{following} {QUORUM}"))
            .arg(&watched("sentinel down-after-milliseconds"), &down_after.to_string())
            .arg(&watched("sentinel failover-timeout"), &timeout.to_string())
            .arg(&watched("sentinel parallel-syncs"), "2");
        match self.passwords {
            Some([server, own]) => sentinel
                .arg(&watched("sentinel auth-pass"), server)
                .arg("sentinel sentinel-pass", own)
                .password(own),
            None => sentinel,
        }
    }

    fn process(self) -> server::Builder {
        let process = Server::builder();
        if self.asks_for_certificates {
            let tls = process.tls(Certificate::Valid);
            tls.arg("tls-auth-clients", "yes").arg("tls-replication", "yes")
        } else {
            process
        }
    }
}

impl SentinelGroup {
    /// Starts a group of the version under test and returns once it is [settled](Self::settled).
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Starts a group whose sentinels take no process for dead, so that it never has a failover by itself, however busy the machine is.
    pub async fn start_steady() -> Self {
        Self::steady().start().await
    }

    /// Starts a [steady](Self::start_steady) group. The clocks of its servers are [slowed down](server::slow_down) once it is settled.
    pub async fn start_slow() -> Self {
        let builder = Builder {
            has_slow_clocks: true,
            ..Self::steady()
        };
        builder.start().await
    }

    const fn steady() -> Builder {
        Builder {
            down_after: Duration::from_secs(3600),
            ..Self::builder()
        }
    }

    /// A group with options.
    #[must_use]
    pub const fn builder() -> Builder {
        Builder {
            down_after: DOWN_AFTER,
            asks_for_certificates: false,
            passwords: None,
            has_slow_clocks: false,
        }
    }

    /// Returns what a client connects to: `redis+sentinel://127.0.0.1:<port>,…/mymaster`, with the ports of the sentinels, and with the
    /// passwords if there are some.
    #[must_use]
    pub fn url(&self) -> String {
        let [server, sentinel] = self.passwords.unwrap_or_default();
        self.url_with(server, sentinel)
    }

    /// Returns the [`url`](Self::url) with these passwords of the master and of the sentinels. They are written as they are.
    #[must_use]
    pub fn url_with(&self, server: &str, sentinel: &str) -> String {
        let hosts = self.sentinel_ports().map(|port| format!("127.0.0.1:{port}")).join(",");
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        let user = if server.is_empty() { "" } else { &format!(":{server}@") };
        let query = if sentinel.is_empty() {
            ""
        } else {
            &format!("?sentinel_password={sentinel}")
        };
        format!("{scheme}+sentinel://{user}{hosts}/{MASTER_NAME}{query}")
    }

    /// Returns the ports of the three sentinels.
    #[must_use]
    pub fn sentinel_ports(&self) -> [u16; 3] {
        self.sentinels.each_ref().map(Server::port)
    }

    /// Returns the ports of the master and the replicas, the same whichever of them is the master.
    #[must_use]
    pub fn node_ports(&self) -> [u16; 3] {
        self.nodes.each_ref().map(Server::port)
    }

    /// Returns the node or sentinel at a port.
    #[must_use]
    pub fn server(&self, port: u16) -> &Server {
        let mut all = self.nodes.iter().chain(&self.sentinels);
        all.find(|server| server.port() == port)
            .unwrap_or_else(|| panic!("no process of this group has the port {port}"))
    }

    /// Returns the port of the master, once a node says that it is one and two sentinels or more name it.
    pub async fn master(&self) -> u16 {
        within(
            LIMIT,
            "a node to be the master for itself and for most sentinels",
            || {
                let agreed = self.agreed_master();
                async move { agreed }
            },
        )
        .await
    }

    /// Returns once nothing is left of a start or a failover: the master has two replicas online, and every sentinel that runs
    /// names it and sees it, both replicas and two further sentinels without a fault.
    pub async fn settled(&self) {
        within(LIMIT, "the group to be settled", || {
            let settled = self.is_settled();
            async move { settled.then_some(()) }
        })
        .await;
    }

    /// Ends the master by SIGKILL and returns its port when it is gone.
    pub async fn kill_master(&self) -> u16 {
        let port = self.master().await;
        self.server(port).kill();
        port
    }

    /// Starts a killed process again, on its port. Returns once a node is an online replica of the master, which may mean to wait for a
    /// failover first, or once a sentinel names the master.
    pub async fn restart(&self, port: u16) {
        let server = self.server(port);
        if self.is_sentinel(port) {
            self.restart_as_left(port);
        } else {
            server.start_again_with(format!("replicaof 127.0.0.1 {}", self.master().await));
        }
        within(LIMIT, "a process that was started again to join its group", || {
            let joined = self.agreed_master().is_some_and(|master| {
                if self.is_sentinel(port) {
                    named_master(server) == Some(master)
                } else {
                    Replication::of(server).role == "slave"
                        && Replication::of(self.server(master)).online.contains(&port)
                }
            });
            async move { joined.then_some(()) }
        })
        .await;
    }

    /// Starts a killed process again with the configuration that it had, and returns when it answers: a node that was the master
    /// takes itself for one until the sentinels tell it otherwise.
    pub fn restart_as_left(&self, port: u16) {
        let server = self.server(port);
        server.start_again_as_left();
        if self.is_sentinel(port) {
            limit_tilt(server);
        }
    }

    /// Begins a manual failover and returns the port of the sentinel that leads it. Waits while that is refused because one
    /// is under way or no replica is fit to be promoted.
    ///
    /// Nothing has changed at its return; see [`SentinelGroup::wait_for_master_other_than`].
    pub async fn failover(&self) -> u16 {
        within(LIMIT, "a sentinel to begin a failover", || {
            let leader = self.running_sentinels().next().expect("a sentinel runs");
            let begun = match leader.try_cmd(&["SENTINEL", "FAILOVER", MASTER_NAME]) {
                Ok(_) => Some(leader.port()),
                Err(error) if matches!(error.code(), Some("INPROG" | "NOGOODSLAVE")) => None,
                Err(error) => panic!("SENTINEL FAILOVER: {error}"),
            };
            async move { begun }
        })
        .await
    }

    /// Returns the port of the first node other than the one at `port` to accept a write, and when the write that it accepted was sent.
    ///
    /// The write is a key that expires at once.
    pub async fn wait_for_master_other_than(&self, port: u16) -> (u16, Stamp) {
        within(LIMIT, "another node to accept a write", || {
            let mut others = self.nodes.iter().filter(|node| node.port() != port && answers(node));
            let accepted = others.find_map(|node| {
                let at = Stamp::now();
                let written = node.try_cmd(&["SET", "lock-test-probe", "", "PX", "1"]);
                written.is_ok().then_some((node.port(), at))
            });
            async move { accepted }
        })
        .await
    }

    /// Returns the moment from which a sentinel names the node at a port to clients. In a failover that is after its first write.
    pub async fn wait_until_named(&self, port: u16) -> Stamp {
        within(LIMIT, "a sentinel to name the new master", || {
            let is_named = self
                .running_sentinels()
                .any(|sentinel| named_master(sentinel) == Some(port));
            async move { is_named.then(Stamp::now) }
        })
        .await
    }

    /// Makes a node a replica of the one at `master`, as the sentinels do with the former master of a manual failover about ten seconds
    /// after it.
    pub fn demote(&self, port: u16, master: u16) {
        self.server(port).cmd(&["REPLICAOF", "127.0.0.1", &master.to_string()]);
    }

    /// From now on the sentinels take no process for dead, so that no failover begins by itself, however busy the machine is. One that
    /// is under way ends as usual.
    pub fn hold_still(&self) {
        for sentinel in self.running_sentinels() {
            sentinel.cmd(&["SENTINEL", "SET", MASTER_NAME, "down-after-milliseconds", "3600000"]);
        }
    }

    /// Stops the node or sentinel at a port where it is (SIGSTOP); see [`Server::pause`].
    pub fn pause(&self, port: u16) {
        self.server(port).pause();
    }

    /// Lets the node or sentinel at a port go on (SIGCONT).
    pub fn resume(&self, port: u16) {
        self.server(port).resume();
    }

    /// Returns once most sentinels name the node at a port and it says itself that it is a master. After a manual failover that is a moment
    /// after its first write; until then [`SentinelGroup::master`] returns the old one, which still accepts writes too.
    pub async fn wait_for_master_at(&self, port: u16) {
        within(LIMIT, "most sentinels to name the new master", || {
            let named = self.agreed_master() == Some(port);
            async move { named.then_some(()) }
        })
        .await;
    }

    fn is_sentinel(&self, port: u16) -> bool {
        self.sentinel_ports().contains(&port)
    }

    fn running_sentinels(&self) -> impl Iterator<Item = &Server> {
        self.sentinels.iter().filter(|sentinel| answers(sentinel))
    }

    fn agreed_master(&self) -> Option<u16> {
        let named: Vec<u16> = self.running_sentinels().filter_map(named_master).collect();
        let votes = |port| named.iter().filter(|&&other| other == port).count();
        let agreed = named.iter().copied().find(|&port| votes(port) >= QUORUM)?;
        let node = self.server(agreed);
        (answers(node) && Replication::of(node).role == "master").then_some(agreed)
    }

    fn is_settled(&self) -> bool {
        self.agreed_master().is_some_and(|master| {
            Replication::of(self.server(master)).online.len() == REPLICAS
                && self
                    .running_sentinels()
                    .all(|sentinel| Watch::of(sentinel).is_some_and(|watch| watch.is_settled_on(master)))
        })
    }
}

impl Drop for SentinelGroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for server in self.sentinels.iter().chain(&self.nodes) {
                eprintln!("{} at port {} wrote\n{}", server.name(), server.port(), server.log());
                if answers(server) && self.is_sentinel(server.port()) {
                    for what in ["MASTER", "REPLICAS", "SENTINELS"] {
                        let told = server.try_cmd(&["SENTINEL", what, MASTER_NAME]);
                        eprintln!("SENTINEL {what}: {told:?}");
                    }
                }
            }
        }
    }
}

/// Sets the [`TILT`] of a sentinel. Redis 6.2 has no such command.
fn limit_tilt(sentinel: &Server) {
    let _ = sentinel.try_cmd(&["SENTINEL", "DEBUG", "tilt-period", &TILT.as_millis().to_string()]);
}

/// A process that would not answer must not be asked.
fn answers(server: &Server) -> bool {
    server.is_running() && !server.is_paused()
}

/// The port that a sentinel gives to clients.
fn named_master(sentinel: &Server) -> Option<u16> {
    let reply = sentinel.try_cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME]);
    let (_, port): (String, u16) = from_redis_value(reply.ok()?).ok()?;
    Some(port)
}

/// What a node says in `INFO replication`; nothing if it does not answer.
#[derive(Default)]
struct Replication {
    role: String,
    /// The ports of its replicas that are online.
    online: Vec<u16>,
}

impl Replication {
    fn of(node: &Server) -> Self {
        let reply = node.try_cmd(&["INFO", "replication"]).ok();
        let text: Option<String> = reply.and_then(|reply| from_redis_value(reply).ok());
        text.map_or_else(Self::default, |text| Self::read(&text))
    }

    /// Reads `role:master` and `slave0:ip=127.0.0.1,port=10001,state=online,…`.
    fn read(text: &str) -> Self {
        let mut seen = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let numbered = name
                .strip_prefix("slave")
                .is_some_and(|rest| rest.parse::<u8>().is_ok());
            if name == "role" {
                value.trim_end().clone_into(&mut seen.role);
            } else if numbered && value.contains("state=online") {
                let port = value.split(',').find_map(|part| part.strip_prefix("port="));
                seen.online.extend(port.and_then(|port| port.parse::<u16>().ok()));
            }
        }
        seen
    }
}

/// What a sentinel says of the master, the replicas and the other sentinels.
struct Watch {
    master: HashMap<String, String>,
    replicas: Vec<HashMap<String, String>>,
    sentinels: Vec<HashMap<String, String>>,
}

impl Watch {
    fn of(sentinel: &Server) -> Option<Self> {
        let ask = |what| sentinel.try_cmd(&["SENTINEL", what, MASTER_NAME]).ok();
        Some(Self {
            master: from_redis_value(ask("MASTER")?).ok()?,
            replicas: from_redis_value(ask("REPLICAS")?).ok()?,
            sentinels: from_redis_value(ask("SENTINELS")?).ok()?,
        })
    }

    fn is_settled_on(&self, master: u16) -> bool {
        // Valkey keeps `master_down` among the flags of a sentinel that once agreed to a failover.
        let reachable = |sentinel: &HashMap<String, String>| {
            let flags = sentinel.get("flags").map_or("s_down", String::as_str);
            !flags.split(',').any(|flag| ["s_down", "disconnected"].contains(&flag))
        };
        let flags =
            |of: &HashMap<String, String>, expected: &str| of.get("flags").is_some_and(|flags| flags == expected);
        flags(&self.master, "master")
            && self.master.get("port").is_some_and(|port| *port == master.to_string())
            && self.replicas.len() == REPLICAS
            && self.replicas.iter().all(|replica| flags(replica, "slave"))
            && self.sentinels.len() == OTHER_SENTINELS
            && self.sentinels.iter().all(reachable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_that_are_online() {
        let text = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\n\
            slave0:ip=127.0.0.1,port=10001,state=online,offset=14,lag=0\r\n\
            slave1:ip=127.0.0.1,port=10002,state=wait_bgsave,offset=0,lag=0\r\nslave_read_only:1\r\n";
        let seen = Replication::read(text);
        assert_eq!((seen.role.as_str(), seen.online), ("master", vec![10001]));
        assert!(
            Replication::read("role:slave\r\nmaster_link_status:up\r\n")
                .online
                .is_empty()
        );
    }
}
