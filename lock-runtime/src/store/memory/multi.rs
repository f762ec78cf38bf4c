//! Takes many exclusive locks under one value, in memory.

use std::sync::Arc;

use super::Tables;
use super::exclusive::Slot;
use super::queue::Ticket;
use crate::host::Moment;
use crate::store::{AcquireAllRequest, AttemptAll, StoreError};

impl Tables {
    /// Takes all the locks, or none. Also returns the waiters to wake.
    pub(super) fn acquire_all(
        &mut self,
        request: &AcquireAllRequest<'_>,
        now: Moment,
    ) -> (Result<AttemptAll, StoreError>, Vec<Arc<Ticket>>) {
        let mut handed = Vec::new();
        for key in request.keys {
            if self.is_shared(key, now) {
                return (Err(StoreError::other_kind()), handed);
            }
        }
        let mut own = Vec::with_capacity(request.keys.len());
        let mut busy = None;
        for (at, key) in request.keys.iter().enumerate() {
            let is_own = self.is_own(key, request.value, now)
                || request.former.is_some_and(|former| self.is_own(key, former, now));
            own.push(is_own);
            if !is_own && busy.is_none() {
                busy = self.seen(key, now).map(|seen| (at, seen));
            }
        }
        let Some((busy, (holder, remaining))) = busy else {
            let fence = request.fence.then(|| self.next_fence()).transpose();
            if fence.is_ok() {
                for key in request.keys {
                    self.put(key, Slot::new(request.value, now.after(request.ttl)), now);
                }
            }
            return (fence.map(|fence| AttemptAll::Granted { fence }), handed);
        };
        for (at, (key, is_own)) in request.keys.iter().zip(own).enumerate() {
            if let Some(keep) = request.keep.filter(|_| at < busy) {
                self.put(key, Slot::new(request.value, now.after(keep)), now);
            } else if is_own {
                self.slots.remove(key);
                handed.extend(self.hand_over(key, now));
            }
        }
        let attempt = AttemptAll::Busy {
            at: busy,
            holder: Some(holder),
            remaining: Some(remaining),
        };
        (Ok(attempt), handed)
    }
}
