//! The memory store's queue: a release hands the lock to the first waiter, for as long as a claim lasts. The waiter takes it
//! for its whole lease when it is polled.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::exclusive::Slot;
use super::{MemoryStore, Tables, wake};
use crate::host::{Clock, Moment, Mutex, Timer};
use crate::store::holder::Holder;
use crate::store::limits::claim;
use crate::store::{
    FencingToken, HolderValue, Ownership, QueueOutcome, QueueRequest, Queued, RenewRequest, StoreError,
};

/// The interval at which a waiter looks at the key by itself. A minimum hold, a shorter renewal, or
/// the next holder's shorter lease can make the key expire earlier than expected, and no message
/// reports that.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The waiters for one key.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In order of arrival.
    pub(super) places: BTreeMap<u64, Arc<Ticket>>,
    next: u64,
}

/// The fencing token of a lock that was handed over, if it has one; or why it was not.
pub(super) type Handed = Result<Option<FencingToken>, StoreError>;

/// One place in a queue.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) key: Arc<str>,
    pub(super) value: HolderValue,
    pub(super) asked: Queued,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) granted: Mutex<Option<Handed>>,
    notify: Notify,
}

impl Ticket {
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }
}

impl Tables {
    /// Returns `true` if a key is free and has waiters. A holder may acquire its own key again.
    pub(super) fn has_queue(&mut self, key: &str, now: Moment) -> bool {
        self.queues.contains_key(key) && self.seen(key, now).is_none()
    }

    /// Hands a free key to the first waiter in its queue. Returns the waiter to wake, once the
    /// tables are unlocked.
    pub(super) fn hand_over(&mut self, key: &str, now: Moment) -> Option<Arc<Ticket>> {
        if self.is_shared(key, now) {
            return None;
        }
        let queue = self.queues.get_mut(key)?;
        let first = queue.places.pop_first();
        if queue.places.is_empty() {
            self.queues.remove(key);
        }
        let (_, ticket) = first?;
        let fence = ticket.asked.fence.then(|| self.next_fence()).transpose();
        let handed = fence.inspect(|_| {
            let ends = now.after(claim(ticket.asked.ttl));
            self.put(&ticket.key, Slot::new(&ticket.value, ends), now);
        });
        *ticket.granted.lock() = Some(handed);
        Some(ticket)
    }

    /// Takes a lock that was handed over, for its whole lease.
    pub(super) fn take(&mut self, ticket: &Ticket, handed: Handed, now: Moment) -> Result<QueueOutcome, StoreError> {
        let fence = handed?;
        let since = ticket.clock.now();
        let whole = RenewRequest {
            key: Arc::clone(&ticket.key),
            value: ticket.value.clone(),
            extend: Some(ticket.asked.ttl),
        };
        Ok(match self.renew(&whole, now) {
            Ownership::Owned => QueueOutcome::Granted { fence, since },
            Ownership::Gone | Ownership::Foreign => QueueOutcome::Lapsed,
        })
    }

    /// Returns the number of waiters for a key.
    pub(super) fn waiters(&self, key: &str) -> u64 {
        let queues = [self.queues.get(key), self.shared_queues.get(key)];
        queues
            .into_iter()
            .flatten()
            .map(|queue| queue.places.len() as u64)
            .sum()
    }

    /// Takes a value out of a key's queue.
    pub(super) fn leave_queue(&mut self, key: &str, value: &HolderValue) {
        let queues = self.queues_for(value);
        if let Some(queue) = queues.get_mut(key) {
            queue.places.retain(|_, ticket| ticket.value != *value);
            if queue.places.is_empty() {
                queues.remove(key);
            }
        }
    }

    fn queues_for(&mut self, value: &HolderValue) -> &mut HashMap<Arc<str>, Queue> {
        if value.is_shared() {
            &mut self.shared_queues
        } else {
            &mut self.queues
        }
    }

    /// Hands the key over if that is possible by now. Returns the state of the key.
    fn look_for(&mut self, ticket: &Arc<Ticket>, number: u64, now: Moment) -> Look {
        let (handed, seen) = if ticket.value.is_shared() {
            (self.serve(&ticket.key, now), self.first_to_end(&ticket.key, now))
        } else {
            match self.seen(&ticket.key, now) {
                None => (Vec::from_iter(self.hand_over(&ticket.key, now)), None),
                seen => (Vec::new(), seen),
            }
        };
        let queue = self.queues_for(&ticket.value).get(&*ticket.key);
        Look {
            handed,
            seen,
            stands: queue
                .and_then(|queue| queue.places.get(&number))
                .is_some_and(|there| Arc::ptr_eq(there, ticket)),
        }
    }
}

/// The state of a key, as one waiter finds it.
struct Look {
    /// The waiters that have just got the key.
    handed: Vec<Arc<Ticket>>,
    seen: Option<(Holder, Duration)>,
    /// `true` while the waiter is still in the queue.
    stands: bool,
}

impl MemoryStore {
    fn take_handed(&self, ticket: &Ticket) -> Option<Result<QueueOutcome, StoreError>> {
        let handed = ticket.granted.lock().take()?;
        Some(self.tables.lock().take(ticket, handed, Self::now()))
    }

    pub(super) async fn stand_in_queue(&self, request: &QueueRequest<'_>) -> Result<QueueOutcome, StoreError> {
        let ticket = Arc::new(Ticket {
            key: Arc::clone(request.key),
            value: request.value.clone(),
            asked: Queued {
                ttl: request.ttl,
                fence: request.fence,
            },
            clock: Arc::clone(request.clock),
            granted: Mutex::default(),
            notify: Notify::new(),
        });
        request.receipt.sent_on(1);
        let number = {
            let mut tables = self.tables.lock();
            let now = Self::now();
            let is_shared = request.value.is_shared();
            let is_other = if is_shared {
                tables.seen(request.key, now).is_some()
            } else {
                tables.is_shared(request.key, now)
            };
            if is_other {
                return Ok(QueueOutcome::Unavailable);
            }
            if is_shared && let Some(again) = tables.hand_again(&ticket, now) {
                request.receipt.answered();
                return again;
            }
            let queue = tables
                .queues_for(request.value)
                .entry(Arc::clone(request.key))
                .or_default();
            let number = queue.next;
            queue.next += 1;
            queue.places.insert(number, Arc::clone(&ticket));
            number
        };
        request.receipt.answered();
        let timer = Timer::of_tokio();
        loop {
            if let Some(taken) = self.take_handed(&ticket) {
                return taken;
            }
            // The holder may have let the lock expire, which no message reports.
            let look = self.tables.lock().look_for(&ticket, number, Self::now());
            wake(look.handed);
            if !look.stands {
                // Otherwise a release has taken this value out of the queue.
                return self.take_handed(&ticket).unwrap_or(Ok(QueueOutcome::Lapsed));
            }
            let mut pause = LOOK_EVERY;
            if let Some((holder, remaining)) = look.seen {
                request.contention.see(holder, Some(remaining));
                pause = pause.min(remaining);
            }
            tokio::select! {
                () = ticket.notify.notified() => {}
                () = self.host.sleep(timer, pause) => {}
            }
        }
    }
}
