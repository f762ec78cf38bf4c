//! Not a bool.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", reentrant = 3)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
