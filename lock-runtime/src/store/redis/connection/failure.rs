//! Classifies a server's errors by two questions: can another try succeed, and may the command have
//! been carried out?

use std::borrow::Cow;
use std::error::Error;
use std::{fmt, io};

use redis::{ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};

use crate::store::StoreError;

/// Codes of transient errors: the command was not carried out, and may succeed later.
const PASSING: [&str; 11] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOGOODSLAVE",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNBLOCKED",
];

/// Returns the error's code. For a command inside a script, a server before 7.0 hides it in the
/// text, in one of two ways:
/// `ERR Error running script (…): @user_script:3: @user_script: 3: -OOM command not allowed …` and
/// `ERR Error running script (…): @user_script:3: WRONGTYPE Operation against a key …`.
/// If the user lacks a permission there, every server answers `ERR`, and so does `redis` for `SELECT`.
fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let detail = error.detail().unwrap_or_default();
    if DENIED.iter().any(|text| detail.contains(text)) {
        return Some("NOPERM");
    }
    let inner = inside_script(code, detail).and_then(|inner| inner.split(' ').next());
    Some(inner.unwrap_or(code))
}

/// The server's words for a command that the user may not run: inside a script from 7.2 on and before, and elsewhere.
const DENIED: [&str; 3] = [
    "ACL failure in script",
    "The user executing the script can't",
    "has no permissions to run",
];

/// Returns the answer to a command inside a script.
fn inside_script<'a>(code: &str, detail: &'a str) -> Option<&'a str> {
    let (_, inner) = detail.rsplit_once("@user_script")?;
    let inner = inner.trim_start_matches(|c: char| matches!(c, ':' | ' ' | '-') || c.is_ascii_digit());
    (code == "ERR" && detail.contains("Error running script")).then_some(inner)
}

const LOG_IN: &str = "give a valid user and password in the URL, `redis://user:password@host:port`, or a password file";

const OF_CLUSTER: &str = "give the URL of the cluster, `redis+cluster://host,host`";

/// The advice for a server, or a proxy, that does not know `HELLO`.
pub(super) const NEEDS_HELLO: &str =
    "give the URL of the server itself, of Redis 6 or later, or let the proxy before it pass `HELLO 3` on";

/// The advice for a server that hangs up, after which another try may succeed.
const LOOK_THERE: &str = "check that a server is up behind this address, that its log names no other reason, and that the URL begins with \
                          `rediss://` if it takes TLS only, then try again";

/// The reason why no connection was made, where this process knows it better than the system. It
/// travels in a [`RedisError`], where [`sort`] finds it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct Reason {
    text: Cow<'static, str>,
    advice: &'static str,
    pub(super) kind: ReasonKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReasonKind {
    /// Another try may succeed.
    Passing,
    /// The server, or what is in its place, has closed the connection without a word.
    HungUp,
    /// Another try is of no use until something is changed.
    Lasting,
    /// Something panicked while the connection was made.
    Panicked,
}

impl Reason {
    fn new(kind: ReasonKind, text: impl Into<Cow<'static, str>>, advice: &'static str) -> Self {
        let text = text.into();
        Self { text, advice, kind }
    }

    pub(super) fn passing(text: impl Into<Cow<'static, str>>, advice: &'static str) -> Self {
        Self::new(ReasonKind::Passing, text, advice)
    }

    pub(super) fn lasting(text: impl Into<Cow<'static, str>>, advice: &'static str) -> Self {
        Self::new(ReasonKind::Lasting, text, advice)
    }

    /// Returns the reason for the error of a connection on which the server said nothing.
    pub(super) fn hung_up(error: &RedisError) -> Self {
        let text = format!("the server closed the connection without an answer: {error}");
        Self::new(ReasonKind::HungUp, text, LOOK_THERE)
    }

    pub(super) fn panicked(message: &str) -> Self {
        Self::new(
            ReasonKind::Panicked,
            format!("connecting panicked: {message}"),
            "mend what the panic names; if that is not in your code, report it",
        )
    }

    /// Returns the reason that is the cause of an error.
    pub(super) fn of(error: &RedisError) -> Option<&Self> {
        let mut cause = error.source();
        while let Some(error) = cause {
            if let Some(reason) = error.downcast_ref() {
                return Some(reason);
            }
            cause = error.source();
        }
        None
    }
}

/// An error with the reason as its source: an `io::Error` passes on the source of the error that it
/// contains, and not that error itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Carried(#[source] Reason);

impl From<Reason> for RedisError {
    fn from(reason: Reason) -> Self {
        io::Error::other(Carried(reason)).into()
    }
}

/// Returns `true` if making a connection has panicked.
pub(super) fn has_panicked(error: &StoreError) -> bool {
    let cause: &(dyn Error + 'static) = error.cause();
    cause
        .downcast_ref::<Reason>()
        .is_some_and(|reason| reason.kind == ReasonKind::Panicked)
}

/// The answer of a node of a cluster about keys of which it serves none, or not all. The node has not
/// carried out the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Redirect {
    /// Another node, at this address, has this slot, which need not be that of a call's lock: a node has
    /// keys of its own as well.
    Moved(u16, Address),
    /// The slot is on its way to the node at this address, which has the keys if anyone has.
    Ask(Address),
    /// The slot is on its way to another node, and each of the two has some of the keys.
    TryAgain,
    /// The node knows of no node that has the slot, or does not reach enough others.
    Down,
}

/// The address of a node. The host is empty for that of the node that tells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store::redis) struct Address {
    pub(in crate::store::redis) host: String,
    pub(in crate::store::redis) port: u16,
}

impl Address {
    /// Returns the address of a server that is reached over TCP.
    pub(in crate::store::redis) fn of(addr: &ConnectionAddr) -> Option<Self> {
        match addr {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => Some(Self {
                host: host.clone(),
                port: *port,
            }),
            _ => None,
        }
    }

    /// Reads `host:port`, where an IPv6 address has no brackets.
    fn read(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self {
            host: if host == "?" { String::new() } else { host.to_owned() },
            port: port.parse().ok()?,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The cause of an error that the store acts on.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Answer {
    text: String,
    meaning: Meaning,
}

/// The meaning of a server's answer.
#[derive(Debug)]
enum Meaning {
    Redirect(Redirect),
    /// A script in front of which `ops/marked.lua` has not found the expected mark. The script changed nothing.
    Unmarked,
    /// The server takes no writes for now.
    NotWritten,
}

fn meaning(error: &StoreError) -> Option<&Meaning> {
    let cause: &(dyn Error + 'static) = error.cause();
    Some(&cause.downcast_ref::<Answer>()?.meaning)
}

/// Returns what a node of a cluster has answered, if that is a [`Redirect`].
pub(in crate::store::redis) fn redirect(error: &StoreError) -> Option<&Redirect> {
    match meaning(error)? {
        Meaning::Redirect(redirect) => Some(redirect),
        Meaning::Unmarked | Meaning::NotWritten => None,
    }
}

/// Returns `true` if a script that takes a lock has not found the server's mark as it was.
pub(super) fn is_unmarked(error: &StoreError) -> bool {
    matches!(meaning(error), Some(Meaning::Unmarked))
}

/// Codes of a server that takes no writes for now, and answers questions.
const TAKES_NO_WRITES: [&str; 4] = ["MISCONF", "NOREPLICAS", "OOM", "READONLY"];

/// Returns `true` if the server has answered that it takes no writes for now.
pub(super) fn takes_no_writes(error: &StoreError) -> bool {
    matches!(meaning(error), Some(Meaning::NotWritten))
}

/// Reads a [`Redirect`] out of a server's answer.
fn read_redirect(error: &RedisError) -> Option<Redirect> {
    let place = || {
        let (slot, address) = error.detail()?.split_once(' ')?;
        Some((slot.parse().ok()?, Address::read(address)?))
    };
    Some(match code(error)? {
        "MOVED" => {
            let (slot, address) = place()?;
            Redirect::Moved(slot, address)
        }
        "ASK" => Redirect::Ask(place()?.1),
        "TRYAGAIN" => Redirect::TryAgain,
        "CLUSTERDOWN" => Redirect::Down,
        _ => return None,
    })
}

/// Returns the advice for an error with this code.
fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "NOAUTH" | "WRONGPASS" => LOG_IN,
        "DENIED" => {
            "set a password on the server (`requirepass`) and give it in the URL, `redis://:password@host:port`, or, where only trusted clients \
             reach the server, start it with `--protected-mode no`"
        }
        "NOPERM" => "allow the server's user what docs/operations.md lists under \"Permissions\"",
        "OOM" => "give the server more memory, or free some; locks need the maxmemory-policy noeviction",
        "READONLY" => "give the URL of the primary, or wait for the failover to end",
        "NOREPLICAS" => {
            "see that the server's replicas are connected and keep up (`INFO replication`), or lower its min-replicas-to-write"
        }
        "MISCONF" => "let the server save its data again, or stop it from refusing writes",
        "LOADING" | "BUSY" => "wait until the server is ready, then try again",
        "CLUSTERDOWN" => "wait until the cluster serves all its slots again, or see what `CLUSTER INFO` tells",
        _ => return None,
    })
}

/// Returns the error in the server's words, without the names of the `redis` crate's kinds, and
/// without a script's hash and line, which are of use to maintainers only.
pub(in crate::store::redis) fn readable(error: &RedisError) -> String {
    let Some(code) = error.code() else {
        return error.to_string().replace(&format!(" - {:?}", error.kind()), "");
    };
    let detail = error.detail().unwrap_or_default();
    let said = inside_script(code, detail).map_or_else(|| format!("{code} {detail}"), ToOwned::to_owned);
    let said = match said.rsplit_once(" script: ") {
        Some((said, place)) if place.contains("on @user_script") => said,
        _ => &said,
    };
    said.trim_end_matches(['.', ' ']).to_owned()
}

/// Classifies an error. `sent` is `true` if the command may have reached the server.
pub(in crate::store::redis) fn sort(error: &RedisError, sent: bool) -> StoreError {
    if let Some(reason) = Reason::of(error) {
        let error = match reason.kind {
            ReasonKind::Passing | ReasonKind::HungUp => StoreError::transient(reason.clone()),
            ReasonKind::Lasting | ReasonKind::Panicked => StoreError::permanent(reason.clone()),
        };
        return error.advise(reason.advice);
    }
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let code = code(error).unwrap_or_default();
            if code == "WRONGTYPE" {
                return StoreError::other_kind();
            }
            if code == "UNMARKED" {
                let (text, meaning) = (readable(error), Meaning::Unmarked);
                return StoreError::transient(Answer { text, meaning });
            }
            let is_full = error
                .detail()
                .is_some_and(|detail| detail.contains("max number of clients"));
            let advice = if is_full {
                Some("raise the server's maxclients, or close connections to it")
            } else if lacks_hello(error) {
                Some(NEEDS_HELLO)
            } else if error.detail() == Some("DB index is out of range") {
                Some(
                    "give the number of a database that the server has behind the address in the URL, or raise its `databases`",
                )
            } else {
                advice(code)
            };
            let passing = is_full || PASSING.contains(&code);
            let error = if let Some(redirect) = read_redirect(error) {
                let (text, meaning) = (readable(error), Meaning::Redirect(redirect));
                if passing {
                    StoreError::transient(Answer { text, meaning })
                } else {
                    let text = format!("the server is a node of a cluster: {text}");
                    StoreError::permanent(Answer { text, meaning }).advise(OF_CLUSTER)
                }
            } else if TAKES_NO_WRITES.contains(&code) {
                let (text, meaning) = (readable(error), Meaning::NotWritten);
                StoreError::transient(Answer { text, meaning })
            } else if passing {
                StoreError::transient(readable(error))
            } else if is_non_local(error) {
                // The script may have been carried out in part.
                StoreError::unknown(readable(error))
            } else if is_of_cluster(error) {
                StoreError::permanent(format!("the server is a node of a cluster: {}", readable(error)))
                    .advise(OF_CLUSTER)
            } else {
                StoreError::permanent(readable(error))
            };
            let error = match advice {
                Some(advice) => error.advise(advice),
                None => error,
            };
            match redirect(&error) {
                // Another node may carry out the command.
                Some(Redirect::Moved(..) | Redirect::Ask(_) | Redirect::TryAgain) => error,
                _ => error.answered(),
            }
        }
        ErrorKind::AuthenticationFailed => StoreError::permanent(readable(error)).advise(LOG_IN),
        ErrorKind::RESP3NotSupported => StoreError::permanent(readable(error)).advise(NEEDS_HELLO),
        ErrorKind::InvalidClientConfig => StoreError::permanent(readable(error)),
        // As text, since the source of the error has the same text.
        _ if sent => StoreError::unknown(readable(error)),
        _ => StoreError::transient(readable(error)),
    }
}

/// Returns `true` for the answer of a server, or of a proxy, that does not know `HELLO`.
fn lacks_hello(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
    detail.contains("unknown command") && detail.contains("hello")
}

/// Returns `true` for an error that only a cluster's node gives: a key is on another node, or the
/// keys of one command are on several.
pub(super) fn is_of_cluster(error: &RedisError) -> bool {
    matches!(code(error), Some("CROSSSLOT" | "MOVED" | "ASK"))
        || is_non_local(error)
        || error
            .detail()
            .is_some_and(|detail| detail.contains("do not hash to the same slot"))
}

/// Returns `true` if a script has deleted a key of a slot that is on its way to another node, and
/// has then asked for that key.
fn is_non_local(error: &RedisError) -> bool {
    error
        .detail()
        .is_some_and(|detail| detail.contains("non local key in a cluster"))
}

/// Returns `true` if the connection is of no further use. After an unreadable answer, later answers
/// may belong to other commands.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::UnexpectedReturnType => true,
        // `READONLY` and `NOAUTH`: the next connection may reach another server, or log in anew.
        _ => error.is_unrecoverable_error() || matches!(code(error), Some("READONLY" | "NOAUTH")),
    }
}

pub(in crate::store::redis) fn is_missing_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

#[allow(clippy::panic)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Effect;

    /// Returns the store's error after this answer of the server.
    fn sorted(answer: &str) -> StoreError {
        let answer = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap_or(redis::Value::Nil);
        let Err(error) = answer.extract_error() else {
            panic!("this is no error")
        };
        sort(&error, true)
    }

    fn told(answer: &str) -> String {
        sorted(answer).to_string()
    }

    #[test]
    fn an_answer_that_names_another_node_is_understood() {
        let at = |host: &str, port| Address {
            host: host.to_owned(),
            port,
        };
        for (answer, expected) in [
            (
                "MOVED 3999 127.0.0.1:6381",
                Some(Redirect::Moved(3999, at("127.0.0.1", 6381))),
            ),
            ("MOVED 3999 ::1:6381", Some(Redirect::Moved(3999, at("::1", 6381)))),
            ("MOVED 3999 :6381", Some(Redirect::Moved(3999, at("", 6381)))),
            ("MOVED 3999 ?:6381", Some(Redirect::Moved(3999, at("", 6381)))),
            (
                "ASK 3999 node.example:6381",
                Some(Redirect::Ask(at("node.example", 6381))),
            ),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Some(Redirect::TryAgain),
            ),
            ("CLUSTERDOWN The cluster is down", Some(Redirect::Down)),
            ("MOVED", None),
            ("MOVED 99999 node.example:6381", None),
            ("OOM command not allowed", None),
        ] {
            let error = sorted(answer);
            assert_eq!(redirect(&error), expected.as_ref(), "{answer}");
            assert_eq!(error.effect(), Effect::None, "{answer}");
            assert_eq!(redirect(&error.into_unknown()), expected.as_ref(), "{answer}");
        }
    }

    #[test]
    fn a_reason_survives_its_way_through_a_redis_error() {
        for (reason, is_permanent) in [
            (Reason::passing("not now", "wait, then try again"), false),
            (Reason::lasting("not now", "wait, then try again"), true),
        ] {
            let error = sort(&reason.into(), false);
            assert_eq!(error.to_string(), "not now; wait, then try again");
            assert_eq!((error.is_permanent(), error.effect()), (is_permanent, Effect::None));
            assert!(!has_panicked(&error));
        }
        let error = sort(&Reason::panicked("index out of bounds").into(), false);
        assert!(has_panicked(&error) && error.is_permanent());
        assert!(
            error
                .to_string()
                .starts_with("connecting panicked: index out of bounds; mend"),
            "{error}"
        );
        assert!(Reason::of(&io::Error::other("x").into()).is_none());
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "one row for each")]
    fn every_refusal_of_a_server_says_what_to_do() {
        let other_kind = "the key is held in another kind of mode, exclusive or one that several may hold, or holds another program's data; \
                          take a key in one kind of mode everywhere, or choose another key or prefix";
        let memory = "OOM command not allowed when used memory > 'maxmemory'; give the server more memory, or free some; locks need the \
                      maxmemory-policy noeviction";
        let log_in = "give a valid user and password in the URL, `redis://user:password@host:port`, or a password file";
        let cluster = "give the URL of the cluster, `redis+cluster://host,host`";
        let permissions = "allow the server's user what docs/operations.md lists under \"Permissions\"";
        for (answer, text) in [
            ("WRONGTYPE Operation against a key holding the wrong kind of value", other_kind.to_owned()),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value script: 4c6c44, on @user_script:14.",
                other_kind.to_owned(),
            ),
            // Redis 6.2 reports an error of a command inside a script in these two ways.
            (
                "ERR Error running script (call to f_4c6c): @user_script:230: WRONGTYPE Operation against a key holding the wrong kind of \
                 value",
                other_kind.to_owned(),
            ),
            (
                "ERR Error running script (call to f_4c6c): @user_script:3: @user_script: 3: -OOM command not allowed when used memory > \
                 'maxmemory'.",
                memory.to_owned(),
            ),
            ("OOM command not allowed when used memory > 'maxmemory'.", memory.to_owned()),
            ("NOAUTH Authentication required.", format!("NOAUTH Authentication required; {log_in}")),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                format!("WRONGPASS invalid username-password pair or user is disabled; {log_in}"),
            ),
            (
                "NOPERM User app has no permissions to run the 'zadd' command script: 4c6c44, on @user_script:14.",
                format!("NOPERM User app has no permissions to run the 'zadd' command; {permissions}"),
            ),
            // Redis 8.2, Valkey 9, Redis 7.0 and 6.2 on a command that the user may not run inside a script.
            (
                "ERR ACL failure in script: User app has no permissions to run the 'incr' command script: 6f5ade, on @user_script:1.",
                format!("ERR ACL failure in script: User app has no permissions to run the 'incr' command; {permissions}"),
            ),
            (
                "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
                format!("ERR ACL failure in script: No permissions to access a key; {permissions}"),
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 6f5ade, on @user_script:1.",
                format!("ERR The user executing the script can't run this command or subcommand; {permissions}"),
            ),
            (
                "ERR Error running script (call to f_6f5a): @user_script:1: @user_script: 1: The user executing the script can't run this \
                 command or subcommand",
                format!("The user executing the script can't run this command or subcommand; {permissions}"),
            ),
            // The words of 6.2 and 8.2, before which `redis` has put this code.
            (
                "ERR this user has no permissions to run the 'select' command or its subcommand",
                format!("ERR this user has no permissions to run the 'select' command or its subcommand; {permissions}"),
            ),
            (
                "ERR User app has no permissions to run the 'select' command",
                format!("ERR User app has no permissions to run the 'select' command; {permissions}"),
            ),
            (
                "READONLY You can't write against a read only replica.",
                "READONLY You can't write against a read only replica; give the URL of the primary, or wait for the failover to end".to_owned(),
            ),
            (
                "NOREPLICAS Not enough good replicas to write. script: caeeee, on @user_script:1.",
                "NOREPLICAS Not enough good replicas to write; see that the server's replicas are connected and keep up (`INFO \
                 replication`), or lower its min-replicas-to-write"
                    .to_owned(),
            ),
            (
                "ERR DB index is out of range",
                "ERR DB index is out of range; give the number of a database that the server has behind the address in the URL, or raise \
                 its `databases`"
                    .to_owned(),
            ),
            (
                "MISCONF Errors writing to the AOF file",
                "MISCONF Errors writing to the AOF file; let the server save its data again, or stop it from refusing writes".to_owned(),
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                "LOADING Redis is loading the dataset in memory; wait until the server is ready, then try again".to_owned(),
            ),
            (
                "BUSY Redis is busy running a script.",
                "BUSY Redis is busy running a script; wait until the server is ready, then try again".to_owned(),
            ),
            (
                "ERR max number of clients reached",
                "ERR max number of clients reached; raise the server's maxclients, or close connections to it".to_owned(),
            ),
            (
                "MOVED 3999 127.0.0.1:6381",
                format!("the server is a node of a cluster: MOVED 3999 127.0.0.1:6381; {cluster}"),
            ),
            (
                "CLUSTERDOWN Hash slot not served",
                "CLUSTERDOWN Hash slot not served; wait until the cluster serves all its slots again, or see what `CLUSTER INFO` tells"
                    .to_owned(),
            ),
            (
                "DENIED Redis is running in protected mode",
                "DENIED Redis is running in protected mode; set a password on the server (`requirepass`) and give it in the URL, \
                 `redis://:password@host:port`, or, where only trusted clients reach the server, start it with `--protected-mode no`"
                    .to_owned(),
            ),
            (
                "ERR unknown command 'HELLO'",
                "ERR unknown command 'HELLO'; give the URL of the server itself, of Redis 6 or later, or let the proxy before it pass \
                 `HELLO 3` on"
                    .to_owned(),
            ),
            (
                "ERR unknown command 'EVALSHA'",
                "ERR unknown command 'EVALSHA'; correct the store or its configuration".to_owned(),
            ),
        ] {
            assert_eq!(told(answer), text, "for {answer}");
        }
    }
}
