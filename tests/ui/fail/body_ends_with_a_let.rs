//! The error points at the body.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
async fn reduce(stock: u64) -> Result<u64, LockError> {
    let left = stock
}

fn main() {}
