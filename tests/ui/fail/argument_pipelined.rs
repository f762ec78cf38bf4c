//! `pipelined`, the name of the request's method, as an argument.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", pipelined)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
