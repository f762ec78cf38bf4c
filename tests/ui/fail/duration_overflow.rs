//! Longer than a number, and longer than a year.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = 99999999999999999999999, wait = "9999999h", at_least = 31622401)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
