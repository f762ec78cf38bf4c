//! Everything that is wrong is reported in one build.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "inventory:<item>-<shop>:<", leese = 15, wait = 1.5, wait = 3, renew = maybe, on_busy = "skip")]
async fn reduce() -> u32 {
    1
}

fn main() {}
