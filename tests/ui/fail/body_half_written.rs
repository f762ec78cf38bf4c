//! rustc reports a half-written body, once.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory")]
async fn reduce(stock: Result<u64, LockError>) -> Result<u64, LockError> {
    stock.
}

fn main() {}
