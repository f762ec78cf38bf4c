//! Ensures that no server or child process outlives the test process, however that one ends.
//!
//! `Drop` covers an ordinary end. For an abort or a SIGKILL there is one shell per test process
//! that reads, from a pipe only we can write to, which processes we started. When the pipe closes
//! because the test process has ended, the shell kills the processes that are left and removes
//! their folders. It lives in its own process group, as they do, so that Ctrl-C on the terminal
//! ends the tests first and the shell can still do its work.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

const SCRIPT: &str = include_str!("reaper.sh");

fn shell() -> &'static Mutex<Child> {
    static SHELL: OnceLock<Mutex<Child>> = OnceLock::new();
    SHELL.get_or_init(|| {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("sh is needed to clean up after the tests");
        Mutex::new(shell)
    })
}

fn tell(line: &str) {
    let mut shell = shell().lock().unwrap_or_else(PoisonError::into_inner);
    let pipe = shell.stdin.as_mut().expect("stdin is piped");
    // The shell cannot be gone while we live, short of someone killing it; then only the safety net is lost.
    let _ = writeln!(pipe, "{line}");
}

/// `pid` runs, and is to be killed and `folder` removed if we end before [`ended`] is called.
pub(crate) fn began(pid: u32, folder: Option<&Path>) {
    match folder {
        Some(folder) => tell(&format!("began {pid} {}", folder.display())),
        None => tell(&format!("began {pid} -")),
    }
}

/// `pid` has been waited for; its number may soon be another's.
pub(crate) fn ended(pid: u32) {
    tell(&format!("ended {pid}"));
}

/// `folder` is to be removed when we end. Nothing runs in it.
pub(crate) fn keeps(folder: &Path) {
    // Not a number, so the shell's kill refuses it.
    tell(&format!("began none {}", folder.display()));
}

/// Sends a signal to a process that we started and have not waited for.
pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(number(pid), signal).expect("a process that was not waited for can be signalled");
}

/// Sends SIGSTOP and returns when every thread of the process stands still.
pub(crate) fn pause(pid: u32) {
    signal(pid, Signal::STOP);
    // NOWAIT leaves the child to be waited for by whoever owns it.
    waitid(WaitId::Pid(number(pid)), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)
        .expect("a child can be waited for");
}

fn number(pid: u32) -> Pid {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id is a positive number")
}
