//! The tasks that belong to a held lock. They end before the lock is released, whatever happens to
//! the call: each has a guard of that lock and of each lock around it. The end of the first guard,
//! that of the call that took the lock, ends the tasks, and a call that is awaited waits for them
//! before it releases.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use atomic_waker::AtomicWaker;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::host::{Mutex, contained};

/// The tasks of one lock, and the token by which they and the user's code learn of the lock's end.
/// Created on first use.
#[derive(Default)]
pub(super) struct Tasks {
    /// Cancelled when the lock is lost, and when its body has ended.
    token: CancellationToken,
    /// `true` once the body has ended.
    stopped: AtomicBool,
    alive: TaskTracker,
    wakers: Mutex<Vec<Weak<AtomicWaker>>>,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks")
            .field("alive", &self.alive.len())
            .finish_non_exhaustive()
    }
}

impl Tasks {
    /// Returns a token that is cancelled with the lock. Cancelling it has no other effect.
    pub(super) fn token(&self) -> CancellationToken {
        self.token.child_token()
    }

    /// Reports the loss of the lock. Each task decides itself if the loss ends it.
    pub(super) fn lose(&self) {
        contained(|| self.token.cancel());
        self.wake();
    }

    /// Reports the end of the body, which ends its tasks.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.alive.close();
        self.lose();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn wake(&self) {
        // Wakes after the list is unlocked: a waker may run any code.
        let wakers: Vec<_> = self.wakers.lock().iter().filter_map(Weak::upgrade).collect();
        for waker in wakers {
            contained(|| waker.wake());
        }
    }

    pub(super) fn count(&self) -> usize {
        self.alive.len()
    }

    /// Waits until all tasks are gone. Call it after [`stop`](Self::stop).
    pub(super) async fn gone(&self) {
        self.alive.wait().await;
    }

    /// Counts one more task until the returned value is dropped.
    pub(super) fn one_more(&self) -> TaskTrackerToken {
        self.alive.token()
    }

    /// Returns a waker that is woken with the tasks.
    pub(super) fn new_waker(&self) -> Arc<AtomicWaker> {
        let waker = Arc::default();
        self.add(&waker);
        waker
    }

    /// Adds a waker. Removes those of tasks and calls that have ended each time the list has doubled.
    pub(super) fn add(&self, waker: &Arc<AtomicWaker>) {
        let mut wakers = self.wakers.lock();
        if wakers.len() == wakers.capacity() {
            wakers.retain(|waker| waker.strong_count() > 0);
            let room = wakers.len().max(8);
            wakers.reserve(room);
        }
        wakers.push(Arc::downgrade(waker));
    }
}
