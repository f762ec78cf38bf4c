//! The error points at the body.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
async fn local() -> Result<&'static str, LockError> {
    let text = String::new();
    Ok(&text)
}

#[distributed_lock(key = "a")]
async fn argument(text: String) -> Result<&'static str, LockError> {
    Ok(&text)
}

fn main() {}
