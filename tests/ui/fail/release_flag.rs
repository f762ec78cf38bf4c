//! A word that needs a value.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", release)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
