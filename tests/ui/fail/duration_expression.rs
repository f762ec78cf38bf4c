//! An expression must be a `Duration`; the compiler points at it.

use lock_runtime::{LockError, distributed_lock};

const LEASE: u64 = 15;

#[distributed_lock(key = "a", lease = LEASE)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
