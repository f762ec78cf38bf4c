//! There are none.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id>")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
