//! An unknown word.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", release = async_mode)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
