//! Locks as they are printed: in a table, on lines, and as JSON.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use lock_runtime::LockInfo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::exit::{Failure, SYSTEM};

/// Returns `text` with its control characters escaped: any client can write a key, and a terminal obeys
/// such characters.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns a lease's rest with a tenth of a second, or the reason why there is none.
pub(crate) fn rest(remaining: Option<Duration>) -> String {
    remaining.map_or_else(|| "no expiry".to_owned(), |rest| format!("{:.1}s", rest.as_secs_f64()))
}

/// Returns the holders in one line.
pub(crate) fn holders(info: &LockInfo) -> String {
    let mut line = String::new();
    for (at, holder) in info.holders.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "{}{}",
            if at == 0 { "" } else { "; " },
            shown(&holder.holder.to_string())
        );
    }
    line
}

/// Stdout, to which lines are written. A reader that has had enough of them ends the program without a
/// message, as it ends other programs by SIGPIPE.
pub(crate) struct Output(io::BufWriter<io::StdoutLock<'static>>);

/// The exit code of a program that SIGPIPE has ended.
const BROKEN_PIPE: u8 = 141;

impl Output {
    pub(crate) fn new() -> Self {
        Self(io::BufWriter::new(io::stdout().lock()))
    }

    pub(crate) fn line(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.0, "{line}").map_err(|error| unwritten(&error))
    }

    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value);
        self.line(
            &text.map_err(|error| Failure::new(SYSTEM, format!("no JSON can be made: {error}; leave out --json")))?,
        )
    }

    /// Lets the reader have the lines so far.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| unwritten(&error))
    }

    /// Fails if the reader is gone, which a write would notice only when there is a line for it.
    pub(crate) fn is_read() -> Result<(), Failure> {
        let stdout = io::stdout();
        let mut ready = [PollFd::new(&stdout, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Where stdout cannot be polled, the next write tells.
        let _ = poll(&mut ready, Some(&at_once));
        let gone = PollFlags::ERR | PollFlags::HUP;
        if ready.iter().any(|stdout| stdout.revents().intersects(gone)) {
            return Err(Failure::new(BROKEN_PIPE, ""));
        }
        Ok(())
    }
}

fn unwritten(error: &io::Error) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe {
        return Failure::new(BROKEN_PIPE, "");
    }
    Failure::new(SYSTEM, format!("stdout cannot be written: {error}; see where it leads"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_cannot_command_the_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb\nc\u{9b}é"), r"a\u{1b}[2Jb\nc\u{9b}é");
    }
}
