//! The only error is the attribute's: the function and its callers keep their types.

use lock_runtime::{LockError, distributed_lock};

struct Service;

impl Service {
    #[distributed_lock(key = "inventory:<itm_id>", ttl = 15)]
    async fn reduce(&self, item_id: u64) -> Result<u64, LockError> {
        Ok(item_id)
    }

    #[distributed_lock]
    async fn reset(&self) {}
}

async fn caller(service: &Service) -> Result<u64, LockError> {
    service.reset().await;
    let left: u64 = service.reduce(7).await?;
    Ok(left + 1)
}

fn main() {
    drop(caller(&Service));
}
