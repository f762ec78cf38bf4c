//! A key that starts like the library's own.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "%lock-mine")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
