//! A value in quotes, and a closure.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_busy = "skip")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
