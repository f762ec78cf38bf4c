//! The memory store's queue: a release hands the lock to the first in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::exclusive::Slot;
use super::{MemoryStore, Tables};
use crate::clock::{Clock, Moment, tokio_clock_is_paused};
use crate::engine::Timer;
use crate::store::{QueueRequest, Queued, StoreError, Turn};

/// How often a waiter looks at the key by itself: its expiry may have come nearer, by a minimum hold, a shorter renewal, or a
/// shorter lease of the next holder, of which nobody tells.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Those who wait for one key.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By when they came.
    places: BTreeMap<u64, Arc<Ticket>>,
    next: u64,
}

/// One place in a queue.
#[derive(Debug)]
pub(super) struct Ticket {
    key: Arc<str>,
    value: Arc<str>,
    asked: Queued,
    clock: Arc<dyn Clock>,
    granted: Mutex<Option<Result<Turn, StoreError>>>,
    notify: Notify,
}

impl Ticket {
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }

    fn granted(&self) -> MutexGuard<'_, Option<Result<Turn, StoreError>>> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// Whether somebody waits for a key that is free. Who has it may ask for it again.
    pub(super) fn has_queue(&mut self, key: &str, now: Moment) -> bool {
        self.queues.contains_key(key) && self.seen(key, now).is_none()
    }

    /// Hands a key that is free to the first in its queue. Returns whom to wake, once the tables are unlocked.
    pub(super) fn hand_over(&mut self, key: &str, now: Moment) -> Option<Arc<Ticket>> {
        let queue = self.queues.get_mut(key)?;
        let first = queue.places.pop_first();
        if queue.places.is_empty() {
            self.queues.remove(key);
        }
        let (_, ticket) = first?;
        let fence = if ticket.asked.fence {
            self.next_fence().map(Some)
        } else {
            Ok(None)
        };
        let granted = fence.map(|fence| {
            self.put(
                &ticket.key,
                Slot::new(&ticket.value, now.after(ticket.asked.lease)),
                now,
            );
            Turn::Granted {
                fence,
                since: ticket.clock.now(),
                lease: ticket.asked.lease,
            }
        });
        *ticket.granted() = Some(granted);
        Some(ticket)
    }

    /// Takes a value out of a key's queue.
    pub(super) fn leave_queue(&mut self, key: &str, value: &str) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.places.retain(|_, ticket| *ticket.value != *value);
            if queue.places.is_empty() {
                self.queues.remove(key);
            }
        }
    }
}

impl MemoryStore {
    pub(super) async fn stand_in_queue(&self, request: &QueueRequest<'_>) -> Result<Turn, StoreError> {
        let ticket = Arc::new(Ticket {
            key: request.key.into(),
            value: request.value.into(),
            asked: Queued {
                lease: request.lease,
                fence: request.fence,
            },
            clock: Arc::clone(request.clock),
            granted: Mutex::default(),
            notify: Notify::new(),
        });
        request.receipt.sent_on(1);
        {
            let mut tables = self.tables();
            let queue = tables.queues.entry(request.key.into()).or_default();
            let number = queue.next;
            queue.next += 1;
            queue.places.insert(number, Arc::clone(&ticket));
        }
        request.receipt.answered();
        let timer = if tokio_clock_is_paused() {
            Timer::Caller
        } else {
            Timer::Engine
        };
        loop {
            if let Some(granted) = ticket.granted().take() {
                return granted;
            }
            // Whoever had the lock may have left it to expire, and then nobody tells.
            let remaining = {
                let mut tables = self.tables();
                let now = Self::now();
                if let Some((holder, remaining)) = tables.seen(request.key, now) {
                    request.sighting.see(holder, Some(remaining));
                    remaining
                } else {
                    let next = tables.hand_over(request.key, now);
                    drop(tables);
                    match next {
                        Some(next) => next.wake(),
                        // Somebody has taken this value out of the queue.
                        None if ticket.granted().is_none() => return Ok(Turn::Lapsed),
                        None => {}
                    }
                    continue;
                }
            };
            tokio::select! {
                () = ticket.notify.notified() => {}
                () = timer.sleep(remaining.min(LOOK_EVERY)) => {}
            }
        }
    }
}
