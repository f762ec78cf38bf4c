//! No room for an error.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn reset(item_id: u64) {
    drop(item_id);
}

fn main() {}
