//! Nothing to return when the body is skipped.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a", on_busy = skip)]
async fn reduce() -> u32 {
    1
}

fn main() {}
