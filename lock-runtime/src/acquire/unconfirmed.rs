//! Acquires whose outcome is not known yet. Their clean-up is armed before the first byte is sent,
//! and only a known outcome disarms it: a call can be dropped at any await, and its request may
//! still take the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::callers::Caller;
use crate::hold::Backend;
use crate::hold::upkeep::Stake;
use crate::key::Keys;
use crate::store::{HolderValue, Queued, Receipt};

/// An attempt to acquire that is under way. If dropped before its outcome is known, it releases
/// whatever it took.
///
/// The lock thread does the same if the call is no longer polled: the grant then belongs to the
/// call only if the call [claimed](Self::claim) it before. Dropping the attempt releases it once
/// more, since the call may have sent it in between.
pub(super) struct UnconfirmedAcquire {
    manager: Arc<Backend>,
    stake: Stake,
    receipt: Receipt,
    /// The call, if the lock thread checks that it is polled. Its receipt is then used.
    caller: Option<Arc<Caller>>,
    known: bool,
}

impl UnconfirmedAcquire {
    pub(super) fn arm(
        manager: &Arc<Backend>,
        keys: Keys<'_>,
        value: HolderValue,
        ttl: Duration,
        queued: Option<Queued>,
    ) -> Self {
        Self {
            manager: Arc::clone(manager),
            stake: Stake::new(keys, value, ttl, queued),
            receipt: Receipt::default(),
            caller: None,
            known: false,
        }
    }

    /// Lets the lock thread release the grant if `caller` is no longer polled. Call it before the
    /// attempt is sent.
    pub(super) fn by(mut self, caller: Option<&Arc<Caller>>) -> Self {
        if let Some(caller) = caller {
            caller.begin(self.stake.clone());
            self.caller = Some(Arc::clone(caller));
        }
        self
    }

    pub(super) fn value(&self) -> &HolderValue {
        self.stake.value()
    }

    pub(super) fn receipt(&self) -> &Receipt {
        self.caller.as_ref().map_or(&self.receipt, |caller| caller.receipt())
    }

    /// Ends the attempt with a known outcome: nothing is cleaned up.
    pub(super) fn disarm(mut self) {
        self.known = true;
    }

    /// Claims the granted lock. Returns the value, or `None` if the lock thread has released it
    /// because the call was not polled.
    pub(super) fn claim(mut self) -> Option<HolderValue> {
        self.known = self.caller.as_ref().is_none_or(|caller| caller.claim());
        self.known.then(|| self.stake.value().clone())
    }
}

impl Drop for UnconfirmedAcquire {
    fn drop(&mut self) {
        // In a forked child, the state may have been locked by a thread that does not exist here.
        if self.manager.host.is_forked() {
            return;
        }
        if let Some(caller) = &self.caller {
            caller.claim();
        }
        if !self.known {
            self.stake.give_back(&self.manager, self.receipt(), false);
        }
    }
}
