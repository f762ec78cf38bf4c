//! What a cluster costs: locks in three masters beside locks in one server, and raw commands in both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::LockManager;
use lock_tests::Server;
use lock_tests::cluster::{ClusterGroup, third};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::contest::commands;
use crate::report::{Report, Verdict, count, progress, rate, ratio, time};
use crate::sample::{median, percentile};
use crate::{Result, Size, process};

/// Deletes a key that has a value.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Who takes and gives back locks.
#[derive(Clone)]
enum Client {
    Ours(LockManager),
    /// One command to take a lock and one to give it back, on one connection to each node, and no more.
    Raw(Arc<Raw>),
}

struct Raw {
    /// By the first slot of each node's range.
    nodes: BTreeMap<u16, MultiplexedConnection>,
    slots: BTreeMap<String, u16>,
    script: redis::Script,
}

impl Raw {
    async fn on(servers: &[(u16, &Server)], keys: &[String]) -> Result<Self> {
        let mut nodes = BTreeMap::new();
        for (first, server) in servers {
            nodes.insert(*first, server.connection().await);
        }
        let mut slots = BTreeMap::new();
        for key in keys {
            let is_alone = servers.len() == 1;
            let slot = if is_alone { 0 } else { servers[0].1.slot_of(key) };
            slots.insert(key.clone(), slot);
        }
        Ok(Self {
            nodes,
            slots,
            script: redis::Script::new(RELEASE),
        })
    }

    async fn section(&self, key: &str, value: &str) -> Result {
        let slot = self.slots.get(key).copied().unwrap_or_default();
        let (_, node) = self.nodes.range(..=slot).next_back().ok_or("no node")?;
        let mut node = node.clone();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(value).arg("NX").arg("PX").arg(30_000);
        set.exec_async(&mut node).await?;
        self.script.key(key).arg(value).invoke_async::<()>(&mut node).await?;
        Ok(())
    }
}

impl Client {
    async fn section(&self, key: &str, value: &str) -> Result {
        match self {
            Self::Ours(locks) => locks.lock(key).acquire().await?.release().await?,
            Self::Raw(raw) => raw.section(key, value).await?,
        }
        Ok(())
    }
}

/// Sections of all tasks in a while, and how long each took.
async fn round(client: &Client, tasks: usize, window: Duration, hot: bool) -> Result<(f64, Vec<Duration>)> {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let client = client.clone();
        running.spawn(async move {
            let key = if hot { key(0) } else { key(task) };
            let value = format!("{task:032x}");
            let mut took = Vec::new();
            while began.elapsed() < window {
                let asked = Instant::now();
                client.section(&key, &value).await?;
                took.push(asked.elapsed());
            }
            Result::<Vec<Duration>>::Ok(took)
        });
    }
    let mut all = Vec::new();
    while let Some(took) = running.join_next().await {
        all.extend(took??);
    }
    Ok((ratio(all.len(), began.elapsed().as_secs_f64()), all))
}

fn key(task: usize) -> String {
    format!("bench:{task}")
}

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (rounds, window, crowds): (_, _, &[usize]) = match size {
        Size::Full => (9, Duration::from_millis(500), &[1, 16, 64, 256]),
        Size::Smoke => (1, Duration::from_millis(50), &[2]),
    };
    let mut report = Report::new(
        "cluster",
        "Three masters, and one server of the same version, on the same machine; each task takes and gives back a lock of its own. Medians of \
         rounds in turn. Raw commands are one to take the lock and one to give it back.",
        &[
            "tasks",
            "who",
            "one server",
            "cluster",
            "cluster beside one",
            "p99 of one",
            "p99 of the cluster",
            "commands a section",
        ],
    );
    let (server, cluster) = (Server::start(), ClusterGroup::start_steady().await);
    let masters: Vec<(u16, &Server)> = (0..).map(|nth| third(nth).start).zip(cluster.masters()).collect();
    let most = crowds.iter().copied().max().unwrap_or(1);
    let raw_keys: Vec<String> = (0..most).map(key).collect();
    let clients = [
        (
            "raw",
            Client::Raw(Arc::new(Raw::on(&[(0, &server)], &raw_keys).await?)),
            Client::Raw(Arc::new(Raw::on(&masters, &raw_keys).await?)),
        ),
        (
            "ours",
            Client::Ours(LockManager::connect(&server.url()).await?),
            Client::Ours(LockManager::connect(&cluster.url()).await?),
        ),
    ];
    let calls_of_cluster = || masters.iter().map(|(_, master)| commands(master)).sum::<Result<u64>>();
    let bar = progress("cluster", crowds.len() * rounds * 4);
    for tasks in crowds.iter().copied() {
        let mut beside = Vec::new();
        for (who, one, many) in &clients {
            let mut rates = [Vec::new(), Vec::new()];
            let mut took = [Vec::new(), Vec::new()];
            let mut called = [0, 0];
            for _ in 0..rounds {
                for (nth, client) in [one, many].into_iter().enumerate() {
                    let before = [commands(&server)?, calls_of_cluster()?];
                    let (rate, latencies) = round(client, tasks, window, false).await?;
                    let after = [commands(&server)?, calls_of_cluster()?];
                    rates[nth].push(rate);
                    took[nth].extend(latencies);
                    called[nth] += after[nth] - before[nth];
                    bar.inc(1);
                }
            }
            for took in &mut took {
                took.sort_unstable();
            }
            let [alone, together] = [median(&rates[0]), median(&rates[1])];
            beside.push(ratio(together, alone));
            report.row(vec![
                tasks.to_string(),
                (*who).to_owned(),
                rate(alone),
                rate(together),
                format!("{:.2}", ratio(together, alone)),
                time(percentile(&took[0], 0.99)),
                time(percentile(&took[1], 0.99)),
                format!(
                    "{:.2} and {:.2}",
                    ratio(called[0], took[0].len()),
                    ratio(called[1], took[1].len())
                ),
            ]);
        }
        if let [raw, ours] = beside[..] {
            let what = format!("ours beside raw commands, in the cluster as on one server, {tasks} tasks");
            report.verdicts.push(Verdict::at_least(4, what, 0.95, ratio(ours, raw)));
        }
    }
    bar.finish_and_clear();
    hot(&mut report, &clients[1].1, &clients[1].2, rounds, window).await?;
    held(&mut report, &cluster, size).await?;
    Ok(report)
}

/// One lock that 32 tasks of one process want.
async fn hot(report: &mut Report, one: &Client, many: &Client, rounds: usize, window: Duration) -> Result {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (nth, client) in [one, many].into_iter().enumerate() {
            rates[nth].push(round(client, 32, window, true).await?.0);
        }
    }
    let [alone, together] = [median(&rates[0]), median(&rates[1])];
    report.note(format!(
        "One lock that 32 tasks of one process want: {} a second on one server, {} in the cluster.",
        rate(alone),
        rate(together)
    ));
    let what = "one lock that 32 tasks want, in the cluster beside one server";
    report
        .verdicts
        .push(Verdict::at_least(4, what, 0.9, ratio(together, alone)));
    Ok(())
}

/// Locks in all slots that are held for a while.
async fn held(report: &mut Report, cluster: &ClusterGroup, size: Size) -> Result {
    let (locks, window) = match size {
        Size::Full => (10_000, Duration::from_secs(20)),
        Size::Smoke => (10, Duration::from_millis(300)),
    };
    let manager = LockManager::builder(&cluster.url())
        .default_lease(Duration::from_secs(9))
        .build()?;
    let mut guards = Vec::new();
    for nth in 0..locks {
        guards.push(manager.lock(format!("held:{nth}")).acquire().await?);
    }
    let (began, before) = (Instant::now(), process::cpu());
    let calls = |cluster: &ClusterGroup| cluster.masters().iter().map(commands).sum::<Result<u64>>();
    let called = calls(cluster)?;
    tokio::time::sleep(window).await;
    let (cpu, called) = (process::cpu().saturating_sub(before), calls(cluster)? - called);
    let seconds = began.elapsed().as_secs_f64();
    report.note(format!(
        "{} locks in all slots held with a lease of 9 s: {:.1} µs of this process's CPU a lock and second, {:.2} commands in the servers a lock and \
         second, {} locks lost.",
        count(locks),
        ratio(cpu.as_secs_f64() * 1e6, ratio(locks, 1.0) * seconds),
        ratio(called, ratio(locks, 1.0) * seconds),
        guards.iter().filter(|guard| !guard.handle().is_held()).count()
    ));
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}
