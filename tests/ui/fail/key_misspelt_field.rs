//! rustc names the field, and does not offer to replace the whole template by a similar one.

use lock_runtime::{LockError, distributed_lock};

struct Order {
    item_id: u64,
}

impl Order {
    fn shop(&self) -> u64 {
        self.item_id
    }
}

#[distributed_lock(key = "inventory:<order.itm_id>")]
async fn field(order: Order) -> Result<u64, LockError> {
    Ok(order.item_id)
}

#[distributed_lock(key = "inventory:<order.shp()>")]
async fn method(order: Order) -> Result<u64, LockError> {
    Ok(order.shop())
}

fn main() {}
