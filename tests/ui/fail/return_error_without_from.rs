//! The application's error must be made from a lock error.

use lock_runtime::distributed_lock;

struct ShopError;

#[distributed_lock(key = "a")]
async fn reduce() -> Result<(), ShopError> {
    Ok(())
}

fn main() {}
