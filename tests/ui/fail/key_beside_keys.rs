//! `key` beside `keys` is one error, without a second one that contradicts it.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", keys = ["b"])]
async fn both() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
