//! Names of Spring and Redisson, all in one build.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(resourceKey = "a", leaseTime = 15, waitTime = 5, timeUnit = SECONDS)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
