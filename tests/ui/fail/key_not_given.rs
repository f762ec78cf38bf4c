//! No key, on a function whose calls differ.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock]
async fn reduce(item_id: u64, by: u64) -> Result<u64, LockError> {
    Ok(item_id - by)
}

#[distributed_lock(lease = 15)]
async fn increase(r#type: u64) -> Result<u64, LockError> {
    Ok(r#type)
}

fn main() {}
