//! An expression must be a `Duration`; the compiler points at it. The macro knows numbers only.

use lock_runtime::{LockError, distributed_lock};

const LEASE: u64 = 15;

#[distributed_lock(key = "a", lease = LEASE)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", wait = 5 * 60)]
async fn numbers() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
