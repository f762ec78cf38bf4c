//! What the tests have in common: the program, commands for it to run, and processes to look at.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_tests::children::{Builder, Child};
use lock_tests::{Server, eventually};
use tempfile::TempDir;

/// The key of every test, and where it lies.
pub(crate) const KEY: &str = "job";
pub(crate) const STORED: &str = "dist_lock:job";

/// `lockctl` for a server, to be run to its end.
pub(crate) fn lockctl(server: &Server, arguments: &[&str]) -> Output {
    lockctl_at(&server.url(), arguments)
}

/// The same for a URL.
pub(crate) fn lockctl_at(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockctl"));
    command.args(arguments).env("LOCK_URL", url).stdin(Stdio::null());
    command.output().unwrap()
}

/// The URL of a quorum of these servers.
pub(crate) fn quorum_of(masters: &[Server]) -> String {
    let addresses: Vec<_> = masters.iter().map(|master| master.addr().to_string()).collect();
    format!("redlock://{}", addresses.join(","))
}

/// The exit code of a program that was not ended by a signal.
pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// `lockctl run` with these options of its own and a script, as a child to talk to.
pub(crate) fn run(server: &Server, options: &[&str], script: &str) -> Child {
    run_at(&server.url(), options, script)
}

/// The same at a URL.
pub(crate) fn run_at(url: &str, options: &[&str], script: &str) -> Child {
    let mut builder = Builder::new(env!("CARGO_BIN_EXE_lockctl")).env("LOCK_URL", url);
    for argument in ["run", "--key", KEY]
        .iter()
        .chain(options)
        .chain(&["--", "bash", "-c", script])
    {
        builder = builder.arg(argument);
    }
    builder.spawn()
}

/// The process ids on a line `pids 17 18` that a script prints.
pub(crate) async fn pids(child: &mut Child) -> Vec<u32> {
    let line = child.line("pids").await;
    line.words().iter().map(|pid| pid.parse().unwrap()).collect()
}

/// Returns `true` while the process runs. One that only waits to be reaped does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

pub(crate) async fn gone(pids: &[u32]) {
    eventually("the processes to end", || async {
        !pids.iter().any(|pid| is_alive(*pid))
    })
    .await;
}

/// The process ids of the children of a process that were started as `lockctl <name>`.
pub(crate) fn stages(parent: u32, name: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if status.lines().any(|line| line == format!("PPid:\t{parent}"))
            && arguments.split(|byte| *byte == 0).nth(1) == Some(name.as_bytes())
        {
            found.push(pid);
        }
    }
    found
}

/// A file into which a command writes the time, over and over.
pub(crate) struct Heart {
    folder: TempDir,
}

impl Heart {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("beats")
    }

    /// A script that ignores every signal it can and writes the time into the file.
    pub(crate) fn script(&self) -> String {
        let file = self.file();
        format!(
            "trap '' TERM INT HUP; echo pids $$; while :; do echo $EPOCHREALTIME; sleep 0.01; done >> {}",
            file.display()
        )
    }

    /// When it has last beaten, in time since 1970. `None` before the first time.
    pub(crate) fn last(&self) -> Option<Duration> {
        last_beat(&self.file())
    }

    pub(crate) async fn beats(&self) {
        eventually("the command to begin", || async { self.last().is_some() }).await;
    }
}

fn last_beat(file: &Path) -> Option<Duration> {
    let beats = fs::read_to_string(file).ok()?;
    // The last line may not be whole.
    let last = beats[..=beats.rfind('\n')?].lines().last()?.replace(',', ".");
    let (seconds, fraction) = last.split_once('.')?;
    Some(Duration::new(
        seconds.parse().ok()?,
        fraction.parse::<u32>().ok()? * 1000,
    ))
}

pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Waits until the lock has just been renewed, and returns when it ends unless it is renewed again.
pub(crate) async fn end_of_renewed_lease(server: &Server) -> Duration {
    let left = || server.time_left(STORED).unwrap_or_default();
    let mut least = left();
    eventually("a renewal", || {
        let is = left();
        let is_renewed = is > least;
        least = is;
        async move { is_renewed }
    })
    .await;
    // The server has answered before the clock is read, and in whole milliseconds.
    let left = left();
    now() + left + Duration::from_millis(1)
}
