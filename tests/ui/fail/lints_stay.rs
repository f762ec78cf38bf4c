//! Unused parameters and `mut` are reported where the user wrote them, once.

#![deny(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a:<only_in_key>:<from_pattern>")]
async fn reduce(
    only_in_key: u64,
    (from_pattern, unused_in_pattern): (u32, u32),
    unused: u64,
    _allowed: u64,
    mut never_changed: u64,
) -> Result<u64, LockError> {
    let unused_local = never_changed;
    Ok(never_changed)
}

fn main() {
    drop(reduce(1, (2, 3), 4, 5, 6));
}
