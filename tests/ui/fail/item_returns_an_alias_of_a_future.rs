//! An alias tells the macro nothing.

use std::pin::Pin;

use lock_runtime::{LockError, distributed_lock};

type BoxFut<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[distributed_lock(key = "a")]
fn reduce(item_id: u64) -> BoxFut<Result<u64, LockError>> {
    Box::pin(async move { Ok(item_id) })
}

fn main() {}
