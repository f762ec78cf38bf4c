//! No room for an error.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn reduce() -> String {
    String::new()
}

fn main() {}
