//! Shorter than the runtime permits.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = "5ms")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
