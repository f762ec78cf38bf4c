//! The task that keeps up the places of this process in the queues.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Inner, Queue};
use crate::host::{Backoff, Moment, Timer};
use crate::store::{StoreError, within};

/// The time for which the process keeps listening to its channel after its last waiter has left.
const LINGER: Duration = Duration::from_secs(1);
/// The minimum pause after a failed look. The pauses of `FAILED_MORE` are added to it.
const FAILED: Duration = Duration::from_millis(20);
const FAILED_MORE: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(230));
/// The age before which the loss of a connection counts as a failure.
const STEADY: Duration = Duration::from_secs(1);
/// The interval at which waiters may be asked to look for themselves.
const NUDGE_TICK: Duration = Duration::from_millis(50);

/// The task that serves the waiters. Only this task subscribes and unsubscribes.
pub(super) struct Heartbeat {
    queue: Queue,
    /// The number of the connection that was last asked to listen, `true` if it does, and the time
    /// of its answer.
    asked: Option<(u64, bool, Moment)>,
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
        let nudge = async {
            loop {
                queue.host().sleep(Timer::LockThread, NUDGE_TICK).await;
                queue.nudge(queue.host().now());
            }
        };
        tokio::select! {
            () = self.keep_up() => {}
            () = nudge => {}
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
        let listens = self.listen().await?;
        let host = self.queue.host().clone();
        let (asked, next) = self.queue.due(host.now(), listens);
        if asked.is_empty() {
            let pause = next.map_or(Duration::ZERO, |next| next.since(host.now()));
            host.timeout(Timer::LockThread, pause, self.queue.0.changed.notified())
                .await;
            return Ok(());
        }
        self.queue.refresh_all(asked, listens).await?;
        if self
            .asked
            .is_some_and(|(_, _, since)| host.now().since(since) >= STEADY)
        {
            self.failures = 0;
        }
        Ok(())
    }

    /// Listens to this process's channel. Returns `false` if the server does not allow that.
    async fn listen(&mut self) -> Result<bool, StoreError> {
        let Inner {
            background,
            names,
            response_timeout,
            listening,
            ..
        } = &*self.queue.0;
        if let Some((number, listens, since)) = self.asked {
            if background.up().is_some_and(|live| live.number == number) {
                return Ok(listens);
            }
            self.asked = None;
            if self.queue.host().now().since(since) < STEADY {
                return Err(StoreError::transient("the connection was lost soon after it was made"));
            }
        }
        let live = background.live().await?;
        let channel = names.channel();
        let answer = background.subscribe(&live, &channel);
        let listens = match within(self.queue.host(), Timer::LockThread, *response_timeout, answer).await {
            Ok(()) => true,
            Err(error) if error.is_permanent() => {
                tracing::debug!(%error, "the server does not allow wake-ups; waiters find their turn by looking");
                false
            }
            Err(error) => return Err(error),
        };
        listening.store(if listens { live.number } else { 0 }, Ordering::Release);
        self.asked = Some((live.number, listens, self.queue.host().now()));
        // Messages from before are lost.
        self.queue.look_at_all();
        Ok(listens)
    }

    /// Stops listening. Returns `true` if there are no waiters and the task may end.
    async fn be_quiet(&mut self) -> bool {
        let inner = &*self.queue.0;
        self.asked = None;
        inner.listening.store(0, Ordering::Release);
        // Unsubscribes even if the connection is not known to listen: the answer may have come too
        // late.
        if let Some(live) = inner.background.up() {
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
        waiting.kept_up = !waiting.rooms.is_empty();
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
