//! No room for an error.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn reduce() -> Vec<u8> {
    Vec::new()
}

fn main() {}
