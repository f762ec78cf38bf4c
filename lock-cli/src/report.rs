//! Locks as they are printed: in a table, on lines, and as JSON.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use lock_runtime::{FencingToken, HolderInfo, LockInfo, MasterInfo};
use serde::Serialize;

use crate::exit::{Failure, SYSTEM};

/// A lock as a JSON object.
#[derive(Debug, Serialize)]
pub(crate) struct Lock<'a> {
    key: &'a str,
    /// `null` if the lock is free.
    mode: Option<String>,
    holders: Vec<Holder<'a>>,
    waiters: u64,
    fence: Option<u64>,
    last_fence: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    masters: Vec<Master<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Holder<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    function: Option<&'a str>,
    mode: String,
    /// `null` for a key without an expiry.
    remaining_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Master<'a> {
    name: &'a str,
    holders: Vec<Holder<'a>>,
    error: Option<&'a str>,
}

impl<'a> Lock<'a> {
    pub(crate) fn of(info: &'a LockInfo) -> Self {
        Self {
            key: &info.key,
            mode: info.mode().map(|mode| mode.to_string()),
            holders: info.holders.iter().map(Holder::of).collect(),
            waiters: info.waiters,
            fence: info.fence.map(FencingToken::get),
            last_fence: info.last_fence.map(FencingToken::get),
            masters: info.masters.iter().map(Master::of).collect(),
        }
    }
}

impl<'a> Holder<'a> {
    pub(crate) fn of(holder: &'a HolderInfo) -> Self {
        Self {
            host: holder.holder.host(),
            pid: holder.holder.pid(),
            function: holder.holder.function().filter(|function| !function.is_empty()),
            mode: holder.holder.mode().to_string(),
            remaining_ms: holder.remaining.map(whole_milliseconds),
        }
    }
}

impl<'a> Master<'a> {
    fn of(master: &'a MasterInfo) -> Self {
        Self {
            name: &master.name,
            holders: master.holders.iter().map(Holder::of).collect(),
            error: master.error.as_deref(),
        }
    }
}

fn whole_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

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
