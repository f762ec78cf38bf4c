//! A struct, a module, a constant.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock]
struct Service;

#[distributed_lock]
mod service {}

#[distributed_lock]
const LIMIT: u32 = 3;

fn _uses(_: Service) -> (u32, Result<(), LockError>) {
    (LIMIT, Ok(()))
}

fn main() {}
