//! Nothing to lock.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
