//! An unknown word.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_lost = "ignore")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
