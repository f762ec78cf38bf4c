//! Signs by which other languages insert a value are text.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:#id")]
async fn spring(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = "order:$order.id:items")]
async fn shell(order: Order) -> Result<u64, LockError> {
    Ok(order.id)
}

#[distributed_lock(key = "order:%id")]
async fn template(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = "/orders/:id")]
async fn route(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>", owner = "#workflow")]
async fn owned(id: u64, workflow: u64) -> Result<u64, LockError> {
    Ok(id + workflow)
}

struct Order {
    id: u64,
}

fn main() {}
