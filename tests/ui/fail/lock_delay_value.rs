//! A `lock_delay` that is not a duration.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lock_delay = -5)]
async fn negative() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lock_delay)]
async fn nothing() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
