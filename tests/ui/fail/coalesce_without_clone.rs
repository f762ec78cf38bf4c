//! A result that is not `Clone`.

use lock_runtime::{LockError, distributed_lock};

struct ShopError;

impl From<LockError> for ShopError {
    fn from(_: LockError) -> Self {
        Self
    }
}

#[distributed_lock(key = "a", coalesce)]
async fn reduce() -> Result<u32, ShopError> {
    Ok(1)
}

fn main() {}
