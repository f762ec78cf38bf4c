//! Slots of a cluster move in the middle of a sale, and a master dies: nothing is sold twice.
//!
//! `cargo run --example reshard` starts a cluster of its own (three masters and three replicas; `./tests/install-servers` finds or builds a
//! server). Each product has a lock in a slot of its own. The slots move from node to node all the time, and when a third is sold, the
//! master of one of them is killed.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_examples::Failure;
use lock_runtime::{LockError, LockManager, current};
use lock_tests::{ClusterGroup, Server};
use tokio::task::JoinSet;

const PRODUCTS: usize = 3;
/// Of each product. Each customer wants one, and there are fewer than customers.
const STOCK: usize = 150;
const CUSTOMERS: usize = 200;
const SHOPS: usize = 4;
/// How long a payment takes.
const PAYMENT: Duration = Duration::from_millis(5);

/// What is left of a product, the largest token that its store of record has seen, and to whom and when each piece was sold.
#[derive(Default)]
struct Product {
    left: usize,
    fence: u64,
    sold: Vec<(usize, Instant)>,
}

type Shelf = Arc<[Mutex<Product>; PRODUCTS]>;

fn look(product: &Mutex<Product>) -> MutexGuard<'_, Product> {
    product.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sold(shelf: &Shelf) -> usize {
    shelf.iter().map(|product| look(product).sold.len()).sum()
}

fn key(product: usize) -> String {
    format!("stock:{product}")
}

/// Sells one piece, if there is one. Only the lock keeps others out between the read and the write. May be repeated for the same customer.
async fn sell(product: &Mutex<Product>, customer: usize) -> Result<(), LockError> {
    let Some(lock) = current() else { return Ok(()) };
    let fence = lock.fencing_token().await?.get();
    let left = {
        let product = look(product);
        if product.left == 0 || product.sold.iter().any(|(buyer, _)| *buyer == customer) {
            return Ok(());
        }
        product.left
    };
    tokio::time::sleep(PAYMENT).await;
    let mut product = look(product);
    // A former holder that the next master does not know has a smaller token.
    if fence > product.fence {
        product.fence = fence;
        product.left = left - 1;
        product.sold.push((customer, Instant::now()));
    }
    Ok(())
}

/// A customer asks again if the sale has not begun (`is_retryable`). If the lock was lost on the way, it may have been carried out: asking
/// again is right only because `sell` looks first.
async fn buy(shop: LockManager, shelf: Shelf, customer: usize) -> Result<(), LockError> {
    let which = customer % PRODUCTS;
    loop {
        let request = shop.lock(key(which)).fencing().wait(Duration::from_secs(60));
        let Some(product) = shelf.get(which) else { return Ok(()) };
        match request.run(sell(product, customer)).await {
            Ok(outcome) => return outcome,
            Err(error) if error.is_retryable() || error.is_lost() => println!("asks again: {error}"),
            Err(error) => return Err(error),
        }
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    if !Server::is_installed() {
        return Err("there is no Redis or Valkey for the cluster: run ./tests/install-servers first".into());
    }
    let cluster = ClusterGroup::start().await;
    let all = PRODUCTS * STOCK;
    println!(
        "{PRODUCTS} products, {all} pieces, {SHOPS} shops, locks at {}",
        cluster.url()
    );
    let product = || Product {
        left: STOCK,
        ..Product::default()
    };
    let shelf: Shelf = Arc::new(std::array::from_fn(|_| Mutex::new(product())));
    let mut customers = JoinSet::new();
    let in_a_shop = PRODUCTS * CUSTOMERS / SHOPS;
    for first in (0..in_a_shop * SHOPS).step_by(in_a_shop) {
        let shop = LockManager::connect(&cluster.url()).await?;
        for customer in first..first + in_a_shop {
            customers.spawn(buy(shop.clone(), Arc::clone(&shelf), customer));
        }
    }
    let slots: Vec<u16> = (0..PRODUCTS)
        .map(|product| cluster.masters()[0].ask(&["CLUSTER", "KEYSLOT", &format!("dist_lock:{}", key(product))]))
        .collect();
    let ports = cluster.ports();
    let mut moves = 0;
    while sold(&shelf) < all / 3 {
        let slot = slots[moves % PRODUCTS];
        let owner = cluster.owner(slot).await;
        let others = ports[..PRODUCTS].iter().filter(|port| **port != owner);
        cluster
            .move_slot(slot, others.copied().nth(moves % 2).unwrap_or(owner))
            .await;
        moves += 1;
    }
    let killed = cluster.owner(slots[0]).await;
    cluster.server(killed).kill();
    println!(
        "{} are sold, slots have moved {moves} times, and the master at port {killed} is killed",
        sold(&shelf)
    );
    while let Some(customer) = customers.join_next().await {
        customer??;
    }
    println!("its slots are now at port {}", cluster.owner(slots[0]).await);

    for (number, product) in shelf.iter().enumerate() {
        let product = look(product);
        let pauses = product.sold.windows(2).map(|pair| pair[1].1 - pair[0].1);
        println!(
            "{}: sold {} of {STOCK}, oversold {}, the longest pause {:.1?}",
            key(number),
            product.sold.len(),
            product.sold.len().saturating_sub(STOCK),
            pauses.max().unwrap_or_default()
        );
    }
    Ok(ExitCode::from(u8::from(sold(&shelf) != all)))
}
