//! rustc names the variables of the body, and says what to write, as in a plain function.

use lock_runtime::{LockError, distributed_lock};

struct Cart {
    items: Vec<u64>,
}

impl Cart {
    #[distributed_lock(key = "cart:<id>")]
    async fn add(&self, id: u64, item: u64) -> Result<(), LockError> {
        self.items.push(item);
        Ok(())
    }
}

#[distributed_lock(key = "order:<id>")]
async fn without_move(id: u64, items: Vec<u64>) -> Result<usize, LockError> {
    let task = tokio::spawn(async { items.len() });
    Ok(task.await.unwrap_or(0))
}

#[distributed_lock(key = "order:<id>")]
async fn moved_twice(id: u64, name: String) -> Result<usize, LockError> {
    let moved = name;
    Ok(moved.len() + name.len())
}

#[distributed_lock(key = "order:<id>")]
async fn without_mut(id: u64, items: Vec<u64>) -> Result<(), LockError> {
    items.push(1);
    Ok(())
}

fn main() {}
