//! Simulated processes, for `tests/simulation`. Exists only with `cfg(lock_simulation)`.

use std::cell::Cell;
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle};

use super::clock::{Clock, Moment};

/// The lock thread's runtime of a simulated process. The user's runtimes have other numbers.
pub const LOCK_THREAD: u32 = 0;

/// A simulated process: its clocks, its chance, its name, and the times at which its runtimes run.
///
/// All tasks of a simulation run in one runtime of tokio, whose clock is paused. Each task belongs
/// to one of the runtimes of a process: [`LOCK_THREAD`], or one of the user's.
pub trait World: Debug + Send + Sync + 'static {
    /// Returns the present moment by this process's clock.
    fn now(&self) -> Moment;

    /// Returns the time since 1970 by this process's clock.
    fn unix_time(&self) -> Duration;

    /// Draws a random number.
    fn random(&self) -> u64;

    /// Returns the name of the machine.
    fn name(&self) -> String;

    /// Returns the number of the process.
    fn pid(&self) -> u32;

    /// Returns `false` while this runtime stands still. The implementation then wakes the task once
    /// the runtime goes on.
    fn runs(&self, runtime: u32, cx: &mut Context<'_>) -> bool;

    /// Receives every task that is spawned in a runtime, so that the runtime can be shut down.
    fn spawned(&self, runtime: u32, task: AbortHandle);
}

thread_local! {
    /// The runtime of the task that is being polled. `None` outside of all processes.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Returns the number of the current runtime. `None` outside of all processes.
pub fn current_runtime() -> Option<u32> {
    CURRENT.get()
}

/// Spawns a task in a runtime of a process.
pub fn spawn_in<F>(world: &Arc<dyn World>, runtime: u32, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let spawned = tokio::spawn(run(Arc::clone(world), runtime, task));
    world.spawned(runtime, spawned.abort_handle());
    spawned
}

/// Spawns a task beside the current one.
pub fn spawn_beside<F>(world: &Arc<dyn World>, task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_in(world, current_runtime().unwrap_or(LOCK_THREAD), task)
}

/// Polls a task in its runtime. The task is also dropped there.
async fn run<F: Future>(world: Arc<dyn World>, runtime: u32, task: F) -> F::Output {
    let mut task = pin!(task);
    poll_fn(|cx| {
        if !world.runs(runtime, cx) {
            return Poll::Pending;
        }
        let _entered = Entered(CURRENT.replace(Some(runtime)));
        task.as_mut().poll(cx)
    })
    .await
}

/// Returns to the runtime from before, also when a task panics.
struct Entered(Option<u32>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// The clock of a simulated process.
#[derive(Debug)]
pub(super) struct WorldClock(Weak<dyn World>);

impl WorldClock {
    pub(super) fn new(world: &Arc<dyn World>) -> Self {
        Self(Arc::downgrade(world))
    }
}

impl Clock for WorldClock {
    fn now(&self) -> Moment {
        self.0.upgrade().map_or(Moment::NEVER, |world| world.now())
    }
}
