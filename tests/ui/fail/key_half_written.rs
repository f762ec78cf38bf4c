//! A key that is still being typed.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id.>")]
async fn reduce(item_id: u64) -> Result<u64, LockError> {
    Ok(item_id)
}

fn main() {}
