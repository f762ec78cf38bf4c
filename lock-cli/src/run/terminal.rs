//! The terminal, which the command has while lockctl is in the foreground, as a shell's jobs have it.

use std::io::stdin;
use std::path::Path;

use nix::sys::signal::{SigSet, Signal, killpg, raise};
use nix::unistd::Pid;
use rustix::process::{getpgid, getpgrp, getsid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// lockctl's controlling terminal, if it is its stdin.
#[derive(Debug)]
pub(super) struct Terminal {
    /// The modes before the command could change them.
    modes: Option<Termios>,
    group: Pid,
    is_given: bool,
}

impl Terminal {
    /// Returns the terminal on which the command, the leader of `group`, may run. Fails for a stdin that is not
    /// lockctl's controlling terminal.
    pub(super) fn of_stdin(group: Pid) -> Option<Self> {
        tcgetpgrp(stdin()).ok()?;
        let modes = tcgetattr(stdin()).ok();
        Some(Self {
            modes,
            group,
            is_given: false,
        })
    }

    /// Makes the command's group the foreground group if lockctl's own is.
    pub(super) fn give(&mut self) {
        if !is_own() {
            return;
        }
        let group = rustix::process::Pid::from_raw(self.group.as_raw());
        self.is_given = group.is_some_and(|group| tcsetpgrp(stdin(), group).is_ok());
    }

    /// Makes lockctl's own group the foreground group if the command's is. Returns `true` if the command had
    /// been given the terminal.
    pub(super) fn take_back(&mut self) -> bool {
        if self.is_given && foreground() == Some(self.group) {
            // lockctl is in the background, and has SIGTTOU blocked.
            let _ = tcsetpgrp(stdin(), getpgrp());
        }
        std::mem::take(&mut self.is_given)
    }

    /// Sets the modes that a command which was killed may have left changed.
    pub(super) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && is_own()
        {
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Returns `true` while lockctl's own group is the foreground group.
pub(super) fn is_own() -> bool {
    foreground() == Some(own_group())
}

/// Returns `true` if others than lockctl may be reading the terminal: programs behind it in a pipeline.
pub(super) fn is_in_pipeline() -> bool {
    let stdout = Path::new("/dev/stdout").metadata();
    stdout.is_ok_and(|stdout| std::os::unix::fs::FileTypeExt::is_fifo(&stdout.file_type()))
}

fn foreground() -> Option<Pid> {
    let group = tcgetpgrp(stdin()).ok()?;
    Some(Pid::from_raw(group.as_raw_nonzero().get()))
}

fn own_group() -> Pid {
    Pid::from_raw(getpgrp().as_raw_nonzero().get())
}

/// Stops lockctl's own group, as the terminal does for Ctrl-Z, and returns when it goes on. Returns `false` at once if
/// no shell could let it go on: then the system does not stop a group for Ctrl-Z either.
pub(super) fn stop_with_own_group() -> bool {
    !is_orphaned() && killpg(own_group(), Signal::SIGSTOP).is_ok()
}

/// Ends lockctl and its own group by SIGINT. Returns if it was started with SIGINT ignored.
pub(super) fn interrupt_own_group() {
    let _ = killpg(own_group(), Signal::SIGINT);
    let mut interrupt = SigSet::empty();
    interrupt.add(Signal::SIGINT);
    // The thread that waits for signals may have got the first one.
    if interrupt.thread_unblock().is_ok() {
        let _ = raise(Signal::SIGINT);
    }
}

/// Returns `true` if no process outside lockctl's group and in its session waits for the group: the first one
/// among the parents that is outside decides.
fn is_orphaned() -> bool {
    let (own, session) = (getpgrp(), getsid(None).ok());
    let mut parent = rustix::process::getppid();
    while let Some(pid) = parent {
        if getpgid(Some(pid)).ok() != Some(own) {
            return getsid(Some(pid)).ok() != session;
        }
        parent = parent_of(pid);
    }
    true
}

fn parent_of(pid: rustix::process::Pid) -> Option<rustix::process::Pid> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    rustix::process::Pid::from_raw(line.trim().parse().ok()?)
}
