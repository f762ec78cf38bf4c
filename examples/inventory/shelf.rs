//! The shop's stock: in this process, or on a server that several processes share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError};

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
        let client = Client::open(server_of(url).await?)?;
        Ok(Self::Server(connect(&client).await?))
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

/// Connects with time limits that a busy machine keeps.
async fn connect(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    let limit = Some(Duration::from_secs(10));
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(limit)
        .set_response_timeout(limit);
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// Finds the node of a cluster, `redis+cluster://user:password@n1,n2`, that has the shelf, and returns every other URL as it is.
async fn node_of(url: &str) -> Result<String, RedisError> {
    let Some((scheme, rest)) = url.split_once("+cluster://") else {
        return Ok(url.to_owned());
    };
    let at = rest.rfind('@').map_or(0, |at| at + 1);
    let (user, hosts) = rest.split_at(at);
    for host in hosts.split(',') {
        let node = format!("{scheme}://{user}{host}");
        let Ok(mut connection) = connect(&Client::open(&*node)?).await else {
            continue;
        };
        let asked = redis::cmd("GET").arg(name(0)).exec_async(&mut connection).await;
        return match asked.as_ref().err().and_then(RedisError::redirect_node) {
            Some((owner, _)) => Ok(format!("{scheme}://{user}{owner}")),
            None => asked.map(|()| node),
        };
    }
    Err((ErrorKind::Io, "no node of the cluster answers").into())
}

/// Finds the server behind `redis+sentinel://user:password@s1,s2,s3/name`, and returns every other URL as it is. The locks follow the master
/// by themselves; this shelf stays at the one that it finds here.
async fn server_of(url: &str) -> Result<String, RedisError> {
    let Some((scheme, rest)) = url.split_once("+sentinel://") else {
        return node_of(url).await;
    };
    let at = rest.rfind('@').map_or(0, |at| at + 1);
    let (user, rest) = rest.split_at(at);
    let (hosts, name) = rest.split_once('/').unwrap_or((rest, ""));
    let name = name.split('?').next().unwrap_or_default();
    for host in hosts.split(',') {
        let port = if host.contains(':') { "" } else { ":26379" };
        let sentinel = Client::open(format!("{scheme}://{host}{port}"))?;
        let Ok(mut sentinel) = connect(&sentinel).await else {
            continue;
        };
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let (host, port): (String, u16) = ask.query_async(&mut sentinel).await?;
        return Ok(format!("{scheme}://{user}{host}:{port}"));
    }
    Err((ErrorKind::Io, "no sentinel answers").into())
}

/// In a cluster, the tag has all items on one node.
fn name(item: u64) -> String {
    format!("lock_example:{{stock}}:{item}")
}
