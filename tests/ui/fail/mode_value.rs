//! An unknown mode.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", mode = colour)]
async fn colour() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode = fair)]
async fn fair() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode)]
async fn nothing() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
