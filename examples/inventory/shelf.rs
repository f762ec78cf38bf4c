//! The shop's stock: in this process, or on a server that several processes share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use redis::RedisError;
use redis::aio::MultiplexedConnection;

/// Where the pieces are counted. Reading and writing are two steps, as in any database without a transaction around them.
pub(crate) enum Shelf {
    Memory(Mutex<HashMap<u64, i64>>),
    Server(MultiplexedConnection),
}

impl Shelf {
    pub(crate) fn in_memory(items: u64, stock: i64) -> Self {
        Self::Memory(Mutex::new((0..items).map(|item| (item, stock)).collect()))
    }

    pub(crate) async fn on_server(url: &str) -> Result<Self, RedisError> {
        Ok(Self::Server(
            redis::Client::open(url)?.get_multiplexed_async_connection().await?,
        ))
    }

    pub(crate) async fn fill(&self, items: u64, stock: i64) -> Result<(), RedisError> {
        for item in 0..items {
            self.write(item, stock).await?;
        }
        Ok(())
    }

    pub(crate) async fn read(&self, item: u64) -> Result<i64, RedisError> {
        match self {
            Self::Memory(stock) => {
                let stock = stock.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(stock.get(&item).copied().unwrap_or_default())
            }
            Self::Server(connection) => {
                redis::cmd("GET")
                    .arg(name(item))
                    .query_async(&mut connection.clone())
                    .await
            }
        }
    }

    pub(crate) async fn write(&self, item: u64, left: i64) -> Result<(), RedisError> {
        match self {
            Self::Memory(stock) => {
                stock.lock().unwrap_or_else(PoisonError::into_inner).insert(item, left);
                Ok(())
            }
            Self::Server(connection) => {
                redis::cmd("SET")
                    .arg(name(item))
                    .arg(left)
                    .query_async(&mut connection.clone())
                    .await
            }
        }
    }
}

fn name(item: u64) -> String {
    format!("lock_example:stock:{item}")
}
