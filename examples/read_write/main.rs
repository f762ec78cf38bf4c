//! Many readers or one writer: `mode = read` and `mode = write`.
//!
//! `cargo run --bin read_write` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::time::Duration;

use lock_examples::{Failure, Timeline};
use lock_runtime::{LockError, distributed_lock};
use tokio::time::sleep;

const STEP: Duration = Duration::from_secs(2);

/// Any number of quotes are made at the same time.
#[distributed_lock(key = "example:prices", mode = read)]
async fn quote(timeline: &Timeline, who: &str) -> Result<(), LockError> {
    let _inside = timeline.enters(who);
    sleep(STEP * 2).await;
    Ok(())
}

/// A change is made alone. Under it, a nested call reads without waiting.
#[distributed_lock(key = "example:prices", mode = write)]
async fn change(timeline: &Timeline, who: &str) -> Result<(), LockError> {
    let _inside = timeline.enters(who);
    sleep(STEP).await;
    check().await
}

#[distributed_lock(key = "example:prices", mode = read)]
async fn check() -> Result<(), LockError> {
    sleep(STEP).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    lock_runtime::init(&url).await?;
    let timeline = Timeline::default();
    let reader = async |who| {
        timeline.asks(who);
        let read = quote(&timeline, who).await;
        timeline.is_answered(who);
        read
    };
    let writer = async |who| {
        timeline.has_entered("reader 1").await;
        timeline.has_entered("reader 2").await;
        sleep(STEP).await;
        timeline.asks(who);
        change(&timeline, who).await
    };
    let late_reader = async |who| {
        timeline.has_asked("writer").await;
        sleep(STEP).await;
        reader(who).await
    };
    let (one, two, write, three, four) = tokio::join!(
        reader("reader 1"),
        reader("reader 2"),
        writer("writer"),
        // They have come after the writer, and do not overtake it.
        late_reader("reader 3"),
        late_reader("reader 4"),
    );
    for ended in [one, two, write, three, four] {
        ended?;
    }
    timeline.show()?;
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
