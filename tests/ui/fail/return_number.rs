//! No room for an error.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn reduce() -> u32 {
    1
}

fn main() {}
