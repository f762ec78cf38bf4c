//! A `min_replicas` that is not a number.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", min_replicas = "1")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", min_replicas)]
async fn alone() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", replicas = 1)]
async fn other_word() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
