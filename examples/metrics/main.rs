//! A service whose locks Prometheus sees at `/metrics`.
//!
//! `cargo run --example metrics` serves on the embedded store; `REDIS_URL` names a real one. `BIND` names the address, `127.0.0.1:3000` unless
//! set.
//!
//! ```text
//! curl -X POST localhost:3000/items/7/reserve
//! curl -X POST localhost:3000/count
//! curl localhost:3000/metrics
//! ```
//!
//! `docs/grafana` has a board and alert rules for them. All items together are one series of each metric, `key="item:<item>"`: the label is the template, not the key.

use std::env;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use lock_examples::Failure;
use lock_runtime::{LockError, distributed_lock};
use metrics_exporter_prometheus::PrometheusBuilder;

/// The bounds of the histograms, in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

#[distributed_lock(key = "item:<item>", lease = 10, wait = 1)]
async fn reserve(Path(item): Path<u64>) -> Result<String, LockError> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(format!("item {item} is reserved\n"))
}

/// Takes longer than its lease, which is renewed meanwhile.
#[distributed_lock(key = "count", lease = 1, wait = 0)]
async fn count() -> Result<&'static str, LockError> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok("all is counted\n")
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // Before the manager, which describes its metrics to the recorder that is installed.
    let metrics = PrometheusBuilder::new().set_buckets(&BOUNDS)?.install_recorder()?;
    let locks = lock_runtime::init(&env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned())).await?;

    // Empties the histograms' buffers where nobody asks for the metrics.
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });

    let routes = Router::new()
        .route("/items/{item}/reserve", post(reserve))
        .route("/count", post(count))
        .route("/metrics", get(async move || metrics.render()));
    let address = env::var("BIND").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let serve = axum::serve(listener, routes).with_graceful_shutdown(stop());
    let close = async {
        stop().await;
        locks.shutdown().await;
    };
    // At the same time: requests that wait for a lock end at once.
    let (served, ()) = tokio::join!(serve.into_future(), close);
    served?;
    Ok(())
}

/// Completes when the service is asked to stop, by Ctrl-C or `SIGTERM`.
async fn stop() {
    let interrupted = async { drop(tokio::signal::ctrl_c().await) };
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
