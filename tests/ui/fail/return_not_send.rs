//! The result is kept while the lock is released.

use std::rc::Rc;

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
async fn count() -> Result<Rc<u64>, LockError> {
    Ok(Rc::new(1))
}

fn spawn(_: impl Future + Send) {}

fn main() {
    spawn(count());
}
