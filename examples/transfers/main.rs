//! Two locks at once, all or nothing: `keys = ["account:<from>", "account:<to>"]`.
//!
//! `cargo run --bin transfers` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::time::Duration;

use lock_examples::{Failure, Timeline};
use lock_runtime::{LockError, distributed_lock};
use tokio::time::sleep;

const STEP: Duration = Duration::from_millis(60);

/// However the accounts are named, two transfers never wait for each other.
#[distributed_lock(keys = ["example:account:<from>", "example:account:<to>"])]
async fn transfer(timeline: &Timeline, who: &str, from: u32, to: u32) -> Result<(), LockError> {
    let _inside = timeline.enters(who);
    sleep(STEP).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    lock_runtime::init(&url).await?;
    let timeline = Timeline::default();
    let call = async |who, from, to| {
        timeline.asks(who);
        transfer(&timeline, who, from, to).await
    };
    let (one, two, three, four) = tokio::join!(
        call("1 to 2", 1, 2),
        call("2 to 1", 2, 1),
        call("3 to 4", 3, 4),
        call("2 to 3", 2, 3),
    );
    for ended in [one, two, three, four] {
        ended?;
    }
    timeline.show()?;
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
