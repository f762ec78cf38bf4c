//! A format specification other than `:raw`.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id:08>")]
async fn reduce(item_id: u64) -> Result<(), LockError> {
    let _ = item_id;
    Ok(())
}

fn main() {}
