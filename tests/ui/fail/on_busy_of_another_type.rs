//! The function must return what the locked one returns.

use lock_runtime::{LockError, distributed_lock};

fn answer(_: LockError) -> u64 {
    0
}

#[distributed_lock(key = "a", on_busy = answer)]
async fn count() -> u32 {
    1
}

fn main() {}
