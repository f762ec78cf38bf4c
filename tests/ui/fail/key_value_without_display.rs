//! A value is inserted by its `Display`; the compiler points at the template.

use lock_runtime::{LockError, distributed_lock};

struct Item;

#[distributed_lock(key = "inventory:<item>")]
async fn reduce(item: &Item) -> Result<(), LockError> {
    let Item = item;
    Ok(())
}

#[distributed_lock(key = "inventory:<item>")]
async fn generic<T>(item: T) -> Result<T, LockError> {
    Ok(item)
}

fn main() {}
