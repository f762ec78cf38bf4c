//! A value in quotes.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", release = "pipelined")]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
