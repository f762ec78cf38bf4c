//! Acquires whose outcome is not known yet. Their clean-up is armed before the first byte is sent,
//! and only a known outcome disarms it: a call can be dropped at any await, and its request may
//! still take the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::acquire::callers::{Asked, Caller};
use crate::hold::Backend;
use crate::hold::upkeep::Stake;
use crate::host::Moment;
use crate::store::responder::Responder;
use crate::store::{AcquireRequest, Dispatch, HolderValue, Receipt};

/// An attempt to acquire that is under way. If dropped before its outcome is known, it releases
/// whatever it took.
///
/// The lock thread does the same if the call is no longer polled: the grant then belongs to the
/// call only if the call [claimed](Self::claim) it before. Dropping the attempt releases it once
/// more, since the call may have sent it in between.
pub(super) struct UnconfirmedAcquire<'a> {
    manager: &'a Arc<Backend>,
    /// The call, which has what is at stake, and the receipt.
    caller: Arc<Caller>,
    value: HolderValue,
    known: bool,
    /// The time at which it was sent in a batch, in nanoseconds of the host's clock; 0 if it was not.
    in_batch: AtomicU64,
}

impl<'a> UnconfirmedAcquire<'a> {
    /// Call it before the attempt is sent.
    pub(super) fn arm(manager: &'a Arc<Backend>, caller: &Arc<Caller>, stake: Stake) -> Self {
        let value = stake.value().clone();
        caller.begin(stake);
        Self {
            manager,
            caller: Arc::clone(caller),
            value,
            known: false,
            in_batch: AtomicU64::new(0),
        }
    }

    /// Sends the attempt at once. Returns `None` if the store does not.
    pub(super) fn send(&self, request: &AcquireRequest<'_>) -> Option<Asked<'_>> {
        let responder = || Responder::to(Arc::clone(&self.caller) as _);
        let (by_itself, is_first_try) = match self.manager.store().send_acquire(request, &responder) {
            Dispatch::Declined => return None,
            Dispatch::ByItself(answer) => (Some(answer), false),
            Dispatch::Tried(answer) => (Some(answer), true),
            Dispatch::InBatch => {
                let now = self.manager.host().now().as_nanos();
                self.in_batch.store(now, Ordering::Relaxed);
                (None, true)
            }
        };
        Some(Asked {
            caller: &self.caller,
            by_itself,
            is_first_try,
        })
    }

    pub(super) fn value(&self) -> &HolderValue {
        &self.value
    }

    pub(super) fn receipt(&self) -> &Receipt {
        self.caller.receipt()
    }

    /// Ends the attempt with a known outcome: nothing is cleaned up.
    pub(super) fn disarm(mut self) {
        self.known = true;
    }

    /// Claims the granted lock. Returns the value, or `None` if the lock thread has released it
    /// because the call was not polled.
    pub(super) fn claim(mut self) -> Option<HolderValue> {
        self.known = self.caller.claim();
        self.known.then(|| self.value.clone())
    }
}

impl Drop for UnconfirmedAcquire<'_> {
    fn drop(&mut self) {
        // In a forked child, the state may have been locked by a thread that does not exist here.
        if self.manager.host().is_forked() {
            return;
        }
        let in_batch = *self.in_batch.get_mut();
        if !self.known && in_batch != 0 {
            let waited = self.manager.host().now().since(Moment::from_nanos(in_batch));
            self.manager.store().gave_up(self.receipt(), waited);
        }
        let stake = self.caller.end();
        if let Some(stake) = stake.filter(|_| !self.known) {
            stake.give_back(self.manager, self.receipt(), false);
        }
    }
}
