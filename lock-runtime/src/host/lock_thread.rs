//! The lock thread of the process: its runtime drives connections, renewals and releases.
//!
//! It is separate from the user's runtimes, so that all of these go on while a user's runtime is
//! blocked, and after it has ended.

use std::io;

use once_cell::sync::OnceCell;
use tokio::runtime::Handle;

use crate::host::sleep::note_wakers_of_tokio;

/// The lock thread of a host.
#[derive(Default)]
pub(super) struct LockThread(OnceCell<Started>);

struct Started {
    handle: Handle,
    /// Distinguishes a forked child, which inherits this value but not the thread, from the process
    /// that started the thread.
    guard: forkguard::Guard,
}

impl LockThread {
    /// Returns the thread's runtime. The thread is started on first use.
    ///
    /// # Errors
    /// Fails if the operating system cannot start a thread, or this process was forked from the one
    /// that started it.
    pub(super) fn get(&self) -> io::Result<&Handle> {
        let started = self.0.get_or_try_init(Started::new)?;
        if started.is_inherited() {
            return Err(io::Error::other(
                "this process was forked from one that already used locks",
            ));
        }
        Ok(&started.handle)
    }

    /// Returns the thread's runtime, if the thread was started.
    pub(super) fn known(&self) -> Option<&Handle> {
        self.0.get().map(|started| &started.handle)
    }

    /// Returns `true` if this process was forked from the one that started the thread.
    pub(super) fn is_inherited(&self) -> bool {
        self.0.get().is_some_and(Started::is_inherited)
    }
}

impl Started {
    fn new() -> io::Result<Self> {
        // Created before the thread starts, so that a fork right after the start is detected.
        let guard = forkguard::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("lock-watchdog".to_owned())
            .spawn(move || {
                drop(runtime.spawn(note_wakers_of_tokio()));
                // The panic of a task is caught by the runtime. One in its driver, which wakes whoever awaits a timer or
                // a socket, would leave a runtime without a driver, with which nothing can go on: see `Sleep`.
                runtime.block_on(std::future::pending::<()>());
            })?;
        Ok(Self { handle, guard })
    }

    fn is_inherited(&self) -> bool {
        self.guard.clone().detected_fork()
    }
}
