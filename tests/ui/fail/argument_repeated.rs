//! An argument that is given twice: the error points at the second one.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = 5, key = "b", lease = 6)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
