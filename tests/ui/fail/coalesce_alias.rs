//! What the words of the type do not tell, the compiler finds.

use lock_runtime::distributed_lock;

type Count = u32;

#[distributed_lock(key = "a", on_busy = coalesce)]
async fn count() -> Count {
    1
}

fn main() {}
