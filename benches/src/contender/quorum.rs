//! A lock on several independent masters without a library around it: the commands by themselves, and the way of redsync.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;

use super::raw::RELEASE;
use super::{Inside, LEASE, SHORTEST_PAUSE, inside};
use crate::Result;

static TOKENS: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    Raw,
    Redsync,
}

impl Way {
    pub(super) const ALL: [Self; 2] = [Self::Raw, Self::Redsync];

    pub(super) const fn note(self) -> &'static str {
        match self {
            Self::Raw => {
                "`SET NX PX` to all masters at once, and once all have answered and the section has ended, `EVALSHA` of a compare-and-delete to all \
                 at once, by `redis` 1.8 on one multiplexed connection per master"
            }
            Self::Redsync => {
                "written out here as the Go library does it: `SET NX PX` to all masters at once, under one value for all tries of a call; waits \
                 for all answers, at most 5 % of the lease; without a majority a compare-and-delete to all, and the next try after 50 to 250 ms, \
                 without a limit of tries"
            }
        }
    }

    /// The time for which a master's answer is waited for.
    fn patience(self) -> Option<Duration> {
        match self {
            Self::Raw => None,
            Self::Redsync => Some(LEASE / 20),
        }
    }

    /// The time between two tries.
    fn pause(self) -> Duration {
        match self {
            Self::Raw => SHORTEST_PAUSE,
            Self::Redsync => Duration::from_millis(fastrand::u64(50..250)),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw commands to all",
            Self::Redsync => "redsync's way",
        })
    }
}

#[derive(Clone)]
pub(super) struct Client {
    masters: Vec<MultiplexedConnection>,
    /// The script's hash.
    release: Arc<str>,
    way: Way,
}

pub(super) async fn connect(urls: &[String], way: Way) -> Result<Client> {
    let mut masters = Vec::with_capacity(urls.len());
    let mut release = String::new();
    for url in urls {
        let mut master = redis::Client::open(url.as_str())?
            .get_multiplexed_async_connection()
            .await?;
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).to_owned();
        release = load.query_async(&mut master).await?;
        masters.push(master);
    }
    Ok(Client {
        masters,
        release: release.into(),
        way,
    })
}

impl Client {
    pub(super) async fn section(&mut self, name: &str, hold: Duration) -> Result<Inside> {
        let token = format!("{}-{}", std::process::id(), TOKENS.fetch_add(1, Ordering::Relaxed));
        while !self.take(name, &token).await? {
            self.release(name, &token).await;
            tokio::time::sleep(self.way.pause()).await;
        }
        let inside = inside(hold).await;
        self.release(name, &token).await;
        Ok(inside)
    }

    /// Returns `true` if a majority has granted the lock in time.
    async fn take(&mut self, name: &str, token: &str) -> Result<bool> {
        let began = Instant::now();
        let mut set = redis::cmd("SET");
        set.arg(name).arg(token).arg("NX").arg("PX");
        set.arg(u64::try_from(LEASE.as_millis())?);
        let answers: Vec<Option<Option<String>>> = self.ask_all(&set).await;
        let votes = answers.into_iter().flatten().flatten().count();
        let drift = LEASE / 100;
        Ok(votes > self.masters.len() / 2 && began.elapsed() + drift < LEASE)
    }

    async fn release(&mut self, name: &str, token: &str) {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&*self.release).arg(1).arg(name).arg(token);
        let _: Vec<Option<i64>> = self.ask_all(&release).await;
    }

    /// Sends a command to all masters at once, and returns what each has answered in time.
    async fn ask_all<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Vec<Option<T>> {
        let patience = self.way.patience();
        join_all(self.masters.iter_mut().map(|master| async move {
            let answer = command.query_async(master);
            match patience {
                Some(patience) => tokio::time::timeout(patience, answer).await.ok()?.ok(),
                None => answer.await.ok(),
            }
        }))
        .await
    }
}
