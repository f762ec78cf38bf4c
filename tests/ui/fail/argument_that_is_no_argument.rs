//! Tokens that are not an argument.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", = 5, + 3)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
