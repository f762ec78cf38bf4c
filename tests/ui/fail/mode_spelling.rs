//! The right mode, written in another way.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", mode = "read")]
async fn quoted() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode = Read)]
async fn capitalised() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode = reader)]
async fn reader() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode = shared)]
async fn shared() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode = semaphore)]
async fn semaphore() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode = Mode::Semaphore(5))]
async fn semaphore_by_path() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
