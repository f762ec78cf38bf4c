//! What it costs to keep many locks alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{LockGuard, LockManager};
use lock_tests::server::Server;
use tokio::task::JoinSet;

use crate::report::{progress, table};
use crate::{Result, process};

const LEASE: Duration = Duration::from_secs(30);
/// How many acquires are under way at once while the locks are taken.
const AT_ONCE: usize = 256;
/// How many locks are looked at to see how late the latest renewal is.
const SAMPLED: usize = 1_000;

pub(crate) async fn run(counts: &[usize]) -> Result {
    let counts = if counts.is_empty() {
        &[1_000, 10_000, 100_000]
    } else {
        counts
    };
    let mut rows = Vec::new();
    for &count in counts {
        rows.push(measure(count).await?);
    }
    println!(
        "{} s lease, renewed after 2/3 of it; one renewal cycle measured\n",
        LEASE.as_secs()
    );
    let header = [
        "locks",
        "taken in",
        "CPU per 1,000 locks and cycle",
        "share of a core",
        "memory per 1,000 locks",
        "latest renewal",
        "renewed",
        "lost",
        "threads",
    ];
    println!("{}", table(&header, rows));
    Ok(())
}

async fn measure(count: usize) -> Result<Vec<String>> {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).await?;
    let memory_before = process::memory()?;
    let began = Instant::now();
    let guards = take(&locks, count).await?;
    let taken = began.elapsed();
    let memory = process::memory()?.saturating_sub(memory_before);

    // One whole cycle: from before the first renewal until every lock has had its own.
    let cycle = LEASE.mul_f64(2.0 / 3.0) + taken.max(Duration::from_secs(1));
    let progress = progress(format!("renewing {count} locks"), usize::try_from(cycle.as_secs())?);
    let (cpu_before, watch) = (process::cpu()?, Instant::now());
    let mut least = LEASE;
    while watch.elapsed() < cycle {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let sampled = guards.iter().step_by(count.div_ceil(SAMPLED));
        least = least.min(sampled.map(|guard| guard.remaining()).min().unwrap_or_default());
        progress.set_position(watch.elapsed().as_secs());
    }
    progress.finish_and_clear();
    let (cpu, watched) = (process::cpu()?.saturating_sub(cpu_before), watch.elapsed());
    let stats = locks.stats();
    let lost = stats.lost_expired + stats.lost_deleted + stats.lost_taken + stats.lost_unreachable;
    let threads = process::threads()?;
    drop(guards);
    locks.shutdown().await;

    let thousands = f64::from(u32::try_from(count)?) / 1_000.0;
    // `remaining` leaves out 1 % and 2 ms of the lease for drift.
    let latest = 100.0 - (least.as_secs_f64() + 0.302) / LEASE.as_secs_f64() * 100.0;
    Ok(vec![
        count.to_string(),
        format!("{taken:.1?}"),
        format!("{:.2} ms", cpu.as_secs_f64() * 1_000.0 / thousands),
        format!("{:.2} %", cpu.as_secs_f64() / watched.as_secs_f64() * 100.0),
        format!("{:.0} KiB", f64::from(u32::try_from(memory / 1_024)?) / thousands),
        format!("{latest:.0} % of the lease"),
        stats.renewals.to_string(),
        lost.to_string(),
        threads.to_string(),
    ])
}

async fn take(locks: &LockManager, count: usize) -> Result<Vec<LockGuard>> {
    let progress = Arc::new(progress(format!("taking {count} locks"), count));
    let mut takers = JoinSet::new();
    for taker in 0..AT_ONCE {
        let (locks, progress) = (locks.clone(), Arc::clone(&progress));
        takers.spawn(async move {
            let mut guards = Vec::with_capacity(count / AT_ONCE + 1);
            for key in (taker..count).step_by(AT_ONCE) {
                guards.push(locks.lock(format!("bench:{key}")).lease(LEASE).acquire().await?);
                progress.inc(1);
            }
            Ok::<_, lock_runtime::LockError>(guards)
        });
    }
    let mut guards = Vec::with_capacity(count);
    while let Some(taken) = takers.join_next().await {
        guards.extend(taken??);
    }
    progress.finish_and_clear();
    Ok(guards)
}
