//! A name in the key of a function without parameters.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id>")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
