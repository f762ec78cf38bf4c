//! `on_lost` written as a variant of `OnLost`, and words that are nearly, or elsewhere, its own.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_lost = OnLost::Signal)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", on_lost = signl)]
async fn misspelt() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", on_lost = ignore)]
async fn elsewhere() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
