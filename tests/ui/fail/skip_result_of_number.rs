//! Nothing to return when the body is skipped.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_busy = skip)]
async fn reduce() -> Result<u32, LockError> {
    Ok(1)
}

fn main() {}
