//! The error for another library's name of an argument names this crate's.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", ttl = 15)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
