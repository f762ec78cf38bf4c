//! A missing comma.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a" lease = 5)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
