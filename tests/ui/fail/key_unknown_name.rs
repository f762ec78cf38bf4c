//! The error names the nearest parameter.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<itm_id>")]
async fn reduce(shop: &str, item_id: u64) -> Result<(), LockError> {
    let _ = (shop, item_id);
    Ok(())
}

fn main() {}
