//! An `impl` block.

use lock_runtime::{LockError, distributed_lock};

struct Service;

#[distributed_lock(key = "a")]
impl Service {
    async fn reduce(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
