//! One call does the work, and calls that arrive meanwhile get its result: `coalesce`.
//!
//! `cargo run --bin coalesce` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::time::Duration;

use lock_examples::{Failure, Timeline};
use lock_runtime::{LockError, distributed_lock};
use tokio::time::sleep;

const STEP: Duration = Duration::from_secs(1);

/// The result is cloned, so it and its error have to be.
#[distributed_lock(key = "example:report:<month>", coalesce)]
async fn report(timeline: &Timeline, who: &str, month: u32) -> Result<String, LockError> {
    let _inside = timeline.enters(who);
    sleep(STEP * 3).await;
    Ok(format!("report of month {month}, made by {who}"))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    lock_runtime::init(&url).await?;
    let timeline = Timeline::default();
    let call = async |who| {
        timeline.asks(who);
        let made = report(&timeline, who, 7).await;
        timeline.is_answered(who);
        made
    };
    // They come while the first one is at work.
    let later = async |who| {
        timeline.has_entered("call 1").await;
        call(who).await
    };
    let (one, two, three) = tokio::join!(call("call 1"), later("call 2"), later("call 3"));
    // It has come too late for their report.
    let four = call("call 4").await;
    for made in [one, two, three, four] {
        println!("{}", made?);
    }
    timeline.show()?;
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
