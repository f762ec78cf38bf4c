//! Permits that are not a `u32`.

#![allow(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", mode = semaphore(permits))]
async fn reduce(permits: &str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", mode = semaphore(5u8))]
async fn suffix() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
