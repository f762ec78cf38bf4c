//! The command's process group.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::Sender;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};

use crate::exit::Failure;
use crate::run::signals::Mask;
use crate::run::{Event, stage};

/// What a child has done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// It has ended, with this code as shells tell it.
    Ended { code: u8, by_signal: bool },
    /// It was stopped by this signal.
    Stopped(i32),
    /// It goes on.
    Continued,
}

impl Change {
    fn of(status: WaitStatus) -> Option<Self> {
        if let Some(signal) = status.stopping_signal() {
            return Some(Self::Stopped(signal));
        }
        if status.continued() {
            return Some(Self::Continued);
        }
        let code = status
            .exit_status()
            .map(|code| u8::try_from(code & 0xff).unwrap_or(u8::MAX));
        let by_signal = code.is_none();
        let code = code.or_else(|| status.terminating_signal().map(code_of_signal))?;
        Some(Self::Ended { code, by_signal })
    }
}

/// Returns the exit code by which shells tell a signal.
pub(super) fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The group of the command, whose leader is the command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) leader: Pid,
}

impl Group {
    /// Starts the [stage](mod@stage) of the command as the leader of a group. It waits for [`go`](Self::go).
    ///
    /// To be called by the main thread: when the thread that starts it ends, the stage is killed.
    pub(super) fn start(
        mask: &Mask,
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Self, Failure> {
        // Where background processes of the command are left over, their ends are told to lockctl.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let stage = own_program().and_then(|program| {
            Command::new(program)
                .arg0("lockctl")
                .arg(stage::NAME)
                .arg(std::process::id().to_string())
                .arg(mask.before())
                .args(command)
                // That of a lock around this one.
                .env_remove("LOCK_FENCE")
                .envs(environment)
                .process_group(0)
                .spawn()
        });
        let stage = stage.map_err(|error| Failure::system("no process can be started", error))?;
        Ok(Self { leader: pid_of(&stage) })
    }

    /// Lets the stage become the command.
    pub(super) fn go(self) {
        // It may have been killed, which the thread that waits for it tells.
        let _ = kill(self.leader, stage::GO);
    }

    /// Sends a signal to all processes of the group. Returns `false` if there are none.
    pub(super) fn signal(self, signal: Signal) -> bool {
        match killpg(self.leader, signal) {
            Err(Errno::EPERM) => {
                crate::warn(&format!(
                    "{signal} cannot be sent to the command, which runs as another user; end it by hand, and let lockctl run as that user"
                ));
                true
            }
            sent => sent != Err(Errno::ESRCH),
        }
    }

    /// Returns `true` while the group has processes.
    pub(super) fn exists(self) -> bool {
        killpg(self.leader, None) != Err(Errno::ESRCH)
    }
}

/// Starts the thread that waits for children to end or to be stopped, and also for those of the command
/// that were left to lockctl.
pub(super) fn wait_for_children(events: Sender<Event>) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name("children".into()).spawn(move || {
        loop {
            match rustix::process::wait(WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
                Ok(Some((pid, status))) => {
                    let pid = Pid::from_raw(pid.as_raw_nonzero().get());
                    if let Some(change) = Change::of(status)
                        && events.send(Event::Child(pid, change)).is_err()
                    {
                        return;
                    }
                }
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    });
    thread
        .map(drop)
        .map_err(|error| Failure::system("no thread can be started", error))
}

pub(super) fn pid_of(child: &Child) -> Pid {
    // A process id is a positive number.
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

/// Returns the path of this program, as it was when lockctl was started.
pub(super) fn own_program() -> io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() {
        return Ok(running);
    }
    std::env::current_exe()
}
