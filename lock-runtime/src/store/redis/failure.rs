//! What a server's error means for a lock: whether to try again, and whether the command may have been carried out.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::StoreError;

/// Errors of a server that is in a bad moment: the command was not carried out, and may be later.
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

/// The error's code. A server before 7.0 hides that of a command inside a script in the text:
/// `ERR Error running script (…): @user_script:3: @user_script: 3: -OOM command not allowed …`.
fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let inner = error
        .detail()
        .filter(|detail| code == "ERR" && detail.contains("Error running script"))
        .and_then(|detail| detail.rsplit_once(": -"))
        .and_then(|(_, inner)| inner.split(' ').next());
    Some(inner.unwrap_or(code))
}

/// Sorts an error. `sent`: whether the command may have reached the server.
pub(super) fn sort(error: RedisError, sent: bool) -> StoreError {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let passing = code(&error).is_some_and(|code| PASSING.contains(&code))
                || error
                    .detail()
                    .is_some_and(|detail| detail.contains("max number of clients"));
            if passing {
                StoreError::transient(error)
            } else {
                StoreError::permanent(error)
            }
        }
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
            StoreError::permanent(error)
        }
        _ if sent => StoreError::unknown(error),
        _ => StoreError::transient(error),
    }
}

/// Whether the connection is of no more use. After an answer that cannot be read, later answers may belong to
/// other commands.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    match error.kind() {
        // A server that was demoted or wants another login: the next connection may find it otherwise.
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::UnexpectedReturnType => true,
        _ => error.is_unrecoverable_error() || matches!(code(error), Some("READONLY" | "NOAUTH")),
    }
}

pub(super) fn is_missing_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
