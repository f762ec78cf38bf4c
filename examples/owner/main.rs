//! A lock that belongs to a workflow, in whichever process its steps run: `owner = "<workflow>"`.
//!
//! `cargo run --bin owner` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::time::Duration;

use lock_examples::{Failure, Timeline};
use lock_runtime::{LockError, distributed_lock};
use tokio::time::sleep;

const STEP: Duration = Duration::from_millis(100);

/// Steps of one workflow run at the same time, also in different processes; another workflow waits for the last of them.
#[distributed_lock(key = "example:warehouse", owner = "<workflow>")]
async fn step(timeline: &Timeline, who: &str, workflow: u32, steps: u32) -> Result<(), LockError> {
    let _inside = timeline.enters(who);
    sleep(STEP * steps).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    lock_runtime::init(&url).await?;
    let timeline = Timeline::default();
    let call = async |who, workflow, after: u32, steps| {
        sleep(STEP * after).await;
        timeline.asks(who);
        step(&timeline, who, workflow, steps).await
    };
    let (one, two, three, four) = tokio::join!(
        call("workflow 1, pick", 1, 0, 2),
        call("workflow 2, pick", 2, 1, 1),
        // It comes after the other workflow, but its own one has the lock.
        call("workflow 1, pack", 1, 1, 2),
        call("workflow 2, pack", 2, 2, 2),
    );
    for ended in [one, two, three, four] {
        ended?;
    }
    timeline.show()?;
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
