//! A fraction.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = 1.5)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
