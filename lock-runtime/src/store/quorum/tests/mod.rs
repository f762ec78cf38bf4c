//! Scenarios of a quorum on masters under the test's control, exact and by a paused clock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod leaving;
mod losing;
mod model;
mod scripted;
mod voting;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use scripted::{Event, Link, Log, Op, Server};

use super::{Quorum, QuorumStore};
use crate::LockManager;
use crate::host::Host;
use crate::store::LockStore;

/// The masters of a test, and what they did.
struct Masters {
    log: Arc<Log>,
    servers: Vec<Arc<Server>>,
}

/// A process that uses them.
#[derive(Clone)]
struct Client {
    links: Vec<Link>,
    store: Arc<QuorumStore>,
    locks: LockManager,
}

impl Masters {
    fn new(masters: usize) -> Self {
        let log = Log::new();
        let servers = (0..masters).map(|number| Server::new(number, &log)).collect();
        Self { log, servers }
    }

    fn client(&self, number: usize) -> Client {
        let links: Vec<_> = self.servers.iter().map(|server| Link::new(server, number)).collect();
        let stores = links.iter().enumerate();
        let stores = stores.map(|(at, link)| (format!("master {at}"), Arc::new(link.clone()) as Arc<dyn LockStore>));
        let quorum = Quorum::of(&Host::process(), stores.collect(), Duration::from_secs(1), false);
        let store = Arc::new(QuorumStore::start(quorum));
        let shared: Arc<dyn LockStore> = store.clone();
        let locks = LockManager::builder("scripted").with_store(shared).prefix("");
        Client {
            links,
            store,
            locks: locks.build().unwrap(),
        }
    }

    fn events(&self) -> Vec<Event> {
        self.log.events()
    }

    /// Returns the masters where another one than `other` has the key.
    fn votes(&self, key: &str, other: &str) -> Vec<usize> {
        let has_vote = |server: &&Arc<Server>| server.held(key).0.iter().any(|holder| holder != other);
        self.servers
            .iter()
            .filter(has_vote)
            .map(|server| server.number)
            .collect()
    }

    /// Returns which masters have something of `key`, for the message.
    fn left(&self, key: &str) -> Vec<String> {
        let mut left = Vec::new();
        for server in &self.servers {
            let (holders, waiters) = server.held(key);
            if !holders.is_empty() || waiters > 0 {
                left.push(format!("master {}: {holders:?}, {waiters} waiters", server.number));
            }
        }
        left
    }
}

/// Returns the output of a future that is polled so many times, or the future itself.
async fn polled<F: Future>(polls: usize, mut future: Pin<Box<F>>) -> Result<F::Output, Pin<Box<F>>> {
    let mut left = polls;
    let output = poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    output.ok_or(future)
}

/// Sees who holds the lock at the same time as another call.
#[derive(Debug, Default)]
struct Judge {
    inside: AtomicUsize,
    entered: AtomicUsize,
    overlaps: Mutex<Vec<String>>,
}

struct Inside<'a>(&'a Judge);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Judge {
    fn enter(&self, who: usize) -> Inside<'_> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        if self.inside.fetch_add(1, Ordering::Relaxed) > 0 {
            self.overlaps.lock().unwrap().push(format!("client {who}"));
        }
        Inside(self)
    }

    async fn section(&self, who: usize, span: Duration) {
        let _inside = self.enter(who);
        tokio::time::sleep(span).await;
    }
}

fn of_op(events: &[Event], op: Op) -> Vec<Event> {
    events.iter().filter(|event| event.asked.op == op).cloned().collect()
}
