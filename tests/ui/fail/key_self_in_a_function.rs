//! `self` in the key of a function that is not a method.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<self.id>")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
