//! A value of `keys` that is not a list of several templates.

#![allow(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = "a")]
async fn one() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["a"])]
async fn list_of_one() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = [])]
async fn none() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = [from, "a:<to>"])]
async fn not_in_quotes(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ("a", "b"))]
async fn tuple() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = ["a:<from>", "a:<to>"])]
async fn list_as_key(from: u64, to: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
