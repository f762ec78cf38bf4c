//! Not a bool.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", fair = 3)]
async fn number() -> Result<(), LockError> {
    Ok(())
}

const IS_FAIR: bool = false;

#[distributed_lock(key = "a", fair = IS_FAIR)]
async fn expression() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", fair = "false", reentrant = "True")]
async fn text() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
