//! Five independent masters keep the lock of a sale, and one of them dies in the middle: the sale goes on, and nothing is sold twice.
//!
//! In a service a quorum is one line, `lock_runtime::init("redlock://one,two,three").await?`, and all else is as with one server.
//!
//! `cargo run --bin quorum` keeps the masters in the memory of this process, and lets the first one die when a third is sold.
//! `REDLOCK_URL=redlock://one,two,three` names servers: the sale then takes its time, so that you can stop one of them. Servers that no
//! quorum has used before give no vote at first, for as long as the longest lease: the sale waits for that.

mod master;

use std::env;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_examples::{Failure, Timeline};
use lock_runtime::store::LockStore;
use lock_runtime::{ConfigError, LockError, LockManager, distributed_lock};
use tokio::task::JoinSet;

use master::Master;

const MASTERS: usize = 5;
/// Each has a manager of its own, as in a process of its own.
const SHOPS: usize = 3;
const STOCK: usize = 9;
/// Each wants one piece, and there are fewer pieces than customers.
const CUSTOMERS: usize = 12;

static TIMELINE: LazyLock<Timeline> = LazyLock::new(Timeline::default);

/// What is left, and when each piece was sold.
struct Stock {
    left: usize,
    sold: Vec<Instant>,
}

type Shelf = Arc<Mutex<Stock>>;

fn look(shelf: &Shelf) -> MutexGuard<'_, Stock> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct Shop {
    locks: LockManager,
    shelf: Shelf,
    /// How long a payment takes.
    payment: Duration,
    /// Called when a third is sold.
    at_a_third: Arc<dyn Fn() + Send + Sync>,
}

impl Shop {
    /// Sells one piece, if there is one: read, take the payment, write. Only the lock keeps others out between the read and the write.
    #[distributed_lock(key = "example:quorum:stock", lease = 10, wait = 60, manager = self.locks)]
    async fn sell(&self, customer: &str) -> Result<(), LockError> {
        let _inside = TIMELINE.enters(customer);
        let left = look(&self.shelf).left;
        if left == 0 {
            return Ok(());
        }
        tokio::time::sleep(self.payment).await;
        let mut stock = look(&self.shelf);
        stock.left = left - 1;
        stock.sold.push(Instant::now());
        if stock.sold.len() == STOCK / 3 {
            (self.at_a_third)();
        }
        Ok(())
    }
}

/// Sells everything in `shops`.
async fn sale(shops: &[Shop]) -> Result<(), Failure> {
    let mut customers = JoinSet::new();
    for (number, shop) in (1..=CUSTOMERS).zip(shops.iter().cycle()) {
        let shop = shop.clone();
        customers.spawn(async move {
            let customer = format!("customer {number}");
            TIMELINE.asks(&customer);
            let ended = shop.sell(&customer).await;
            TIMELINE.is_answered(&customer);
            ended.map_err(|error| format!("{customer} is told: {error}"))
        });
    }
    while let Some(customer) = customers.join_next().await {
        customer??;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let servers = env::var("REDLOCK_URL").ok();
    let masters: [_; MASTERS] = std::array::from_fn(|_| Master::new());
    let open = || -> Result<LockManager, ConfigError> {
        let store = |master: &Arc<Master>| Arc::clone(master) as Arc<dyn LockStore>;
        let builder = servers.as_deref().map_or_else(
            || LockManager::builder_quorum(masters.iter().map(store)),
            LockManager::builder,
        );
        builder.build()
    };
    let locks = open()?;
    locks.check_connection().await?;
    // All of the time limit is for servers that no quorum has used before.
    let ready = locks.lock("example:quorum:ready").wait(Duration::from_secs(120));
    ready.acquire().await?.release().await?;

    let its_life = servers.is_none().then(|| {
        TIMELINE.asks("master 1 lives");
        TIMELINE.enters("master 1 lives")
    });
    let (first, its_life) = (Arc::clone(&masters[0]), Mutex::new(its_life));
    let shop = Shop {
        locks,
        shelf: Arc::new(Mutex::new(Stock {
            left: STOCK,
            sold: Vec::new(),
        })),
        payment: Duration::from_millis(if servers.is_some() { 500 } else { 40 }),
        at_a_third: Arc::new(move || {
            first.die();
            drop(its_life.lock().unwrap_or_else(PoisonError::into_inner).take());
        }),
    };
    let mut shops = vec![shop.clone()];
    for _ in 1..SHOPS {
        shops.push(Shop {
            locks: open()?,
            ..shop.clone()
        });
    }
    sale(&shops).await?;
    println!("{}", *TIMELINE);

    for shop in &shops {
        shop.locks.shutdown().await;
    }

    let stock = look(&shop.shelf);
    let pauses = stock.sold.windows(2).map(|pair| pair[1] - pair[0]);
    println!(
        "sold: {} of {STOCK}, oversold: {}; the longest time from sale to sale: {:.0?}",
        stock.sold.len(),
        stock.sold.len().saturating_sub(STOCK),
        pauses.max().unwrap_or_default()
    );
    Ok(ExitCode::from(u8::from(stock.sold.len() != STOCK)))
}
