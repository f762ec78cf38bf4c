//! Numbers that look like milliseconds.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = 15000, wait = 2500)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
