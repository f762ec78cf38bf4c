//! A key that is not in quotes.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = item_id)]
async fn reduce(item_id: u64) -> Result<(), LockError> {
    let _ = item_id;
    Ok(())
}

const ORDER_KEY: &str = "order:<id>";

#[distributed_lock(key = ORDER_KEY)]
async fn by_a_constant(id: u64) -> Result<(), LockError> {
    let _ = (id, ORDER_KEY);
    Ok(())
}

#[distributed_lock(keys = [ORDER_KEY, "total"])]
async fn in_a_list(id: u64) -> Result<(), LockError> {
    let _ = (id, ORDER_KEY);
    Ok(())
}

fn main() {}
