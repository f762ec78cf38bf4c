//! Slots of a cluster move in the middle of a sale, and a master dies: nothing is sold twice.
//!
//! `cargo run --example cluster` starts a cluster of its own (three masters and three replicas; `./tests/install-servers` finds or builds a
//! server). Each product has a lock in a slot of its own. The slots move from node to node all the time, and when a third is sold, the
//! master of one of them is killed. Each line begins with the time since the sale began.

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
/// How often the timeline tells what callers saw.
const TICK: Duration = Duration::from_millis(500);

/// What is left of a product, the largest token that its store of record has seen, and to whom and when each piece was sold.
#[derive(Default)]
struct Product {
    left: usize,
    fence: u64,
    sold: Vec<(usize, Instant)>,
}

type Shelf = Arc<[Mutex<Product>; PRODUCTS]>;

/// What callers saw, and what was done to the cluster.
#[derive(Clone)]
struct Timeline {
    began: Instant,
    /// The longest time that a call has waited for its lock since the last line, and the number of calls that had to ask again.
    seen: Arc<Mutex<(Duration, usize)>>,
}

impl Timeline {
    fn begin() -> Self {
        let (began, seen) = (Instant::now(), Arc::default());
        Self { began, seen }
    }

    fn say(&self, what: &str) {
        println!("{:6.2} s  {what}", self.began.elapsed().as_secs_f64());
    }

    fn see(&self, waited: Duration, asks_again: usize) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = (seen.0.max(waited), seen.1 + asks_again);
    }

    /// Tells every so often what callers saw.
    async fn tick(self, products: Shelf) {
        let mut before = 0;
        loop {
            tokio::time::sleep(TICK).await;
            let (longest, again) = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
            let sold: Vec<usize> = products.iter().map(|product| look(product).sold.len()).collect();
            let all = sold.iter().sum::<usize>();
            let asked_again = if again == 0 {
                String::new()
            } else {
                format!(", {again} asked again")
            };
            self.say(&format!(
                "{:>3} sold {sold:?}; longest wait of those who got in {longest:.0?}{asked_again}",
                all - before
            ));
            before = all;
        }
    }
}

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
async fn buy(shop: LockManager, shelf: Shelf, customer: usize, timeline: Timeline) -> Result<(), LockError> {
    let which = customer % PRODUCTS;
    loop {
        let request = shop.lock(key(which)).fencing(true).wait(Duration::from_secs(60));
        let Some(product) = shelf.get(which) else { return Ok(()) };
        let asked = Instant::now();
        let body = async {
            timeline.see(asked.elapsed(), 0);
            sell(product, customer).await
        };
        match request.run(body).await {
            Ok(outcome) => return outcome,
            Err(error) if error.is_retryable() || error.is_lost() => {
                timeline.see(Duration::ZERO, 1);
                timeline.say(&format!("a call asks again: {error}"));
            }
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
    let timeline = Timeline::begin();
    let ticks = tokio::spawn(timeline.clone().tick(Arc::clone(&shelf)));
    let mut customers = JoinSet::new();
    let in_a_shop = PRODUCTS * CUSTOMERS / SHOPS;
    for first in (0..in_a_shop * SHOPS).step_by(in_a_shop) {
        let shop = LockManager::connect(&cluster.url()).await?;
        for customer in first..first + in_a_shop {
            customers.spawn(buy(shop.clone(), Arc::clone(&shelf), customer, timeline.clone()));
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
        let to = others.copied().nth(moves % 2).unwrap_or(owner);
        cluster.move_slot(slot, to).await;
        timeline.say(&format!(
            "the slot of {} has moved from port {owner} to {to}",
            key(moves % PRODUCTS)
        ));
        moves += 1;
    }
    let killed = cluster.owner(slots[0]).await;
    cluster.server(killed).kill();
    timeline.say(&format!(
        "the master at port {killed} is killed, which has the slot of {}",
        key(0)
    ));
    while let Some(customer) = customers.join_next().await {
        customer??;
    }
    ticks.abort();
    timeline.say(&format!(
        "all is sold; the slot of {} is at port {}",
        key(0),
        cluster.owner(slots[0]).await
    ));

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
