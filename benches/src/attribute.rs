//! The cost of the attribute itself: on the memory store, without contention.

use std::hint::black_box;
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, distributed_lock};

use crate::plot::Panel;
use crate::report::{Report, Verdict, progress, ratio};
use crate::sample::median;
use crate::{Result, Size};

#[distributed_lock(key = "bench:<id>", manager = locks)]
async fn annotated(locks: &LockManager, id: u64) -> std::result::Result<u64, LockError> {
    Ok(black_box(id))
}

#[allow(clippy::unused_async)]
async fn plain(_locks: &LockManager, id: u64) -> std::result::Result<u64, LockError> {
    Ok(black_box(id))
}

/// What one kind of call cost.
struct Cost {
    nanos: f64,
    allocations: f64,
    bytes: f64,
}

pub(crate) async fn run(size: Size) -> Result<Report> {
    tokio::task::spawn_blocking(move || measure(size)).await?
}

fn measure(size: Size) -> Result<Report> {
    let (rounds, calls) = match size {
        Size::Full => (9, 50_000),
        Size::Smoke => (1, 100),
    };
    let mut report = Report::new(
        "attribute",
        "An annotated function on the memory store beside the same function without the attribute; one call at a time, medians of rounds.",
        &["runtime", "function", "ns per call", "allocations", "bytes allocated"],
    );
    let mut panel = Panel::cost("nanoseconds per call");
    let bar = progress("attribute", 4);
    for (name, mut builder) in [
        ("current_thread", tokio::runtime::Builder::new_current_thread()),
        ("multi_thread", tokio::runtime::Builder::new_multi_thread()),
    ] {
        let runtime = builder.enable_all().build()?;
        let locks = runtime.block_on(LockManager::connect("memory://"))?;
        for is_annotated in [false, true] {
            let call = {
                let locks = locks.clone();
                move |calls: u64| many(locks.clone(), is_annotated, calls)
            };
            let cost = cost(&runtime, rounds, calls, call)?;
            let function = if is_annotated { "annotated" } else { "plain" };
            panel.bar(format!("{name}, {function}"), cost.nanos);
            report.row(vec![
                name.to_owned(),
                function.to_owned(),
                format!("{:.0}", cost.nanos),
                format!("{:.2}", cost.allocations),
                format!("{:.0}", cost.bytes),
            ]);
            if is_annotated {
                report.verdicts.extend([
                    Verdict::below(7, format!("attribute, memory store, {name}"), 2_000.0, cost.nanos, "ns"),
                    Verdict::below(
                        7,
                        format!("attribute, memory store, {name}: allocations"),
                        6.0,
                        cost.allocations,
                        "",
                    ),
                ]);
            }
            bar.inc(1);
        }
        runtime.shutdown_background();
    }
    bar.finish_and_clear();
    report.panels.push(panel);
    Ok(report)
}

async fn many(locks: LockManager, is_annotated: bool, calls: u64) -> Result<Duration> {
    let began = Instant::now();
    if is_annotated {
        for id in 0..calls {
            annotated(&locks, black_box(id % 16)).await?;
        }
    } else {
        for id in 0..calls {
            plain(&locks, black_box(id % 16)).await?;
        }
    }
    Ok(began.elapsed())
}

fn cost<F>(runtime: &tokio::runtime::Runtime, rounds: usize, calls: u64, call: impl Fn(u64) -> F) -> Result<Cost>
where
    F: Future<Output = Result<Duration>> + Send + 'static,
{
    runtime.block_on(call(calls / 10))?;
    let mut nanos = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        // In a task, where locks are taken.
        let took = runtime.block_on(async { tokio::spawn(call(calls)).await })??;
        nanos.push(ratio(took.as_secs_f64() * 1e9, calls));
    }
    // On this thread, which the counter looks at.
    let mut outcome = Ok(Duration::ZERO);
    let counted = allocation_counter::measure(|| outcome = runtime.block_on(call(calls)));
    outcome?;
    Ok(Cost {
        nanos: median(&nanos),
        allocations: ratio(counted.count_total, calls),
        bytes: ratio(counted.bytes_total, calls),
    })
}
