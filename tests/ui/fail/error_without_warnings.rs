//! A mistake in the attribute is the only error: a parameter that the key uses is not called unused.

#![deny(warnings)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id>", laese = 15)]
async fn reduce_stock(item_id: u64, quantity: u32) -> Result<u32, LockError> {
    Ok(quantity)
}

fn main() {
    drop(reduce_stock(1, 2));
}
