//! A job that every instance of a service schedules, and that only one of them runs.
//!
//! `cargo run --bin scheduled` plays three instances in this process on the embedded store. With `REDIS_URL` set, start it on as many
//! hosts as you like.

use std::env;
use std::time::Duration;

use lock_examples::Failure;
use lock_runtime::{LockManager, distributed_lock};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at};

/// `wait = 0`: nobody queues for a job. `on_busy = skip`: the others return at once. `at_least`: an instance whose clock is
/// a little late must not find the lock free again because the job was quick.
#[distributed_lock(key = "nightly-report", wait = 0, on_busy = skip, at_least = "4s", manager = locks)]
async fn nightly_report(locks: &LockManager) -> Option<&'static str> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Some("report written")
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    let locks = LockManager::connect(&url).await?;
    let start = Instant::now();
    let mut instances = JoinSet::new();
    for instance in 1..=3_u32 {
        let locks = locks.clone();
        // No two clocks agree.
        let mut clock = interval_at(start + Duration::from_millis(30) * instance, Duration::from_secs(8));
        instances.spawn(async move {
            for tick in 1..=3 {
                clock.tick().await;
                let outcome = nightly_report(&locks)
                    .await
                    .unwrap_or("skipped, another instance has it");
                println!(
                    "{:>5} ms  tick {tick}, instance {instance}: {outcome}",
                    start.elapsed().as_millis()
                );
            }
        });
    }
    while let Some(instance) = instances.join_next().await {
        instance?;
    }
    locks.shutdown().await;
    Ok(())
}
