//! A result that cannot go to another task.

use std::rc::Rc;

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", coalesce)]
async fn reduce() -> Result<Rc<u32>, LockError> {
    Ok(Rc::new(1))
}

fn main() {}
