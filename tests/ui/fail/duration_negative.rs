//! Below zero.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", wait = -5)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
