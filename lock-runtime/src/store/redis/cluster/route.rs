//! The way of one request to the node that has its key, and on to others if that one says so.

use std::sync::Arc;
use std::time::Duration;

use super::node::Node;
use super::nodes::Nodes;
use crate::host::{Backoff, Moment, Timer};
use crate::store::redis::RedisStore;
use crate::store::redis::connection::failure::{Redirect, redirect};
use crate::store::{Receipt, StoreError};

/// The number of times that a request is sent on without a pause. While a slot moves, or after a
/// failover, two are usual.
const AT_ONCE: u32 = 2;
/// The patience with nodes that disagree, of a request that is sent together with others.
const IMPATIENT: Duration = Duration::from_millis(100);
/// The pauses while nodes disagree, or while a slot moves and each of two nodes has some of the keys.
const TRY_AGAIN: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(50));

/// One request.
pub(super) struct Route<'a> {
    nodes: Arc<Nodes>,
    slot: u16,
    /// The node that has been named for the next try only, since the slot is on its way there.
    asked: Option<Arc<Node>>,
    began: Moment,
    /// The time for which nodes may disagree.
    patience: Duration,
    turns: u32,
    pauses: u32,
    /// The receipt in which a try that is followed by another leaves its error for the caller.
    receipt: Option<&'a Receipt>,
}

/// The next step of a request.
pub(super) struct Way {
    pub(super) node: Arc<Node>,
    is_asking: bool,
}

impl Way {
    pub(super) fn store(&self) -> &RedisStore {
        self.node.store(self.is_asking)
    }
}

impl<'a> Route<'a> {
    pub(super) fn new(nodes: &Arc<Nodes>, slot: u16) -> Self {
        Self {
            nodes: Arc::clone(nodes),
            slot,
            asked: None,
            began: nodes.common.host.now(),
            patience: nodes.common.time_outs.response,
            turns: 0,
            pauses: 0,
            receipt: None,
        }
    }

    /// Has the receipt say why the request was refused last, for a caller that has no time for another
    /// try. Removes the reason of an earlier request from it.
    pub(super) fn telling(mut self, receipt: &'a Receipt) -> Self {
        receipt.refused(None);
        self.receipt = Some(receipt);
        self
    }

    /// Has the request give up soon if nodes disagree.
    pub(super) fn impatient(mut self) -> Self {
        self.patience = IMPATIENT;
        self
    }

    /// Allows as many turns as at the beginning, since the request has been accepted meanwhile.
    pub(super) fn restart(&mut self) {
        self.began = self.nodes.common.host.now();
    }

    /// Returns the node to send to.
    ///
    /// Cancel safe.
    pub(super) async fn way(&mut self) -> Result<Way, StoreError> {
        if let Some(node) = self.asked.take() {
            node.is_asked(self.nodes.common.host.now());
            return Ok(Way { node, is_asking: true });
        }
        let node = self.nodes.owner_at_last(self.slot).await?;
        Ok(Way { node, is_asking: false })
    }

    /// Turns to another node, or waits, if this is what the error asks for. Returns the error if not,
    /// or after too many turns.
    ///
    /// Cancel safe.
    pub(super) async fn turn(&mut self, way: &Way, error: StoreError) -> Result<(), StoreError> {
        let pauses = match redirect(&error) {
            Some(Redirect::Moved(..)) => {
                self.nodes.mend_after(&way.node, &error);
                self.turns += 1;
                self.turns > AT_ONCE
            }
            Some(Redirect::Ask(address)) => {
                self.asked = Some(self.nodes.at(&way.node.named(address)));
                self.turns += 1;
                self.turns > AT_ONCE
            }
            Some(Redirect::TryAgain) => true,
            Some(Redirect::Down) => {
                self.nodes.ask_again();
                return Err(error);
            }
            None => return Err(error),
        };
        if let Some(receipt) = self.receipt {
            receipt.refused(Some(self.gives_up(&error)));
        }
        if pauses {
            let host = &self.nodes.common.host;
            if host.now().since(self.began) >= self.patience {
                return Err(self.gives_up(&error));
            }
            self.pauses += 1;
            host.sleep(Timer::LockThread, TRY_AGAIN.pause(host, self.pauses)).await;
        }
        Ok(())
    }

    /// Returns the error for a request that cannot try again after this one.
    fn gives_up(&self, error: &StoreError) -> StoreError {
        let (slot, cause) = (self.slot, error.cause());
        if matches!(redirect(error), Some(Redirect::TryAgain | Redirect::Ask(_))) {
            return StoreError::transient(format!(
                "slot {slot} of the cluster is on its way to another node: {cause}"
            ))
            .advise("finish the move, as `redis-cli --cluster fix` does, and try again");
        }
        StoreError::transient(format!(
            "the nodes of the cluster disagree about which of them has slot {slot}: {cause}"
        ))
        .advise("see what `CLUSTER NODES` tells at each node, and try again when they agree")
    }
}
