//! An order of any number of items: `keys` from a list, work in tasks that end with the lock, and
//! an `on_lost` function that undoes the work of a cancelled body.
//!
//! `cargo run --bin order` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::time::Duration;

use lock_examples::Failure;
use lock_runtime::{LockError, current, distributed_lock};
use tokio::time::sleep;

const STEP: Duration = Duration::from_millis(100);

/// Locks all items of the order, in whatever order they are named, and picks them at the same time.
#[distributed_lock(
    keys = items.iter().map(|item| format!("example:item:{item}")),
    max_hold = "4s",
    on_lost = put_back
)]
async fn pick(items: Vec<u32>, pace: Duration) -> Result<usize, LockError> {
    let Some(lock) = current() else { return Ok(0) };
    // Each ends before the locks are released, whatever becomes of this call.
    let picked: Vec<_> = items
        .into_iter()
        .map(|item| {
            lock.spawn(async move {
                sleep(pace).await;
                println!("item {item} is picked");
            })
        })
        .collect();
    let mut count = 0;
    for item in picked {
        count += usize::from(item.await.is_ok());
    }
    Ok(count)
}

/// Called after a body that was cancelled because of its lock, and its tasks, have ended.
async fn put_back(lost: LockError) {
    sleep(STEP).await;
    println!("what was picked is put back: {lost}");
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    lock_runtime::init(&url).await?;
    let (one, two) = tokio::join!(pick(vec![7, 3, 5], STEP), pick(vec![5, 7], STEP));
    println!("picked {} and {}", one?, two?);
    // A robot that is stuck.
    if pick(vec![3], STEP * 600).await.is_err() {
        println!("item 3 is not picked");
    }
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
