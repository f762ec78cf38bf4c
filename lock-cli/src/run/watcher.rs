//! The watcher: `lockctl __watch <group>`, a process that kills the command's group if lockctl cannot.
//!
//! It reads times from a pipe that only lockctl writes to: until when the group may live, which each
//! renewal moves. It kills the group at that time, so also if lockctl was stopped by a signal, waits for
//! a full pipe or gets no processor; and when the pipe ends, which is when lockctl has died. It has a
//! session of its own, so no signal of a terminal or of a group comes to it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exit::Failure;
use crate::run::{clock, group};
use crate::warn;

pub(crate) const NAME: &str = "__watch";

/// The message that the group has ended. As a time it would be that of the machine's start.
const DONE: u64 = 0;

/// The exit code of a watcher that has killed the group since its time was over.
pub(super) const KILLED: u8 = 3;

/// Runs the watcher until the group is done or killed.
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let group = arguments.next().and_then(|group| group.to_str()?.parse().ok());
    let Some(group) = group.filter(|group| *group > 1).map(Pid::from_raw) else {
        warn("`__watch` is a part of `lockctl run`; call that");
        return ExitCode::FAILURE;
    };
    // Fails if this process leads a group, which then is one of its own.
    let _ = rustix::process::setsid();
    if io::stdout()
        .write_all(b"r")
        .and_then(|()| io::stdout().flush())
        .is_err()
    {
        return ExitCode::FAILURE;
    }
    match watch(group) {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(KILLED),
        Err(_) => {
            // `ESRCH`: it has ended by itself.
            let _ = killpg(group, Signal::SIGKILL);
            ExitCode::FAILURE
        }
    }
}

/// Returns when lockctl says that the group is done, with `true` if it had to be killed. Fails when lockctl is gone.
fn watch(group: Pid) -> io::Result<bool> {
    // Without a buffer, in which a message would wait for the next one.
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut is_killed = false;
    let mut until = None::<Duration>;
    loop {
        let left = until.map(|until| until.saturating_sub(clock::now()));
        let is_over = left == Some(Duration::ZERO);
        // A poll does not count the time for which the machine is suspended. A time that is over may have been moved
        // by a message that is there already.
        let slack = Duration::from_micros(if is_over { 0 } else { 100 });
        let limit = left.map(|left| left.min(Duration::from_millis(500)) + slack);
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut ready, limit.as_ref()) {
            Ok(0) if is_over => {
                is_killed |= killpg(group, Signal::SIGKILL).is_ok();
                until = None;
                continue;
            }
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // Each message is written at once, so it is read as a whole.
        let mut message = [0; 8];
        stdin.read_exact(&mut message)?;
        match u64::from_le_bytes(message) {
            DONE => return Ok(is_killed),
            nanoseconds => until = Some(Duration::from_nanos(nanoseconds)),
        }
    }
}

/// lockctl's end of the pipe. Dropping it without [`done`](Self::done) kills the group.
#[derive(Debug)]
pub(super) struct Watcher {
    pipe: PipeWriter,
    pub(super) pid: Pid,
}

impl Watcher {
    /// Starts a watcher for a group, and returns when it is ready.
    pub(super) fn start(group: Pid) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::system("the watcher cannot be started", error);
        let (reader, pipe) = io::pipe().map_err(failed)?;
        let mut watcher = Command::new(group::own_program().map_err(failed)?)
            .arg0("lockctl")
            .arg(NAME)
            .arg(group.to_string())
            .env_clear()
            .current_dir("/")
            .stdin(reader)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        if let Some(stdout) = &mut watcher.stdout {
            stdout.read_exact(&mut [0]).map_err(failed)?;
        }
        let pid = group::pid_of(&watcher);
        Ok(Self { pipe, pid })
    }

    /// Lets the group live until then.
    pub(super) fn until(&mut self, time: Duration) {
        self.tell(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Ends the watcher without another signal to the group. Its exit code says if there was one.
    pub(super) fn done(mut self) {
        self.tell(DONE);
    }

    fn tell(&mut self, message: u64) {
        // If the watcher is gone, its end is an event of its own. The pipe has room for thousands of messages.
        let _ = self.pipe.write_all(&message.to_le_bytes());
    }
}
