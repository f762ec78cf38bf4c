//! `on_lost` functions of the wrong type.

use lock_runtime::{LockError, distributed_lock};

fn sync(_: LockError) {}

async fn of_a_number(_: u64) {}

#[distributed_lock(key = "a", on_lost = sync)]
async fn undone_by_a_sync_function() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", on_lost = of_a_number)]
async fn undone_by_another_type() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
