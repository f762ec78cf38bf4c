//! The store of record has the last word: a holder that was paused and has lost its lock without knowing cannot write.
//!
//! No lock service can prevent the pause between a look at the clock and the write after it. A fencing token makes it harmless: it grows with
//! every hold, and the store of record refuses a smaller one than it has seen. (Across a failover it grows if the servers' clocks agree: see
//! docs/operations.md.)
//!
//! `cargo run --bin fenced` runs on the embedded store; `REDIS_URL` names a real one.

use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_examples::Failure;
use lock_runtime::{LockError, distributed_lock};
use tokio::sync::oneshot;

/// A table with a version column, if you like: `UPDATE … SET price = $1, fence = $2 WHERE id = $3 AND fence <= $2`.
#[derive(Default)]
struct PriceList {
    row: Mutex<(u32, i64)>,
}

impl PriceList {
    /// Writes unless somebody with a greater token has written before.
    fn write(&self, price: u32, fence: i64) -> Result<(), i64> {
        let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
        if fence < row.1 {
            return Err(row.1);
        }
        *row = (price, fence);
        Ok(())
    }
}

/// `fencing` takes the token together with the lock.
#[distributed_lock(key = "prices", lease = "5s", renew = false, fencing)]
async fn set_price(prices: &PriceList, who: &str, price: u32, pause: impl FnOnce() + Send) -> Result<(), LockError> {
    let fence = match lock_runtime::current() {
        Some(lock) => lock.fencing_token().await?,
        None => return Ok(()),
    };
    println!("{who} has the lock, token {fence}");
    // A garbage collection, a page fault, a stopped virtual machine. This is no await: nobody can cancel the body here.
    tokio::task::block_in_place(pause);
    match prices.write(price, fence.as_i64()) {
        Ok(()) => println!("{who} has set the price to {price}"),
        Err(seen) => println!("{who} is refused: its token {fence} is older than {seen}"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    lock_runtime::init(&env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned())).await?;
    let prices = Arc::new(PriceList::default());
    let (pauses, it_pauses) = oneshot::channel();
    let sleeper = tokio::spawn({
        let prices = Arc::clone(&prices);
        let pause = move || {
            let _ = pauses.send(());
            std::thread::sleep(Duration::from_secs(12));
        };
        async move { set_price(&prices, "the paused one", 10, pause).await }
    });
    it_pauses.await?;
    set_price(&prices, "the next one", 20, || {}).await?;
    if let Err(error) = sleeper.await? {
        println!("the paused one is told: {error}");
    }
    println!(
        "the price is {}",
        prices.row.lock().unwrap_or_else(PoisonError::into_inner).0
    );
    Ok(())
}
