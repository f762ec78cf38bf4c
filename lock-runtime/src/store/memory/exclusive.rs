//! The exclusive lock in memory: the same steps as the Lua scripts of the Redis store.

use std::sync::Arc;
use std::time::Duration;

use super::Tables;
use super::queue::Ticket;
use crate::host::Moment;
use crate::store::holder::Holder;
use crate::store::{
    AcquireRequest, Attempt, Fence, FencingToken, HolderValue, Ownership, ReleaseRequest, RenewRequest, StoreError,
};

/// The value under one key.
#[derive(Debug)]
pub(super) struct Slot {
    value: Arc<str>,
    expires: Moment,
    /// `true` once released and kept for the rest of its minimum hold: the value no longer owns the
    /// key.
    kept: bool,
}

impl Slot {
    pub(super) fn new(value: &HolderValue, expires: Moment) -> Self {
        Self {
            value: Arc::clone(value.text()),
            expires,
            kept: false,
        }
    }

    #[cfg(feature = "testing")]
    pub(super) fn end_at(&mut self, expires: Moment) {
        self.expires = expires;
    }
}

impl Tables {
    /// Returns the unexpired value under `key`.
    fn live(&mut self, key: &str, now: Moment) -> Option<&mut Slot> {
        self.slots.get_mut(key).filter(|slot| slot.expires > now)
    }

    /// Removes expired values, once there are enough values to make that worthwhile.
    fn sweep(&mut self, now: Moment) {
        if self.slots.len() >= self.sweep_at.max(64) {
            self.slots.retain(|_, slot| slot.expires > now);
            self.sweep_at = self.slots.len() * 2;
        }
    }

    fn verdict(&mut self, key: &str, value: &HolderValue, now: Moment) -> Result<&mut Slot, Ownership> {
        match self.live(key, now) {
            Some(slot) if slot.value == *value.text() && !slot.kept => Ok(slot),
            Some(_) => Err(Ownership::Foreign),
            None => Err(Ownership::Gone),
        }
    }

    pub(super) fn is_own(&mut self, key: &str, value: &HolderValue, now: Moment) -> bool {
        self.verdict(key, value, now).is_ok()
    }

    pub(super) fn put(&mut self, key: &Arc<str>, slot: Slot, now: Moment) {
        self.sweep(now);
        self.slots.insert(Arc::clone(key), slot);
    }

    /// Returns the holder of the key and the rest of its lease.
    pub(super) fn seen(&mut self, key: &str, now: Moment) -> Option<(Holder, Duration)> {
        let slot = self.live(key, now)?;
        Some((Holder::of(&*slot.value), slot.expires.since(now)))
    }

    pub(super) fn acquire(&mut self, request: &AcquireRequest<'_>, now: Moment) -> Result<Attempt, StoreError> {
        if let Some(slot) = self.live(request.key, now)
            && (slot.value != *request.value.text() || slot.kept)
        {
            return Ok(Attempt::Busy {
                holder: Some(Holder::of(&*slot.value)),
                remaining: request.tell_remaining.then(|| slot.expires.since(now)),
            });
        }
        if self.is_shared(request.key, now) {
            return Err(StoreError::other_kind());
        }
        if request.fair && self.has_queue(request.key, now) {
            return Ok(Attempt::Busy {
                holder: None,
                remaining: None,
            });
        }
        let fence = if request.fence { Some(self.next_fence()?) } else { None };
        self.put(request.key, Slot::new(request.value, now.after(request.ttl)), now);
        Ok(Attempt::Granted { fence })
    }

    pub(super) fn renew(&mut self, request: &RenewRequest, now: Moment) -> Ownership {
        if request.value.is_shared() {
            return self.renew_shared(request, now);
        }
        match (self.verdict(&request.key, &request.value, now), request.extend) {
            (Ok(slot), Some(lease)) => {
                slot.expires = now.after(lease);
                Ownership::Owned
            }
            (Ok(_), None) => Ownership::Owned,
            (Err(verdict), _) => verdict,
        }
    }

    /// Releases the lock. Also returns the waiter to wake.
    pub(super) fn release(&mut self, request: &ReleaseRequest<'_>, now: Moment) -> (Ownership, Option<Arc<Ticket>>) {
        if request.queued.is_some() {
            self.leave_queue(request.key, request.value);
        }
        if request.keep.is_some()
            && let Some(slot) = self.live(request.key, now)
            && slot.kept
            && slot.value == *request.value.text()
        {
            // The same release, delivered twice.
            return (Ownership::Owned, None);
        }
        match self.verdict(request.key, request.value, now) {
            Ok(slot) => {
                if let Some(keep) = request.keep {
                    slot.expires = now.after(keep);
                    slot.kept = true;
                    return (Ownership::Owned, None);
                }
                self.slots.remove(&**request.key);
                (Ownership::Owned, self.hand_over(request.key, now))
            }
            Err(verdict) => (verdict, None),
        }
    }

    pub(super) fn fence(&mut self, key: &str, value: &HolderValue, now: Moment) -> Result<Fence, StoreError> {
        if value.is_shared() {
            return self.fence_shared(key, value, now);
        }
        match self.verdict(key, value, now) {
            Ok(_) => self.next_fence().map(Fence::Token),
            Err(verdict) => Ok(Fence::NotOwned(verdict)),
        }
    }

    /// Raises the last token to one of another store, for a lock that is held.
    pub(super) fn raise_fence(
        &mut self,
        key: &str,
        value: &HolderValue,
        fence: FencingToken,
        now: Moment,
    ) -> Ownership {
        match self.verdict(key, value, now) {
            Ok(_) => {
                self.last_fence = self.last_fence.max(fence.get());
                Ownership::Owned
            }
            Err(verdict) => verdict,
        }
    }

    /// Returns `max(last + 1, microseconds)`, which grows strictly, even across a restart.
    pub(super) fn next_fence(&mut self) -> Result<FencingToken, StoreError> {
        let micros = u64::try_from(self.host.unix_time().as_micros()).unwrap_or(0);
        let next = self.last_fence.checked_add(1);
        let next = next.ok_or_else(|| StoreError::permanent("the fencing counter has reached its largest number"))?;
        self.last_fence = next.max(micros);
        Ok(FencingToken::new(self.last_fence))
    }
}
