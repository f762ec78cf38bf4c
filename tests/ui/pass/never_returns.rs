//! No lint sees code behind a body that never ends.

#![forbid(unreachable_code)]
#![allow(dead_code)]

use lock_runtime::{LockError, distributed_lock};

fn main() {}

fn stop(error: LockError) -> ! {
    panic!("{error}")
}

#[distributed_lock(key = "a", on_busy = stop)]
async fn serve() -> ! {
    loop {
        tokio::task::yield_now().await;
    }
}

#[distributed_lock(key = "a")]
async fn always_returns() -> Result<(), LockError> {
    return Ok(());
}
