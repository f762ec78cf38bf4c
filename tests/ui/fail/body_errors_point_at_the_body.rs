//! Errors in the body are those of a plain function.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
async fn reduce(name: String) -> Result<u32, LockError> {
    let moved = name;
    let count: u32 = name.len();
    if moved.is_empty() {
        return Ok("none");
    }
    missing(count)
}

fn main() {}
