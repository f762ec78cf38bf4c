//! The task that keeps up the places of this process in the queues.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::asleep::SUSPECTS;
use super::shards::Shards;
use super::{Inner, Queue};
use crate::host::{Backoff, Moment, Timer};
use crate::store::redis::keyspace::Wakes;
use crate::store::{StoreError, within};

/// The time for which the process keeps listening to its channel after its last waiter has left.
const LINGER: Duration = Duration::from_secs(1);
/// The minimum pause after a failed look. The pauses of `FAILED_MORE` are added to it.
const FAILED: Duration = Duration::from_millis(20);
const FAILED_MORE: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(230));
/// The age before which the loss of a connection counts as a failure.
const STEADY: Duration = Duration::from_secs(1);
/// The interval at which waiters may be asked to look for themselves, or for a sign of life.
const TICK: Duration = Duration::from_millis(50);

/// The task that serves the waiters. Only this task subscribes and unsubscribes.
pub(super) struct Heartbeat {
    queue: Queue,
    /// The number of the connection that was last asked to listen, the way in which messages reach the
    /// process, and the time of the answer.
    asked: Option<(u64, Wakes, Moment)>,
    /// The number of consecutive failures.
    failures: u32,
}

impl Heartbeat {
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            asked: None,
            failures: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let queue = self.queue.clone();
        let tick = async {
            let mut last = queue.host().now();
            loop {
                queue.host().sleep(Timer::LockThread, TICK).await;
                let now = queue.host().now();
                queue.nudge(now);
                queue.pass_over(now, now.since(last) >= SUSPECTS);
                last = now;
            }
        };
        tokio::select! {
            () = self.keep_up() => {}
            () = tick => {}
            () = queue.listen_in_shards() => {}
        }
    }

    async fn keep_up(&mut self) {
        let queue = self.queue.clone();
        loop {
            if queue.is_empty() {
                let waits = queue
                    .host()
                    .timeout(Timer::LockThread, LINGER, queue.0.changed.notified())
                    .await;
                if waits.is_none() && self.be_quiet().await {
                    return;
                }
            } else if let Err(error) = self.beat().await {
                if self.failures == 0 {
                    tracing::debug!(%error, "waiting locks could not be looked at, trying again");
                }
                self.failures = self.failures.saturating_add(1);
                // Pauses even if a lock is due: each look may fail in the same way.
                let pause = FAILED + FAILED_MORE.pause(queue.host(), self.failures);
                queue.host().sleep(Timer::LockThread, pause).await;
            }
        }
    }

    /// Looks at the locks that are due, or waits until one is.
    async fn beat(&mut self) -> Result<(), StoreError> {
        let wakes = self.listen().await?;
        let host = self.queue.host().clone();
        let (asked, next) = self.queue.due(host.now(), wakes);
        if asked.is_empty() {
            let pause = next.map_or(Duration::ZERO, |next| next.since(host.now()));
            host.timeout(Timer::LockThread, pause, self.queue.0.changed.notified())
                .await;
            return Ok(());
        }
        self.queue.refresh_all(asked).await?;
        if self
            .asked
            .is_some_and(|(_, _, since)| host.now().since(since) >= STEADY)
        {
            self.failures = 0;
        }
        Ok(())
    }

    /// Has messages reach this process: on its one channel, unless it listens to sharded ones, or the
    /// server does not allow either.
    async fn listen(&mut self) -> Result<Wakes, StoreError> {
        let Inner {
            background,
            shards,
            names,
            response_timeout,
            listening,
            ..
        } = &*self.queue.0;
        if let Some((number, wakes, since)) = self.asked {
            let is_up = background.up().is_some_and(|live| live.number == number);
            let is_refused = || wakes == Wakes::ByQueue && shards.as_ref().is_none_or(Shards::is_refused);
            if is_up && !is_refused() {
                return Ok(wakes);
            }
            self.asked = None;
            if !is_up && self.queue.host().now().since(since) < STEADY {
                return Err(StoreError::transient("the connection was lost soon after it was made"));
            }
        }
        let live = background.live().await?;
        let wakes = if self.queue.begin_in_shards(live.server) {
            Wakes::ByQueue
        } else {
            let channel = names.channel();
            let answer = background.subscribe(&live, &channel);
            match within(self.queue.host(), Timer::LockThread, *response_timeout, answer).await {
                Ok(()) => Wakes::ByProcess,
                Err(error) if error.is_permanent() => {
                    tracing::debug!(%error, "the server does not allow wake-ups; waiters find their turn by looking");
                    Wakes::Never
                }
                Err(error) => return Err(error),
            }
        };
        let number = if wakes == Wakes::ByProcess { live.number } else { 0 };
        listening.store(number, Ordering::Release);
        self.asked = Some((live.number, wakes, self.queue.host().now()));
        // Messages from before are lost.
        self.queue.look_at_all();
        Ok(wakes)
    }

    /// Stops listening. Returns `true` if there are no waiters and the task may end.
    async fn be_quiet(&mut self) -> bool {
        let inner = &*self.queue.0;
        let listens_in_shards = matches!(self.asked.take(), Some((_, Wakes::ByQueue, _)));
        inner.listening.store(0, Ordering::Release);
        // Unsubscribes even if the connection is not known to listen: the answer may have come too
        // late.
        if !listens_in_shards && let Some(live) = inner.background.up() {
            let channel = inner.names.channel();
            let answer = inner.background.unsubscribe(&live, &channel);
            drop(
                self.queue
                    .host()
                    .timeout(Timer::LockThread, inner.response_timeout, answer)
                    .await,
            );
        }
        let mut waiting = self.queue.waiting();
        waiting.kept_up = !waiting.waiters_by_queue.is_empty();
        !waiting.kept_up
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // The waiters still need the task after a panic.
        if std::thread::panicking() {
            let again = Self::new(self.queue.clone()).run();
            if self.queue.host().spawn(again).is_ok() {
                tracing::error!("the task that keeps up the waiting for locks panicked and was restarted");
            }
        }
    }
}
