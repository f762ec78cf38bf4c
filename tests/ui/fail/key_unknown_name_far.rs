//! The error lists the parameters.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<zone>")]
async fn reduce(shop: &str, (item_id, _): (u64, u64)) -> Result<(), LockError> {
    let _ = (shop, item_id);
    Ok(())
}

fn main() {}
