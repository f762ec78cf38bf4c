//! The names of keys and channels on the server, other than the keys of the locks themselves.

use std::borrow::Cow;
use std::io::Write;
use std::sync::atomic::{AtomicU16, Ordering};

use redis::{RedisWrite, ToRedisArgs};

use super::cluster::slot::{SLOTS, slot_of, tag_in, tag_of};
use super::reply::millis;
use crate::host::Host;
use crate::key::{KeyProblem, RESERVED};
use crate::store::limits::claim;
use crate::store::{HolderValue, Queued};

/// The names that one store in this process uses.
#[derive(Debug)]
pub(super) struct Keyspace {
    prefix: String,
    /// The identifier of this process on the server. Each store in a process has its own.
    pub(super) process: String,
    /// The prefix of all channels.
    pub(super) channels: String,
    /// The key of the fencing counter.
    counter: String,
    /// The key of the server's mark.
    pub(super) mark: String,
    spread: Spread,
}

/// The spread of keys over servers.
#[derive(Debug)]
enum Spread {
    /// All are on one server.
    Together,
    /// They are in the slots of a cluster, of which this server has one, or none that is known
    /// ([`SLOTS`]).
    BySlot(AtomicU16),
}

/// The way in which the messages for waiters reach this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wakes {
    /// They do not. It looks by itself, and often.
    Never,
    /// On its one channel.
    ByProcess,
    /// On its sharded channel for the lock's queue, at the node of a cluster that has it.
    ByQueue,
}

/// Returns the keys of a script, of which the last is the counter, for a call that takes a token, or that
/// does not. While a slot moves, a node of a cluster refuses a script for a key that it does not have, and
/// there is no counter where nobody takes tokens.
pub(super) fn drawing<'a>(takes_token: bool, keys: &'a [&'a str]) -> &'a [&'a str] {
    match keys.split_last() {
        Some((_, others)) if !takes_token => others,
        _ => keys,
    }
}

/// The name of a key that belongs to a lock, in parts. As an argument of a command it is written there without
/// a copy of its own.
#[derive(Clone, Copy)]
pub(in crate::store::redis) struct Beside<'a>([&'a str; 6]);

impl Beside<'_> {
    fn whole(self) -> String {
        // `concat` allocates once, which `format!` does not.
        self.0.concat()
    }
}

impl ToRedisArgs for Beside<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut arg = out.writer_for_next_arg();
        for part in self.0 {
            // Fails only if the command, which lies in memory, cannot be written to.
            let _ = arg.write_all(part.as_bytes());
        }
    }
}

impl Keyspace {
    pub(super) fn new(host: &Host, prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            process: format!("{:016x}", host.unique()),
            channels: format!("{prefix}{RESERVED}wake:"),
            counter: format!("{prefix}{RESERVED}fence"),
            mark: format!("{prefix}{RESERVED}mark"),
            spread: Spread::Together,
        }
    }

    /// Returns the names for a node of a cluster. `process` is the identifier of this process on all of
    /// them, so that a place in a queue stays its own when the queue moves to another node.
    pub(super) fn of_node(host: &Host, prefix: &str, process: &str) -> Self {
        Self {
            process: process.to_owned(),
            spread: Spread::BySlot(AtomicU16::new(SLOTS)),
            ..Self::new(host, prefix)
        }
    }

    /// Returns `true` if the server is a node of a cluster.
    pub(super) fn is_of_cluster(&self) -> bool {
        matches!(self.spread, Spread::BySlot(_))
    }

    /// Records one of the slots that the node has.
    pub(super) fn settle_in(&self, slot: u16) {
        if let Spread::BySlot(home) = &self.spread {
            home.store(slot, Ordering::Relaxed);
        }
    }

    /// Returns the key of the fencing counter for a lock: one for all locks of this server, or one for
    /// each slot of a cluster.
    pub(super) fn counter(&self, lock: &str) -> Cow<'_, str> {
        if self.is_of_cluster() && tag_of(&self.prefix).is_none() {
            return format!("{}:{{{}}}", self.counter, tag_in(slot_of(lock))).into();
        }
        Cow::Borrowed(&self.counter)
    }

    /// Returns the argument that tells a script the way in which messages reach this process.
    pub(super) fn wakes(&self, wakes: Wakes) -> &'static str {
        match wakes {
            Wakes::Never => "0",
            Wakes::ByProcess if self.is_of_cluster() => "2",
            Wakes::ByProcess => "1",
            Wakes::ByQueue => "3",
        }
    }

    /// Returns the number of the lock's group: one command can be about several locks of one group.
    pub(super) fn group(&self, lock: &str) -> u16 {
        if self.is_of_cluster() { slot_of(lock) } else { 0 }
    }

    /// Returns why a lock under this key is impossible, if it is.
    pub(super) fn refuses(&self, lock: &str) -> Option<KeyProblem> {
        // The usual key is a tag as a whole.
        if !self.is_of_cluster() || !lock.contains(['{', '}']) {
            return None;
        }
        let slot = slot_of(lock);
        let fits = |beside: &str| slot_of(beside) == slot;
        let fits = fits(&self.queue(lock)) && fits(&self.beside("shared", lock)) && fits(&self.counter(lock));
        (!fits).then_some(KeyProblem::NoTag)
    }

    /// Returns the key of an exclusive lock's queue, which is in the same slot of a cluster as the
    /// lock.
    pub(super) fn queue(&self, key: &str) -> String {
        self.beside("queue", key)
    }

    /// Returns the key of the queue for a value: the shared modes have a queue of their own.
    pub(super) fn queue_for(&self, key: &str, value: &HolderValue) -> String {
        self.queue_in(key, value.is_shared()).whole()
    }

    /// Returns the key of the queue for a value in a shared mode, or in the exclusive one.
    pub(in crate::store::redis) fn queue_in<'a>(&'a self, key: &'a str, is_shared: bool) -> Beside<'a> {
        self.name_beside(if is_shared { "shared" } else { "queue" }, key)
    }

    /// Returns a waiter's member in the queue.
    pub(super) fn member(&self, value: &HolderValue, queued: Queued) -> String {
        let claim = millis(claim(queued.ttl));
        let fence = u8::from(queued.fence);
        format!("{claim}:{fence}:{}:{}", self.process, value.as_str())
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns `true` for a key that is the library's own, and no lock's.
    pub(super) fn is_reserved(&self, key: &str) -> bool {
        key.strip_prefix(&*self.prefix)
            .is_some_and(|name| name.starts_with(RESERVED))
    }

    /// Returns the key for the check of permissions.
    pub(super) fn probe(&self) -> String {
        let probe = format!("{}{RESERVED}probe", self.prefix);
        match &self.spread {
            Spread::BySlot(home) if tag_of(&probe).is_none() => {
                format!("{probe}:{{{}}}", tag_in(home.load(Ordering::Relaxed)))
            }
            _ => probe,
        }
    }

    /// Returns the name of a key that belongs to a lock, and is in the same slot of a cluster.
    pub(super) fn beside(&self, what: &'static str, lock: &str) -> String {
        self.name_beside(what, lock).whole()
    }

    fn name_beside<'a>(&'a self, what: &'static str, lock: &'a str) -> Beside<'a> {
        let prefix = self.prefix.as_str();
        Beside(if lock.contains('}') {
            let name = lock.strip_prefix(prefix).unwrap_or(lock);
            [prefix, RESERVED, what, "@", name, ""]
        } else {
            [prefix, RESERVED, what, ":{", lock, "}"]
        })
    }

    pub(super) fn channel(&self) -> String {
        format!("{}{}", self.channels, self.process)
    }

    /// Returns the sharded channel for the messages about the locks of a queue.
    pub(super) fn channel_of(&self, queue: &str) -> String {
        format!("{queue}:{}", self.process)
    }
}
