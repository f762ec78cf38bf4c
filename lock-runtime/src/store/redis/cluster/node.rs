//! One node of a cluster: a store on a single server.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::ConnectionInfo;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::host::{Host, Moment};
use crate::store::health::ServerHealth;
use crate::store::redis::RedisStore;
use crate::store::redis::connection::dial::Dial;
use crate::store::redis::connection::failure::Address;
use crate::store::redis::connection::{Board, Endpoint, Server};
use crate::store::redis::keyspace::Keyspace;
use crate::store::redis::sentinel::at;
use crate::store::redis::settings::TimeOuts;
use crate::store::{Lane, StoreError};

/// The time for which a node that has no slot stays, after it was asked about one that is on its way
/// there.
const STAYS_FOR: Duration = Duration::from_secs(30);

/// A node that keeps locks.
pub(super) struct Node {
    pub(super) lane: Lane,
    pub(super) address: Address,
    /// Its identifier in the cluster, once it is known.
    pub(super) id: OnceLock<Box<str>>,
    pub(super) store: RedisStore,
    /// The same, for commands that are sent behind `ASKING`.
    asking: RedisStore,
    health: Arc<Board>,
    /// Cancelled once the node has no slot any more.
    retired: CancellationToken,
    /// The last time at which it was asked about a slot that is on its way there, in nanoseconds of the
    /// host's clock, or 0.
    asked: AtomicU64,
    /// `true` once it has had a slot.
    has_owned: AtomicBool,
}

/// The settings and counts that all nodes of a cluster share.
pub(super) struct Common {
    pub(super) host: Host,
    pub(super) dial: Dial,
    /// The settings for connections, with the place of any node.
    pub(super) like: ConnectionInfo,
    pub(super) prefix: String,
    /// The identifier of this process on the nodes.
    pub(super) process: String,
    pub(super) time_outs: TimeOuts,
    /// The allowed difference between the nodes' clocks.
    pub(super) skew: Duration,
    /// The number of commands whose answers are awaited.
    pub(super) waited_for: Arc<AtomicUsize>,
    pub(super) health: Arc<watch::Sender<Vec<ServerHealth>>>,
}

impl Common {
    /// Creates a node. `ask_again` is called when it does not answer as it should.
    pub(super) fn node(&self, address: &Address, lane: Lane, ask_again: Box<dyn Fn() + Send + Sync>) -> Arc<Node> {
        let info = self.info(address);
        let shown = info.addr().to_string();
        let retired = CancellationToken::new();
        let health = Arc::new(Board::of_node(
            &self.health,
            &self.host,
            &shown,
            self.time_outs.response,
        ));
        let server = Server {
            dial: self.dial.clone(),
            endpoint: Endpoint::Node {
                info: Box::new(info),
                ask_again,
                waited_for: Arc::clone(&self.waited_for),
                retired: retired.clone(),
            },
            time_outs: self.time_outs,
            health: Arc::clone(&health),
            mark: None,
        };
        let names = Keyspace::of_node(&self.host, &self.prefix, &self.process);
        let store = RedisStore::with(&self.host, server, names, shown);
        Arc::new(Node {
            lane,
            address: address.clone(),
            id: OnceLock::new(),
            asking: store.asking(),
            store,
            health,
            retired,
            asked: AtomicU64::new(0),
            has_owned: AtomicBool::new(false),
        })
    }

    /// Returns the settings for connections to the node at an address.
    pub(super) fn info(&self, address: &Address) -> ConnectionInfo {
        let addr = at(self.like.addr(), address.host.clone(), address.port);
        self.like.clone().set_addr(addr)
    }
}

impl Node {
    /// Returns the store for commands that are sent behind `ASKING`, or for the others.
    pub(super) fn store(&self, is_asking: bool) -> &RedisStore {
        if is_asking { &self.asking } else { &self.store }
    }

    /// Begins to be used: its row is added to the health, and a connection is made.
    pub(super) fn enter(self: &Arc<Self>, host: &Host) {
        self.health.enter();
        let background = self.store.background.clone();
        drop(host.spawn(async move { drop(background.live().await) }));
    }

    /// Returns the address that the node has named: on its own host if it does not know its own address.
    pub(super) fn named(&self, address: &Address) -> Address {
        let mut named = address.clone();
        if named.host.is_empty() {
            named.host.clone_from(&self.address.host);
        }
        named
    }

    /// Records that the node was asked about a slot that is on its way there.
    pub(super) fn is_asked(&self, now: Moment) {
        self.asked.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Records that the node has a slot.
    pub(super) fn owns(&self) {
        self.has_owned.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the node, which has no slot, can be given up. One that has lost all its slots can
    /// be at once, since another one may have taken over, which must hear of its last releases.
    pub(super) fn may_retire(&self, now: Moment) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        self.has_owned.load(Ordering::Relaxed) || asked == 0 || now.since(Moment::from_nanos(asked)) > STAYS_FOR
    }

    /// Ends the requests under way on the node, which has no slot any more. Wakes tasks.
    pub(super) fn retire(&self) {
        self.retired.cancel();
        self.health.leave();
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.is_cancelled()
    }

    /// Waits for an answer, unless the node is given up first: its answer then does not count.
    ///
    /// Cancel safe if `answer` is.
    pub(super) async fn unless_retired<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::select! {
            biased;
            () = self.retired.cancelled() => Err(StoreError::unknown(format!(
                "the node {} of the cluster has no slots any more, since another one has taken over",
                self.address
            ))),
            answer = answer => answer,
        }
    }
}
