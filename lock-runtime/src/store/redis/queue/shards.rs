//! Listens, at one node of a cluster, to a sharded channel for each lock that calls of this process wait
//! for there.
//!
//! A message on a plain channel goes to every node of the cluster. One on a sharded channel stays at the
//! node that has the channel's slot, and its replicas: that of the lock's queue, since its name begins
//! with the key of the queue.
//!
//! A server ends a subscription by itself when the slot moves to another node, and says so by a push that
//! `redis` takes for the answer to the oldest command under way: docs/upstream.md. So the subscriptions are
//! made on a connection that carries nothing else, which is ended if that happens while a command is under
//! way. Nobody unsubscribes: a channel stays until the connection ends, and no message comes on one that
//! nobody waits on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;

use super::Queue;
use super::ticket::Waiting;
use crate::host::{Backoff, Moment, Timer};
use crate::store::redis::connection::{Capabilities, Connection, ConnectionSlot, Push, PushReceiver, failure};
use crate::store::{Limited, StoreError, within};

/// The number of channels in one round trip.
const AT_ONCE: usize = 500;
/// The number of channels beyond which a connection is replaced, if most of them are not used any more.
const MOST: usize = 1000;
/// The pause before the process asks again to listen to a channel that the node has refused, whose slot is
/// on its way to another one.
const AGAIN: Duration = Duration::from_millis(250);
/// The pauses after a failure.
const FAILED: Backoff = Backoff::new(Duration::from_millis(40), Duration::from_millis(500));

/// The means to listen to sharded channels.
pub(super) struct Shards {
    /// The connection, which carries nothing else.
    slot: ConnectionSlot,
    /// `true` once the server has turned out to have them.
    is_used: AtomicBool,
    /// `true` once the server's user has turned out not to be allowed to use them.
    is_refused: AtomicBool,
    /// `true` once that user was allowed to publish.
    may_publish: AtomicBool,
    /// Notified when there may be a channel to listen to.
    wanted: Notify,
}

impl Shards {
    pub(super) fn new(slot: ConnectionSlot) -> Self {
        Self {
            slot,
            is_used: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            may_publish: AtomicBool::new(false),
            wanted: Notify::new(),
        }
    }

    pub(super) fn push_to(&self, receiver: PushReceiver) {
        self.slot.push_to(receiver);
    }

    /// Says that a call waits for another lock.
    pub(super) fn is_wanted(&self) {
        self.wanted.notify_one();
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    /// Says whether they are used with a server. Returns that.
    fn use_with(&self, server: Capabilities) -> bool {
        let is_used = server.is_7 && !self.is_refused();
        self.is_used.store(is_used, Ordering::Release);
        is_used
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Has the process listen to its one channel instead.
    fn refuse(&self) {
        self.is_refused.store(true, Ordering::Release);
        self.is_used.store(false, Ordering::Release);
    }
}

impl Queue {
    /// Begins to listen to sharded channels, if a server has them. Returns `true` if it does.
    pub(super) fn begin_in_shards(&self, server: Capabilities) -> bool {
        let Some(shards) = self.0.shards.as_ref().filter(|shards| shards.use_with(server)) else {
            return false;
        };
        let mut waiting = self.waiting();
        let Waiting {
            waiters_by_queue,
            subscribed,
            wanted,
            ..
        } = &mut *waiting;
        wanted.extend(
            waiters_by_queue
                .keys()
                .filter(|queue| !subscribed.contains(*queue))
                .cloned(),
        );
        drop(waiting);
        shards.is_wanted();
        true
    }

    /// Listens to the sharded channels of the locks that calls wait for, while there are such channels.
    /// Does not end.
    pub(super) async fn listen_in_shards(&self) {
        let Some(shards) = &self.0.shards else {
            return std::future::pending().await;
        };
        let mut failures = 0_u32;
        loop {
            let (queues, next) = self.to_subscribe(shards);
            if queues.is_empty() {
                let pause = next.map(|next| next.since(self.host().now()));
                let wanted = shards.wanted.notified();
                match pause {
                    Some(pause) => drop(self.host().timeout(Timer::LockThread, pause, wanted).await),
                    None => wanted.await,
                }
                continue;
            }
            let live = self.live_for_shards(shards).await;
            // Without a connection, nothing is known of what the server allows.
            let is_connected = live.is_ok();
            let subscribed = match live {
                Ok(live) => self.subscribe_to(shards, &live, &queues).await,
                Err(error) => Err(error),
            };
            match subscribed {
                Ok(()) => failures = 0,
                Err(error) if is_connected && error.is_permanent() => {
                    tracing::debug!(%error, "the server does not allow sharded channels; a plain one is used");
                    shards.refuse();
                    self.waiting().wanted.clear();
                    self.0.changed.notify_one();
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::debug!(%error, "no wake-ups from a node of the cluster yet, trying again");
                    }
                    failures = failures.saturating_add(1);
                    let pause = FAILED.pause(self.host(), failures);
                    self.host().sleep(Timer::LockThread, pause).await;
                }
            }
        }
    }

    /// Returns some of the queues to whose channels the process is to listen now, and the time at which
    /// the next one is due.
    fn to_subscribe(&self, shards: &Shards) -> (Vec<Arc<str>>, Option<Moment>) {
        if !shards.is_used() {
            return (Vec::new(), None);
        }
        let now = self.host().now();
        let mut waiting = self.waiting();
        let Waiting {
            waiters_by_queue,
            subscribed,
            wanted,
            ..
        } = &mut *waiting;
        let (mut queues, mut next) = (Vec::new(), None::<Moment>);
        wanted.retain(|queue| {
            let Some(waiters) = waiters_by_queue.get_mut(queue).filter(|_| !subscribed.contains(queue)) else {
                return false;
            };
            if waiters.listen_at <= now && queues.len() < AT_ONCE {
                waiters.listen_at = now.after(AGAIN);
                queues.push(Arc::clone(queue));
            } else {
                next = Some(next.map_or(waiters.listen_at, |next| next.min(waiters.listen_at)));
            }
            true
        });
        (queues, next)
    }

    /// Listens to the channels of these queues. Those whose slots are elsewhere are asked for later.
    async fn subscribe_to(&self, shards: &Shards, live: &Connection, queues: &[Arc<str>]) -> Result<(), StoreError> {
        let before = self.waiting().unsubscribed;
        if let (false, Some(queue)) = (shards.may_publish.load(Ordering::Relaxed), queues.first()) {
            self.check_publishing(shards, live, queue).await?;
        }
        let subscribed = queues.iter().map(async |queue| {
            let channel = self.0.names.channel_of(queue);
            shards.slot.subscribe_in_shard(live, &channel).await
        });
        let subscribed = async { Ok(join_all(subscribed).await) };
        let subscribed = within(self.host(), Timer::LockThread, self.0.response_timeout, subscribed).await?;
        let mut all = Ok(());
        let now = self.host().now();
        let mut waiting = self.waiting();
        // If a subscription has ended meanwhile, it may be one of these. They are asked for again.
        let is_the_same = shards.slot.up().is_some_and(|up| up.number == live.number);
        let counts = is_the_same && waiting.unsubscribed == before;
        for (queue, subscribed) in queues.iter().zip(subscribed) {
            match subscribed {
                Ok(()) if counts => {
                    waiting.subscribed.insert(Arc::clone(queue));
                    // Messages from before are lost.
                    if let Some(waiters) = waiting.waiters_by_queue.get_mut(queue) {
                        waiters.due = now;
                    }
                }
                Ok(()) => {}
                Err(error) if failure::redirect(&error).is_some() => {}
                Err(error) => all = Err(error),
            }
        }
        drop(waiting);
        self.0.changed.notify_one();
        all
    }

    /// Returns the connection. One with too many channels that nobody waits on is replaced.
    async fn live_for_shards(&self, shards: &Shards) -> Result<Arc<Connection>, StoreError> {
        let is_full = {
            let waiting = self.waiting();
            waiting.subscribed.len() > MOST + 2 * waiting.waiters_by_queue.len()
        };
        if is_full && let Some(up) = shards.slot.up() {
            shards.slot.end(up.number, false);
        }
        shards.slot.live().await
    }

    /// Asks whether messages may be sent on sharded channels, by sending one that nobody is to hear.
    async fn check_publishing(&self, shards: &Shards, live: &Connection, queue: &str) -> Result<(), StoreError> {
        let mut publish = redis::cmd("SPUBLISH");
        publish.arg(self.0.names.channel_of(queue)).arg("");
        let answer = async {
            let answer = shards.slot.call(live, Limited::Releases, "", publish).await;
            answer.map_err(|error| failure::sort(&error, false))
        };
        match within(self.host(), Timer::LockThread, self.0.response_timeout, answer).await {
            Ok(_) => shards.may_publish.store(true, Ordering::Relaxed),
            Err(error) if failure::redirect(&error).is_some() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Handles a push on the connection for sharded channels. Must not block.
    pub(super) fn receive_in_shard(&self, push: Push) {
        let now = self.host().now();
        match push {
            Push::Message(message) => return self.receive_message(&message),
            Push::Unsubscribed(channel) => {
                let channel = String::from_utf8_lossy(&channel);
                let queue = channel.strip_suffix(&*self.0.names.process);
                let Some(queue) = queue.and_then(|queue| queue.strip_suffix(':')) else {
                    return;
                };
                let mut waiting = self.waiting();
                waiting.unsubscribed += 1;
                if let Some(queue) = waiting.subscribed.take(queue)
                    && let Some(waiters) = waiting.waiters_by_queue.get_mut(&queue)
                {
                    (waiters.due, waiters.listen_at) = (now, now.after(AGAIN));
                    waiting.wanted.insert(queue);
                }
            }
            Push::Disconnected => {
                let is_used = self.0.shards.as_ref().is_some_and(Shards::is_used);
                let mut waiting = self.waiting();
                let Waiting {
                    waiters_by_queue,
                    subscribed,
                    wanted,
                    ..
                } = &mut *waiting;
                subscribed.clear();
                for (queue, waiters) in waiters_by_queue {
                    (waiters.due, waiters.listen_at) = (now, now);
                    if is_used {
                        wanted.insert(Arc::clone(queue));
                    }
                }
            }
        }
        self.0.changed.notify_one();
        if let Some(shards) = &self.0.shards {
            shards.is_wanted();
        }
    }
}
