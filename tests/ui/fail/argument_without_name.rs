//! A bare template, and a name in quotes.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock("inventory:<item_id>")]
async fn reduce(item_id: u64) -> Result<(), LockError> {
    let _ = item_id;
    Ok(())
}

#[distributed_lock(key = "inventory", "wait" = 5)]
async fn quoted() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
