//! A closure in place of a function.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_busy = |error| Err(error))]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
