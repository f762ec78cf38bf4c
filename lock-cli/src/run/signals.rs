//! Signals that are sent to lockctl, for the command's process group.
//!
//! They are blocked in all threads, and one thread waits for them. A handler would not do: a
//! disposition other than "ignore" is not passed on to the command, so `nohup` would have no effect.

use std::sync::mpsc::Sender;

use nix::sys::signal::{SigSet, Signal};

use crate::exit::Failure;
use crate::run::Event;

/// The signals that are passed on. Those of a terminal come to the group by themselves if it is in the
/// foreground.
const PASSED_ON: [Signal; 11] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGIO,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// The signals of a thread, before and after.
#[derive(Debug)]
pub(super) struct Mask {
    /// The signals that were blocked when lockctl was started, for the command.
    before: SigSet,
    /// The signals that one thread waits for.
    awaited: SigSet,
}

impl Mask {
    /// Returns the numbers of the signals that the command is to find blocked.
    pub(super) fn before(&self) -> String {
        let numbers: Vec<_> = self.before.iter().map(|signal| (signal as i32).to_string()).collect();
        numbers.join(",")
    }
}

/// Blocks the signals in the calling thread, and those that it starts.
pub(super) fn block() -> Result<Mask, Failure> {
    let failed = |error| Failure::system("signals cannot be blocked", error);
    let before = SigSet::thread_get_mask().map_err(failed)?;
    let ignored = ignored();
    let mut awaited = SigSet::empty();
    for signal in PASSED_ON {
        // An ignored signal would be found all the same while it is blocked.
        if ignored & (1 << (signal as u32 - 1)) == 0 && !before.contains(signal) {
            awaited.add(signal);
        }
    }
    let mut blocked = awaited;
    // lockctl takes the terminal back from the background. The second one is the stage's: see there.
    blocked.add(Signal::SIGTTOU);
    blocked.add(Signal::SIGUSR1);
    blocked.thread_block().map_err(failed)?;
    Ok(Mask { before, awaited })
}

/// Returns the signals that lockctl was started with as ignored, one bit for each.
fn ignored() -> u64 {
    // Elsewhere an ignored signal is discarded even while it is blocked.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Starts the thread that waits for the signals.
pub(super) fn listen(mask: &Mask, events: Sender<Event>) -> Result<(), Failure> {
    let awaited = mask.awaited;
    let thread = std::thread::Builder::new().name("signals".into()).spawn(move || {
        while let Ok(signal) = awaited.wait() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    thread
        .map(drop)
        .map_err(|error| Failure::system("no thread can be started", error))
}
