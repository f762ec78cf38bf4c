//! The code that messages advise compiles.

use lock_runtime::{LockError, LockManager, distributed_lock};

#[distributed_lock(
    key = "inventory:<item_id.is_some()>:<item_id.unwrap_or_default()>:<name.is_some()>:<name.as_deref().unwrap_or_default()>"
)]
async fn none(item_id: Option<u64>, name: Option<String>) -> Result<String, LockError> {
    Ok(format!("{item_id:?} {name:?}"))
}

#[distributed_lock(key = "inventory:<ids[0]>:<pair.0>:<pair.1>")]
async fn part(ids: Vec<u64>, pair: (u64, u64)) -> Result<u64, LockError> {
    Ok(ids[0] + pair.0)
}

#[distributed_lock(keys = ids.iter().map(|item| format!("inventory:{item}")))]
async fn each(ids: Vec<u64>) -> Result<usize, LockError> {
    Ok(ids.len())
}

#[distributed_lock(key = "inventory:<r#type>")]
async fn keyword(r#type: u64) -> Result<u64, LockError> {
    Ok(r#type)
}

const PLACE: &str = env!("CARGO_PKG_NAME");

#[distributed_lock(key = "inventory:<PLACE>")]
async fn of_the_build() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "{order}:id:<id>:id")]
async fn separated(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = "{order}:lock:<order>")]
async fn braces(order: u64) -> Result<u64, LockError> {
    Ok(order)
}

const TAG: &str = "{orders}";

#[distributed_lock(key = "<TAG:raw>:batch")]
async fn constant_tag(orders: Vec<u64>) -> Result<usize, LockError> {
    Ok(orders.len())
}

#[distributed_lock(key = "shop#order#<order>")]
async fn hashes(order: u64) -> Result<u64, LockError> {
    Ok(order)
}

#[distributed_lock(key = "shop::order::<order>")]
async fn paths(order: u64) -> Result<u64, LockError> {
    Ok(order)
}

#[distributed_lock(manager = locks)]
async fn of_a_manager(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "global_lock", lease = "4h10m", wait = "2500ms")]
async fn one_for_all(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

fn main() {
    drop(none(None, None));
    drop(part(vec![], (1, 2)));
    drop(each(vec![]));
    drop(keyword(1));
    drop(of_the_build());
    drop(separated(1));
    drop(one_for_all(1));
    drop(braces(1));
    drop(constant_tag(vec![]));
    drop(hashes(1));
    drop(paths(1));
    drop(
        LockManager::builder("memory://")
            .build()
            .map(|locks| drop(of_a_manager(&locks))),
    );
}
