//! The error points at the body, and not at the attribute.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn label(id: u64, prefix: &str) -> Result<&str, LockError> {
    let text = format!("{prefix}{id}");
    Ok(text.as_str())
}

fn main() {}
