//! An error type that no lock error can become.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn reduce() -> Result<u32, String> {
    Ok(1)
}

fn main() {}
