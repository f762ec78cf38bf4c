//! The master dies in the middle of a sale: the locks follow the next one, and nothing is sold twice.
//!
//! `cargo run --example failover` starts a group of its own (a master, two replicas and three sentinels; `./tests/install-servers` finds or
//! builds a server), and kills the master when a third is sold.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_examples::Failure;
use lock_runtime::{LockError, LockManager, current};
use lock_tests::{SentinelGroup, Server};
use tokio::task::JoinSet;

const STOCK: usize = 300;
/// Each wants one piece, and there are fewer pieces than customers.
const CUSTOMERS: usize = 400;
const SHOPS: usize = 4;
/// How long a payment takes.
const PAYMENT: Duration = Duration::from_millis(5);

/// The store of record: what is left, the largest token that it has seen, and to whom and when each piece was sold.
struct Stock {
    left: usize,
    fence: u64,
    sold: Vec<(usize, Instant)>,
    refused: usize,
}

/// Sells one piece, if there is one: read, take the payment, write. Only the lock keeps others out between the read and the write.
///
/// May be repeated for the same customer: the store of record says if the piece is sold, and the customer's number tells the payment
/// service which payment this is.
async fn sell(stock: &Mutex<Stock>, customer: usize) -> Result<(), LockError> {
    let Some(lock) = current() else { return Ok(()) };
    let fence = lock.fencing_token().await?.get();
    let left = {
        let stock = look(stock);
        if stock.left == 0 || stock.sold.iter().any(|(buyer, _)| *buyer == customer) {
            return Ok(());
        }
        stock.left
    };
    tokio::time::sleep(PAYMENT).await;
    let mut stock = look(stock);
    if fence < stock.fence {
        // A former holder that the new master does not know, and that has not been cancelled yet.
        stock.refused += 1;
        return Ok(());
    }
    stock.fence = fence;
    stock.left = left - 1;
    stock.sold.push((customer, Instant::now()));
    Ok(())
}

fn look(stock: &Mutex<Stock>) -> MutexGuard<'_, Stock> {
    stock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A customer asks again if the sale has not begun (`is_retryable`). If the lock was lost on the way, it may have been carried out: asking
/// again is right only because `sell` looks first.
async fn buy(shop: LockManager, stock: Arc<Mutex<Stock>>, customer: usize) -> Result<(), LockError> {
    loop {
        let request = shop.lock("stock:7").fencing(true).wait(Duration::from_secs(60));
        match request.run(sell(&stock, customer)).await {
            Ok(outcome) => return outcome,
            Err(error) if error.is_retryable() || error.is_lost() => println!("asks again: {error}"),
            Err(error) => return Err(error),
        }
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    if !Server::is_installed() {
        return Err("there is no Redis or Valkey for the group: run ./tests/install-servers first".into());
    }
    let group = SentinelGroup::start().await;
    println!(
        "{CUSTOMERS} customers in {SHOPS} shops, {STOCK} pieces, locks at {}",
        group.url()
    );
    let stock = Arc::new(Mutex::new(Stock {
        left: STOCK,
        fence: 0,
        sold: Vec::new(),
        refused: 0,
    }));
    let mut customers = JoinSet::new();
    for first in (0..CUSTOMERS).step_by(CUSTOMERS / SHOPS) {
        let shop = LockManager::connect(&group.url()).await?;
        for customer in first..first + CUSTOMERS / SHOPS {
            customers.spawn(buy(shop.clone(), Arc::clone(&stock), customer));
        }
    }
    while look(&stock).sold.len() < STOCK / 3 {
        tokio::time::sleep(PAYMENT).await;
    }
    let killed = group.kill_master().await;
    println!(
        "{} are sold, and the master at port {killed} is killed",
        look(&stock).sold.len()
    );
    while let Some(customer) = customers.join_next().await {
        customer??;
    }
    println!("the master is now the server at port {}", group.master().await);

    let stock = look(&stock);
    let pauses = stock.sold.windows(2).map(|pair| pair[1].1 - pair[0].1);
    println!(
        "sold: {} of {STOCK}, oversold: {}",
        stock.sold.len(),
        stock.sold.len().saturating_sub(STOCK)
    );
    println!("refused because of an old token: {}", stock.refused);
    println!(
        "the longest pause between two sales: {:.1?}",
        pauses.max().unwrap_or_default()
    );
    Ok(ExitCode::from(u8::from(stock.sold.len() != STOCK)))
}
