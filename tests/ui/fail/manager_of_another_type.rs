//! The error points at the value.

use lock_runtime::{LockError, LockManager, distributed_lock};

#[distributed_lock(
    key = "orders:<id>",
    lease = 15,
    manager = locks,
)]
async fn path(id: u64, locks: &Option<LockManager>) -> Result<u64, LockError> {
    Ok(id)
}

struct Shop {
    name: String,
}

impl Shop {
    #[distributed_lock(key = "shop", manager = self.name)]
    async fn field(&self) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(key = "shop", manager = self.name.as_str())]
    async fn call(&self) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(key = "shop", manager = &self.name)]
    async fn reference(&self) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(keys = ["shop", "stock"], manager = { &self.name })]
    async fn block(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
