//! What is left behind after a long time with failovers: `bench soak [--cluster] [--minutes N] [--record]`.
//!
//! Three managers take 200 locks a second in all modes behind sentinels, with a failover every 20 seconds, or in a cluster, where slots move in
//! turn with failovers. What the process and the servers hold is counted at rest, after a warm-up and again at the end, and must not have grown.
//! `--record` adds a line to `docs/soak.md`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockRequest};
use lock_tests::cluster::{ClusterGroup, SLOTS};
use lock_tests::sentinel::SentinelGroup;
use lock_tests::server::Server;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::task::TaskTracker;

use crate::report::{Number, count, table};
use crate::{Result, error, process, results};

const MINUTES: u64 = 30;
const MANAGERS: usize = 3;
/// The pause between two locks: 200 a second.
const PACE: Duration = Duration::from_millis(5);
const FAILOVER: Duration = Duration::from_secs(20);
/// The locks of a mode: few enough that calls wait for each other.
const KEYS: u64 = 8;
/// How long bodies hold a lock at most, in milliseconds.
const HELD: u64 = 10;
const LEASE: Duration = Duration::from_secs(5);
/// The slots of a cluster that move in a disturbance.
const MOVED: u16 = 300;
const WAIT: Duration = Duration::from_secs(30);
/// Longer than a queue without a waiter stays in a server, and than a process listens after its last one.
const REST: Duration = Duration::from_secs(15);
/// How much more memory may be resident at the end. The allocator alone moves by this much between two failovers, in which some
/// hundred calls come together. Over 30 minutes it is 23 bytes for each of 360,000 locks, or 90 KiB for each of 90 failovers.
const MEMORY: u64 = 8 << 20;

/// How a lock is asked for, with the number of the key.
type Ask = fn(&LockManager, u64) -> LockRequest;

const MODES: [(&str, Ask); 12] = [
    ("exclusive", |locks, key| locks.lock(format!("exclusive:{key}"))),
    ("fencing", |locks, key| {
        locks.lock(format!("fencing:{key}")).fencing(true)
    }),
    ("fair", |locks, key| locks.lock(format!("fair:{key}")).fair(true)),
    ("pipelined", |locks, key| {
        locks.lock(format!("pipelined:{key}")).pipelined(true)
    }),
    ("reentrant", |locks, key| {
        locks.lock(format!("reentrant:{key}")).reentrant(true)
    }),
    ("read", |locks, key| locks.lock(format!("read_write:{key}")).read()),
    ("write", |locks, key| locks.lock(format!("read_write:{key}")).write()),
    ("semaphore", |locks, key| {
        locks.lock(format!("semaphore:{key}")).semaphore(2)
    }),
    ("owner", |locks, key| {
        let name = if key % 2 == 0 { "even" } else { "odd" };
        locks.lock(format!("owner:{}", key / 2)).owner(name)
    }),
    ("several keys", |locks, key| {
        locks.lock_all([format!("several:{key}"), format!("several:{}", key + 1)])
    }),
    ("lock delay", |locks, key| {
        locks.lock(format!("delay:{key}")).lock_delay(Duration::from_millis(50))
    }),
    ("new keys", |locks, key| {
        locks.lock(format!("new:{key}:{}", fastrand::u64(..)))
    }),
];

pub(crate) async fn run(arguments: &[String]) -> Result {
    let (mut minutes, mut is_recorded, mut is_cluster) = (MINUTES, false, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.as_slice().first().map(|next| next.parse())) {
            ("--record", _) => is_recorded = true,
            ("--cluster", _) => is_cluster = true,
            ("--minutes", Some(Ok(number))) => {
                minutes = number;
                arguments.next();
            }
            _ => return Err(error("bench soak [--cluster] [--minutes N] [--record]")),
        }
    }
    let group = if is_cluster {
        Group::Cluster(ClusterGroup::start().await)
    } else {
        Group::Sentinels(SentinelGroup::start().await)
    };
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        let builder = LockManager::builder(&group.url())
            .default_lease(LEASE)
            .default_wait(WAIT);
        let locks = builder.build()?;
        locks.check_connection().await?;
        managers.push(locks);
    }
    let load = Load {
        managers,
        group,
        outcomes: Arc::default(),
    };
    load.run(load.group.warm_up()).await?;
    let before = load.left().await?;
    let failovers = load.run(Duration::from_secs(60 * minutes)).await?;
    let after = load.left().await?;

    let mut grown = Vec::new();
    let rows = before.iter().zip(&after).map(|(before, after)| {
        let is_met = after.number <= before.number.saturating_add(before.tolerance);
        if !is_met {
            grown.push(before.what);
        }
        vec![
            before.what.to_owned(),
            count(before.number),
            count(after.number),
            format!("+{}", count(before.tolerance)),
            if is_met { "met" } else { "**not met**" }.to_owned(),
        ]
    });
    let header = ["at rest", "after the warm-up", "at the end", "tolerance", "verdict"];
    println!("{}\n", table(&header, rows.collect()));
    let [done, lost, failed] = load.outcomes.each_ref().map(|number| number.load(Ordering::Relaxed));
    println!(
        "{} locks in {minutes} minutes and a warm-up, {failovers} disturbances; {} locks were lost, and {} calls got none.",
        count(done + lost),
        count(lost),
        count(failed),
    );
    let outcome = if grown.is_empty() {
        "nothing has grown".to_owned()
    } else {
        format!("**has grown: {}**", grown.join(", "))
    };
    if is_recorded {
        record(is_cluster, minutes, done + lost, failovers, &outcome)?;
    }
    if done == 0 {
        return Err(error("no call got its lock"));
    }
    if grown.is_empty() { Ok(()) } else { Err(error(outcome)) }
}

struct Load {
    managers: Vec<LockManager>,
    group: Group,
    /// Calls that ended as they should, with a lost lock, and without a lock.
    outcomes: Arc<[AtomicU64; 3]>,
}

impl Load {
    /// Takes locks for a time, with failovers, until all calls have ended. Returns the number of failovers.
    async fn run(&self, span: Duration) -> Result<u64> {
        let calls = TaskTracker::new();
        let end = Instant::now() + span;
        let take = async {
            let mut pace = interval(PACE);
            pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for (number, locks) in self.managers.iter().cycle().enumerate() {
                pace.tick().await;
                if Instant::now() >= end {
                    return;
                }
                let (name, ask) = MODES[number / MANAGERS % MODES.len()];
                calls.spawn(call(
                    name,
                    ask(locks, fastrand::u64(..KEYS)),
                    Arc::clone(&self.outcomes),
                ));
            }
        };
        let fail = async {
            let mut failovers = 0;
            // The last one is over before the locks end.
            while Instant::now() + FAILOVER * 2 <= end + FAILOVER / 2 {
                let next = Instant::now() + FAILOVER;
                self.group.disturb(failovers).await;
                failovers += 1;
                sleep_until(next).await;
            }
            failovers
        };
        let ((), failovers) = tokio::join!(take, fail);
        calls.close();
        tokio::time::timeout(WAIT * 4, calls.wait())
            .await
            .map_err(|_| error(format!("{} calls have not ended", calls.len())))?;
        Ok(failovers)
    }

    /// Counts what this process and the servers hold at rest.
    async fn left(&self) -> Result<Vec<Left>> {
        self.group.settled().await;
        sleep(REST).await;
        let runtime = Handle::current().metrics();
        let (nodes, sentinels) = self.group.servers();
        let on = |servers: &[&Server], of: fn(&Server) -> u64| servers.iter().map(|server| of(server)).sum();
        let entries = |folder: &str| Ok::<_, crate::Error>(fs::read_dir(folder)?.count() as u64);
        Ok(vec![
            Left::new("resident memory without files, bytes", process::memory()?, MEMORY),
            Left::new("file descriptors", entries("/proc/self/fd")?, 0),
            Left::new("threads", entries("/proc/self/task")?, 0),
            Left::new("tokio tasks", runtime.num_alive_tasks() as u64, 0),
            Left::new("servers: keys", on(&nodes, |node| node.ask(&["DBSIZE"])), 0),
            Left::new("servers: connections", on(&nodes, connections), 0),
            Left::new("servers: subscriptions", on(&nodes, subscriptions), 0),
            Left::new("sentinels: connections", on(&sentinels, connections), 0),
            Left::new("sentinels: subscriptions", on(&sentinels, subscriptions), 0),
        ])
    }
}

/// Where the locks are.
enum Group {
    Sentinels(SentinelGroup),
    Cluster(ClusterGroup),
}

impl Group {
    fn url(&self) -> String {
        match self {
            Self::Sentinels(group) => group.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// Two disturbances of each kind: the calls that come together in one decide how much memory is used at most, and by then every manager has
    /// all its connections to every node.
    fn warm_up(&self) -> Duration {
        let kinds = match self {
            Self::Sentinels(_) => 2,
            Self::Cluster(_) => 3,
        };
        FAILOVER * (2 * kinds + 1)
    }

    /// The servers that keep locks, and those that watch them.
    fn servers(&self) -> (Vec<&Server>, Vec<&Server>) {
        match self {
            Self::Sentinels(group) => (
                group.node_ports().map(|port| group.server(port)).to_vec(),
                group.sentinel_ports().map(|port| group.server(port)).to_vec(),
            ),
            Self::Cluster(cluster) => (cluster.ports().map(|port| cluster.server(port)).to_vec(), Vec::new()),
        }
    }

    async fn settled(&self) {
        match self {
            Self::Sentinels(group) => group.settled().await,
            Self::Cluster(cluster) => cluster.settled().await,
        }
    }

    /// Has another server take over, or slots move, in turn.
    async fn disturb(&self, number: u64) {
        match self {
            Self::Sentinels(group) => {
                let former = group.master().await;
                if number.is_multiple_of(2) {
                    group.server(former).kill();
                    group.wait_for_master_other_than(former).await;
                    group.restart(former).await;
                } else {
                    group.failover().await;
                    let (present, _) = group.wait_for_master_other_than(former).await;
                    group.wait_for_master_at(present).await;
                }
            }
            Self::Cluster(cluster) => {
                let first = fastrand::u16(..SLOTS - MOVED);
                let master = cluster.owner(first).await;
                let Some(replica) = cluster.replica_of(master) else {
                    return;
                };
                match number % 3 {
                    0 => {
                        cluster.server(master).kill();
                        // Somebody who runs: the replica.
                        cluster.owner(first).await;
                        cluster.restart(master).await;
                    }
                    1 => {
                        let mut masters: Vec<u16> = cluster.ports().into_iter().collect();
                        masters.retain(|port| *port != master && cluster.server(*port).info("role") == "master");
                        for slot in first..first + MOVED {
                            cluster
                                .move_slot(slot, masters[usize::from(slot) % masters.len()])
                                .await;
                        }
                    }
                    _ => cluster.failover(replica).await,
                }
                cluster.settled().await;
            }
        }
    }
}

/// Something that is counted at rest.
struct Left {
    what: &'static str,
    number: u64,
    /// How much more of it there may be at the end.
    tolerance: u64,
}

impl Left {
    const fn new(what: &'static str, number: u64, tolerance: u64) -> Self {
        Self {
            what,
            number,
            tolerance,
        }
    }
}

async fn call(mode: &'static str, request: LockRequest, outcomes: Arc<[AtomicU64; 3]>) {
    let body = async { sleep(Duration::from_millis(fastrand::u64(..HELD))).await };
    let [done, lost, failed] = &*outcomes;
    let outcome = match request.run(body).await {
        Ok(()) => done,
        Err(LockError::Lost { .. }) => lost,
        Err(error) => {
            eprintln!("{mode}: {error}");
            failed
        }
    };
    outcome.fetch_add(1, Ordering::Relaxed);
}

fn clients(server: &Server) -> Vec<String> {
    let all: String = server.ask(&["CLIENT", "LIST"]);
    all.lines().map(str::to_owned).collect()
}

fn connections(server: &Server) -> u64 {
    clients(server).len() as u64
}

/// Channels and patterns, each once for every connection that listens.
fn subscriptions(server: &Server) -> u64 {
    let of = |client: &str| -> u64 {
        let fields = client.split(' ').filter_map(|field| field.split_once('='));
        fields
            .filter(|(name, _)| ["sub", "psub", "ssub"].contains(name))
            .filter_map(|(_, number)| number.parse::<u64>().ok())
            .sum()
    };
    clients(server).iter().map(|client| of(client)).sum()
}

/// Adds a line to the runs that are kept.
fn record(is_cluster: bool, minutes: u64, locks: u64, failovers: u64, outcome: &str) -> Result {
    let head = Command::new("git").args(["describe", "--always", "--dirty"]).output()?;
    if !head.status.success() {
        return Err(error("the commit is not known: this is no clone of the repository"));
    }
    let commit = String::from_utf8_lossy(&head.stdout);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/soak.md");
    let mut file = fs::OpenOptions::new().append(true).open(file)?;
    let on = if is_cluster { ", cluster" } else { "" };
    let (today, commit, server, locks) = (results::today()?, commit.trim(), Server::start(), count(locks.float()));
    let server = server.name();
    writeln!(
        file,
        "| {today} | {commit} | {server}{on} | {minutes} | {locks} | {failovers} | {outcome} |"
    )?;
    Ok(())
}
