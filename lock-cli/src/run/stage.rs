//! The process that becomes the command: `lockctl __exec <parent> <mask> <command>…`.
//!
//! It is started by lockctl's main thread, asks the kernel to be killed when that thread ends, waits
//! until the watcher is ready, and replaces itself by the command. So no code runs between `fork` and
//! `exec`, which would be unsafe.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, ExitCode};

use nix::sys::signal::{SigSet, Signal};

use crate::warn;

pub(crate) const NAME: &str = "__exec";

/// The signal by which lockctl lets the stage go on. It is blocked before the stage is started.
pub(super) const GO: Signal = Signal::SIGUSR1;

/// The exit codes of shells for a command that cannot be run, and for one that was not found.
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the stage, and returns only if the command cannot be run.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.map(Some).chain(std::iter::repeat_with(|| None));
    let parent = arguments
        .next()
        .flatten()
        .and_then(|parent| parent.to_str()?.parse::<u32>().ok());
    let mask = arguments.next().flatten();
    let (Some(parent), Some(mask), Some(command)) = (parent, mask, arguments.next().flatten()) else {
        warn("`__exec` is a stage of `lockctl run`; call that");
        return ExitCode::from(NOT_RUN);
    };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)) {
        warn(&format!(
            "the command cannot be bound to lockctl: {error}; see what forbids `prctl`"
        ));
        return ExitCode::from(NOT_RUN);
    }
    #[cfg(not(target_os = "linux"))]
    std::thread::spawn(move || {
        // Until `exec`. From then on the watcher alone ends the command.
        while parent_id() == parent {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        std::process::exit(NOT_RUN.into());
    });
    // lockctl may have been killed before this process had asked to be killed with it.
    if parent_id() != parent {
        return ExitCode::from(NOT_RUN);
    }
    let mut go = SigSet::empty();
    go.add(GO);
    let restored = go.wait().and_then(|_| mask_of(&mask).thread_set_mask());
    if let Err(error) = restored {
        warn(&format!(
            "the command's signals cannot be restored: {error}; see what forbids `sigprocmask`"
        ));
        return ExitCode::from(NOT_RUN);
    }
    let error = Command::new(&command)
        .args(arguments.map_while(|argument| argument))
        .exec();
    let name = command.to_string_lossy();
    if error.kind() == ErrorKind::NotFound {
        warn(&format!(
            "the command `{name}` was not found; give its path, or see PATH"
        ));
        return ExitCode::from(NOT_FOUND);
    }
    warn(&format!(
        "the command `{name}` cannot be run: {error}; see its permissions and format"
    ));
    ExitCode::from(NOT_RUN)
}

/// Reads the numbers of the signals that lockctl itself was started with as blocked.
fn mask_of(numbers: &std::ffi::OsStr) -> SigSet {
    let numbers = numbers.to_str().unwrap_or_default().split(',');
    let signals = numbers.filter_map(|number| Signal::try_from(number.parse::<i32>().ok()?).ok());
    let mut mask = SigSet::empty();
    for signal in signals {
        mask.add(signal);
    }
    mask
}
