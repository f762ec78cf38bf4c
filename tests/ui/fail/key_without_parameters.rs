//! A name in the key of a function without parameters, and of a method.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id>")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

struct Shop {
    name: String,
}

impl Shop {
    #[distributed_lock(key = "shop:<name>")]
    async fn open(&self) -> Result<usize, LockError> {
        Ok(self.name.len())
    }

    #[distributed_lock(key = "shop:<name>")]
    async fn sell(&self, item_id: u64) -> Result<u64, LockError> {
        Ok(item_id)
    }
}

fn main() {}
