//! What is asked of a server when a connection to it is made.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, from_redis_value};

use super::failure;
use super::scripts::{ACQUIRE, RELEASE, RENEW};
use crate::key::RESERVED;
use crate::store::StoreError;

/// What a server can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// From 7.0: `SET` takes `NX` and `GET` together, and scripts have flags.
    pub(super) is_7: bool,
}

/// Asks the server who it is.
pub(super) async fn ask(connection: &mut MultiplexedConnection) -> Result<Server, RedisError> {
    // A server that does not tell is treated as an old one; what that needs works everywhere.
    let hello = redis::cmd("HELLO").query_async::<Value>(connection).await;
    let hello = match hello {
        Ok(hello) => from_redis_value::<HashMap<String, Value>>(hello).unwrap_or_default(),
        Err(error) if error.is_unrecoverable_error() => return Err(error),
        Err(_) => HashMap::new(),
    };
    let version = hello
        .get("version")
        .and_then(|version| from_redis_value::<String>(version.clone()).ok());
    let major = version
        .as_deref()
        .and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    Ok(Server {
        is_7: major.is_some_and(|major| major >= 7),
    })
}

/// Runs every command that taking, renewing and releasing a lock needs once, on a key of the library's own: a
/// missing permission is to be found at start-up, not when the first lock is to be released. What fencing needs
/// beyond that is found when a token is taken, which is before the lock.
pub(super) async fn check_permissions(
    connection: &mut MultiplexedConnection,
    server: Server,
    prefix: &str,
) -> Result<(), StoreError> {
    let key = format!("{prefix}{RESERVED}probe");
    let run = |name, script: &str, value: &str, millis: u32| {
        let mut command = redis::cmd(name);
        command.arg(script).arg(1).arg(&key).arg(value).arg(millis);
        command
    };
    let [acquire, renew, release] = [&ACQUIRE, &RENEW, &RELEASE].map(|script| script.form(server.is_7));
    let mut set = redis::cmd("SET");
    set.arg(&key).arg("probe").arg("PX").arg(1000);
    for command in [
        set,
        run("EVAL", &acquire.source, "somebody else", 1000),
        run("EVAL", &renew.source, "probe", 1000),
        run("EVAL", &release.source, "probe", 0),
        run("EVALSHA", &release.hash, "probe", 0),
    ] {
        let answer = command.query_async::<Value>(connection).await;
        answer.map_err(|error| refused(error, prefix))?;
    }
    Ok(())
}

fn refused(error: RedisError, prefix: &str) -> StoreError {
    let error = failure::sort(error, true);
    if error.is_permanent() {
        return StoreError::permanent(format!(
            "the server does not allow what locks need: {error}; allow the user `~{prefix}* +set +get +pttl +pexpire +del +incr \
             +time +eval +evalsha +hello +client`"
        ));
    }
    error
}
