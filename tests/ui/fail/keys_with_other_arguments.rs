//! Several keys are locked exclusively, and have no common queue.

#![allow(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = ["a:<from>", "a:<to>"], key = "b", mode = read, fair)]
async fn transfer(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["a:<from>", "a:<to>"], owner = "<from>")]
async fn owned(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
