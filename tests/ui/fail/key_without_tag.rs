//! A brace that ends no tag would part a key from its queue in a cluster.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order}:<id>")]
async fn ends_nothing(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = "order:{}:<id>")]
async fn is_empty(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = "order}:{<id>}")]
async fn is_fine(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

fn main() {}
