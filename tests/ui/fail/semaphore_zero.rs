//! A semaphore without permits.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", mode = semaphore(0))]
async fn nobody() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode = semaphore())]
async fn how_many() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
