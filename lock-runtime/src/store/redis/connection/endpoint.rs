//! The endpoint of a store: the server that it uses, fixed, or found anew whenever another server takes over.

use std::future::pending;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::store::StoreError;

/// The server that a store uses.
pub(in crate::store::redis) enum Endpoint {
    /// Always the same one.
    Fixed(Box<ConnectionInfo>),
    /// Always the same node of a cluster.
    Node {
        info: Box<ConnectionInfo>,
        /// Called when the node does not answer as it should, so that its slots may be another one's
        /// by now. Must not block.
        ask_again: Box<dyn Fn() + Send + Sync>,
        /// The number of commands whose answers are awaited from all nodes.
        waited_for: Arc<AtomicUsize>,
        /// Cancelled once the node has no slot any more.
        retired: CancellationToken,
    },
    /// The one that [`CurrentMaster`] tells.
    Followed(Arc<CurrentMaster>),
}

/// One server.
#[derive(Clone)]
pub(super) struct Target {
    /// Zero if the place is fixed. Otherwise the first server has 1, and each later one a larger
    /// number than the one before. Nothing that a connection of an earlier generation answers counts.
    pub(super) generation: u64,
    pub(super) info: ConnectionInfo,
}

impl Endpoint {
    /// Returns the present server, after asking for it if necessary. If it is not known, returns
    /// the reason that was found last.
    ///
    /// Cancel safe.
    pub(super) async fn present(&self) -> Result<Target, StoreError> {
        let current_master = match self {
            Self::Fixed(info) | Self::Node { info, .. } => {
                return Ok(Target {
                    generation: 0,
                    info: (**info).clone(),
                });
            }
            Self::Followed(current_master) => current_master,
        };
        let mut state = current_master.state.subscribe();
        let mut question = None;
        loop {
            match &*state.borrow_and_update() {
                State::Known(target) => return Ok((**target).clone()),
                // A reason from before the question may be long past.
                State::Missing(error, asked) if question.is_some_and(|question| *asked >= question) => {
                    return Err(error.clone());
                }
                State::Missing(..) | State::Unasked => {}
            }
            question = question.or_else(|| Some(current_master.ask_again()));
            if state.changed().await.is_err() {
                return Err(StoreError::transient("the store has ended"));
            }
        }
    }

    /// Returns the reason that was found last why the server is not known.
    pub(super) fn failure(&self) -> Option<StoreError> {
        match self {
            Self::Followed(current_master) => match &*current_master.state.borrow() {
                State::Missing(error, _) => Some(error.clone()),
                State::Known(_) | State::Unasked => None,
            },
            Self::Fixed(_) | Self::Node { .. } => None,
        }
    }

    /// Returns the error for a server that has not answered in time.
    pub(super) fn no_connection_within(&self, limit: Duration) -> StoreError {
        let error = StoreError::transient(format!("no connection within {limit:?}"));
        match self {
            // A server without TLS waits for the rest of what it takes for a command.
            Self::Fixed(info) | Self::Node { info, .. } if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
                error.advise(
                    "check that the store is up and reachable, and that it speaks TLS at this port, or allow a longer `connect_timeout`, then \
                     try again",
                )
            }
            _ => error.advise("check that the store is up and reachable, or allow a longer `connect_timeout`, then try again"),
        }
    }

    /// Returns the generation of the present server.
    pub(super) fn generation(&self) -> u64 {
        match self {
            Self::Fixed(_) | Self::Node { .. } => 0,
            Self::Followed(current_master) => current_master.generation.load(Ordering::Acquire),
        }
    }

    /// Completes once a server of another generation has taken over.
    ///
    /// Cancel safe.
    pub(super) async fn changed(&self, generation: u64) {
        let Self::Followed(current_master) = self else {
            return pending().await;
        };
        let mut state = current_master.state.subscribe();
        let another = |state: &State| matches!(state, State::Known(target) if target.generation != generation);
        // Boxed, so that commands to a fixed server have no room for it.
        if Box::pin(state.wait_for(another)).await.is_err() {
            pending::<()>().await;
        }
    }

    /// Completes once the answers of a server of this generation count no more, since another one has taken over.
    ///
    /// Cancel safe.
    pub(super) async fn over(&self, generation: u64) {
        match self {
            Self::Node { retired, .. } => retired.cancelled().await,
            Self::Fixed(_) | Self::Followed(_) => self.changed(generation).await,
        }
    }

    /// Returns the count of awaited answers for a new connection: its own, or that of all nodes.
    pub(super) fn waited_for(&self) -> Arc<AtomicUsize> {
        match self {
            Self::Node { waited_for, .. } => Arc::clone(waited_for),
            Self::Fixed(_) | Self::Followed(_) => Arc::default(),
        }
    }

    /// Returns `true` if the server is the one that sentinels name at the moment.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self, Self::Followed(_))
    }

    /// Returns `true` if another server may take over what this one keeps.
    pub(super) fn may_be_succeeded(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// Reports that the present server does not answer as it should, so that another one may have
    /// taken over.
    pub(in crate::store::redis) fn ask_again(&self) {
        match self {
            Self::Fixed(_) => {}
            Self::Node { ask_again, .. } => ask_again(),
            Self::Followed(current_master) => drop(current_master.ask_again()),
        }
    }
}

/// The state of the search for the present server.
enum State {
    Unasked,
    /// With the number of the question that was answered with this reason.
    Missing(StoreError, u64),
    Known(Box<Target>),
}

/// The server that a store uses at present. Shared between its connections and the tasks that find the
/// server.
pub(in crate::store::redis) struct CurrentMaster {
    state: watch::Sender<State>,
    /// The generation of the server in `state`, for checks before each use of a connection.
    generation: AtomicU64,
    /// The number of the latest question.
    asked: watch::Sender<u64>,
    /// Ends the connections to the server before. Must not block.
    when_moved: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl CurrentMaster {
    pub(in crate::store::redis) fn new() -> Self {
        Self {
            state: watch::Sender::new(State::Unasked),
            generation: AtomicU64::new(0),
            asked: watch::Sender::new(0),
            when_moved: OnceLock::new(),
        }
    }

    /// Sets the function that ends the connections to the server before. It is not called for the
    /// first server, and must not block.
    pub(in crate::store::redis) fn when_moved(&self, end: impl Fn() + Send + Sync + 'static) {
        let _ = self.when_moved.set(Box::new(end));
    }

    /// Publishes the server to use from now on.
    pub(in crate::store::redis) fn moved_to(&self, info: ConnectionInfo) {
        let generation = self.generation.load(Ordering::Acquire) + 1;
        // Before anything else: from here on, no connection to the server before is used, and no
        // answer of it counts.
        self.generation.store(generation, Ordering::Release);
        self.state
            .send_replace(State::Known(Box::new(Target { generation, info })));
        // By now the first server may have answered releases. No other one needs to hear of them.
        if generation > 1
            && let Some(end) = self.when_moved.get()
        {
            end();
        }
    }

    /// Publishes the reason why there is no server to use, and the number of the question that was
    /// answered with it. A server that was found before stays.
    pub(in crate::store::redis) fn missing(&self, reason: StoreError, question: u64) {
        self.state.send_if_modified(|state| {
            let is_missing = !matches!(state, State::Known(_));
            if is_missing {
                *state = State::Missing(reason, question);
            }
            is_missing
        });
    }

    /// Asks again. Returns the number of the question.
    fn ask_again(&self) -> u64 {
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        number
    }

    /// Returns a receiver that changes with each request to ask again.
    pub(in crate::store::redis) fn requests(&self) -> watch::Receiver<u64> {
        self.asked.subscribe()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use redis::IntoConnectionInfo;

    use super::CurrentMaster;

    #[test]
    fn the_first_server_replaces_no_other() {
        let (current_master, replaced) = (CurrentMaster::new(), Arc::new(AtomicU64::new(0)));
        current_master.when_moved({
            let replaced = Arc::clone(&replaced);
            move || {
                replaced.fetch_add(1, Ordering::Relaxed);
            }
        });
        for (server, expected) in [("redis://a", 0), ("redis://b", 1), ("redis://a", 2)] {
            current_master.moved_to(server.into_connection_info().unwrap());
            assert_eq!(replaced.load(Ordering::Relaxed), expected);
        }
    }
}
