//! The error names the nearest argument.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", leese = 15)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
