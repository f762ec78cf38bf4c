//! A number of permits, in memory.

use super::shared::Tallies;
use crate::store::LockMode;

/// Returns `true` if a permit is free: the lock has fewer holders than the smallest of `permits`
/// and the holders' own numbers.
#[allow(clippy::iter_over_hash_type, reason = "a sum and a minimum, in any order")]
pub(super) fn admits(tallies: &Tallies, permits: u32) -> bool {
    let mut fewest = permits;
    let mut taken = 0;
    for (other, count) in tallies {
        let LockMode::Semaphore(permits) = other else {
            return false;
        };
        fewest = fewest.min(u32::from(*permits));
        taken += count;
    }
    taken < fewest
}
