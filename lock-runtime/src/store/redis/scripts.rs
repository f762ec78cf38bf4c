//! The Lua scripts, each in the form that the server's version wants.

use once_cell::sync::Lazy;
use redis::{Cmd, RedisError, Script, Value};

use super::failure::{is_missing_script, sort};
use super::link::{Link, Live};
use crate::store::StoreError;

/// One script for servers with and without script flags.
pub(super) struct LockScript {
    /// For servers from 7.0: by the first line, a replica refuses the script as a whole.
    flagged: Form,
    plain: Form,
}

/// A script's source and what `EVALSHA` calls it.
pub(super) struct Form {
    pub(super) source: String,
    pub(super) hash: String,
}

impl Form {
    fn new(source: String) -> Self {
        let hash = Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

impl LockScript {
    /// A script that is refused on a server that is out of memory.
    pub(super) fn new(parts: &[&str]) -> Self {
        let body = parts.concat();
        Self {
            flagged: Form::new(format!("#!lua\n{body}")),
            plain: Form::new(body),
        }
    }

    /// A script that must work there: for a lock that is held already.
    pub(super) fn for_held(parts: &[&str]) -> Self {
        let body = parts.concat();
        Self {
            flagged: Form::new(format!("#!lua flags=allow-oom\n{body}")),
            plain: Form::new(format!("{WRITE_FIRST}\n{body}")),
        }
    }

    /// A script that only reads, and that a server runs which takes no writes: a replica, or one whose disk is full.
    pub(super) fn for_looking(body: &str) -> Self {
        Self {
            flagged: Form::new(format!("#!lua flags=no-writes\n{body}")),
            plain: Form::new(body.to_owned()),
        }
    }

    /// The form for a server that knows script flags, or does not.
    pub(super) fn form(&self, flags: bool) -> &Form {
        if flags { &self.flagged } else { &self.plain }
    }
}

/// Without flags, only a write tells that the server is a replica; what was read before it would be believed. And once
/// a script has written, lack of memory does not stop it. Nobody has this key, so nothing happens.
const WRITE_FIRST: &str = "redis.call('DEL', KEYS[1] .. '%lock-none')";
pub(super) const NEXT_FENCE: &str = include_str!("next_fence.lua");
pub(super) const QUEUE: &str = include_str!("queue.lua");
const STAND: &str = include_str!("queue_stand.lua");
/// What the modes have in common that several may hold, and then each mode.
const SHARED: [&str; 6] = [
    NEXT_FENCE,
    QUEUE,
    include_str!("shared.lua"),
    include_str!("read_write.lua"),
    include_str!("semaphore.lua"),
    include_str!("owner.lua"),
];

pub(super) static ACQUIRE: Lazy<LockScript> =
    Lazy::new(|| LockScript::new(&[NEXT_FENCE, QUEUE, include_str!("exclusive_acquire.lua")]));
pub(super) static RENEW: Lazy<LockScript> = Lazy::new(|| LockScript::for_held(&[include_str!("exclusive_renew.lua")]));
pub(super) static RELEASE: Lazy<LockScript> = Lazy::new(|| {
    let (common, waiting) = (
        include_str!("exclusive_release.lua"),
        include_str!("exclusive_release_waiting.lua"),
    );
    LockScript::for_held(&[common, NEXT_FENCE, QUEUE, waiting])
});
pub(super) static FENCE: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_held(&[NEXT_FENCE, include_str!("exclusive_fence.lua")]));
pub(super) static JOIN: Lazy<LockScript> =
    Lazy::new(|| LockScript::new(&[NEXT_FENCE, QUEUE, STAND, include_str!("queue_join.lua")]));
pub(super) static REFRESH: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_held(&[NEXT_FENCE, QUEUE, include_str!("queue_refresh.lua")]));
pub(super) static ACQUIRE_ALL: Lazy<LockScript> =
    Lazy::new(|| LockScript::new(&[NEXT_FENCE, QUEUE, include_str!("acquire_all.lua")]));

pub(super) static SHARED_ACQUIRE: Lazy<LockScript> =
    Lazy::new(|| LockScript::new(&shared(&[include_str!("shared_acquire.lua")])));
pub(super) static SHARED_RENEW: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_held(&shared(&[include_str!("shared_renew.lua")])));
pub(super) static SHARED_RELEASE: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_held(&shared(&[include_str!("shared_release.lua")])));
pub(super) static SHARED_FENCE: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_held(&shared(&[include_str!("shared_fence.lua")])));
pub(super) static SHARED_JOIN: Lazy<LockScript> =
    Lazy::new(|| LockScript::new(&shared(&[STAND, include_str!("shared_join.lua")])));
pub(super) static SHARED_REFRESH: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_held(&shared(&[include_str!("shared_refresh.lua")])));

fn shared<'a>(parts: &[&'a str]) -> Vec<&'a str> {
    [&SHARED, parts].concat()
}

/// The script that gives back locks held by such values.
pub(super) fn release_of(is_shared: bool) -> &'static LockScript {
    if is_shared { &SHARED_RELEASE } else { &RELEASE }
}

/// Runs a script by its hash, and by its source where the server does not have it.
pub(super) async fn eval(
    link: &Link,
    live: &Live,
    script: &LockScript,
    keys: &[&str],
    args: impl Fn(&mut Cmd),
) -> Result<Value, StoreError> {
    let lock = keys.first().copied().unwrap_or_default();
    eval_about(link, live, script, lock, keys, args).await
}

/// The same for a script whose first key is not the lock that it is about. `lock`: empty, where there are many.
pub(super) async fn eval_about(
    link: &Link,
    live: &Live,
    script: &LockScript,
    lock: &str,
    keys: &[&str],
    args: impl Fn(&mut Cmd),
) -> Result<Value, StoreError> {
    let script = script.form(live.server.is_7);
    let command = |name: &str, script: &str| {
        let mut command = redis::cmd(name);
        command.arg(script).arg(keys.len()).arg(keys);
        args(&mut command);
        command
    };
    let answer = match link.call(live, lock, command("EVALSHA", &script.hash)).await {
        // Not by SCRIPT LOAD: in a cluster that would have to succeed on every node.
        Err(error) if is_missing_script(&error) => link.call(live, lock, command("EVAL", &script.source)).await,
        answer => answer,
    };
    answer.map_err(|error: RedisError| sort(error, true))
}
