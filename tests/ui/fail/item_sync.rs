//! A function that is not async.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
fn reduce(item_id: u64) -> Result<(), LockError> {
    drop(item_id);
    Ok(())
}

fn main() {}
