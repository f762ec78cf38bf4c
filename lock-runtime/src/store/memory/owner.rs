//! Several holders of one owner, in memory.

use super::shared::Tallies;
use crate::store::LockMode;

/// Returns `true` if a holder for `owner` may enter: only holders of the same owner have the lock.
pub(super) fn admits(tallies: &Tallies, owner: &LockMode) -> bool {
    tallies.keys().all(|other| other == owner)
}

/// Returns `true` if a holder may pass the waiters in the queue. It may if its owner has the lock:
/// otherwise a workflow could wait for itself.
pub(super) fn passes(tallies: &Tallies, mode: &LockMode) -> bool {
    matches!(mode, LockMode::Owner(_)) && tallies.contains_key(mode) && admits(tallies, mode)
}
