//! A wrong path is one error, at the path.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id>", crate = ::elsewhere)]
async fn reduce(item_id: u64, (left, _): (u64, u64)) -> Result<u64, LockError> {
    Ok(item_id + left)
}

#[distributed_lock(key = "inventory:<item_id>", crate = lock_runtime::inner, coalesce)]
async fn count(item_id: u64) -> Result<u64, LockError> {
    Ok(item_id)
}

fn main() {}
