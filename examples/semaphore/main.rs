//! At most N holders at once, in all processes together: `mode = semaphore(N)`.
//!
//! `cargo run --bin semaphore` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::time::Duration;

use lock_examples::{Failure, Timeline};
use lock_runtime::{LockError, distributed_lock};
use tokio::time::sleep;

const STEP: Duration = Duration::from_millis(60);

/// The partner allows two requests at a time.
#[distributed_lock(key = "example:partner", mode = semaphore(2))]
async fn ask_partner(timeline: &Timeline, who: &str, steps: u32) -> Result<(), LockError> {
    let _inside = timeline.enters(who);
    sleep(STEP * steps).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    lock_runtime::init(&url).await?;
    let timeline = Timeline::default();
    let call = async |who, steps| {
        timeline.asks(who);
        ask_partner(&timeline, who, steps).await
    };
    let (one, two, three, four, five) = tokio::join!(
        call("call 1", 1),
        call("call 2", 2),
        call("call 3", 2),
        call("call 4", 1),
        call("call 5", 1),
    );
    for ended in [one, two, three, four, five] {
        ended?;
    }
    timeline.show()?;
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
