//! The Lua scripts, each in the form that suits the server's version. Renewal, release and fence
//! compare the holder's value and act in one script, since another client can act between two
//! commands, and none of them creates a lock. A script that grants a lock takes the fencing token
//! first, so one that fails halfway leaves no lock. Where a run for several locks fails, each request
//! is sent again by itself, and finds what the run has left.

use std::sync::LazyLock;

use redis::Script;

use crate::store::Limited;

/// One script for servers with and without script flags.
pub(super) struct LockScript {
    /// The kind of request that it counts as while it is in flight.
    pub(super) kind: Limited,
    /// For servers from 7.0. Its first line makes a replica refuse the script as a whole.
    flagged: Form,
    plain: Form,
}

/// A script's source and its hash for `EVALSHA`.
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
    /// Creates a script that a server without free memory refuses.
    pub(super) fn new(parts: &[&str]) -> Self {
        let body = parts.concat();
        Self {
            kind: Limited::Acquires,
            flagged: Form::new(format!("#!lua\n{body}")),
            plain: Form::new(body),
        }
    }

    /// Creates a script for a lock that is held already. It also runs on a server without free
    /// memory.
    pub(super) fn for_held(parts: &[&str]) -> Self {
        let body = parts.concat();
        Self {
            kind: Limited::Releases,
            flagged: Form::new(format!("#!lua flags=allow-oom\n{body}")),
            plain: Form::new(format!("{WRITE_FIRST}\n{body}")),
        }
    }

    /// Creates a script that only reads. It also runs on a server that takes no writes: a replica,
    /// or a server whose disk is full.
    pub(super) fn for_looking(body: &str) -> Self {
        Self {
            kind: Limited::Releases,
            flagged: Form::new(format!("#!lua flags=no-writes\n{body}")),
            plain: Form::new(body.to_owned()),
        }
    }

    /// Returns the form for a server that knows script flags, or for one that does not.
    pub(super) fn form(&self, flags: bool) -> &Form {
        if flags { &self.flagged } else { &self.plain }
    }
}

/// The first command of a script without flags, for two reasons: only a write reveals that the
/// server is a replica, on which a read would return old data; and a script that has tried to write
/// goes on even if the server lacks memory. It fails before it has an effect, and names no other key
/// than the script, which may be the only one of its slot that a node of a cluster has.
const WRITE_FIRST: &str = "if not string.find(redis.pcall('PEXPIRE', KEYS[1], '').err, 'not an integer', 1, true) then
  redis.call('PEXPIRE', KEYS[1], '')
end";
pub(super) const NEXT_FENCE: &str = include_str!("ops/next_fence.lua");
const FIRST_IN: &str = include_str!("queue/queue_first.lua");
pub(super) const QUEUE: &str = concat!(include_str!("queue/queue_first.lua"), include_str!("queue/queue.lua"));
const STAND: &str = include_str!("queue/queue_stand.lua");
/// The terms of each release of a run, for the cases that come after the common one.
const TERMS: &str = include_str!("ops/release_terms.lua");
/// The rule by which holders share a lock, then the functions of the shared modes.
const SHARING: &str = include_str!("ops/sharing.lua");
const SHARED: [&str; 4] = [NEXT_FENCE, SHARING, QUEUE, include_str!("ops/shared.lua")];

pub(super) static ACQUIRE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::new(&[NEXT_FENCE, FIRST_IN, include_str!("ops/exclusive_acquire.lua")]));
pub(super) static RENEW: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[include_str!("ops/exclusive_renew.lua")]));
pub(super) static RELEASE: LazyLock<LockScript> = LazyLock::new(|| {
    let (common, waiting) = (
        include_str!("ops/exclusive_release.lua"),
        include_str!("ops/exclusive_release_waiting.lua"),
    );
    LockScript::for_held(&[common, TERMS, QUEUE, waiting])
});
pub(super) static FENCE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[NEXT_FENCE, include_str!("ops/exclusive_fence.lua")]));
pub(super) static SHARED_RELEASE_ALONE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&shared(&[include_str!("ops/shared_release_alone.lua")])));
pub(super) static RAISE_FENCE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[include_str!("ops/raise_fence.lua")]));
pub(super) static RAISE_OWN_FENCE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[include_str!("ops/exclusive_raise_fence.lua")]));
pub(super) static JOIN: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::new(&[NEXT_FENCE, QUEUE, STAND, include_str!("queue/queue_join.lua")]));
pub(super) static REFRESH: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[QUEUE, include_str!("queue/queue_refresh.lua")]));
pub(super) static TAKE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[NEXT_FENCE, include_str!("queue/queue_take.lua")]));
pub(super) static ACQUIRE_ALL: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::new(&[NEXT_FENCE, QUEUE, include_str!("ops/acquire_all.lua")]));

/// Reads the mark of a server.
pub(super) static MARK: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[include_str!("connection/mark.lua")]));
/// The scripts that take a lock, for a server that keeps a mark.
const MARKED: &str = include_str!("ops/marked.lua");
pub(super) static MARKED_ACQUIRE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::new(&[MARKED, NEXT_FENCE, FIRST_IN, include_str!("ops/exclusive_acquire.lua")]));
pub(super) static MARKED_ACQUIRE_ALL: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::new(&[MARKED, NEXT_FENCE, QUEUE, include_str!("ops/acquire_all.lua")]));
pub(super) static MARKED_JOIN: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::new(&[MARKED, NEXT_FENCE, QUEUE, STAND, include_str!("queue/queue_join.lua")]));
pub(super) static MARKED_TAKE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[MARKED, NEXT_FENCE, include_str!("queue/queue_take.lua")]));

pub(super) static SHARED_ACQUIRE: LazyLock<LockScript> = LazyLock::new(|| {
    let (common, others) = (
        include_str!("ops/shared_acquire.lua"),
        include_str!("ops/shared_acquire_others.lua"),
    );
    let [next_fence, sharing, queue, shared] = SHARED;
    LockScript::new(&[next_fence, sharing, common, queue, shared, others])
});
pub(super) static SHARED_RENEW: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&shared(&[include_str!("ops/shared_renew.lua")])));
pub(super) static SHARED_RELEASE: LazyLock<LockScript> = LazyLock::new(|| {
    let (common, others) = (
        include_str!("ops/shared_release.lua"),
        include_str!("ops/shared_release_others.lua"),
    );
    LockScript::for_held(&[&[common, TERMS], &SHARED[..], &[others]].concat())
});
pub(super) static SHARED_FENCE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&shared(&[include_str!("ops/shared_fence.lua")])));
pub(super) static SHARED_JOIN: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::new(&shared(&[STAND, include_str!("queue/shared_join.lua")])));
pub(super) static SHARED_REFRESH: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&shared(&[include_str!("queue/shared_refresh.lua")])));
pub(super) static SHARED_TAKE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&shared(&[include_str!("queue/shared_take.lua")])));

fn shared<'a>(parts: &[&'a str]) -> Vec<&'a str> {
    [&SHARED, parts].concat()
}

/// Returns the script that releases locks in the shared modes, or exclusive locks.
pub(super) fn release_of(is_shared: bool) -> &'static LockScript {
    if is_shared { &SHARED_RELEASE } else { &RELEASE }
}

#[cfg(lock_simulation)]
pub(super) fn all() -> [(&'static str, &'static LockScript); 23] {
    [
        ("acquire", &ACQUIRE),
        ("renew", &RENEW),
        ("release", &RELEASE),
        ("fence", &FENCE),
        ("raise_fence", &RAISE_FENCE),
        ("raise_own_fence", &RAISE_OWN_FENCE),
        ("shared_release_alone", &SHARED_RELEASE_ALONE),
        ("join", &JOIN),
        ("refresh", &REFRESH),
        ("take", &TAKE),
        ("acquire_all", &ACQUIRE_ALL),
        ("mark", &MARK),
        ("marked_acquire", &MARKED_ACQUIRE),
        ("marked_acquire_all", &MARKED_ACQUIRE_ALL),
        ("marked_join", &MARKED_JOIN),
        ("marked_take", &MARKED_TAKE),
        ("shared_acquire", &SHARED_ACQUIRE),
        ("shared_renew", &SHARED_RENEW),
        ("shared_release", &SHARED_RELEASE),
        ("shared_fence", &SHARED_FENCE),
        ("shared_join", &SHARED_JOIN),
        ("shared_refresh", &SHARED_REFRESH),
        ("shared_take", &SHARED_TAKE),
    ]
}
