//! The names of keys and channels on the server, other than the keys of the locks themselves.

use std::time::Duration;

use super::reply::millis;
use crate::host::Host;
use crate::key::RESERVED;
use crate::store::{LockMode, Queued};

/// The limits for the lease of a lock that was handed over, until the waiter takes it for the whole
/// lease. Within the shortest one, a look finds a handover that no message tells.
const SHORTEST_CLAIM: Duration = Duration::from_millis(500);
const LONGEST_CLAIM: Duration = Duration::from_millis(1500);

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
}

impl Keyspace {
    pub(super) fn new(host: &Host, prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            process: format!("{:016x}", host.unique()),
            channels: format!("{prefix}{RESERVED}wake:"),
            counter: format!("{prefix}{RESERVED}fence"),
        }
    }

    /// Returns the key of the fencing counter for a lock: one for all locks of this server.
    pub(super) fn counter(&self, _lock: &str) -> &str {
        &self.counter
    }

    /// Returns the key of an exclusive lock's queue, which is in the same slot of a cluster as the
    /// lock.
    pub(super) fn queue(&self, key: &str) -> String {
        self.beside("queue", key)
    }

    /// Returns the key of the queue for a value: the shared modes have a queue of their own.
    pub(super) fn queue_for(&self, key: &str, value: &str) -> String {
        self.beside(if LockMode::is_shared(value) { "shared" } else { "queue" }, key)
    }

    /// Returns a waiter's member in the queue.
    pub(super) fn member(&self, value: &str, queued: Queued) -> String {
        let claim = millis(queued.ttl.clamp(SHORTEST_CLAIM, LONGEST_CLAIM));
        let fence = u8::from(queued.fence);
        format!("{claim}:{fence}:{}:{value}", self.process)
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key for the check of permissions.
    pub(super) fn probe(&self) -> String {
        format!("{}{RESERVED}probe", self.prefix)
    }

    /// Returns the name of a key that belongs to a lock, and is in the same slot of a cluster.
    pub(super) fn beside(&self, what: &str, lock: &str) -> String {
        let prefix = &self.prefix;
        if lock.contains('}') {
            let name = lock.strip_prefix(prefix.as_str()).unwrap_or(lock);
            format!("{prefix}{RESERVED}{what}@{name}")
        } else {
            format!("{prefix}{RESERVED}{what}:{{{lock}}}")
        }
    }

    pub(super) fn channel(&self) -> String {
        format!("{}{}", self.channels, self.process)
    }
}
