//! A function that makes a future by hand.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
fn reduce() -> impl Future<Output = Result<(), LockError>> {
    async { Ok(()) }
}

fn main() {}
