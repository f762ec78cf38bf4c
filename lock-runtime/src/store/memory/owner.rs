//! Many hands of one owner, in memory.

use super::shared::Tallies;
use crate::store::Mode;

/// An owner's holders hold the lock beside their like.
pub(super) fn admits(tallies: &Tallies, owner: &Mode) -> bool {
    tallies.keys().all(|other| other == owner)
}

/// Where an owner has the lock, its next holder waits for nobody: else a workflow would wait for itself.
pub(super) fn passes(tallies: &Tallies, mode: &Mode) -> bool {
    matches!(mode, Mode::Owner(_)) && tallies.contains_key(mode) && admits(tallies, mode)
}
