//! An `unsafe` function is locked like any other.

#![deny(warnings)]

use lock_runtime::{LockError, current, distributed_lock};

/// # Safety
/// None is needed.
#[distributed_lock(key = "unsafe:<id>")]
async unsafe fn trusted(id: u32) -> Result<String, LockError> {
    Ok(current().map_or_else(String::new, |held| format!("{} {id}", held.key())))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    lock_runtime::init("memory://").await?;
    // SAFETY: there is nothing to keep.
    let key = unsafe { trusted(7) }.await?;
    assert_eq!(key, "unsafe:7 7");
    Ok(())
}
