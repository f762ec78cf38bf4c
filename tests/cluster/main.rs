//! What the design for Redis Cluster relies on, shown on real clusters.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod at_the_source;
mod crowds;
mod facts;
mod half_moved;
mod leaving;
mod losing;
mod messages;
mod moving;
mod refusing;
mod secured;
mod tokens;
mod upstream;

use lock_tests::PATIENCE;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Connects to the node at a port, and receives what it sends unasked.
async fn listener(port: u16) -> (MultiplexedConnection, UnboundedReceiver<PushInfo>) {
    let (sends, pushed) = unbounded_channel();
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(PATIENCE))
        .set_connection_timeout(Some(PATIENCE))
        .set_push_sender(sends);
    let client = Client::open(format!("redis://127.0.0.1:{port}/?protocol=resp3")).unwrap();
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    (connection.await.unwrap(), pushed)
}
