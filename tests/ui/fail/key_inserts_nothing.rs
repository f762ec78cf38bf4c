//! Nothing between the brackets.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<>")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
