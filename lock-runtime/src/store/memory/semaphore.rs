//! A number of permits, in memory.

use super::shared::Tallies;
use crate::store::Mode;

/// Whether fewer hold the lock than this, and than the smallest number of those who do.
pub(super) fn admits(tallies: &Tallies, permits: u32) -> bool {
    let mut fewest = permits.max(1);
    let mut taken = 0;
    for (other, count) in tallies {
        let Mode::Semaphore(permits) = other else { return false };
        fewest = fewest.min((*permits).max(1));
        taken += count;
    }
    taken < fewest
}
