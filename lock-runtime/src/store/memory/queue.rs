//! The memory store's queue: a release hands the lock to the first in it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::exclusive::Slot;
use super::{MemoryStore, Tables, wake};
use crate::clock::{Clock, Moment, tokio_clock_is_paused};
use crate::engine::Timer;
use crate::holder::Holder;
use crate::store::{Mode, QueueRequest, Queued, StoreError, Turn};

/// How often a waiter looks at the key by itself: its expiry may have come nearer, by a minimum hold, a shorter renewal, or a
/// shorter lease of the next holder, of which nobody tells.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Those who wait for one key.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By when they came.
    pub(super) places: BTreeMap<u64, Arc<Ticket>>,
    next: u64,
}

/// One place in a queue.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) key: Arc<str>,
    pub(super) value: Arc<str>,
    pub(super) asked: Queued,
    pub(super) clock: Arc<dyn Clock>,
    granted: Mutex<Option<Result<Turn, StoreError>>>,
    notify: Notify,
}

impl Ticket {
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }

    pub(super) fn granted(&self) -> MutexGuard<'_, Option<Result<Turn, StoreError>>> {
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
        if self.is_shared(key, now) {
            return None;
        }
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

    /// How many wait for a key.
    pub(super) fn waiters(&self, key: &str) -> u64 {
        let queues = [self.queues.get(key), self.shared_queues.get(key)];
        queues
            .into_iter()
            .flatten()
            .map(|queue| queue.places.len() as u64)
            .sum()
    }

    /// Takes a value out of a key's queue.
    pub(super) fn leave_queue(&mut self, key: &str, value: &str) {
        let queues = self.queues_for(value);
        if let Some(queue) = queues.get_mut(key) {
            queue.places.retain(|_, ticket| *ticket.value != *value);
            if queue.places.is_empty() {
                queues.remove(key);
            }
        }
    }

    fn queues_for(&mut self, value: &str) -> &mut HashMap<Box<str>, Queue> {
        if Mode::is_shared(value) {
            &mut self.shared_queues
        } else {
            &mut self.queues
        }
    }

    /// Hands the key over if that is possible by now, and looks who has it.
    fn look_for(&mut self, ticket: &Arc<Ticket>, number: u64, now: Moment) -> Look {
        let (handed, seen) = if Mode::is_shared(&ticket.value) {
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

/// How things stand for one who waits.
struct Look {
    /// Who got the key just now.
    handed: Vec<Arc<Ticket>>,
    seen: Option<(Holder, Duration)>,
    /// Whether it is still in the queue.
    stands: bool,
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
        let number = {
            let mut tables = self.tables();
            let now = Self::now();
            let is_shared = Mode::is_shared(request.value);
            let is_other = if is_shared {
                tables.seen(request.key, now).is_some()
            } else {
                tables.is_shared(request.key, now)
            };
            if is_other {
                return Ok(Turn::Unavailable);
            }
            if is_shared && let Some(again) = tables.hand_again(&ticket, now) {
                request.receipt.answered();
                return again;
            }
            let queue = tables.queues_for(request.value).entry(request.key.into()).or_default();
            let number = queue.next;
            queue.next += 1;
            queue.places.insert(number, Arc::clone(&ticket));
            number
        };
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
            let look = self.tables().look_for(&ticket, number, Self::now());
            wake(look.handed);
            if !look.stands {
                match ticket.granted().take() {
                    Some(granted) => return granted,
                    // Somebody has taken this value out of the queue.
                    None => return Ok(Turn::Lapsed),
                }
            }
            let mut pause = LOOK_EVERY;
            if let Some((holder, remaining)) = look.seen {
                request.sighting.see(holder, Some(remaining));
                pause = pause.min(remaining);
            }
            tokio::select! {
                () = ticket.notify.notified() => {}
                () = timer.sleep(pause) => {}
            }
        }
    }
}
