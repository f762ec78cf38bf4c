//! `lockctl run`: a command in a process group of its own, which lives no longer than its lock.
//!
//! The main thread starts the command, passes signals and the terminal on, and reads the lock's
//! deadline from a clock. It waits for nothing but its inbox, and its time-outs do not depend on a
//! runtime. Four other actors write to the inbox or work beside it:
//!
//! - the lock thread, which has the runtime: it takes the lock, notices its loss and releases it;
//! - a thread that waits for signals, and one that waits for ended and stopped children;
//! - the watcher, a process that kills the group if lockctl has died, stands still, or is late;
//! - the stage, the process that becomes the command: it asks the kernel to be killed with lockctl.
//!
//! ```text
//! lockctl    main thread: supervisor.rs ◀── events ── lock thread: lease.rs ── LockManager
//!              │  deadlines, signals,      ◀──────── signals.rs, group.rs: one thread each, for signals and for children
//!              │  terminal
//!              ├─ pipe: "until then" ─▶ watcher.rs, a process: SIGKILL to the group at that time, or when the pipe ends
//!              └─ starts ─▶ stage.rs, a process: asks to be killed with the main thread, then becomes the command
//! ```
//!
//! The deadline that ends a command is read from a clock by the main thread, and by the watcher; no runtime comes
//! between. The stage waits for the watcher, so a command never runs unwatched.

mod clock;
mod group;
mod lease;
mod signals;
mod stage;
mod supervisor;
mod terminal;
mod watcher;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use lock_runtime::LockError;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::args::{Run, Store};
use crate::connect;
use crate::exit::Failure;
pub(crate) use stage::{NAME as STAGE, run as stage};
pub(crate) use watcher::{NAME as WATCHER, run as watcher};

/// The shortest lease that leaves time to end a command.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// What the main thread is told.
enum Event {
    /// The store has granted the lock, or not.
    Answered(Box<Result<lease::Held, LockError>>),
    /// The lock was lost.
    Lost(LockError),
    /// The lock thread has ended.
    LockThreadEnded,
    /// lockctl got a signal.
    Signal(Signal),
    /// A child has ended, or was stopped.
    Child(Pid, group::Change),
}

/// Takes the lock, runs the command under it, and returns the exit code.
pub(crate) fn run(store: &Store, options: &Run) -> Result<u8, Failure> {
    if options.lease < SHORTEST_LEASE {
        return Err(Failure::usage(format!(
            "a lease of {:?} is too short to end a command before others get its lock; give `--lease 1s` or more",
            options.lease
        )));
    }
    let builder = connect::builder(store)?;
    // Before any thread is started: all of them are to leave the signals to one.
    let mask = signals::block()?;
    let (sender, inbox) = mpsc::channel();
    signals::listen(&mask, sender.clone())?;
    let lease = lease::start(builder.build()?, options, sender.clone())?;
    let held = wait_for_lock(&inbox, &lease, options)?;
    supervisor::run(options, &mask, &inbox, sender, &lease, held)
}

/// Waits until the lock is taken. A signal that would end lockctl gives up.
fn wait_for_lock(inbox: &Receiver<Event>, lease: &lease::Lease, options: &Run) -> Result<lease::Held, Failure> {
    loop {
        match inbox.recv() {
            Ok(Event::Answered(answer)) => {
                return answer.map_err(|error| {
                    let mut failure = Failure::from(error);
                    if failure.code == crate::exit::BUSY && options.quiet {
                        failure.message.clear();
                    }
                    failure
                });
            }
            Ok(Event::Signal(Signal::SIGTSTP)) => {
                terminal::stop_with_own_group();
            }
            Ok(Event::Signal(signal @ (Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT))) => {
                lease.cancel();
                if signal == Signal::SIGINT && terminal::is_own() {
                    // As the command would have done.
                    terminal::interrupt_own_group();
                }
                return Err(Failure::new(group::code_of_signal(signal as i32), ""));
            }
            Ok(Event::LockThreadEnded) | Err(_) => {
                return Err(Failure::system("the lock thread has ended", "a panic"));
            }
            Ok(_) => {}
        }
    }
}

/// Waits for the next event until the time-out is over.
fn next(inbox: &Receiver<Event>, limit: Duration) -> Option<Event> {
    match inbox.recv_timeout(limit) {
        Ok(event) => Some(event),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => {
            // Not reached while the supervisor has a sender; without this line, a loop without a pause.
            std::thread::sleep(limit);
            None
        }
    }
}
