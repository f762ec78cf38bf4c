//! What a node of a cluster that stands still costs the calls for the keys of the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::LockManager;
use lock_tests::cluster::{ClusterGroup, third};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::report::{Number, Report, Verdict, count, progress, ratio, time};
use crate::sample::percentile;
use crate::{Result, Size, error};

/// The tasks that want locks of the other nodes, and those that want locks of the silent one.
const TASKS: usize = 8;
const STUCK: usize = 100;
/// The locks of the silent node that are held, with their renewals.
const HELD: usize = 200;
/// The pause between two calls of a task: 800 calls a second of all, which leaves the cores time.
const PACE: Duration = Duration::from_millis(10);
const LEASE: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(5);

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (rounds, window) = match size {
        Size::Full => (10, Duration::from_secs(3)),
        Size::Smoke => (1, Duration::from_millis(200)),
    };
    let mut report = Report::new(
        "node",
        "Three masters. Eight tasks take and give back locks of two of them, each a hundred times a second, while 100 tasks want locks of the \
         third, of which the process holds 200. In every second window the third is stopped (SIGSTOP).",
        &["third node", "calls", "p50", "p99", "p99.9", "longest", "failed"],
    );
    let cluster = ClusterGroup::start_steady().await;
    let locks = LockManager::builder(&cluster.url())
        .default_lease(LEASE)
        .default_wait(WAIT)
        .build()?;
    locks.check_connection().await?;
    let [silent, ..] = cluster.masters() else {
        return Err(error("no masters"));
    };
    let (mut its, mut others) = (Vec::new(), Vec::new());
    for key in (0_u32..).map(|number| format!("node:{number}")) {
        let slot = cluster.slot_of(&format!("{}{key}", locks.prefix()));
        let keys = if third(0).contains(&slot) {
            &mut its
        } else {
            &mut others
        };
        keys.push(key);
        if its.len() >= STUCK + HELD && others.len() >= TASKS {
            break;
        }
    }
    let mut held = Vec::new();
    for key in its.split_off(STUCK) {
        held.push(locks.lock(key).acquire().await?);
    }
    let mut all: [(Vec<Duration>, usize); 2] = Default::default();
    let bar = progress("node", 2 * rounds);
    for _ in 0..rounds {
        for (is_silent, (took, failed)) in [false, true].into_iter().zip(&mut all) {
            if is_silent {
                silent.pause();
            }
            let (times, refused) = watch(&locks, &its, &others, window).await?;
            took.extend(times);
            *failed += refused;
            if is_silent {
                silent.resume();
                settled(&locks).await;
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut p99 = Vec::new();
    for (who, (took, failed)) in ["works", "is silent"].into_iter().zip(&mut all) {
        took.sort_unstable();
        let at = |share| time(percentile(took, share));
        report.row(vec![
            who.to_owned(),
            count(took.len()),
            at(0.50),
            at(0.99),
            at(0.999),
            at(1.0),
            failed.to_string(),
        ]);
        p99.push(percentile(took, 0.99).as_secs_f64());
    }
    if let [works, silent] = p99[..] {
        let what = "p99 of calls for other nodes' keys while a node is silent, beside that while it is not";
        report
            .verdicts
            .push(Verdict::at_most(3, what, 1.25, ratio(silent, works), ""));
    }
    let what = "failed calls for other nodes' keys";
    report
        .verdicts
        .push(Verdict::at_most(3, what, 0.0, all[1].1.float(), ""));
    let lost = held.iter().filter(|guard| !guard.handle().is_held()).count();
    let what = "locks of the silent node that were lost, though each window is shorter than their lease";
    report.verdicts.push(Verdict::at_most(3, what, 0.0, lost.float(), ""));
    for guard in held {
        guard.release().await?;
    }
    Ok(report)
}

/// Returns once calls for a node that was silent are answered.
async fn settled(locks: &LockManager) {
    while !locks.health().is_ready() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Returns how long the calls for the other nodes' keys took, and how many failed.
async fn watch(
    locks: &LockManager,
    its: &[String],
    others: &[String],
    window: Duration,
) -> Result<(Vec<Duration>, usize)> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut stuck = JoinSet::new();
    for key in its {
        let (request, is_over) = (locks.lock(key), Arc::clone(&is_over));
        stuck.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                // Most of them have no answer until the window is over.
                let _ = tokio::time::timeout(window, request.clone().run(async {})).await;
                sleep(PACE * 10).await;
            }
        });
    }
    let mut calls = JoinSet::new();
    for key in others.iter().take(TASKS) {
        let request = locks.lock(key);
        calls.spawn(async move {
            let (mut took, mut failed) = (Vec::new(), 0);
            let began = Instant::now();
            let mut pace = interval(PACE);
            pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
            while began.elapsed() < window {
                pace.tick().await;
                let asked = Instant::now();
                match request.clone().run(async {}).await {
                    Ok(()) => took.push(asked.elapsed()),
                    Err(_) => failed += 1,
                }
            }
            (took, failed)
        });
    }
    let (mut all, mut refused) = (Vec::new(), 0);
    while let Some(ended) = calls.join_next().await {
        let (took, failed) = ended?;
        all.extend(took);
        refused += failed;
    }
    is_over.store(true, Ordering::Relaxed);
    stuck.abort_all();
    while stuck.join_next().await.is_some() {}
    Ok((all, refused))
}
