//! A template inserts values itself, and is read before any macro in it.

#![allow(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

struct Order {
    id: u64,
}

#[distributed_lock(key = format!("inventory:{item_id}:{}", order.id))]
async fn formatted(item_id: u64, order: Order) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = format!("inventory:{}", item_id + 1))]
async fn computed(item_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = concat!("inventory:", "<item_id>"))]
async fn concatenated(item_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = env!("HOME"))]
async fn of_the_build() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = &item_id)]
async fn borrowed(item_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = [format!("inventory:{item_id}"), "total"])]
async fn in_a_list(item_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", owner = format!("{workflow_id}"))]
async fn owned(workflow_id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
