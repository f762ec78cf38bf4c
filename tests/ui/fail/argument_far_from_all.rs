//! The error lists all arguments.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(colour = 15)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
