//! The error points at the body.

use lock_runtime::{LockError, distributed_lock};

fn main() {}

#[distributed_lock(key = "a")]
async fn reduce(item_id: u64) -> Result<u64, LockError> {
    let _ = item_id;
}
