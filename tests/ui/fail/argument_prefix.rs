//! The prefix is a setting of the manager.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(prefix = "shop:", key = "a")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
