//! Looks at locks that calls of this process wait for: what lost messages would have told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::Queue;
use super::ticket::{ASKED, LocalWaiters, Notice, Ticket};
use crate::host::{Moment, Timer};
use crate::store::mode::is_ours;
use crate::store::redis::connection::failure::{self, Redirect};
use crate::store::redis::connection::{Connection, ConnectionSlot, eval_about};
use crate::store::redis::keyspace::{Keyspace, Wakes};
use crate::store::redis::reply::{as_remaining, holder_of};
use crate::store::redis::scripts::{REFRESH, SHARED_REFRESH};
use crate::store::{StoreError, within};

/// The interval at which the process tells the server that it waits, and looks for lost messages.
pub(super) const REFRESH_EVERY: Duration = Duration::from_millis(250);
/// The interval of looks if messages do not reach the process.
const REFRESH_DEAF: Duration = Duration::from_millis(100);
/// The maximum number of locks in one round trip of looks.
const BATCH: usize = 100;
/// The maximum number of such round trips in flight.
const AT_ONCE: usize = 4;
/// The number of waiters in one round trip beyond which no further lock joins it.
const ENOUGH: usize = 400;
/// The interval, in ms, of looks at a lock held by another kind of client, which notifies no waiter
/// of its release.
const FOREIGN_EVERY: std::ops::Range<u64> = 20..50;
/// The minimum interval of those looks per such lock, so that the process makes no more than 500 in
/// a second.
const FOREIGN_LOOK: Duration = Duration::from_millis(2);
/// The time without a successful look after which waiters are asked to look for themselves.
const UNSEEN: Duration = Duration::from_secs(1);
/// The mean interval at which the waiters for one lock are asked to.
const NUDGE_EVERY: Duration = Duration::from_millis(250);
/// The maximum number of waiters, for all locks, that are asked in one round.
const NUDGES: usize = 20;

/// A lock to look at.
pub(super) struct Asked {
    key: Arc<str>,
    queue: Arc<str>,
    is_shared: bool,
    /// The way in which messages about it reach the process.
    wakes: Wakes,
    tickets: Vec<Arc<Ticket>>,
}

impl Asked {
    /// Applies an answer. Returns `true` if a waiter lost its place, or got a lock that several may
    /// hold, and has not been told so before: a call that is not polled receives no notice, and the
    /// next look finds the same.
    fn settle(&self, queue: &Queue, holder: &[u8], remaining: Option<Duration>, stands: &[Value]) -> bool {
        let mut ended = false;
        for (ticket, stands) in self.tickets.iter().zip(stands) {
            let holds = *stands == Value::Int(2) || holder == ticket.value.as_str().as_bytes();
            if holds {
                let is_new = queue.hint(ticket);
                ended |= self.is_shared && is_new;
            } else if *stands == Value::Int(1) {
                if !holder.is_empty() {
                    ticket.state.lock().seen = Some((holder_of(holder), remaining));
                }
            } else {
                ended |= ticket.notify(Notice::Lapsed);
            }
        }
        ended
    }
}

impl Queue {
    /// Schedules a look at a lock for the end of its holder's lease, if that is soon, and in any
    /// case soon if another kind of client holds the lock.
    pub(super) fn look_at(&self, queue: &str, remaining: Option<Duration>, is_foreign: bool) {
        let mut waiting = self.waiting();
        let foreign = waiting.foreign.max(1);
        let Some(waiters) = waiting.waiters_by_queue.get_mut(queue) else {
            return;
        };
        waiters.is_foreign = is_foreign;
        let mut pause = next_look(remaining);
        if is_foreign {
            let every = Duration::from_millis(self.host().between(FOREIGN_EVERY));
            pause = pause.min(every).max(FOREIGN_LOOK * foreign);
        }
        let due = self.host().now().after(pause);
        let sooner = due < waiters.due;
        waiters.due = waiters.due.min(due);
        drop(waiting);
        if sooner {
            self.0.changed.notify_one();
        }
    }

    /// Schedules a look at a lock that another kind of client has changed, and may have released.
    /// Must not block.
    pub(super) fn look_after_change(&self, key: &str) {
        let mut waiting = self.waiting();
        if waiting.foreign == 0 {
            return;
        }
        let gap = FOREIGN_LOOK * waiting.foreign;
        let Some(waiters) = waiting.waiters_by_queue.get_mut(self.0.names.queue(key).as_str()) else {
            return;
        };
        if waiters.is_foreign {
            waiters.due = waiters.due.min(waiters.looked.after(gap));
            drop(waiting);
            self.0.changed.notify_one();
        }
    }

    /// Asks waiters to look for themselves at locks for which no look has succeeded for a while.
    pub(super) fn nudge(&self, now: Moment) {
        let mut waiting = self.waiting();
        let unseen = |waiters: &&mut LocalWaiters| waiters.nudge_at <= now && now.since(waiters.seen) >= UNSEEN;
        let mut due_first: Vec<_> = waiting.waiters_by_queue.values_mut().filter(unseen).collect();
        due_first.sort_by_key(|waiters| waiters.nudge_at);
        let mut nudged: Vec<Arc<Ticket>> = Vec::new();
        for waiters in due_first {
            if nudged.len() == NUDGES {
                break;
            }
            waiters.nudge_at = now.after(NUDGE_EVERY.mul_f64(0.8 + 0.4 * self.host().fraction()));
            let most = ASKED.min(NUDGES - nudged.len());
            nudged.extend(waiters.tickets.values().take(most).cloned());
        }
        drop(waiting);
        // Told while nothing is locked: a waker may act at once.
        for ticket in nudged {
            ticket.notify(Notice::Nudge);
        }
    }

    /// Looks at one place on `commands` instead of the shared connection. Only logs the first failure,
    /// since another look follows later.
    pub(super) async fn look_alone(&self, commands: &ConnectionSlot, ticket: &Arc<Ticket>) {
        let asked = {
            let waiting = self.waiting();
            let Some(waiters) = waiting.waiters_by_queue.get(&ticket.queue) else {
                return;
            };
            Asked {
                key: Arc::clone(&waiters.key),
                queue: Arc::clone(&ticket.queue),
                is_shared: waiters.is_shared,
                // The process may seem to listen, but its connection has not answered for a while.
                wakes: Wakes::Never,
                tickets: vec![Arc::clone(ticket)],
            }
        };
        match self.refresh(commands, &[asked]).await {
            Ok(()) => self.0.fails.store(false, Ordering::Relaxed),
            // There may be thousands of waiters.
            Err(error) if !self.0.fails.swap(true, Ordering::Relaxed) => {
                tracing::debug!(%error, "a waiter could not look at its lock by its own connection, trying again");
            }
            Err(_) => {}
        }
    }

    /// Returns the locks that are due for a look, the longest overdue first, and the time of the
    /// next look.
    pub(super) fn due(&self, now: Moment, wakes: Wakes) -> (Vec<Asked>, Option<Moment>) {
        let mut waiting = self.waiting();
        let waiting = &mut *waiting;
        let foreign = waiting
            .waiters_by_queue
            .values()
            .filter(|waiters| waiters.is_foreign)
            .count();
        waiting.foreign = u32::try_from(foreign).unwrap_or(u32::MAX);
        // Locks that are due soon are included, so that all share one rhythm. Locks held by other
        // kinds of clients have a faster one of their own.
        let anybody = waiting
            .waiters_by_queue
            .values()
            .any(|waiters| waiters.due <= now && !waiters.is_foreign);
        let soon = if anybody {
            now.after(refresh_every(wakes) / 2)
        } else {
            now
        };
        let is_due = |waiters: &LocalWaiters| waiters.due <= if waiters.is_foreign { now } else { soon };
        let mut due_first: Vec<_> = waiting
            .waiters_by_queue
            .iter_mut()
            .filter(|(_, waiters)| is_due(waiters))
            .collect();
        due_first.sort_by_key(|(_, waiters)| waiters.due);
        let mut asked = Vec::new();
        for (queue, waiters) in due_first.into_iter().take(BATCH * AT_ONCE) {
            let wakes = match wakes {
                Wakes::ByQueue if !waiting.subscribed.contains(queue) => Wakes::Never,
                wakes => wakes,
            };
            waiters.due = now.after(refresh_every(wakes));
            waiters.looked = now;
            let tickets = waiters.asked_about();
            if !tickets.is_empty() {
                asked.push(Asked {
                    key: Arc::clone(&waiters.key),
                    queue: Arc::clone(queue),
                    is_shared: waiters.is_shared,
                    wakes,
                    tickets,
                });
            }
        }
        (
            asked,
            waiting.waiters_by_queue.values().map(|waiters| waiters.due).min(),
        )
    }

    /// Looks at many locks in a few concurrent round trips.
    pub(super) async fn refresh_all(&self, asked: Vec<Asked>) -> Result<(), StoreError> {
        let mut batches = Vec::new();
        for batch in batches_of(asked, &self.0.names) {
            let queue = self.clone();
            batches.push(self.host().spawn_here(async move {
                queue.refresh(&queue.0.background, &batch).await?;
                queue.have_seen(&batch);
                Ok(())
            }));
        }
        let mut all = Ok(());
        for batch in batches {
            all = all.and(match batch.await {
                Ok(refreshed) => refreshed,
                Err(error) => {
                    tracing::error!(%error, "looking at waiting locks panicked");
                    Err(StoreError::transient("looking at waiting locks panicked"))
                }
            });
        }
        all
    }

    async fn refresh(&self, slot: &ConnectionSlot, asked: &[Asked]) -> Result<(), StoreError> {
        let live = slot.live().await?;
        let answer = self.ask(slot, &live, asked);
        let answer = within(self.host(), Timer::LockThread, self.0.response_timeout, answer).await;
        if let Err(error) = &answer
            && let Some(redirect) = failure::redirect(error)
        {
            // The slot of these locks is another node's by now, and the places are there: the calls find
            // that out when they ask for their locks. Or it is on its way there, and the calls begin anew.
            let is_there = matches!(redirect, Redirect::Moved(..));
            let notice = if is_there { Notice::Hint } else { Notice::Lapsed };
            slot.ask_again();
            for asked in asked {
                for ticket in &asked.tickets {
                    ticket.notify(notice);
                }
            }
            return Ok(());
        }
        let answers = match answer? {
            Value::Array(answers) if answers.len() == asked.len() => answers,
            _ => {
                return Err(StoreError::unknown(
                    "the server gave an unexpected answer to the refresh script",
                ));
            }
        };
        for (asked, answer) in asked.iter().zip(answers) {
            let Value::Array(parts) = answer else { continue };
            let [Value::BulkString(holder), remaining, stands @ ..] = parts.as_slice() else {
                continue;
            };
            let remaining = as_remaining(remaining);
            let ended = asked.settle(self, holder, remaining, stands);
            // If one waiter has lost its place, or has the lock without having received the
            // message, so may those behind it.
            let remaining = if ended { Some(Duration::ZERO) } else { remaining };
            self.look_at(&asked.queue, remaining, is_foreign(parts.first()));
        }
        Ok(())
    }

    /// Makes the server hand a lock to the first waiter in its queue after `pause`, for which the
    /// lock is left free.
    pub(in crate::store::redis) fn look_later(&self, key: &str, pause: Duration) {
        let asked = Asked {
            key: key.into(),
            queue: self.0.names.queue(key).into(),
            is_shared: false,
            wakes: Wakes::Never,
            tickets: Vec::new(),
        };
        let queue = self.clone();
        // If the task cannot be spawned, the waiters' own looks do so a little later.
        drop(self.host().spawn(async move {
            queue.host().sleep(Timer::LockThread, pause).await;
            if let Err(error) = queue.refresh(&queue.0.background, &[asked]).await {
                tracing::debug!(%error, "a lock that was left free could not be handed on, those who wait look soon");
            }
        }));
    }

    /// Tells the calls that wait for locks which this server no longer keeps that their places are lost.
    pub(in crate::store::redis) fn lapse(&self, is_elsewhere: impl Fn(&str) -> bool) {
        let tickets: Vec<Vec<_>> = {
            let waiting = self.waiting();
            let elsewhere = waiting
                .waiters_by_queue
                .values()
                .filter(|waiters| is_elsewhere(&waiters.key));
            elsewhere
                .map(|waiters| waiters.tickets.values().cloned().collect())
                .collect()
        };
        // Told while nothing is locked: a waker may act at once.
        for ticket in tickets.iter().flatten() {
            ticket.notify(Notice::Lapsed);
        }
    }

    fn have_seen(&self, asked: &[Asked]) {
        self.0.fails.store(false, Ordering::Relaxed);
        let now = self.host().now();
        let mut waiting = self.waiting();
        for asked in asked {
            if let Some(waiters) = waiting.waiters_by_queue.get_mut(&asked.queue) {
                waiters.seen = now;
            }
        }
    }

    async fn ask(&self, slot: &ConnectionSlot, live: &Connection, asked: &[Asked]) -> Result<Value, StoreError> {
        let names = &self.0.names;
        let keys: Vec<&str> = asked.iter().flat_map(|asked| [&*asked.key, &*asked.queue]).collect();
        let is_shared = asked.first().is_some_and(|asked| asked.is_shared);
        let wakes = asked.first().map_or(Wakes::Never, |asked| asked.wakes);
        let script = if is_shared { &SHARED_REFRESH } else { &REFRESH };
        // The argument `lock` is empty: there may be many locks, and this need not follow a lock's
        // other commands.
        eval_about(slot, live, script, "", &keys, |command| {
            command.arg(&names.channels).arg(&names.process).arg(names.wakes(wakes));
            for asked in asked {
                command.arg(asked.tickets.len());
                for ticket in &asked.tickets {
                    command.arg(&ticket.member);
                }
            }
        })
        .await
    }
}

/// Returns the interval of looks at a lock.
fn refresh_every(wakes: Wakes) -> Duration {
    match wakes {
        Wakes::Never => REFRESH_DEAF,
        Wakes::ByProcess | Wakes::ByQueue => REFRESH_EVERY,
    }
}

/// Returns the time until the next look at a lock, given the rest of its holder's lease.
fn next_look(remaining: Option<Duration>) -> Duration {
    // The lock is free just after the end of the lease.
    let end = remaining.map(|remaining| remaining.saturating_add(Duration::from_millis(1)));
    end.map_or(REFRESH_EVERY, |end| end.min(REFRESH_EVERY))
}

/// Returns `true` if a holder's value in a script's answer was written by another kind of client.
pub(super) fn is_foreign(holder: Option<&Value>) -> bool {
    match holder {
        Some(Value::BulkString(holder)) if !holder.is_empty() => {
            std::str::from_utf8(holder).map_or(true, |holder| !is_ours(holder))
        }
        _ => false,
    }
}

/// Groups the looks into round trips, each for locks of one kind, which one command can be about, and
/// for a limited number of waiters. What tells of them is the same for all.
fn batches_of(asked: Vec<Asked>, names: &Keyspace) -> Vec<Vec<Asked>> {
    let mut batches = Vec::new();
    let mut kinds: BTreeMap<(bool, Wakes, u16), Vec<Asked>> = BTreeMap::new();
    for asked in asked {
        let kind = (asked.is_shared, asked.wakes, names.group(&asked.key));
        kinds.entry(kind).or_default().push(asked);
    }
    for kind in kinds.into_values() {
        let mut batch = Vec::new();
        let mut waiters = 0;
        for asked in kind {
            if asked.is_shared {
                waiters += asked.tickets.len();
            }
            batch.push(asked);
            if batch.len() == BATCH || waiters >= ENOUGH {
                batches.push(std::mem::take(&mut batch));
                waiters = 0;
            }
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
    }
    batches
}
