//! A key that is not in quotes.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = item_id)]
async fn reduce(item_id: u64) -> Result<(), LockError> {
    let _ = item_id;
    Ok(())
}

fn main() {}
