//! The pauses are the manager's.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", retries = 3)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
