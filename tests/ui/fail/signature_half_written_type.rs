//! rustc reports a half-written signature, once.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id>")]
async fn no_type(item_id: ) -> Result<u64, LockError> {
    Ok(1)
}

fn main() {}
