//! Another word.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", release = "async")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
