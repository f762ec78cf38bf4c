//! Published crates that do the same, as their documentation shows them and set to their best.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::RedisLockProvider;
use fred::clients::RedisClient;
use fred::interfaces::ClientLike;
use fred::types::RedisConfig;
use redis_lock::LockAcrossOptions;
use rlock::{AcquireOptions, RenewalMode};
use tokio::sync::Mutex;

use super::{Inside, LEASE, SHORTEST_PAUSE, WAIT, inside};
use crate::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Crate {
    Rslock,
    Rlock,
    DistributedLockRedis,
    RedisLock,
    /// None of them: hangs on purpose, to test that a scenario goes on without it.
    Hanging(Hang),
}

/// Where a peer hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Hang {
    /// Its constructor never returns.
    Connecting,
    /// Nor does this one, which keeps its thread as well.
    Blocking,
    /// It never gets a lock.
    Taking,
}

impl Hang {
    pub(super) const ALL: [Self; 3] = [Self::Connecting, Self::Blocking, Self::Taking];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Blocking => "blocking",
            Self::Taking => "taking",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tuning {
    Defaults,
    Best,
}

impl Crate {
    pub(super) const ALL: [Self; 4] = [Self::Rslock, Self::Rlock, Self::DistributedLockRedis, Self::RedisLock];

    /// How it is used here.
    pub(super) const fn note(self, tuning: Tuning) -> &'static str {
        match (self, tuning) {
            (Self::Rslock, Tuning::Defaults) => "`acquire`, which tries 3 times, up to 200 ms apart, and begins again",
            (Self::Rslock, Tuning::Best) => "pauses of up to 2 ms; with 1 ms its pause is always zero",
            (Self::Rlock, Tuning::Defaults) => "one attempt every 100 ms, renewal on",
            (Self::Rlock, Tuning::Best) => "one attempt every 1 ms, renewal off",
            (Self::DistributedLockRedis, Tuning::Defaults) => {
                "`acquire(None)` gives up at the first refusal; the loop here calls it again at once; on a client made by `init()`, because \
                 `RedisLockProvider::new` now and then waits for ever"
            }
            (Self::DistributedLockRedis, Tuning::Best) => "the loop here calls it again after 1 ms",
            (Self::RedisLock, Tuning::Defaults) => {
                "`lock_across` on one connection behind a mutex, as its documentation shows; its lease of 10 ms is not renewed, \
                 so longer sections overlap"
            }
            (Self::RedisLock, Tuning::Best) => {
                "a handle of the connection per task, a lease of 30 s, one attempt every 1 ms"
            }
            (Self::Hanging(_), _) => "hangs on purpose",
        }
    }
}

impl fmt::Display for Crate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rslock => "rslock 0.10",
            Self::Rlock => "rlock 0.2",
            Self::DistributedLockRedis => "distributed-lock-redis 0.2",
            Self::RedisLock => "redis-lock 0.5",
            Self::Hanging(hang) => return write!(f, "hanging while {}", hang.word()),
        })
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Defaults => "defaults",
            Self::Best => "best",
        })
    }
}

pub(super) enum Client {
    Rslock(rslock::LockManager),
    Rlock(rlock::async_lock::RLock, AcquireOptions),
    DistributedLockRedis(Arc<RedisLockProvider>, Option<Duration>),
    RedisLock([Arc<Mutex<old_redis::aio::MultiplexedConnection>>; 1], Tuning),
    Hanging,
}

pub(super) async fn connect(urls: &[String], peer: Crate, tuning: Tuning) -> Result<Client> {
    let url = urls.first().ok_or("no server")?.as_str();
    Ok(match peer {
        Crate::Rslock => {
            let urls = urls.iter().map(String::as_str).collect();
            let mut manager = rslock::LockManager::new(urls);
            if tuning == Tuning::Best {
                manager.set_retry(u32::MAX, SHORTEST_PAUSE * 2);
            }
            Client::Rslock(manager)
        }
        Crate::Rlock => {
            let options = match tuning {
                Tuning::Defaults => AcquireOptions::default(),
                Tuning::Best => AcquireOptions::builder()
                    .ttl(LEASE)
                    .retry_interval(SHORTEST_PAUSE)
                    .renewal_mode(RenewalMode::Disabled)
                    .build()?,
            };
            Client::Rlock(rlock::async_lock::RLock::new(url).await?, options)
        }
        Crate::DistributedLockRedis => {
            // The provider's own constructor looks whether the client is connected and only then subscribes to the news that it is: if the
            // connection comes in between, it waits for ever.
            let client = RedisClient::new(RedisConfig::from_url(url)?, None, None, None);
            client.init().await?;
            let provider = RedisLockProvider::builder().client(client).build().await?;
            Client::DistributedLockRedis(Arc::new(provider), (tuning == Tuning::Best).then_some(SHORTEST_PAUSE))
        }
        Crate::RedisLock => {
            let connection = old_redis::Client::open(url)?.get_multiplexed_async_connection().await?;
            Client::RedisLock([Arc::new(Mutex::new(connection))], tuning)
        }
        Crate::Hanging(Hang::Connecting) => std::future::pending().await,
        Crate::Hanging(Hang::Blocking) => loop {
            std::thread::park();
        },
        Crate::Hanging(Hang::Taking) => Client::Hanging,
    })
}

impl Clone for Client {
    fn clone(&self) -> Self {
        match self {
            Self::Rslock(manager) => Self::Rslock(manager.clone()),
            Self::Rlock(manager, options) => Self::Rlock(manager.clone(), options.clone()),
            Self::DistributedLockRedis(provider, pause) => Self::DistributedLockRedis(Arc::clone(provider), *pause),
            Self::Hanging => Self::Hanging,
            Self::RedisLock([connection], tuning @ Tuning::Defaults) => {
                Self::RedisLock([Arc::clone(connection)], *tuning)
            }
            // Cloned before any task runs, so nobody is in there.
            Self::RedisLock([connection], tuning @ Tuning::Best) => match connection.try_lock() {
                Ok(handle) => Self::RedisLock([Arc::new(Mutex::new(handle.clone()))], *tuning),
                Err(_) => Self::RedisLock([Arc::clone(connection)], *tuning),
            },
        }
    }
}

impl Client {
    pub(super) async fn section(&self, name: &str, hold: Duration) -> Result<Inside> {
        match self {
            Self::Rslock(manager) => {
                let guard = manager.acquire(name, LEASE).await?;
                let inside = inside(hold).await;
                guard.release().await;
                Ok(inside)
            }
            Self::Rlock(manager, options) => {
                let mut guard = manager.acquire_mutex_with_options(name, options.clone()).await?;
                let inside = inside(hold).await;
                guard.release().await?;
                Ok(inside)
            }
            Self::DistributedLockRedis(provider, pause) => {
                let lock = provider.create_lock(name);
                let handle = loop {
                    match lock.acquire(None).await {
                        Ok(handle) => break handle,
                        Err(LockError::Timeout(_)) => {}
                        Err(error) => return Err(error.into()),
                    }
                    if let Some(pause) = *pause {
                        tokio::time::sleep(pause).await;
                    }
                };
                let inside = inside(hold).await;
                handle.release().await?;
                Ok(inside)
            }
            Self::Hanging => std::future::pending().await,
            Self::RedisLock(connections, tuning) => {
                let options = || match tuning {
                    Tuning::Defaults => LockAcrossOptions::default(),
                    Tuning::Best => LockAcrossOptions {
                        ttl: LEASE,
                        retry: SHORTEST_PAUSE,
                        duration: WAIT,
                    },
                };
                loop {
                    match redis_lock::lock_across(connections, name, inside(hold), options()).await {
                        Ok(inside) => return Ok(inside),
                        // It gives up after 10 s unless told otherwise.
                        Err(redis_lock::LockAcrossError::Acquire(_)) => {}
                        Err(error) => return Err(error.to_string().into()),
                    }
                }
            }
        }
    }
}
