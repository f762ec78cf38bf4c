//! A simulated process: its identity and its clocks, and the times at which its runtimes run.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::clock::Moment;
use lock_runtime::world::{self, World};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use crate::server::EPOCH;

/// The first runtime of the user in a process.
pub const FIRST_RUNTIME: u32 = world::LOCK_THREAD + 1;

/// A process. Clones are one process.
#[derive(Clone)]
pub struct Process(Arc<Inner>);

struct Inner {
    number: u32,
    /// 0 for the first process of this number, then one more for each restart.
    incarnation: u32,
    clock: Clock,
    chance: Mutex<fastrand::Rng>,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    /// The difference of the clock: timers fire in whole milliseconds, and no two processes at the very same time.
    offset: Duration,
    /// How much it gains in a million.
    drift: f64,
}

#[derive(Default)]
struct State {
    is_suspended: bool,
    is_killed: bool,
    /// The runtimes that stand still.
    blocked: BTreeSet<u32>,
    waiting: Vec<Waker>,
    tasks: Vec<(u32, AbortHandle)>,
    /// The last time at which a runtime went on after it had stood still.
    went_on: Option<Instant>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}.{}", self.number, self.incarnation)
    }
}

impl Process {
    /// Makes a process in the current runtime of tokio.
    pub fn new(number: u32, incarnation: u32, drift: f64, mut chance: fastrand::Rng) -> Self {
        let clock = Clock {
            began: Instant::now(),
            offset: Duration::from_nanos(chance.u64(1..1_000_000)),
            drift,
        };
        Self(Arc::new(Inner {
            number,
            incarnation,
            clock,
            chance: Mutex::new(chance),
            state: Mutex::default(),
        }))
    }

    pub fn world(&self) -> Arc<dyn World> {
        Arc::<Inner>::clone(&self.0)
    }

    pub fn number(&self) -> u32 {
        self.0.number
    }

    pub fn now(&self) -> Moment {
        World::now(&*self.0)
    }

    /// Runs a task in one of the user's runtimes.
    pub fn spawn<F>(&self, runtime: u32, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        world::spawn_in(&self.world(), FIRST_RUNTIME + runtime, task)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the process, until [`resume`](Self::resume). Its clock goes on.
    pub fn suspend(&self) {
        self.state().is_suspended = true;
    }

    pub fn resume(&self) {
        self.state().is_suspended = false;
        self.go_on();
    }

    /// Blocks one of the user's runtimes, until [`unblock`](Self::unblock).
    pub fn block(&self, runtime: u32) {
        self.state().blocked.insert(FIRST_RUNTIME + runtime);
    }

    pub fn unblock(&self, runtime: u32) {
        self.state().blocked.remove(&(FIRST_RUNTIME + runtime));
        self.go_on();
    }

    fn go_on(&self) {
        let waiting = {
            let mut state = self.state();
            state.went_on = Some(Instant::now());
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Kills the process. Its tasks are never polled again, and no destructor runs.
    pub fn kill(&self) {
        let mut state = self.state();
        state.is_killed = true;
        state.waiting.clear();
    }

    pub fn is_killed(&self) -> bool {
        self.state().is_killed
    }

    /// Returns `true` if tasks of this runtime are polled, and have been for `lately`.
    pub fn has_run(&self, runtime: u32, lately: Duration) -> bool {
        let state = self.state();
        !state.is_killed
            && !state.is_suspended
            && !state.blocked.contains(&(FIRST_RUNTIME + runtime))
            && state.went_on.is_none_or(|at| at.elapsed() >= lately)
    }

    /// Shuts one of the user's runtimes down: its tasks are dropped where they stand.
    pub fn shut_down_runtime(&self, runtime: u32) {
        let tasks = std::mem::take(&mut self.state().tasks);
        let (ended, others) = tasks.into_iter().partition(|(of, _)| *of == FIRST_RUNTIME + runtime);
        self.state().tasks = others;
        let ended: Vec<(u32, AbortHandle)> = ended;
        ended.iter().for_each(|(_, task)| task.abort());
    }
}

impl World for Inner {
    fn now(&self) -> Moment {
        Moment::from_nanos(0).after(Duration::from_secs(3600) + self.elapsed())
    }

    fn unix_time(&self) -> Duration {
        EPOCH + self.elapsed()
    }

    fn random(&self) -> u64 {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner).u64(..)
    }

    fn name(&self) -> String {
        format!("machine-{}", self.number)
    }

    fn pid(&self) -> u32 {
        self.number * 1_000 + self.incarnation
    }

    fn runs(&self, runtime: u32, cx: &mut Context<'_>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_killed {
            return false;
        }
        let runs = !state.is_suspended && !state.blocked.contains(&runtime);
        if !runs {
            state.waiting.push(cx.waker().clone());
        }
        runs
    }

    fn spawned(&self, runtime: u32, task: AbortHandle) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.tasks.len() == state.tasks.capacity() {
            state.tasks.retain(|(_, task)| !task.is_finished());
        }
        state.tasks.push((runtime, task));
    }
}

impl Inner {
    fn elapsed(&self) -> Duration {
        let passed = self.clock.began.elapsed();
        self.clock.offset + passed.mul_f64(1.0 + self.clock.drift / 1e6)
    }
}
