//! Suffixes of numbers.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = 15u64, wait = 5s)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
