//! Time for the requests that a lost holder still has in flight: `lock_delay = "…"`.
//!
//! `cargo run --bin lock_delay` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::time::Duration;

use lock_examples::{Failure, Timeline};
use lock_runtime::{LockError, distributed_lock};
use tokio::time::sleep;

const STEP: Duration = Duration::from_millis(500);

/// Its lease runs out: it is cancelled, and nobody enters for so much longer.
#[distributed_lock(key = "example:turbine", lease = "4s", renew = false, lock_delay = "4s")]
async fn hang(timeline: &Timeline, who: &str) -> Result<(), LockError> {
    let _inside = timeline.enters(who);
    std::future::pending().await
}

/// It releases its lock: the next one enters at once.
#[distributed_lock(key = "example:turbine", wait = 30, lock_delay = "4s")]
async fn steer(timeline: &Timeline, who: &str) -> Result<(), LockError> {
    let _inside = timeline.enters(who);
    sleep(STEP).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    lock_runtime::init(&url).await?;
    let timeline = Timeline::default();
    let first = async {
        timeline.asks("hangs");
        let hung = hang(&timeline, "hangs").await;
        timeline.is_answered("hangs");
        hung
    };
    let call = async |who, after: u32| {
        timeline.has_entered("hangs").await;
        sleep(STEP * after).await;
        timeline.asks(who);
        steer(&timeline, who).await
    };
    let (hung, one, two) = tokio::join!(first, call("next", 1), call("after it", 2));
    one.and(two)?;
    timeline.show()?;
    if let Err(error) = hung {
        println!("the first one: {error}");
    }
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
