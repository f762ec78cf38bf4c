//! Neither a number nor text.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = true)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
