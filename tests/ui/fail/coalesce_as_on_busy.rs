//! `coalesce` is an argument of its own, and not a value of `on_busy`.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_busy = coalesce)]
async fn word() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "b", on_busy = "coalesce")]
async fn quoted() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
