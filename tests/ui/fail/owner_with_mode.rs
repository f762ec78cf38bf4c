//! An owner is a mode.

#![allow(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", owner = "<workflow_id>", mode = write)]
async fn step(workflow_id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
