//! A time limit beside what it replaces, or where it has no meaning.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", max_hold = "10m", max_renewals = 3)]
async fn twice() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", max_hold = "10m", renew = false)]
async fn not_renewed() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", max_hold = 0)]
async fn no_time() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
