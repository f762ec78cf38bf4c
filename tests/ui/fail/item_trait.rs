//! A trait, and a method without a body.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
trait Shop {
    async fn reduce(&self) -> Result<(), LockError>;
}

trait Stock {
    #[distributed_lock(key = "a")]
    async fn reduce(&self) -> Result<(), LockError>;
}

fn main() {}
