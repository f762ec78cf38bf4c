//! A guard has no copy: a copy would not keep the lock held.

use lock_runtime::{LockError, LockManager};

async fn twice(locks: LockManager) -> Result<(), LockError> {
    let guard = locks.lock("inventory:7").acquire().await?;
    let other = guard.clone();
    guard.release().await?;
    other.release().await
}

fn main() {}
