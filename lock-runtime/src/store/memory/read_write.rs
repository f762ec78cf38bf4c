//! Many readers or one writer, in memory.

use super::shared::Tallies;
use crate::store::LockMode;

/// Returns `true` if a reader may enter: only readers hold the lock.
pub(super) fn admits_reader(tallies: &Tallies) -> bool {
    tallies.keys().all(|other| *other == LockMode::Read)
}

/// Returns `true` if a writer may enter: there are no holders.
pub(super) fn admits_writer(tallies: &Tallies) -> bool {
    tallies.is_empty()
}
