//! `on_lost` written as a variant of `OnLost`.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_lost = OnLost::Signal)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
