//! Many readers or one writer, in memory.

use super::shared::Tallies;
use crate::store::Mode;

/// Readers hold the lock beside readers.
pub(super) fn admits_reader(tallies: &Tallies) -> bool {
    tallies.keys().all(|other| *other == Mode::Read)
}

/// A writer holds it alone.
pub(super) fn admits_writer(tallies: &Tallies) -> bool {
    tallies.is_empty()
}
