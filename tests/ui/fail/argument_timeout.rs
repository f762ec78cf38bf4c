//! Names from elsewhere are answered with the name here.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", timeout = 5)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
