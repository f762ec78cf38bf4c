//! A locked function that calls another one under the same lock: `reentrant`.
//!
//! `cargo run --bin reentrant` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::time::Duration;

use lock_examples::{Failure, Timeline};
use lock_runtime::{LockError, distributed_lock};
use tokio::time::sleep;

const STEP: Duration = Duration::from_millis(60);

#[distributed_lock(key = "example:order:<order>", reentrant)]
async fn check_out(timeline: &Timeline, who: &str, order: u32) -> Result<(), LockError> {
    let _inside = timeline.enters(who);
    sleep(STEP).await;
    // Without `reentrant` this would be LockError::WouldDeadlock, at once.
    cancel_line(timeline, &format!("  {who}, inner"), order).await?;
    sleep(STEP).await;
    Ok(())
}

#[distributed_lock(key = "example:order:<order>", reentrant)]
async fn cancel_line(timeline: &Timeline, who: &str, order: u32) -> Result<(), LockError> {
    timeline.asks(who);
    let _inside = timeline.enters(who);
    sleep(STEP).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    lock_runtime::init(&url).await?;
    let timeline = Timeline::default();
    let call = async |who| {
        timeline.asks(who);
        check_out(&timeline, who, 7).await
    };
    let (one, two) = tokio::join!(call("call 1"), call("call 2"));
    one.and(two)?;
    timeline.show()?;
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
