//! The cost of keeping many locks alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{LockGuard, LockManager};
use lock_tests::server::Server;
use tokio::task::JoinSet;

use crate::plot::Panel;
use crate::report::{Number, Report, Verdict, progress, ratio};
use crate::{Result, Size, process};

/// How many acquires are under way at once while the locks are taken.
const AT_ONCE: usize = 256;
/// How many locks are looked at to see how late the latest renewal is.
const SAMPLED: usize = 1_000;

/// What the project's promises are about.
const PROMISED: usize = 100_000;

pub(crate) async fn run(size: Size, counts: &[usize]) -> Result<Report> {
    let (lease, usual): (_, &[usize]) = match size {
        Size::Full => (Duration::from_secs(30), &[1_000, 10_000, PROMISED]),
        Size::Smoke => (Duration::from_secs(1), &[20]),
    };
    let mut report = Report::new(
        "watchdog",
        "Held locks with a lease of 30 s, renewed after 2/3 of it; one renewal cycle measured. With 1,000 locks, the bench itself and the connection use most of the CPU time and memory.",
        &[
            "locks",
            "taken in",
            "CPU per 1,000 locks and cycle",
            "share of a core",
            "memory per 1,000 locks",
            "latest renewal",
            "renewed",
            "lost",
            "threads",
        ],
    );
    let mut panel = Panel::cost("client CPU of renewing, % of a core");
    for &count in if counts.is_empty() { usual } else { counts } {
        measure(&mut report, &mut panel, count, lease).await?;
    }
    report.panels.push(panel);
    Ok(report)
}

async fn measure(report: &mut Report, panel: &mut Panel, count: usize, lease: Duration) -> Result {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).await?;
    let memory_before = process::memory()?;
    let began = Instant::now();
    let guards = take(&locks, count, lease).await?;
    let taken = began.elapsed();
    let memory = process::memory()?.saturating_sub(memory_before);

    // One whole cycle: from before the first renewal until every lock has had its own.
    let cycle = lease.mul_f64(2.0 / 3.0) + taken.max(lease / 30);
    let progress = progress(format!("renewing {count} locks"), usize::try_from(cycle.as_secs())?);
    let (cpu_before, watch) = (process::cpu(), Instant::now());
    let mut shortest = lease;
    while watch.elapsed() < cycle {
        tokio::time::sleep(lease / 150).await;
        let sampled = guards.iter().step_by(count.div_ceil(SAMPLED));
        shortest = shortest.min(
            sampled
                .map(|guard| guard.handle().remaining())
                .min()
                .unwrap_or_default(),
        );
        progress.set_position(watch.elapsed().as_secs());
    }
    progress.finish_and_clear();
    let (cpu, watched) = (process::cpu().saturating_sub(cpu_before), watch.elapsed());
    let stats = locks.stats();
    let lost = stats.lost_expired + stats.lost_deleted + stats.lost_taken + stats.lost_unreachable;
    let threads = process::threads()?;
    drop(guards);
    locks.shutdown().await;

    let thousands = count.float() / 1_000.0;
    // `remaining` leaves out 1 % and 2 ms of the lease for drift.
    let left = shortest.as_secs_f64() + lease.as_secs_f64() / 100.0 + 0.002;
    let latest = 100.0 - left / lease.as_secs_f64() * 100.0;
    let share = ratio(cpu, watched) * 100.0;
    panel.bar(format!("{count} locks"), share);
    report.row(vec![
        count.to_string(),
        format!("{taken:.1?}"),
        format!("{:.2} ms", cpu.as_secs_f64() * 1_000.0 / thousands),
        format!("{share:.2} %"),
        format!("{:.0} KiB", memory.float() / 1_024.0 / thousands),
        format!("{latest:.0} % of the lease"),
        stats.renewals.to_string(),
        lost.to_string(),
        threads.to_string(),
    ]);
    if count == PROMISED {
        let what = |figure| format!("100,000 held locks, 30 s lease: {figure}");
        report.verdicts.extend([
            Verdict::below(6, what("latest renewal"), 85.0, latest, "% of the lease"),
            Verdict::below(6, what("client CPU"), 10.0, share, "% of a core"),
            Verdict::at_most(6, what("lost"), 0.0, lost.float(), ""),
        ]);
    }
    Ok(())
}

async fn take(locks: &LockManager, count: usize, lease: Duration) -> Result<Vec<LockGuard>> {
    let progress = Arc::new(progress(format!("taking {count} locks"), count));
    let mut takers = JoinSet::new();
    for taker in 0..AT_ONCE {
        let (locks, progress) = (locks.clone(), Arc::clone(&progress));
        takers.spawn(async move {
            let mut guards = Vec::with_capacity(count / AT_ONCE + 1);
            for key in (taker..count).step_by(AT_ONCE) {
                guards.push(locks.lock(format!("bench:{key}")).lease(lease).acquire().await?);
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
