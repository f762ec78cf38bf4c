//! The second word is shown.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = 5, key = "b", lease = 6)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
