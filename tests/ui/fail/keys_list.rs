//! Lists of keys whose items are not text, or templates.

#![allow(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = ids)]
async fn numbers(ids: Vec<u64>) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = vec!["account:<from>", "account:<to>"])]
async fn templates(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
