//! A raw identifier is raw in the template, too.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<type>")]
async fn reduce(r#type: u64) -> Result<u64, LockError> {
    Ok(r#type)
}

fn main() {}
