//! An axum service whose handlers are protected by the attribute. Handlers keep their exact signature.
//!
//! `cargo run --bin web` serves on the embedded store; `REDIS_URL` names a real one, and then any number of processes exclude each
//! other. `BIND` names the address, `127.0.0.1:3000` unless set.
//!
//! ```text
//! curl -X POST localhost:3000/items/7/reserve -H 'content-type: application/json' -d '{"quantity": 1}'
//! curl -X POST localhost:3000/orders/42/pay
//! ```
//!
//! A second request for the same item while the first is being worked on gets `423 Locked` with `Retry-After`.

use std::collections::HashMap;
use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Json, Router};
use lock_examples::Failure;
use lock_runtime::{LockError, distributed_lock};
use serde::{Deserialize, Serialize};

#[derive(Clone, Default)]
struct Shop {
    reserved: Arc<Mutex<HashMap<u64, u32>>>,
    /// How long a payment takes.
    work: Duration,
}

#[derive(Deserialize)]
struct Reservation {
    quantity: u32,
}

#[derive(Serialize)]
struct Reserved {
    item: u64,
    total: u32,
}

/// Two requests for one item never work on it at the same time; the second waits for up to 200 ms.
#[distributed_lock(key = "item:<item>", lease = 10, wait = "200ms")]
async fn reserve(
    State(shop): State<Shop>,
    Path(item): Path<u64>,
    Json(order): Json<Reservation>,
) -> Result<Json<Reserved>, LockError> {
    tokio::time::sleep(shop.work).await;
    let mut reserved = shop.reserved.lock().unwrap_or_else(PoisonError::into_inner);
    let total = reserved.entry(item).or_default();
    *total += order.quantity;
    Ok(Json(Reserved { item, total: *total }))
}

/// An order is paid once: a double click is told so at once.
#[distributed_lock(key = "order:<order>", lease = 10, wait = 0)]
async fn pay(State(shop): State<Shop>, Path(order): Path<u64>) -> Result<String, LockError> {
    tokio::time::sleep(shop.work).await;
    Ok(format!("order {order} is paid\n"))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let locks = lock_runtime::init(&env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned())).await?;
    let work = env::var("WORK_MS")
        .ok()
        .and_then(|millis| millis.parse().ok())
        .unwrap_or(50);
    let shop = Shop {
        work: Duration::from_millis(work),
        ..Shop::default()
    };
    let routes = Router::new()
        .route("/items/{item}/reserve", post(reserve))
        .route("/orders/{order}/pay", post(pay))
        .with_state(shop);

    let listener =
        tokio::net::TcpListener::bind(env::var("BIND").unwrap_or_else(|_| "127.0.0.1:3000".to_owned())).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, routes).with_graceful_shutdown(stop()).await?;
    // Requests have ended; this waits until their locks are given back.
    locks.shutdown().await;
    Ok(())
}

async fn stop() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
