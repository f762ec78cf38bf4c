//! A `crate` that is not a path.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", crate = "lock_runtime")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
