//! Zero renewals, for which the argument is `renew = false`.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", max_renewals = 0)]
async fn reduce() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
