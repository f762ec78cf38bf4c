//! Lists of keys whose items are not text, or templates, and what is no list or could only be used up.

#![allow(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = ids)]
async fn numbers(ids: Vec<u64>) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = id)]
async fn text(id: String) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ids)]
async fn used_up(ids: impl IntoIterator<Item = String>) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = vec!["account:<from>", "account:<to>"])]
async fn templates(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

struct Ids;

#[distributed_lock(keys = ids)]
async fn no_iterator(ids: Ids) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
