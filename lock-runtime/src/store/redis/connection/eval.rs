//! Runs scripts.

use redis::{Cmd, RedisError, Value};

use super::batcher::run_script;
use super::failure::{is_unmarked, sort};
use super::slot::{Connection, ConnectionSlot};
use crate::store::StoreError;
use crate::store::redis::scripts::LockScript;

/// Runs a script by its hash, or by its source if the server does not have it.
pub(in crate::store::redis) async fn eval(
    slot: &ConnectionSlot,
    live: &Connection,
    script: &LockScript,
    keys: &[&str],
    args: impl Fn(&mut Cmd),
) -> Result<Value, StoreError> {
    let lock = keys.first().copied().unwrap_or_default();
    eval_about(slot, live, script, lock, keys, args).await
}

/// Does the same as `eval` for a script whose first key is not its lock. `lock` is empty if it is
/// about many locks.
pub(in crate::store::redis) async fn eval_about(
    slot: &ConnectionSlot,
    live: &Connection,
    script: &LockScript,
    lock: &str,
    keys: &[&str],
    args: impl Fn(&mut Cmd),
) -> Result<Value, StoreError> {
    let form = script.form(live.server.is_7);
    let command = |by| {
        let mut command = Cmd::new();
        run_script(&mut command, by, form);
        command.arg(keys.len()).arg(keys);
        args(&mut command);
        command
    };
    let answer = slot.call_script(live, script.kind, lock, command).await;
    answer.map_err(|error: RedisError| sort(&error, true))
}

/// Runs a script that takes a lock: the first one, or the second on a server that keeps a mark, which
/// has to be `mark` still.
pub(in crate::store::redis) async fn eval_for_lock(
    slot: &ConnectionSlot,
    live: &Connection,
    [plain, marked]: [&LockScript; 2],
    mark: Option<&str>,
    lock: &str,
    keys: &[&str],
    args: impl Fn(&mut Cmd),
) -> Result<Value, StoreError> {
    let Some(mark) = mark else {
        return eval_about(slot, live, plain, lock, keys, args).await;
    };
    let keys = [keys, &[slot.names().mark.as_str()]].concat();
    let answer = eval_about(slot, live, marked, lock, &keys, |command| {
        args(command);
        command.arg(mark);
    });
    match answer.await {
        // Boxed, since it is rare.
        Err(error) if is_unmarked(&error) => Err(Box::pin(slot.unmarked(live)).await),
        answer => answer,
    }
}
