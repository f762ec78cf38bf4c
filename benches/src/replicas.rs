//! What `min_replicas` costs, and what becomes of locks that too few replicas have.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::sentinel::SentinelGroup;
use tokio::task::JoinSet;

use crate::plot::Panel;
use crate::report::{Report, Verdict, count, progress, rate, ratio, time};
use crate::sample::{median, percentile};
use crate::{Result, Size, error};

/// The replicas that a call waits for.
const WANTED: [u32; 3] = [0, 1, 2];

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (rounds, window, crowds): (_, _, &[usize]) = match size {
        Size::Full => (5, Duration::from_secs(1), &[1, 16, 256]),
        Size::Smoke => (1, Duration::from_millis(50), &[2]),
    };
    let mut report = Report::new(
        "replicas",
        "A master with two replicas on the same machine. Each task takes and releases a lock of its own; medians of rounds in turn. With \
         `min_replicas`, a call begins its body once so many replicas have acknowledged its lock.",
        &["tasks", "min_replicas", "locks/s", "beside 0", "p50", "p99", "longest"],
    );
    let group = SentinelGroup::start_steady().await;
    let managers = managers(&group).await?;
    let bar = progress("replicas", crowds.len() * rounds * WANTED.len());
    let mut panel = Panel::logarithmic("locks per second with min_replicas");
    for tasks in crowds.iter().copied() {
        let mut outcomes = WANTED.map(|_| (Vec::new(), Vec::new()));
        for _ in 0..rounds {
            for (locks, (rates, latencies)) in managers.iter().zip(&mut outcomes) {
                let round = Round::of(locks, tasks, window).await?;
                if round.refused > 0 {
                    return Err(error(format!(
                        "{} calls were refused with all replicas there",
                        round.refused
                    )));
                }
                rates.push(round.rate());
                latencies.extend(round.latencies);
                bar.inc(1);
            }
        }
        let alone = median(&outcomes[0].0);
        for (wanted, (rates, mut latencies)) in WANTED.into_iter().zip(outcomes) {
            latencies.sort_unstable();
            let middle = median(&rates);
            panel.bar(format!("{tasks} tasks, {wanted} replicas"), middle);
            report.row(vec![
                tasks.to_string(),
                wanted.to_string(),
                rate(middle),
                format!("{:.2}", ratio(middle, alone)),
                time(percentile(&latencies, 0.5)),
                time(percentile(&latencies, 0.99)),
                time(latencies.last().copied().unwrap_or_default()),
            ]);
        }
    }
    bar.finish_and_clear();
    report.panels.push(panel);
    lagging(&mut report, &group, &managers, size).await?;
    Ok(report)
}

async fn managers(group: &SentinelGroup) -> Result<Vec<LockManager>> {
    let url = format!("redis://127.0.0.1:{}", group.master().await);
    let mut managers = Vec::new();
    for wanted in WANTED {
        let locks = LockManager::builder(&url).min_replicas(wanted).build()?;
        // Fresh replicas acknowledge late for a while.
        let began = Instant::now();
        while let Err(error) = locks.lock("bench:first").run(async {}).await {
            if began.elapsed() > Duration::from_secs(30) {
                return Err(error.into());
            }
        }
        managers.push(locks);
    }
    Ok(managers)
}

/// One replica of two stands still.
async fn lagging(report: &mut Report, group: &SentinelGroup, managers: &[LockManager], size: Size) -> Result {
    let window = match size {
        Size::Full => Duration::from_secs(5),
        Size::Smoke => Duration::from_millis(50),
    };
    let master = group.master().await;
    let ports = group.node_ports();
    let replica = ports.into_iter().find(|port| *port != master);
    let replica = replica.ok_or_else(|| error("the group has no replica"))?;
    group.pause(replica);
    for (wanted, locks) in WANTED.into_iter().zip(managers) {
        let round = Round::of(locks, 16, window).await?;
        report.note(format!(
            "One of two replicas stands still, 16 tasks, `min_replicas` {wanted}: {} locks taken, {} calls ended with `TooFewReplicas`.",
            count(round.latencies.len()),
            count(round.refused)
        ));
        if wanted == 2 {
            let taken = round.latencies.len();
            let what = "locks counted as taken that one replica of two had, with `min_replicas = 2`";
            report
                .verdicts
                .push(Verdict::holds(5, what, taken.to_string(), taken == 0));
        }
    }
    group.resume(replica);
    Ok(())
}

/// What the tasks of one manager did in a while.
struct Round {
    latencies: Vec<Duration>,
    refused: usize,
    took: Duration,
}

impl Round {
    async fn of(locks: &LockManager, tasks: usize, window: Duration) -> Result<Self> {
        let began = Instant::now();
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let locks = locks.clone();
            running.spawn(async move {
                let (mut latencies, mut refused) = (Vec::new(), 0);
                while began.elapsed() < window {
                    let asked = Instant::now();
                    match locks.lock(format!("bench:{task}")).acquire().await {
                        Ok(guard) => {
                            latencies.push(asked.elapsed());
                            guard.release().await?;
                        }
                        Err(LockError::TooFewReplicas { .. }) => refused += 1,
                        Err(error) => return Err(error),
                    }
                }
                Ok((latencies, refused))
            });
        }
        let mut round = Self {
            latencies: Vec::new(),
            refused: 0,
            took: Duration::ZERO,
        };
        while let Some(task) = running.join_next().await {
            let (latencies, refused) = task??;
            round.latencies.extend(latencies);
            round.refused += refused;
        }
        round.took = began.elapsed();
        Ok(round)
    }

    fn rate(&self) -> f64 {
        ratio(self.latencies.len(), 1_usize) / self.took.as_secs_f64()
    }
}
