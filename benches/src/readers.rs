//! Readers that never stop, and a writer among them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::LockManager;
use lock_tests::server::Server;
use tokio::task::JoinSet;

use crate::plot::Panel;
use crate::report::{Report, Verdict, progress, rate, ratio, time};
use crate::sample::percentile;
use crate::{Result, Size};

const KEY: &str = "bench:readers";
const READERS: usize = 32;
/// Each has connections of its own, as processes have.
const MANAGERS: usize = 4;

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (holds, writes): (&[u64], usize) = match size {
        Size::Full => (&[5, 20, 50], 200),
        Size::Smoke => (&[5], 5),
    };
    let mut report = Report::new(
        "readers",
        "One lock that 32 readers take, hold and release in a loop, through 4 managers. A writer of a fifth manager takes it \
         now and then, and releases it at once.",
        &[
            "readers' hold",
            "reads/s",
            "writer waits: p50",
            "p99",
            "longest",
            "p99 / hold",
        ],
    );
    let mut panel = Panel::cost("the writer's p99 wait, in times of the readers' hold");
    panel.bar("limit", 3.0);
    for hold in holds.iter().copied().map(Duration::from_millis) {
        let (reads, waits) = measure(hold, writes).await?;
        let late = percentile(&waits, 0.99);
        let times = ratio(late, hold);
        panel.bar(format!("hold {hold:?}"), times);
        report.row(vec![
            format!("{hold:?}"),
            rate(reads),
            time(percentile(&waits, 0.5)),
            time(late),
            time(waits.last().copied().unwrap_or_default()),
            format!("{times:.2}"),
        ]);
        report.verdicts.push(Verdict::below(
            3,
            format!("32 readers that hold for {hold:?}: the writer's p99 wait / hold"),
            3.0,
            times,
            "",
        ));
    }
    report.panels.push(panel);
    Ok(report)
}

/// Reads per second, and how long each write waited, sorted.
async fn measure(hold: Duration, number: usize) -> Result<(f64, Vec<Duration>)> {
    let server = Server::start();
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut readers = JoinSet::new();
    for _ in 0..MANAGERS {
        let locks = LockManager::connect(&server.url()).await?;
        for _ in 0..READERS / MANAGERS {
            let (locks, stop, reads) = (locks.clone(), Arc::clone(&stop), Arc::clone(&reads));
            readers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    locks.lock(KEY).read().run(tokio::time::sleep(hold)).await?;
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, lock_runtime::LockError>(())
            });
        }
    }
    let writer = LockManager::connect(&server.url()).await?;
    let bar = progress(format!("readers: hold {hold:?}"), number);
    let began = Instant::now();
    let mut waits = Vec::with_capacity(number);
    for _ in 0..number {
        tokio::time::sleep(hold.mul_f64(fastrand::f64() + 0.5)).await;
        let asked = Instant::now();
        let guard = writer.lock(KEY).write().acquire().await?;
        waits.push(asked.elapsed());
        guard.release().await?;
        bar.inc(1);
    }
    let reads = ratio(reads.load(Ordering::Relaxed), began.elapsed());
    bar.finish_and_clear();
    stop.store(true, Ordering::Relaxed);
    while let Some(reader) = readers.join_next().await {
        reader??;
    }
    waits.sort_unstable();
    Ok((reads, waits))
}
