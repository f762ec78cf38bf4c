//! What is asked of a server when a connection to it is made.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, from_redis_value};

use super::failure;
use super::names::Names;
use super::scripts::{ACQUIRE, RELEASE, RENEW};
use super::wire::the_one;
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
    names: &Names,
) -> Result<(), StoreError> {
    let key = names.probe();
    let run = |name, script: &str, keys: &[&str], args: &[&str]| {
        let mut command = redis::cmd(name);
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command
    };
    let [acquire, renew, release] = [&ACQUIRE, &RENEW, &RELEASE].map(|script| script.form(server.is_7));
    let mut set = redis::cmd("SET");
    set.arg(&key).arg("probe").arg("PX").arg(1000);
    let queue = names.queue(&key);
    let keys: [&str; 3] = [&key, &queue, &names.counter];
    let release_keys: [&str; 3] = [&names.counter, &key, &queue];
    let given_back = [&names.channels, "probe", "0", ""];
    for command in [
        set,
        run("EVAL", &acquire.source, &keys, &["somebody else", "1000", "0", "0"]),
        run("EVAL", &renew.source, &keys[..1], &["probe", "1000"]),
        run("EVAL", &release.source, &release_keys, &given_back),
        run("EVALSHA", &release.hash, &release_keys, &given_back),
    ] {
        let answer = the_one(command.query_async::<Value>(connection).await);
        answer.map_err(|error| refused(error, names))?;
    }
    Ok(())
}

fn refused(error: RedisError, names: &Names) -> StoreError {
    let error = failure::sort(error, true);
    if error.is_permanent() {
        let prefix = names.prefix();
        return StoreError::permanent(format!(
            "the server does not allow what locks need: {error}; allow the user what follows (`+subscribe` and what comes after it are for \
             wake-ups only, as are the channels `&{prefix}*`; those that start with `z` also for every mode but `exclusive`): `~{prefix}* \
             +set +get +exists +pttl +pexpire +del +incr +time +eval +evalsha +hello +client +subscribe \
             +unsubscribe +publish +zadd +zrem +zscore +zrange +zrangebyscore`"
        ));
    }
    error
}
