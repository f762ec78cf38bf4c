//! Runs tasks as part of a lock's body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::EndCause;
use crate::hold::Hold;
use crate::hold::call_tree::{self as context, Entered, HeldLock};
use crate::hold::guard::Guard;
use crate::hold::tasks::Tasks;
use crate::host::Mutex;

/// A task's share of one lock, which is not released before the share is dropped.
struct Share {
    tasks: Arc<Tasks>,
    // Fields drop in this order: when the last task counts as gone, only the body's guard is left.
    guard: Guard,
    _alive: TaskTrackerToken,
}

impl Share {
    /// Registers a task. Returns `None` if the lock's body or its last guard has ended.
    fn of(held: &Arc<Hold>, waker: &Arc<AtomicWaker>) -> Option<Self> {
        let (tasks, guard, alive) = held.share_tasks(|tasks| {
            let guard = Guard::nested(Arc::clone(held), held.options.on_lost)?;
            Some((Arc::clone(tasks), guard, tasks.one_more()))
        })?;
        if held.end_cause().is_some() {
            tasks.lose();
        }
        tasks.add(waker);
        Some(Self {
            tasks,
            guard,
            _alive: alive,
        })
    }

    fn is_over(&self) -> bool {
        let held = self.guard.held();
        let cancels = |cause: EndCause| cause.cancels(held.options.on_lost);
        let ended = self.tasks.is_stopped() || held.check_deadline().is_some_and(cancels);
        ended && !held.is_shielded()
    }
}

/// A future that runs as part of a lock's body, in a task of its own.
struct Branch<F> {
    // Fields drop in this order: the future is gone before the lock is released.
    future: Option<Pin<Box<F>>>,
    /// The shares of the lock and of those around it, the outermost first.
    shares: Vec<Share>,
    waker: Arc<AtomicWaker>,
    own: Arc<Mutex<Own>>,
}

/// The handle by which a task aborts itself. If the lock ends before [`spawn`] has stored the
/// handle, `is_over` makes `spawn` abort the task.
#[derive(Default)]
struct Own {
    task: Option<AbortHandle>,
    is_over: bool,
}

impl<F> Branch<F> {
    fn is_over(&self) -> bool {
        self.shares.is_empty() || self.shares.iter().any(Share::is_over)
    }

    fn end(&mut self) {
        self.future = None;
        self.shares.clear();
    }

    fn cancel(&mut self) {
        self.end();
        let mut own = self.own.lock();
        own.is_over = true;
        if let Some(task) = &own.task {
            task.abort();
        }
    }
}

impl<F> Drop for Branch<F> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<F: Future> Future for Branch<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let branch = &mut *self;
        // Registers before looking, so that no end falls between the two.
        branch.waker.register(cx.waker());
        if branch.is_over() {
            branch.cancel();
        }
        let Some(future) = &mut branch.future else {
            return Poll::Pending;
        };
        let polled = {
            let _entered: Vec<Entered> = branch
                .shares
                .iter()
                .map(|share| context::enter(share.guard.held()))
                .collect();
            let _span = branch.shares.last().map(|share| share.guard.held().span.enter());
            future.as_mut().poll(cx)
        };
        if polled.is_ready() {
            branch.end();
        } else if branch.is_over() {
            branch.cancel();
        }
        polled
    }
}

/// Runs `future` in a task that belongs to the call tree of `held`.
pub(super) fn spawn<F>(held: &Arc<Hold>, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let waker = Arc::new(AtomicWaker::new());
    let mut around: Vec<_> = std::iter::successors(Some(held), |held| held.parent.as_ref()).collect();
    around.reverse();
    let shares: Option<Vec<_>> = around.into_iter().map(|held| Share::of(held, &waker)).collect();
    let own = Arc::new(Mutex::new(Own::default()));
    let task = held.tenure.manager.host().spawn_here(Branch {
        future: Some(Box::pin(future)),
        // Without shares, the lock has ended and the task ends with it.
        shares: shares.unwrap_or_default(),
        waker,
        own: Arc::clone(&own),
    });
    let mut own = own.lock();
    if own.is_over {
        task.abort();
    } else {
        own.task = Some(task.abort_handle());
    }
    drop(own);
    task
}

/// Tasks that run under the lock.
impl HeldLock {
    /// Runs `future` in a task of its own that belongs to this call tree and ends with the lock.
    ///
    /// Inside the task, [`current`](crate::current) returns this lock, and nested calls re-enter it
    /// as they do in the body. The task is cancelled when the lock is lost (under
    /// [`OnLost::Signal`](crate::OnLost::Signal) it continues, as the body does) and when the body
    /// ends: await the handle if the task has to finish first. As for a body, the lock and the
    /// clock are checked before each poll. The lock and the locks around it are released only after
    /// the task has ended or been dropped, so no other holder is granted any of them while the task
    /// still runs. A call that ends waits for that; a call that is dropped releases its lock when
    /// the last of its tasks is gone. A task that blocks its thread, or whose runtime no longer
    /// runs tasks, therefore keeps the call waiting.
    ///
    /// A [`shielded`](Self::shielded) step in the task or in the body delays the end of both until
    /// it is done. Tasks of one lock do not exclude each other: nested calls of two tasks may
    /// re-enter it at the same time.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::connect("memory://").await?;
    /// let both = locks.lock("inventory:7").run(async {
    ///     let lock = lock_runtime::current()?;
    ///     let counted = lock.spawn(async { 7 });
    ///     let ordered = lock.spawn(async { 3 });
    ///     Some((counted.await.ok()?, ordered.await.ok()?))
    /// }).await?;
    /// assert_eq!(both, Some((7, 3)));
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Errors
    /// The handle's [`JoinError`](tokio::task::JoinError) reports that the task panicked, or that
    /// it was [cancelled](tokio::task::JoinError::is_cancelled) because its lock ended or the
    /// handle was aborted. If the lock has already ended, no part of `future` runs.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime, as [`tokio::spawn`] does.
    ///
    /// # Cancel safety
    /// Dropping the handle does not end the task.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        spawn(self.hold(), future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockManager;

    #[tokio::test]
    async fn a_task_has_no_share_of_a_lock_whose_body_has_ended() -> Result<(), Box<dyn std::error::Error>> {
        let locks = LockManager::builder("memory://").build()?;
        let guard = locks.lock("k").acquire().await?;
        let held = Arc::clone(guard.guard.held());
        assert!(Share::of(&held, &Arc::default()).is_some());
        // What a release does first. The task comes before the release has counted the guards.
        let running = held.stop_tasks();
        assert!(running.is_none(), "a dropped share still counts as a task");
        assert!(
            Share::of(&held, &Arc::default()).is_none(),
            "the task would hold the lock after the call that released it"
        );
        Ok(())
    }

    #[tokio::test]
    async fn a_lock_is_released_after_the_share_of_its_task() -> Result<(), Box<dyn std::error::Error>> {
        let locks = LockManager::builder("memory://").build()?;
        let guard = locks.lock("k").acquire().await?;
        let share = Share::of(guard.guard.held(), &Arc::default()).ok_or("no share")?;
        drop(guard);
        assert!(
            locks.inspect("k").await?.is_some(),
            "the lock is released before its task is over"
        );
        drop(share);
        while locks.inspect("k").await?.is_some() {
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}
