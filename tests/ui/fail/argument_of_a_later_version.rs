//! Arguments that are not there yet.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", mode = semaphore(3), reentrant, keys = ["a", "b"], owner = "<item_id>")]
async fn reduce(item_id: u64) -> Result<(), LockError> {
    let _ = item_id;
    Ok(())
}

fn main() {}
