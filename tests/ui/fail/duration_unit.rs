//! Text without a unit, and with an unknown one.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", lease = "15", wait = "2 weeks", at_least = "3min")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
