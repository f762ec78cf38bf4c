//! The mark by which a server shows that it has forgotten no lock that may still be held.
//!
//! One of several masters that comes back empty, flushed, or with an old snapshot may have forgotten
//! locks, and must give none to anyone else until their leases are over. It is closed until then. The
//! mark is a key without expiry that names the run of the server, the time at which it opens, and the
//! longest lease of any lock. A flush deletes it, and after a restart with any data it names another
//! run. Each connection on which locks are taken reads it first, and writes it anew if need be; each
//! command that takes a lock finds it as it was, or has no effect that counts.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};

use super::failure::Reason;
use crate::host::{Host, Moment, Mutex};
use crate::store::redis::keyspace::Keyspace;
use crate::store::redis::reply::millis;
use crate::store::redis::scripts::MARK;

/// The time after which a closed server is asked again, since an operator may have opened it.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// The mark of a server, as a store has read it last.
pub(in crate::store::redis) struct Mark {
    longest_lease: Duration,
    known: Mutex<Known>,
}

struct Known {
    value: Arc<str>,
    /// The time from which on the server is open, on the host's clock.
    opens: Moment,
    /// The time at which it was asked.
    asked: Moment,
    was_open: bool,
}

impl Mark {
    pub(in crate::store::redis) fn new(longest_lease: Duration) -> Self {
        let known = Known {
            value: Arc::from(""),
            opens: Moment::NEVER,
            asked: Moment::from_nanos(0),
            was_open: false,
        };
        Self {
            longest_lease,
            known: Mutex::new(known),
        }
    }

    /// Returns the mark of the open server, or the time until it opens.
    pub(super) fn state(&self, now: Moment) -> Result<Arc<str>, Duration> {
        let known = self.known.lock();
        if now < known.opens {
            return Err(known.opens.since(now));
        }
        Ok(Arc::clone(&known.value))
    }

    /// Returns `true` if the caller is to ask a closed server again.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        let mut known = self.known.lock();
        let is_due = now < known.opens && now.since(known.asked) >= ASKED_AGAIN;
        if is_due {
            known.asked = now;
        }
        is_due
    }

    /// Reads the server's mark, and writes it anew if the server may have forgotten locks. With `open`,
    /// opens a closed server: then returns `true` if it was closed.
    ///
    /// The connection must be to the server itself: the mark is worth nothing behind a proxy that keeps
    /// its clients' connections while it makes its own anew.
    pub(super) async fn read(
        &self,
        host: &Host,
        mut connection: MultiplexedConnection,
        names: &Keyspace,
        flags: bool,
        open: bool,
        server: &str,
    ) -> Result<bool, RedisError> {
        let info: String = info().query_async(&mut connection).await?;
        let Some(run_id) = run_id(&info) else {
            return Err(Reason::lasting(
                format!("{server} does not tell its run id, by which a restart is noticed"),
                "give the URL of the server itself",
            )
            .into());
        };
        let mut command = redis::cmd("EVAL");
        command.arg(&MARK.form(flags).source).arg(1).arg(&names.mark);
        command.arg(run_id).arg(millis(self.longest_lease)).arg(u8::from(open));
        let (value, opens_in, longest, was_closed): (String, u64, u64, bool) =
            command.query_async(&mut connection).await?;
        if longest != millis(self.longest_lease) {
            return Err(Reason::lasting(
                format!(
                    "this process's longest lease is {:?}, and other processes' at {server} is {:?}",
                    self.longest_lease,
                    Duration::from_millis(longest)
                ),
                "give all processes the same longest lease",
            )
            .into());
        }
        let opens_in = Duration::from_millis(opens_in);
        match self.learn(host.now(), value, opens_in) {
            None => {}
            Some(Closed::First) => tracing::info!(
                server,
                ?opens_in,
                "the server may have forgotten locks (first use, a restart or a flush), and takes none until it opens"
            ),
            Some(Closed::Again) => tracing::warn!(
                server,
                ?opens_in,
                "the server was restarted or flushed and may have forgotten locks, and takes none until it opens"
            ),
        }
        Ok(was_closed)
    }

    /// Records an answer. The server counted `opens_in` before `now`, so no process takes it to be open
    /// too early. Returns what the log is to say of a closed server, if anything.
    fn learn(&self, now: Moment, value: String, opens_in: Duration) -> Option<Closed> {
        let mut known = self.known.lock();
        known.was_open |= known.opens <= now;
        let is_new = !opens_in.is_zero() && *known.value != *value;
        let closed = if known.was_open { Closed::Again } else { Closed::First };
        known.value = value.into();
        known.opens = now.after(opens_in);
        known.asked = now;
        is_new.then_some(closed)
    }
}

/// The way in which a server came to be closed, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    /// It has not been seen open before.
    First,
    /// It was open before, and has been restarted or flushed.
    Again,
}

/// Returns the command whose answer has the [`run_id`].
pub(in crate::store::redis) fn info() -> Cmd {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    info
}

/// Returns the identifier of the server's process, which each restart changes.
pub(in crate::store::redis) fn run_id(info: &str) -> Option<&str> {
    let id = info.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim();
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_id_is_a_line_of_the_answer() {
        assert_eq!(
            run_id("# Server\r\nredis_version:7.0.15\r\nrun_id:4f2a\r\ntcp_port:1\r\n"),
            Some("4f2a")
        );
        for none in [
            "",
            "# Server\r\nredis_version:7.0.15\r\n",
            "run_id:\r\n",
            "run_id:a:b\r\n",
        ] {
            assert_eq!(run_id(none), None, "{none}");
        }
    }

    #[test]
    fn a_closed_server_is_asked_again_by_one_call_in_a_second() {
        let at = |ms| Moment::from_nanos(0).after(Duration::from_millis(ms));
        let mark = Mark::new(Duration::from_secs(30));
        mark.learn(at(5_000), "r:1:30000".to_owned(), Duration::from_secs(30));
        assert_eq!(mark.state(at(7_000)), Err(Duration::from_secs(28)));
        assert!(!mark.is_due(at(5_999)));
        assert!(mark.is_due(at(6_000)) && !mark.is_due(at(6_999)) && mark.is_due(at(7_000)));
        assert_eq!(mark.state(at(35_000)).as_deref(), Ok("r:1:30000"));
        assert!(!mark.is_due(at(36_000)), "it is open");
    }

    #[test]
    fn a_closing_is_told_once() {
        let at = |ms| Moment::from_nanos(0).after(Duration::from_millis(ms));
        let seconds = Duration::from_secs;
        let mark = Mark::new(seconds(30));
        let learn = |now, value: &str, opens_in| mark.learn(at(now), value.to_owned(), opens_in);
        assert_eq!(learn(0, "r:30000:30000", seconds(30)), Some(Closed::First));
        assert_eq!(learn(1_000, "r:30000:30000", seconds(29)), None, "told twice");
        // An operator opens it.
        assert_eq!(learn(2_000, "r:2000:30000", Duration::ZERO), None);
        assert_eq!(learn(9_000, "r:39000:30000", seconds(30)), Some(Closed::Again));
        assert_eq!(learn(9_500, "r:39000:30000", seconds(29)), None, "told twice");
        // It is restarted while it is closed.
        assert_eq!(learn(10_000, "s:40000:30000", seconds(30)), Some(Closed::Again));
    }
}
