//! Return types that cannot carry a lock error.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a", coalesce)]
async fn nothing() {}

#[distributed_lock(key = "a", coalesce)]
async fn option() -> Option<u32> {
    None
}

#[distributed_lock(key = "a", coalesce)]
async fn number() -> u32 {
    1
}

#[distributed_lock(key = "a", coalesce)]
async fn text() -> Result<u32, String> {
    Ok(1)
}

fn main() {}
