//! Waits for a lock in the server's queue, where a release hands it to the first waiter. A message
//! is only a hint: only the server's answer to the waiter's own question makes a lock held, extends
//! a claim or yields a fencing token.
//!
//! A waiter joins the queue by one script. A release sets the first waiter's value with a short
//! expiry, the claim, and notifies its process by a message on the process's one channel, or in a
//! cluster on one for each lock that it waits for. One task on the lock thread serves all waiters
//! of the process: it listens, tells the server every 250 ms that the process is alive, and finds
//! locks whose handover message was lost. A waiter does none of this for another one, since it may
//! never be polled again. While the task gets no answer for a second, waiters look for themselves,
//! on the connection of their own runtime, 400 times a second at most.
//!
//! Any client with permission to publish can send a message, so the waiter asks the server by one
//! script before it relies on having the lock. The same script extends the claim that it was handed
//! to the whole lease, and takes the fencing token. A value stands in a queue once; a waiter that
//! lost its place joins with another value.

mod asleep;
mod heartbeat;
mod look;
mod shards;
mod ticket;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use crate::host::{Backoff, Host, Mutex, Timer};
use crate::store::redis::connection::{ConnectionSlot, Push, eval_for_lock, failure};
use crate::store::redis::keyspace::{Keyspace, Wakes, drawing};
use crate::store::redis::reply::{self, millis};
use crate::store::redis::scripts::{JOIN, LockScript, MARKED_JOIN, MARKED_TAKE, SHARED_JOIN, SHARED_TAKE, TAKE};
use crate::store::{Attempt, Limited, LossHint, QueueOutcome, QueueRequest, StoreError, within};
use heartbeat::Heartbeat;
use look::is_foreign;
use shards::Shards;
use ticket::{LocalWaiters, Notice, Ticket, Waiting};

/// The pauses after a hint that turned out to be wrong, and before an unanswered request is sent
/// again.
const UNFOUNDED: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
/// The number of times that an unanswered request is sent again.
const TAKEN_AGAIN: u32 = 1;

/// All the waiting of one store in this process.
#[derive(Clone)]
pub(in crate::store::redis) struct Queue(Arc<Inner>);

struct Inner {
    /// The connection that listens and looks.
    background: ConnectionSlot,
    /// The means to listen to sharded channels, of a node of a cluster.
    shards: Option<Shards>,
    names: Arc<Keyspace>,
    response_timeout: Duration,
    /// The number of the connection that listens, or 0 if there is none.
    listening: AtomicU64,
    waiting: Mutex<Waiting>,
    /// Notified when a look may have become due.
    changed: Notify,
    /// `true` once a waiter's own look has failed, until a look succeeds.
    fails: AtomicBool,
}

/// A ticket in use. Dropping it ends the looks for it.
struct Stand<'a> {
    queue: &'a Queue,
    ticket: Arc<Ticket>,
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may still hold this mutex.
        if self.queue.host().is_forked() {
            return;
        }
        let mut waiting = self.queue.waiting();
        waiting.tickets.remove(self.ticket.value.text());
        if let Some(waiters) = waiting.waiters_by_queue.get_mut(&self.ticket.queue) {
            waiters.tickets.remove(&self.ticket.number);
            if waiters.tickets.is_empty() {
                waiting.waiters_by_queue.remove(&self.ticket.queue);
            }
        }
    }
}

impl Queue {
    pub(in crate::store::redis) fn new(
        background: ConnectionSlot,
        shards: Option<ConnectionSlot>,
        names: Arc<Keyspace>,
        response_timeout: Duration,
    ) -> Self {
        let queue = Self(Arc::new(Inner {
            background,
            shards: shards.map(Shards::new),
            names,
            response_timeout,
            listening: AtomicU64::new(0),
            waiting: Mutex::default(),
            changed: Notify::new(),
            fails: AtomicBool::new(false),
        }));
        let inner = Arc::downgrade(&queue.0);
        queue.0.background.report_to(Arc::new(move |hint| {
            if let (Some(inner), LossHint::Key(key)) = (inner.upgrade(), hint) {
                Self(inner).look_after_change(&key);
            }
        }));
        let inner = Arc::downgrade(&queue.0);
        queue.0.background.push_to(Arc::new(move |push| {
            if let Some(inner) = inner.upgrade() {
                Self(inner).receive(push);
            }
        }));
        if let Some(shards) = &queue.0.shards {
            let inner = Arc::downgrade(&queue.0);
            shards.push_to(Arc::new(move |push| {
                if let Some(inner) = inner.upgrade() {
                    Self(inner).receive_in_shard(push);
                }
            }));
        }
        queue
    }

    fn host(&self) -> &Host {
        self.0.background.host()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock()
    }

    /// Waits in the queue. The requests go out on `commands`, so that the release of a call that is
    /// dropped can follow on the same connection.
    pub(in crate::store::redis) async fn stand(
        &self,
        commands: ConnectionSlot,
        request: &QueueRequest<'_>,
    ) -> Result<QueueOutcome, StoreError> {
        // The ticket comes first, since it makes the process listen to its channel.
        let stand = self.ticket(request)?;
        let ticket = &stand.ticket;
        if let Some(turn) = self.join(&commands, request, ticket).await? {
            return Ok(turn);
        }
        let mut unfounded = 0;
        loop {
            match ticket.notified(request.contention).await {
                Notice::Lapsed | Notice::PassedOver => return Ok(QueueOutcome::Lapsed),
                // Goes on even if a more urgent notice arrives: the command for that one would use
                // the same connection, which is replaced if it does not answer the look in time.
                Notice::Nudge => self.look_alone(&commands, ticket).await,
                Notice::Hint => {
                    request.receipt.taking(true);
                    if let Some(granted) = self.take(&commands, request, ticket).await? {
                        return Ok(granted);
                    }
                    request.receipt.taking(false);
                    // The hint was late or forged. The pause keeps a flood of them from becoming a
                    // storm of requests. It is short beside the lease, since the next hint may be
                    // true, and the lock may then be handed over for no longer than that.
                    unfounded += 1;
                    let pause = UNFOUNDED.pause(self.host(), unfounded).min(request.ttl / 4);
                    self.host().sleep(Timer::LockThread, pause).await;
                }
            }
        }
    }

    fn ticket(&self, request: &QueueRequest<'_>) -> Result<Stand<'_>, StoreError> {
        let names = &self.0.names;
        let queue = names.queue_for(request.key, request.value);
        let mut waiting = self.waiting();
        let number = waiting.next;
        waiting.next += 1;
        // All waiters in one queue share its name.
        let known = waiting.waiters_by_queue.get_key_value(queue.as_str());
        let queue = known.map_or_else(|| queue.into(), |(queue, _)| Arc::clone(queue));
        let member = names.member(request.value, request.queued());
        let ticket = Arc::new(Ticket::new(number, Arc::clone(&queue), request.value, member));
        waiting
            .tickets
            .insert(Arc::clone(request.value.text()), Arc::clone(&ticket));
        if let Some(shards) = self.0.shards.as_ref().filter(|shards| shards.is_used())
            && !waiting.waiters_by_queue.contains_key(&queue)
            && !waiting.subscribed.contains(&queue)
        {
            waiting.wanted.insert(Arc::clone(&queue));
            shards.is_wanted();
        }
        let waiters = waiting.waiters_by_queue.entry(queue).or_insert_with(|| {
            self.0.changed.notify_one();
            LocalWaiters::new(request.key, request.value.is_shared(), self.host().now())
        });
        waiters.tickets.insert(number, Arc::clone(&ticket));
        let start = !std::mem::replace(&mut waiting.kept_up, true);
        drop(waiting);
        let stand = Stand { queue: self, ticket };
        if start {
            let keep_up = Heartbeat::new(self.clone()).run();
            self.host().spawn(keep_up).map_err(StoreError::permanent)?;
        }
        Ok(stand)
    }

    /// Sends the request to join. Returns `None` if the waiter is in the queue.
    async fn join(
        &self,
        commands: &ConnectionSlot,
        request: &QueueRequest<'_>,
        ticket: &Arc<Ticket>,
    ) -> Result<Option<QueueOutcome>, StoreError> {
        let names = &self.0.names;
        if let Some(ready) = commands.ready(Limited::Acquires, Duration::MAX) {
            ready.await?;
        }
        let live = commands.live().await?;
        let mark = commands.mark(&live, request.value).await?;
        let mark = mark.as_deref();
        let scripts: [&LockScript; 2] = if request.value.is_shared() {
            [&SHARED_JOIN; 2]
        } else {
            [&JOIN, &MARKED_JOIN]
        };
        request.receipt.sent_on(live.number);
        let sent = request.clock.now();
        let wakes = self.wakes(&ticket.queue);
        let counter = names.counter(request.key);
        let keys: [&str; 3] = [request.key, &ticket.queue, &counter];
        let keys = drawing(request.fence, &keys);
        let answer = eval_for_lock(commands, &live, scripts, mark, request.key, keys, |command| {
            command
                .arg(request.value.as_str())
                .arg(millis(request.ttl))
                .arg(&names.channels)
                .arg(&names.process)
                .arg(names.wakes(wakes))
                .arg(&ticket.member);
        });
        let answer = match within(self.host(), Timer::LockThread, self.0.response_timeout, answer).await {
            // A user without permission for the queue can still use the lock.
            Err(error) if error.is_permanent() && failure::redirect(&error).is_none() => {
                return Ok(Some(QueueOutcome::Unavailable));
            }
            answer => answer?,
        };
        match reply::attempt(&answer)? {
            Attempt::Granted { fence } => Ok(Some(QueueOutcome::Granted { fence, since: sent })),
            Attempt::Busy { holder, remaining } => {
                request.receipt.answered();
                let mut state = ticket.state.lock();
                state.joined = true;
                state.seen = holder.map(|holder| (holder, remaining));
                drop(state);
                // A message from before the process listened is lost, so a look has to find the
                // handover.
                let missed = wakes == Wakes::Never && self.wakes(&ticket.queue) != Wakes::Never;
                let remaining = if missed { Some(Duration::ZERO) } else { remaining };
                self.look_at(
                    &ticket.queue,
                    remaining,
                    is_foreign(answer.as_sequence().and_then(|parts| parts.get(1))),
                );
                Ok(None)
            }
        }
    }

    /// Takes the lock for the whole lease if the server has handed it over. The script may run
    /// twice, or after the release: it never creates a lock.
    async fn take(
        &self,
        commands: &ConnectionSlot,
        request: &QueueRequest<'_>,
        ticket: &Ticket,
    ) -> Result<Option<QueueOutcome>, StoreError> {
        let mut tries = 0;
        loop {
            // Limited as a whole: a connection that has to be made first may be that of a runtime which nobody drives
            // any more, while the call goes on in another one.
            let taken = self.take_once(commands, request, ticket);
            match within(self.host(), Timer::LockThread, self.0.response_timeout, taken).await {
                Err(error) if tries < TAKEN_AGAIN && !error.is_permanent() => {
                    tries += 1;
                    self.host()
                        .sleep(Timer::LockThread, UNFOUNDED.pause(self.host(), tries))
                        .await;
                }
                taken => return taken,
            }
        }
    }

    async fn take_once(
        &self,
        commands: &ConnectionSlot,
        request: &QueueRequest<'_>,
        ticket: &Ticket,
    ) -> Result<Option<QueueOutcome>, StoreError> {
        let names = &self.0.names;
        let counter = names.counter(request.key);
        let shared: [&str; 3] = [request.key, &ticket.queue, &counter];
        let exclusive: [&str; 2] = [request.key, &counter];
        let (scripts, keys): ([&LockScript; 2], &[&str]) = if request.value.is_shared() {
            ([&SHARED_TAKE; 2], &shared)
        } else {
            ([&TAKE, &MARKED_TAKE], &exclusive)
        };
        let keys = drawing(request.fence, keys);
        if let Some(ready) = commands.ready(Limited::Releases, Duration::MAX) {
            ready.await?;
        }
        let live = commands.live().await?;
        let mark = commands.mark(&live, request.value).await?;
        let mark = mark.as_deref();
        let sent = request.clock.now();
        let answer = eval_for_lock(commands, &live, scripts, mark, request.key, keys, |command| {
            command
                .arg(request.value.as_str())
                .arg(millis(request.ttl))
                .arg(u8::from(request.fence));
        });
        Ok(match reply::attempt(&answer.await?)? {
            Attempt::Granted { fence } => Some(QueueOutcome::Granted { fence, since: sent }),
            Attempt::Busy { .. } => None,
        })
    }

    /// Returns how messages about the locks of a queue reach the process.
    fn wakes(&self, queue: &str) -> Wakes {
        let listening = self.0.listening.load(Ordering::Acquire);
        if self.0.shards.is_some() && self.waiting().subscribed.contains(queue) {
            Wakes::ByQueue
        } else if listening != 0 && self.0.background.up().is_some_and(|live| live.number == listening) {
            Wakes::ByProcess
        } else {
            Wakes::Never
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting().waiters_by_queue.is_empty()
    }

    fn look_at_all(&self) {
        let now = self.host().now();
        for waiters in self.waiting().waiters_by_queue.values_mut() {
            waiters.due = now;
        }
        self.0.changed.notify_one();
    }

    /// Handles a push on the background connection. Must not block.
    fn receive(&self, push: Push) {
        match push {
            Push::Message(message) => self.receive_message(&message),
            Push::Disconnected => self.look_at_all(),
            Push::Unsubscribed(_) => {}
        }
    }

    fn receive_message(&self, message: &[u8]) {
        let Ok(message) = std::str::from_utf8(message) else {
            return;
        };
        // An earlier version put a fencing token before the colon. Tokens in messages are ignored.
        let Some((_, value)) = message.split_once(':') else {
            return;
        };
        // Without a ticket, the waiter has left, and releases the value itself.
        let ticket = self.waiting().tickets.get(value).cloned();
        if let Some(ticket) = ticket {
            self.hint(&ticket);
            if ticket.value.is_shared() {
                // Further waiters may be able to enter: one script run lets in a limited number.
                self.look_at(&ticket.queue, Some(Duration::ZERO), false);
            }
        }
    }
}
