//! A fencing token for a mode with several holders.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", mode = read, fencing)]
async fn reads() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", fencing = true, mode = semaphore(5))]
async fn semaphore() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
