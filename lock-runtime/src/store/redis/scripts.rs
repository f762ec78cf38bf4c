//! The Lua scripts, each in the form that the server's version wants.

use once_cell::sync::Lazy;
use redis::Script;

/// One script for servers with and without script flags.
pub(super) struct LockScript {
    /// For servers from 7.0. Without the first line, a replica would run the script up to its first write, and
    /// answer 0 where it should refuse.
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
    fn new(flags: &str, parts: &[&str]) -> Self {
        let body = parts.concat();
        Self {
            flagged: Form::new(format!("#!lua{flags}\n{body}")),
            plain: Form::new(body),
        }
    }

    /// The form for a server that knows script flags, or does not.
    pub(super) fn form(&self, flags: bool) -> &Form {
        if flags { &self.flagged } else { &self.plain }
    }
}

/// Renewals and releases must work on a server that is out of memory.
const ALLOW_OOM: &str = " flags=allow-oom";
const NEXT_FENCE: &str = include_str!("next_fence.lua");

pub(super) static ACQUIRE: Lazy<LockScript> =
    Lazy::new(|| LockScript::new("", &[NEXT_FENCE, include_str!("exclusive_acquire.lua")]));
pub(super) static RENEW: Lazy<LockScript> =
    Lazy::new(|| LockScript::new(ALLOW_OOM, &[include_str!("exclusive_renew.lua")]));
pub(super) static RELEASE: Lazy<LockScript> =
    Lazy::new(|| LockScript::new(ALLOW_OOM, &[include_str!("exclusive_release.lua")]));
pub(super) static FENCE: Lazy<LockScript> =
    Lazy::new(|| LockScript::new(ALLOW_OOM, &[NEXT_FENCE, include_str!("exclusive_fence.lua")]));
