//! No `Display`, and what to insert instead.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "inventory:<item_id>")]
async fn option(item_id: Option<u64>) -> Result<Option<u64>, LockError> {
    Ok(item_id)
}

#[distributed_lock(key = "inventory:<name>")]
async fn text(name: &Option<String>) -> Result<usize, LockError> {
    Ok(name.iter().count())
}

#[distributed_lock(key = "inventory:<ids>")]
async fn list(ids: Vec<u64>) -> Result<Vec<u64>, LockError> {
    Ok(ids)
}

#[distributed_lock(key = "inventory:<nothing>")]
async fn unit(nothing: ()) -> Result<(), LockError> {
    Ok(nothing)
}

#[distributed_lock(key = "inventory:<pair>", owner = "<ids>")]
async fn tuple_and_slice(pair: (u64, u64), ids: &[u64]) -> Result<u64, LockError> {
    Ok(pair.0 + ids[0])
}

fn main() {}
