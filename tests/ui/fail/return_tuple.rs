//! No room for an error.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn reduce() -> (u32, Option<u8>) {
    (1, None)
}

fn main() {}
