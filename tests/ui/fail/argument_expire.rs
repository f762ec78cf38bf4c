//! Names from elsewhere are answered with the name here.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", expire = "2s")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
