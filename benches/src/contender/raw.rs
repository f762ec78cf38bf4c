//! The two commands that such a lock costs, without a library around them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use super::{Inside, LEASE, SHORTEST_PAUSE, inside};
use crate::Result;

pub(super) const NOTE: &str = "`SET NX PX` and `EVALSHA` of a compare-and-delete by `redis` 1.8, each awaited, on one multiplexed connection per process; \
     one attempt every 1 ms";

/// Deletes a key that has a value.
pub(super) const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

static TOKENS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
pub(super) struct Client {
    connection: MultiplexedConnection,
    release: Arc<str>,
}

pub(super) async fn connect(url: &str) -> Result<Client> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let release: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(RELEASE)
        .query_async(&mut connection)
        .await?;
    Ok(Client {
        connection,
        release: release.into(),
    })
}

impl Client {
    pub(super) async fn section(&mut self, name: &str, hold: Duration) -> Result<Inside> {
        let token = format!("{}-{}", std::process::id(), TOKENS.fetch_add(1, Ordering::Relaxed));
        let lease = u64::try_from(LEASE.as_millis())?;
        loop {
            let granted: Option<String> = redis::cmd("SET")
                .arg(name)
                .arg(&token)
                .arg("NX")
                .arg("PX")
                .arg(lease)
                .query_async(&mut self.connection)
                .await?;
            if granted.is_some() {
                break;
            }
            tokio::time::sleep(SHORTEST_PAUSE).await;
        }
        let inside = inside(hold).await;
        redis::cmd("EVALSHA")
            .arg(&*self.release)
            .arg(1)
            .arg(name)
            .arg(&token)
            .query_async::<i64>(&mut self.connection)
            .await?;
        Ok(inside)
    }
}
