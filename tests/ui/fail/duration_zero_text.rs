//! A lock that ends at once.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = "0s")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
