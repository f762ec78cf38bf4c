//! Calculations and calls do not belong in a key.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "<item_id + 1>:<hash(item_id)>:<item id>")]
async fn reduce(item_id: u64) -> Result<(), LockError> {
    let _ = item_id;
    Ok(())
}

fn main() {}
