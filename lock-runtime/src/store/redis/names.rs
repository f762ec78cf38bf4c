//! What is called how in the server, beside the locks themselves.

use std::time::Duration;

use super::values::millis;
use crate::key::RESERVED;
use crate::store::{Mode, Queued};

/// How long a lock that was handed over is kept for a waiter that does not renew it.
pub(super) const CLAIM: Duration = Duration::from_millis(1500);

/// The names that one store in this process uses.
#[derive(Debug)]
pub(super) struct Names {
    prefix: String,
    /// This process, as far as the server is concerned: a store in a process.
    pub(super) process: String,
    /// What all channels start with.
    pub(super) channels: String,
    /// The key of the fencing counter.
    pub(super) counter: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            process: format!("{:016x}", getrandom::u64().unwrap_or_else(|_| fastrand::u64(..))),
            channels: format!("{prefix}{RESERVED}wake:"),
            counter: format!("{prefix}{RESERVED}fence"),
        }
    }

    /// The key of an exclusive lock's queue, in the same slot of a cluster.
    pub(super) fn queue(&self, key: &str) -> String {
        self.beside("queue", key)
    }

    /// The key of the queue for a value: the modes that several may hold have one of their own.
    pub(super) fn queue_for(&self, key: &str, value: &str) -> String {
        self.beside(if Mode::is_shared(value) { "shared" } else { "queue" }, key)
    }

    /// A waiter's member in the queue.
    pub(super) fn member(&self, value: &str, queued: Queued) -> String {
        let (claim, fence) = (millis(queued.lease.min(CLAIM)), u8::from(queued.fence));
        format!("{claim}:{fence}:{}:{value}", self.process)
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A key for the check of permissions.
    pub(super) fn probe(&self) -> String {
        format!("{}{RESERVED}probe", self.prefix)
    }

    /// The name of a key that belongs to a lock, in the same slot of a cluster.
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
