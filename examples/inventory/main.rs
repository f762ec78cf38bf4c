//! Many buyers, few items: without a lock a shop sells what it does not have, with one attribute it is exact.
//!
//! `cargo run --bin inventory` plays it in this process, on the embedded store. With `REDIS_URL` set it starts four processes of
//! itself against that server, which keeps both the stock and the locks. The URL may be that of sentinels without a password:
//! `REDIS_URL=redis+sentinel://s1,s2,s3:26379/mymaster`. The example `failover` has the master die. It may also be that of a cluster:
//! `REDIS_URL=redis+cluster://n1,n2,n3`. The example `cluster` has its slots move.

mod report;
mod shelf;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_examples::Failure;
use lock_runtime::{LockError, distributed_lock};
use tokio::task::JoinSet;

use report::{Round, Visit};
use shelf::Shelf;

const ITEMS: u64 = 3;
const STOCK: i64 = 100;
/// Buyers in all; each wants one piece of one item, and there are fewer pieces than buyers.
const BUYERS: usize = 480;
/// Processes on a real server.
const PROCESSES: usize = 4;
/// Set for a process that another one has started: which round it plays.
const ROUND: &str = "INVENTORY_ROUND";

/// What can go wrong when somebody buys. `From<LockError>` is all that the attribute asks for.
#[derive(Debug)]
enum ShopError {
    Lock(LockError),
    Shelf(redis::RedisError),
}

impl From<LockError> for ShopError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<redis::RedisError> for ShopError {
    fn from(error: redis::RedisError) -> Self {
        Self::Shelf(error)
    }
}

/// Sells one piece, if there is one: read, take the payment, write. Between the read and the write anybody may come.
async fn buy(shelf: &Shelf, item_id: u64) -> Result<bool, ShopError> {
    let left = shelf.read(item_id).await?;
    if left <= 0 {
        return Ok(false);
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    shelf.write(item_id, left - 1).await?;
    Ok(true)
}

/// The same under the lock.
#[distributed_lock(key = "inventory:<item_id>", lease = 15, wait = 30)]
async fn buy_locked(shelf: &Shelf, item_id: u64, came: Instant) -> Result<Visit, ShopError> {
    let waited = came.elapsed();
    let sold = buy(shelf, item_id).await?;
    let inside = came.elapsed().saturating_sub(waited);
    Ok(Visit { sold, waited, inside })
}

/// Some buyers, all at once.
async fn play(shelf: Shelf, buyers: usize, locked: bool) -> Round {
    let shelf = Arc::new(shelf);
    let mut at_the_door = JoinSet::new();
    for buyer in 0..buyers {
        let shelf = Arc::clone(&shelf);
        let item_id = buyer as u64 % ITEMS;
        at_the_door.spawn(async move {
            if locked {
                buy_locked(&shelf, item_id, Instant::now()).await
            } else {
                buy(&shelf, item_id).await.map(Visit::without_waiting)
            }
        });
    }
    let mut round = Round::default();
    while let Some(left) = at_the_door.join_next().await {
        match left {
            Ok(Ok(visit)) => round.served(&visit),
            Ok(Err(ShopError::Lock(error))) => round.refused(&error),
            Ok(Err(ShopError::Shelf(error))) => round.failed(&error),
            Err(error) => round.failed(&error),
        }
    }
    round
}

/// A round in this process, on the embedded store.
async fn embedded(locked: bool) -> Round {
    play(Shelf::in_memory(ITEMS, STOCK), BUYERS, locked).await
}

/// A round in several processes, on a real server.
async fn on_server(url: &str, locked: bool) -> Result<Round, Failure> {
    Shelf::on_server(url).await?.fill(ITEMS, STOCK).await?;
    let mut children = JoinSet::new();
    for _ in 0..PROCESSES {
        let mut child = tokio::process::Command::new(env::current_exe()?);
        child.env(ROUND, if locked { "locked" } else { "unlocked" });
        child.kill_on_drop(true);
        children.spawn(async move { child.output().await });
    }
    let mut round = Round::default();
    while let Some(child) = children.join_next().await {
        let output = child??;
        round.merge(&Round::parse(&String::from_utf8_lossy(&output.stdout))?);
    }
    Ok(round)
}

/// One of the processes that [`on_server`] starts.
async fn child(url: &str, locked: bool) -> Result<(), Failure> {
    let round = play(Shelf::on_server(url).await?, BUYERS / PROCESSES, locked).await;
    lock_runtime::global()?.shutdown().await;
    println!("{round}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let url = env::var("REDIS_URL").ok();
    lock_runtime::init(url.as_deref().unwrap_or("memory://")).await?;
    if let (Ok(round), Some(url)) = (env::var(ROUND), &url) {
        child(url, round == "locked").await?;
        return Ok(ExitCode::SUCCESS);
    }

    let rounds = if let Some(url) = &url {
        println!("{BUYERS} buyers in {PROCESSES} processes, {ITEMS} items of {STOCK} pieces, on a server.\n");
        [on_server(url, false).await?, on_server(url, true).await?]
    } else {
        println!("{BUYERS} buyers, {ITEMS} items of {STOCK} pieces, on the embedded store.\n");
        [embedded(false).await, embedded(true).await]
    };
    let pieces = i64::try_from(ITEMS)? * STOCK;
    report::show(&rounds, pieces);
    let [_, locked] = &rounds;
    if locked.is_exact(pieces) {
        println!(
            "{}",
            locked.waits_are_of(u32::try_from(BUYERS)? / u32::try_from(ITEMS)?)
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "with the lock {} were sold of {pieces}; {}",
        locked.sold(),
        locked.failures()
    );
    Ok(ExitCode::FAILURE)
}
