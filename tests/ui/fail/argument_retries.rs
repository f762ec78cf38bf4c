//! The pauses are a setting of the manager.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", retries = 3)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
