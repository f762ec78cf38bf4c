//! The surroundings of a manager: time, randomness, tasks, and the identity of its process. No
//! other room asks for them by itself, so a simulation can replace all of them and a seed decides
//! everything.
//!
//! A manager has one [`Host`], and everything in this crate that depends on its surroundings asks
//! it. Clippy checks that no other room does so by itself, see `clippy.toml`. All managers of a process share one
//! host, unless a simulation (`cfg(lock_simulation)`) gives each of them a process of its own.

// Without a simulation, some methods need nothing from `self`.
#![cfg_attr(not(lock_simulation), allow(clippy::unused_self))]

mod backoff;
mod blocking;
pub mod clock;
mod identity;
mod lock_thread;
mod mutex;
mod sharded;
mod sign_of_life;
mod sleep;
mod time_outs;
mod tokens;
#[cfg(lock_simulation)]
pub mod world;

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use self::backoff::Backoff;
pub(crate) use self::blocking::block_on;
pub(crate) use self::clock::{BootClock, Clock, Moment, TokioClock};
pub(crate) use self::mutex::Mutex;
pub(crate) use self::sharded::Sharded;
pub(crate) use self::sign_of_life::SignOfLife;
pub(crate) use self::sleep::{Sleep, contained};
pub(crate) use self::time_outs::{TimeOut, TimeOuts};
use crate::host::clock::tokio_clock_is_paused;
use crate::host::lock_thread::LockThread;

/// The surroundings of a manager. Clones are cheap, and share one host.
#[derive(Clone)]
pub(crate) struct Host(Arc<Inner>);

#[derive(Default)]
struct Inner {
    lock_thread: LockThread,
    place: OnceLock<Box<str>>,
    /// The last number given out.
    number: AtomicU64,
    /// Values that other rooms keep once per host, by type.
    kept: Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    #[cfg(lock_simulation)]
    world: Option<Arc<dyn world::World>>,
}

/// The host of this process.
impl Default for Host {
    fn default() -> Self {
        Self::process()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.place()).finish()
    }
}

/// The runtime whose timer a wait uses, or that drives a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The lock thread's, which does not depend on the caller's runtime.
    LockThread,
    /// The caller's, whose clock a test has paused.
    Caller,
}

impl Timer {
    /// Returns the timer for waits that follow tokio's clock, paused or not.
    pub(crate) fn of_tokio() -> Self {
        if tokio_clock_is_paused() {
            Self::Caller
        } else {
            Self::LockThread
        }
    }
}

/// A runtime of the caller.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    /// Distinguishes the runtimes of a simulated process, which all run in one.
    #[cfg(lock_simulation)]
    number: u32,
}

impl Runtime {
    pub(crate) fn id(&self) -> RuntimeId {
        RuntimeId {
            id: self.handle.id(),
            #[cfg(lock_simulation)]
            number: self.number,
        }
    }

    /// Returns `true` if only threads inside `block_on` run its tasks, and look at its sockets.
    pub(crate) fn has_no_threads(&self) -> bool {
        self.handle.runtime_flavor() == RuntimeFlavor::CurrentThread
    }
}

/// Distinguishes the runtimes of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeId {
    id: Id,
    #[cfg(lock_simulation)]
    number: u32,
}

impl Host {
    /// Returns the host of this process.
    pub(crate) fn process() -> Self {
        #[cfg(lock_simulation)]
        assert!(
            world::current_runtime().is_none(),
            "a simulated process reaches for the real one"
        );
        static PROCESS: LazyLock<Host> = LazyLock::new(|| Host(Arc::default()));
        PROCESS.clone()
    }

    #[cfg(lock_simulation)]
    pub(crate) fn simulated(world: Arc<dyn world::World>) -> Self {
        Self(Arc::new(Inner {
            world: Some(world),
            ..Inner::default()
        }))
    }

    /// Returns this host's value of type `T`, which `make` creates on first use. `make` must not
    /// call this method.
    pub(crate) fn keep<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut kept = self.0.kept.lock();
        if let Some(known) = kept.get(&TypeId::of::<T>())
            && let Ok(known) = Arc::clone(known).downcast::<T>()
        {
            return known;
        }
        let new = Arc::new(make());
        kept.insert(TypeId::of::<T>(), Arc::<T>::clone(&new));
        new
    }

    /// Returns a number that is larger than all earlier ones of this host, and never zero.
    pub(crate) fn number(&self) -> u64 {
        self.0.number.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The process.
impl Host {
    /// Returns `true` if this process was forked from one that had already used locks. It then owns
    /// none of the inherited locks, and a mutex that a thread of its parent had locked stays
    /// locked.
    pub(crate) fn is_forked(&self) -> bool {
        self.0.lock_thread.is_inherited()
    }

    /// Returns what to do where [`start`](Self::start) has failed.
    pub(crate) fn advice_to_start(&self) -> &'static str {
        if self.is_forked() {
            "start it by exec, or use locks only after the fork"
        } else {
            "let the process have one more thread"
        }
    }

    /// Returns the part of a holder's value that is the same for the whole process:
    /// `:<host>:<pid>:`.
    pub(crate) fn place(&self) -> &str {
        self.0.place.get_or_init(|| {
            #[cfg(lock_simulation)]
            if let Some(world) = &self.0.world {
                return identity::place(&world.name(), world.pid());
            }
            identity::of_this_process()
        })
    }
}

/// Time.
impl Host {
    /// Returns the present moment, including the time for which the machine was suspended.
    pub(crate) fn now(&self) -> Moment {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            return world.now();
        }
        BootClock.now()
    }

    /// Returns the clock of [`now`](Self::now).
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            return Arc::new(world::WorldClock::new(world));
        }
        Arc::new(BootClock)
    }

    /// Returns the time since 1970.
    pub(crate) fn unix_time(&self) -> Duration {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            return world.unix_time();
        }
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
    }

    /// Returns a future that completes after `span`. Any runtime may drive it. Cancel safe.
    pub(crate) fn sleep(&self, timer: Timer, span: Duration) -> Sleep {
        #[cfg(lock_simulation)]
        if self.0.world.is_some() {
            return Sleep::new(tokio::time::sleep(span));
        }
        // A `Sleep` belongs to the runtime in which it was created, wherever it is polled. Managers
        // start the lock thread, so it exists here. It does not exist in a forked child, which
        // cannot acquire locks and therefore does not get here (see `LockThread::get`).
        let _context = match timer {
            Timer::LockThread => self.0.lock_thread.known().map(Handle::enter),
            // A lock taken under a paused clock may be released outside of any runtime.
            Timer::Caller if Handle::try_current().is_err() => self.0.lock_thread.known().map(Handle::enter),
            Timer::Caller => None,
        };
        Sleep::new(tokio::time::sleep(span))
    }

    /// Returns the output of `future`, or `None` once `span` has passed.
    pub(crate) async fn timeout<F: Future>(&self, timer: Timer, span: Duration, future: F) -> Option<F::Output> {
        Before::new(pin!(self.sleep(timer, span)), pin!(future)).await
    }

    /// Returns `true` if only tokio's timers know the time.
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(lock_simulation)]
        if self.0.world.is_some() {
            return true;
        }
        false
    }
}

/// The number of passes for which a runtime may yet read what has arrived, once the time for it is up.
const YIELDS: u8 = 3;

/// Returns the output of a future, or `None` once `end` has completed. Small, since each waiting call has one.
pub(crate) struct Before<E, F> {
    phase: Phase<E>,
    future: F,
}

enum Phase<E> {
    Until(E),
    /// The end has come. If the caller's runtime was blocked, the output may have arrived without being read yet.
    Passing {
        pass: Pin<Box<dyn Future<Output = ()> + Send>>,
        begun: u8,
    },
}

impl<E, F> Before<E, F> {
    pub(crate) fn new(end: E, future: F) -> Self {
        let phase = Phase::Until(end);
        Self { phase, future }
    }
}

impl<E: Future<Output = ()> + Unpin, F: Future + Unpin> Future for Before<E, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Poll::Ready(output) = Pin::new(&mut self.future).poll(cx) {
                return Poll::Ready(Some(output));
            }
            let begun = match &mut self.phase {
                Phase::Until(end) => {
                    ready!(Pin::new(end).poll(cx));
                    0
                }
                Phase::Passing { pass, begun } => {
                    ready!(pass.as_mut().poll(cx));
                    *begun
                }
            };
            if begun == YIELDS {
                return Poll::Ready(None);
            }
            self.phase = Phase::Passing {
                pass: Box::pin(tokio::task::yield_now()),
                begun: begun + 1,
            };
        }
    }
}

/// Chance.
impl Host {
    /// Fills `bytes` with random bytes that cannot be predicted.
    ///
    /// # Errors
    /// Fails if the operating system provides no random bytes.
    pub(crate) fn fill(&self, bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            for chunk in bytes.chunks_mut(8) {
                let random = world.random().to_ne_bytes();
                chunk.copy_from_slice(&random[..chunk.len()]);
            }
            return Ok(());
        }
        getrandom::fill(bytes)
    }

    /// Returns 128 random bits that nobody else has.
    ///
    /// # Errors
    /// Fails if the operating system provides no random bytes.
    pub(crate) fn token(&self) -> Result<u128, getrandom::Error> {
        #[cfg(lock_simulation)]
        if self.0.world.is_some() {
            let mut bytes = [0; size_of::<u128>()];
            self.fill(&mut bytes)?;
            return Ok(u128::from_ne_bytes(bytes));
        }
        tokens::next(self.now(), getrandom::fill)
    }

    /// Returns a number that no other host has drawn.
    pub(crate) fn unique(&self) -> u64 {
        let mut bytes = [0; 8];
        match self.fill(&mut bytes) {
            Ok(()) => u64::from_ne_bytes(bytes),
            Err(_) => fastrand::u64(..),
        }
    }

    /// Returns a random fraction, from 0 to less than 1, for jitter.
    pub(crate) fn fraction(&self) -> f64 {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            return fastrand::Rng::with_seed(world.random()).f64();
        }
        fastrand::f64()
    }

    /// Returns a random number in `range`, for jitter.
    pub(crate) fn between(&self, range: Range<u64>) -> u64 {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            return fastrand::Rng::with_seed(world.random()).u64(range);
        }
        fastrand::u64(range)
    }
}

/// Tasks.
impl Host {
    /// Starts the lock thread, if it is not running.
    ///
    /// # Errors
    /// Fails if the operating system cannot start a thread, or this process was forked from one
    /// that had already started it.
    pub(crate) fn start(&self) -> io::Result<()> {
        #[cfg(lock_simulation)]
        if self.0.world.is_some() {
            return Ok(());
        }
        self.0.lock_thread.get().map(drop)
    }

    /// Runs a task on the lock thread.
    ///
    /// # Errors
    /// Fails like [`start`](Self::start), and drops the task.
    pub(crate) fn spawn<F>(&self, task: F) -> io::Result<()>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            drop(world::spawn_in(world, world::LOCK_THREAD, task));
            return Ok(());
        }
        drop(self.0.lock_thread.get()?.spawn(task));
        Ok(())
    }

    /// Runs a task in the current runtime.
    ///
    /// # Panics
    /// Panics outside of a runtime, like `tokio::spawn`.
    pub(crate) fn spawn_here<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            return world::spawn_beside(world, task);
        }
        tokio::spawn(task)
    }

    /// Runs a task in a runtime of the caller.
    pub(crate) fn spawn_on<F>(&self, runtime: &Runtime, task: F)
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(lock_simulation)]
        if let Some(world) = &self.0.world {
            drop(world::spawn_in(world, runtime.number, task));
            return;
        }
        drop(runtime.handle.spawn(task));
    }

    /// Runs a task in the runtime of `timer`. Drops the task and returns `false` if there is no
    /// such runtime.
    pub(crate) fn spawn_by<F>(&self, timer: Timer, task: F) -> bool
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match timer {
            Timer::LockThread => self.spawn(task).is_ok(),
            Timer::Caller if self.has_runtime() => {
                drop(self.spawn_here(task));
                true
            }
            Timer::Caller => false,
        }
    }

    /// Returns the caller's runtime. `None` outside of any runtime, and on the lock thread.
    pub(crate) fn runtime(&self) -> Option<Runtime> {
        let handle = Handle::try_current().ok()?;
        #[cfg(lock_simulation)]
        let number = world::current_runtime()?;
        #[cfg(lock_simulation)]
        if number == world::LOCK_THREAD {
            return None;
        }
        let known = self.0.lock_thread.known();
        let is_callers = known.is_none_or(|lock_thread| lock_thread.id() != handle.id());
        is_callers.then_some(Runtime {
            handle,
            #[cfg(lock_simulation)]
            number,
        })
    }

    /// Returns `true` in a runtime, the lock thread's included.
    pub(crate) fn has_runtime(&self) -> bool {
        Handle::try_current().is_ok()
    }
}

/// Distinguishes the tasks of a process.
pub(crate) type TaskId = tokio::task::Id;

/// Returns the id of the current task, or `None` directly inside `block_on`, which is not a task.
pub(crate) fn task() -> Option<TaskId> {
    tokio::task::try_id()
}

/// Takes part in the budget of tokio's tasks: a task that has used its budget up is continued after
/// the others of its runtime. Public futures begin with it, since a call that never waits, such as one
/// that is refused, would otherwise never let another task run.
///
/// Cancel safe.
pub(crate) async fn take_part() {
    tokio::task::coop::consume_budget().await;
}

/// Lets the current runtime read what has arrived on its sockets, and run the tasks that wait for it.
///
/// Cancel safe.
pub(crate) async fn read_what_has_arrived() {
    // The runtime looks at its sockets after the first pass, and runs those tasks after the second.
    for _ in 0..2 {
        tokio::task::yield_now().await;
    }
}

/// Returns the output of a future, or the message of its panic.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(message(&*panic))),
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it has no message").trim().to_owned()
}

/// Reads a file on a thread of its own, since a file system may not answer, and all threads that a
/// runtime has for such work may be taken. The receiver has the answer once there is one.
pub(crate) fn read_file(path: Arc<Path>) -> io::Result<FileAnswer> {
    let (answer, read) = watch::channel(None);
    std::thread::Builder::new()
        .name("lock-file".to_owned())
        .spawn(move || {
            let text = std::fs::read_to_string(path);
            drop(answer.send(Some(text.map_err(|error| (error.kind(), error.to_string().into())))));
        })?;
    Ok(read)
}

/// Returns the environment variables of this process.
pub(crate) fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

/// The text of a file, or the error and its text.
pub(crate) type FileAnswer = watch::Receiver<Option<Result<String, (io::ErrorKind, Box<str>)>>>;
