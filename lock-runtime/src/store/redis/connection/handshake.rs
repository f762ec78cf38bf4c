//! Asks a server, on a new connection, for its version and for the permissions that locks need.

use std::collections::HashMap;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, Value, from_redis_value};

use super::batcher::the_one;
use super::failure;
use crate::store::StoreError;
use crate::store::health::ServerRole;
use crate::store::redis::keyspace::Keyspace;
use crate::store::redis::scripts::{ACQUIRE, RELEASE, RENEW};

/// The capabilities of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Capabilities {
    /// `true` from 7.0: `SET` takes `NX` and `GET` together, and scripts have flags.
    pub(in crate::store::redis) is_7: bool,
    /// `true` if the server has said that it is a replica.
    pub(super) is_replica: bool,
    /// The way in which it runs.
    pub(super) mode: Mode,
}

/// The ways in which a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Single,
    /// As a node of a cluster.
    Cluster,
    Sentinel,
}

impl Capabilities {
    pub(super) fn role(self) -> ServerRole {
        if self.is_replica {
            ServerRole::Replica
        } else {
            ServerRole::Master
        }
    }
}

/// Asks the server for its version and its role, and gives the connection its name by the same command,
/// `naming`, if it is to have one.
pub(in crate::store::redis) async fn ask(
    connection: &mut MultiplexedConnection,
    naming: Option<Cmd>,
) -> Result<Capabilities, RedisError> {
    // What stands before the server may know no names.
    for hello in naming.into_iter().chain([hello()]) {
        match hello.query_async::<Value>(connection).await {
            Ok(hello) => return Ok(capabilities(hello)),
            Err(error) if error.is_unrecoverable_error() => return Err(error),
            Err(error) => tracing::debug!(%error, "the server does not answer `HELLO` as it should"),
        }
    }
    // A server that does not tell its version is treated as an old one, whose commands work on
    // every server.
    Ok(capabilities(Value::Nil))
}

/// Returns [`hello`] with a name for the connection, by which `CLIENT LIST` shows it, or `None` for an empty
/// name. It needs no permission, unlike `CLIENT SETNAME`.
pub(super) fn naming(client_name: &str) -> Option<Cmd> {
    (!client_name.is_empty()).then(|| {
        let mut hello = hello();
        hello.arg(3).arg("SETNAME").arg(client_name);
        hello
    })
}

/// Returns the command whose answer tells the [`capabilities`]. It is allowed to all users.
pub(super) fn hello() -> Cmd {
    redis::cmd("HELLO")
}

/// Returns what the answer to [`hello`] tells.
pub(super) fn capabilities(hello: Value) -> Capabilities {
    let hello = from_redis_value::<HashMap<String, Value>>(hello).unwrap_or_default();
    let text = |field| {
        let value = hello.get(field);
        value.and_then(|value: &Value| from_redis_value::<String>(value.clone()).ok())
    };
    let version = text("version");
    let major = version
        .as_deref()
        .and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    Capabilities {
        is_7: major.is_some_and(|major| major >= 7),
        is_replica: text("role").is_some_and(|role| role != "master"),
        mode: match text("mode").as_deref() {
            Some("cluster") => Mode::Cluster,
            Some("sentinel") => Mode::Sentinel,
            _ => Mode::Single,
        },
    }
}

/// Runs every command that taking, renewing and releasing a lock needs once, on a key of its own,
/// so that a missing permission is found at start-up and not at the first release. A missing
/// permission for fencing is found when a call asks for a token. Scripts take the token before they
/// take the lock, so that no lock is left behind.
pub(super) async fn check_permissions(
    connection: &mut MultiplexedConnection,
    server: Capabilities,
    names: &Keyspace,
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
    let counter = names.counter(&key);
    let keys: [&str; 3] = [&key, &queue, &counter];
    let release_keys = &keys[..2];
    let given_back = [&names.channels, "probe", "0", "", ""];
    let commands = [
        set,
        run("EVAL", &acquire.source, &keys, &["0", "0", "somebody else", "1000"]),
        run("EVAL", &renew.source, &keys[..1], &["probe", "1000"]),
        run("EVAL", &release.source, release_keys, &given_back),
        run("EVALSHA", &release.hash, release_keys, &given_back),
    ];
    // Together, since a slow line has to answer them all within the connect time-out.
    let mut all = Pipeline::with_capacity(commands.len());
    for command in commands {
        all.add_command(command);
    }
    let answers = connection.req_packed_commands(&all, 0, all.len()).await;
    let refused = |error| refused(&error, names, &keys);
    for answer in answers.map_err(refused)? {
        the_one(Ok(answer)).map_err(refused)?;
    }
    Ok(())
}

/// Returns the error of a check that has named `keys`.
pub(super) fn refused(error: &RedisError, names: &Keyspace, keys: &[&str]) -> StoreError {
    let is_of_cluster = failure::is_of_cluster(error);
    // No lock was asked for so far.
    let error = failure::sort(error, false);
    if error.is_permanent() && !is_of_cluster {
        let prefix = names.prefix();
        return StoreError::permanent(format!("the server does not allow what locks need: {}", error.cause())).advise(format!(
            "allow it `~{prefix}* +get +mget +set +pttl +pexpire +del +eval +evalsha +client|tracking +info resetchannels &{prefix}* +time +zadd \
             +zrem +zscore +zrange +zrangebyscore +exists +subscribe +unsubscribe +publish +scan +incr +wait +select`, of which those after `+evalsha` are \
             for some uses only (docs/operations.md, \"Permissions\"); patterns for single keys must cover those of this check as well: `~{}`",
            keys.join("` `~")
        ));
    }
    error
}
