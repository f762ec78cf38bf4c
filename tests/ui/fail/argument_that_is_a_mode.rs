//! Modes, and their names in other libraries, written as arguments.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", read)]
async fn reads() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", write = true)]
async fn writes() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", semaphore = 5)]
async fn semaphore() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", semaphore(5))]
async fn semaphore_with_parentheses() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", permits = 5)]
async fn permits() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", maxConcurrent = 5)]
async fn max_concurrent() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lockType = "READ")]
async fn lock_type() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", readWrite)]
async fn read_write() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lockDelay = "5s")]
async fn lock_delay() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", singleFlight)]
async fn coalesce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
