//! A `max_renewals` that is not a number.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", max_renewals = "3")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
