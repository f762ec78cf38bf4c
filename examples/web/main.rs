//! An axum service whose handlers are protected by the attribute. Handlers keep their exact signature.
//!
//! `cargo run --example web` serves on the embedded store; `REDIS_URL` names a real one, and then any number of processes exclude each
//! other. `BIND` names the address, `127.0.0.1:3000` unless set.
//!
//! ```text
//! curl -X POST localhost:3000/items/7/reserve -H 'content-type: application/json' -d '{"quantity": 1}'
//! curl -X POST localhost:3000/orders/42/pay
//! ```
//!
//! A second payment of the same order while the first is being worked on gets `423 Locked` with `Retry-After`. One whose lock was lost may
//! have been carried out, and gets `424 Failed Dependency`, which clients and proxies do not repeat by themselves.
//!
//! `GET /ready` answers 200 while locks can be taken, and 503 otherwise, with the state of each server.
//!
//! On Ctrl-C or `SIGTERM` the service accepts no more connections and takes no more locks. Requests that hold one may end, for ten
//! seconds at most (`shutdown_grace`); then they are cancelled, and all locks are released.

use std::collections::{HashMap, HashSet};
use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use lock_examples::Failure;
use lock_runtime::{LockError, LockManager, distributed_lock};
use serde::{Deserialize, Serialize};

#[derive(Clone)]
struct Shop {
    locks: LockManager,
    reserved: Arc<Mutex<HashMap<u64, u32>>>,
    /// The orders that are paid.
    paid: Arc<Mutex<HashSet<u64>>>,
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

/// Two requests for one item never work on it at the same time; the second waits for up to ten seconds.
#[distributed_lock(key = "item:<item>", lease = 10, wait = 10)]
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

/// A double click is told at once that the order is being paid. The lock does not make an order be paid once, since it is free after each
/// payment: that takes a record of what has been paid, in the database of a real shop.
#[distributed_lock(key = "order:<order>", lease = 10, wait = 0)]
async fn pay(State(shop): State<Shop>, Path(order): Path<u64>) -> Result<String, LockError> {
    if shop
        .paid
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .contains(&order)
    {
        return Ok(format!("order {order} was paid before\n"));
    }
    tokio::time::sleep(shop.work).await;
    shop.paid.lock().unwrap_or_else(PoisonError::into_inner).insert(order);
    Ok(format!("order {order} is paid\n"))
}

/// Says if this instance can take locks, for the load balancer.
async fn ready(State(shop): State<Shop>) -> (StatusCode, String) {
    let health = shop.locks.health();
    let status = if health.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let lines = health
        .servers
        .iter()
        .map(|server| format!("{} {}: {}\n", server.role, server.address, server.state));
    (status, lines.collect())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let locks = lock_runtime::init(&env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned())).await?;
    let work = env::var("WORK_MS")
        .ok()
        .and_then(|millis| millis.parse().ok())
        .unwrap_or(50);
    let shop = Shop {
        locks: locks.clone(),
        reserved: Arc::default(),
        paid: Arc::default(),
        work: Duration::from_millis(work),
    };
    let routes = Router::new()
        .route("/items/{item}/reserve", post(reserve))
        .route("/orders/{order}/pay", post(pay))
        .route("/ready", get(ready))
        .with_state(shop);

    let listener =
        tokio::net::TcpListener::bind(env::var("BIND").unwrap_or_else(|_| "127.0.0.1:3000".to_owned())).await?;
    println!("listening on {}", listener.local_addr()?);
    let serve = axum::serve(listener, routes).with_graceful_shutdown(stop());
    let close = async {
        stop().await;
        locks.shutdown().await;
    };
    // At the same time: requests that wait for a lock end at once, and those that hold one within the grace period.
    let (served, ()) = tokio::join!(serve.into_future(), close);
    served?;
    Ok(())
}

/// Completes when the service is asked to stop.
async fn stop() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                () = interrupted => {}
                _ = terminated.recv() => {}
            }
            return;
        }
    }
    interrupted.await;
}
