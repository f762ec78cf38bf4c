//! Classifies a server's errors by two questions: can another try succeed, and may the command have
//! been carried out?

use redis::{ErrorKind, RedisError, ServerErrorKind};

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
fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let inner = inside_script(code, error.detail().unwrap_or_default()).and_then(|inner| inner.split(' ').next());
    Some(inner.unwrap_or(code))
}

/// Returns the answer to a command inside a script.
fn inside_script<'a>(code: &str, detail: &'a str) -> Option<&'a str> {
    let (_, inner) = detail.rsplit_once("@user_script")?;
    let inner = inner.trim_start_matches(|c: char| matches!(c, ':' | ' ' | '-') || c.is_ascii_digit());
    (code == "ERR" && detail.contains("Error running script")).then_some(inner)
}

const LOG_IN: &str = "give a valid user and password in the URL, `redis://user:password@host:port`";

const NO_CLUSTER: &str = "give the URL of a server that is in no cluster";

/// Returns the advice for an error with this code.
fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "NOAUTH" | "WRONGPASS" => LOG_IN,
        "NOPERM" => "allow the server's user what README lists under \"Permissions\"",
        "OOM" => "give the server more memory, or free some; locks need the maxmemory-policy noeviction",
        "READONLY" => "give the URL of the primary, or wait for the failover to end",
        "MISCONF" => "let the server save its data again, or stop it from refusing writes",
        "LOADING" | "BUSY" => "wait until the server is ready, then try again",
        "CLUSTERDOWN" => NO_CLUSTER,
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
    let said = match said.split_once(" script: ") {
        Some((said, place)) if place.contains("on @user_script") => said,
        _ => &said,
    };
    said.trim_end_matches(['.', ' ']).to_owned()
}

/// Classifies an error. `sent` is `true` if the command may have reached the server.
pub(in crate::store::redis) fn sort(error: &RedisError, sent: bool) -> StoreError {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let code = code(error).unwrap_or_default();
            if code == "WRONGTYPE" {
                return StoreError::other_kind();
            }
            let is_full = error
                .detail()
                .is_some_and(|detail| detail.contains("max number of clients"));
            let advice = if is_full {
                Some("raise the server's maxclients, or close connections to it")
            } else {
                advice(code)
            };
            let passing = is_full || PASSING.contains(&code);
            let error = if passing {
                StoreError::transient(readable(error))
            } else if is_of_cluster(error) {
                StoreError::permanent(format!(
                    "the server is a node of a cluster, and a lock's keys must all be on one server: {}",
                    readable(error)
                ))
                .advise(NO_CLUSTER)
            } else {
                StoreError::permanent(readable(error))
            };
            match advice {
                Some(advice) => error.advise(advice),
                None => error,
            }
        }
        ErrorKind::AuthenticationFailed => StoreError::permanent(readable(error)).advise(LOG_IN),
        ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => StoreError::permanent(readable(error)),
        // As text, since the source of the error has the same text.
        _ if sent => StoreError::unknown(readable(error)),
        _ => StoreError::transient(readable(error)),
    }
}

/// Returns `true` for an error that only a cluster's node gives: a key is on another node, or the
/// keys of one command are on several.
pub(super) fn is_of_cluster(error: &RedisError) -> bool {
    matches!(code(error), Some("CROSSSLOT" | "MOVED" | "ASK"))
        || error.detail().is_some_and(|detail| {
            let says = |what| detail.contains(what);
            says("do not hash to the same slot") || says("non local key in a cluster")
        })
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
    use super::sort;

    /// Returns the text of the store's error after this answer of the server.
    fn told(answer: &str) -> String {
        let answer = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap_or(redis::Value::Nil);
        let Err(error) = answer.extract_error() else {
            panic!("this is no error")
        };
        sort(&error, true).to_string()
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "one row for each")]
    fn every_refusal_of_a_server_says_what_to_do() {
        let other_kind = "the key is held in another kind of mode, exclusive or one that several may hold, or holds another program's data; \
                          take a key in one kind of mode everywhere, or choose another key or prefix";
        let memory = "OOM command not allowed when used memory > 'maxmemory'; give the server more memory, or free some; locks need the \
                      maxmemory-policy noeviction";
        let log_in = "give a valid user and password in the URL, `redis://user:password@host:port`";
        let cluster = "give the URL of a server that is in no cluster";
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
                "NOPERM User app has no permissions to run the 'zadd' command; allow the server's user what README lists under \
                 \"Permissions\""
                    .to_owned(),
            ),
            (
                "READONLY You can't write against a read only replica.",
                "READONLY You can't write against a read only replica; give the URL of the primary, or wait for the failover to end".to_owned(),
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
                format!(
                    "the server is a node of a cluster, and a lock's keys must all be on one server: MOVED 3999 127.0.0.1:6381; {cluster}"
                ),
            ),
            ("CLUSTERDOWN Hash slot not served", format!("CLUSTERDOWN Hash slot not served; {cluster}")),
            (
                "ERR unknown command 'EVALSHA'",
                "ERR unknown command 'EVALSHA'; correct the store or its configuration".to_owned(),
            ),
        ] {
            assert_eq!(told(answer), text, "for {answer}");
        }
    }
}
