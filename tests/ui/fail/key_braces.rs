//! Braces are text: those around a parameter's name would make one key for all calls.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:{item_id}")]
async fn formatted(item_id: u64) -> Result<u64, LockError> {
    Ok(item_id)
}

#[distributed_lock(key = "inventory:#{item_id}")]
async fn spring(item_id: u64) -> Result<u64, LockError> {
    Ok(item_id)
}

#[distributed_lock(keys = ["a:{item_id:?}", "b:<item_id>"], mode = exclusive)]
async fn debugged(item_id: u64) -> Result<u64, LockError> {
    Ok(item_id)
}

#[distributed_lock(key = "{shop}:{item_id}:<shop>")]
async fn beside_another(shop: u64, item_id: u64) -> Result<u64, LockError> {
    Ok(shop + item_id)
}

#[distributed_lock(key = "{orders}:batch")]
async fn of_a_list(orders: Vec<u64>) -> Result<usize, LockError> {
    Ok(orders.len())
}

fn main() {}
