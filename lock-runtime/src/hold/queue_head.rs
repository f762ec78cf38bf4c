//! The place at the front of a process's line for a key.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use crate::hold::Hold;
use crate::store::LeaveFree;

/// The key of a line, with its hash, which is computed once for each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineKey {
    pub(crate) hash: u64,
    key: Arc<str>,
}

impl LineKey {
    pub(crate) fn new(key: &Arc<str>, hasher: &impl BuildHasher) -> Self {
        Self {
            hash: hasher.hash_one(key),
            key: Arc::clone(key),
        }
    }
}

impl Hash for LineKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Takes the hash of a [`LineKey`] as it is.
#[derive(Debug, Default)]
pub(crate) struct Known(u64);

impl Hasher for Known {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    // A `LineKey` writes nothing else.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }
}

/// The queues of one manager, as its held locks see them.
pub(crate) trait LocalQueues: Send + Sync {
    /// Tells the calls behind this place which call has the lock.
    fn holds(&self, key: &LineKey, place: u64, held: &Arc<Hold>);

    /// Returns `true` if a call that is still being polled waits behind this place. Does nothing in a forked
    /// child.
    fn is_followed(&self, key: &LineKey, place: u64) -> bool;

    /// Returns the conditions on which the following release may leave the lock free for a while,
    /// if it may. Does nothing in a forked child.
    fn leave_free(&self, key: &LineKey, place: u64) -> Option<LeaveFree>;

    /// Gives the place to the next call. Does nothing in a forked child.
    fn leave(&self, key: &LineKey, place: u64);

    /// Passes a lock whose guard has ended to the next call in line. Returns the place as `Err` if
    /// no such call is awake, or its options do not fit the lock.
    fn pass(self: Arc<Self>, head: QueueHead, held: &Arc<Hold>) -> Result<(), QueueHead>;
}

/// The place at the front of a queue. Dropping it lets the next call move up, and has no effect if
/// the place was taken away before.
pub(crate) struct QueueHead {
    queues: Arc<dyn LocalQueues>,
    pub(crate) key: LineKey,
    pub(crate) number: u64,
    /// `true` if the call in front before may have left the lock to other clients for a while.
    pub(crate) left_free: bool,
}

impl fmt::Debug for QueueHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueHead").field(&self.key).finish()
    }
}

impl QueueHead {
    pub(crate) fn new(queues: Arc<dyn LocalQueues>, key: &LineKey, number: u64, left_free: bool) -> Self {
        Self {
            queues,
            key: key.clone(),
            number,
            left_free,
        }
    }

    /// Tells the calls behind this place which call has the lock.
    pub(super) fn show(&self, held: &Arc<Hold>) {
        self.queues.holds(&self.key, self.number, held);
    }

    /// Returns `true` if a call that is still being polled waits behind this place.
    pub(super) fn is_followed(&self) -> bool {
        self.queues.is_followed(&self.key, self.number)
    }

    /// Returns the conditions on which the following release may leave the lock free for a while,
    /// if it may.
    pub(super) fn leave_free(&self) -> Option<LeaveFree> {
        self.queues.leave_free(&self.key, self.number)
    }

    /// Passes a lock whose guard has ended to the next call in line. Returns the place as `Err` if
    /// no such call is awake, or its options do not fit the lock.
    pub(super) fn pass(self, held: &Arc<Hold>) -> Result<(), Self> {
        Arc::clone(&self.queues).pass(self, held)
    }
}

impl Drop for QueueHead {
    fn drop(&mut self) {
        self.queues.leave(&self.key, self.number);
    }
}
