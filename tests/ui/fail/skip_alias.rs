//! The compiler finds a wrong type that its name does not show to the macro.

use lock_runtime::distributed_lock;

type Count = u32;

#[distributed_lock(key = "a", on_busy = skip)]
async fn count() -> Count {
    1
}

fn main() {}
