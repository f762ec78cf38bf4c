//! The prefix is the manager's.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(prefix = "shop:", key = "a")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
