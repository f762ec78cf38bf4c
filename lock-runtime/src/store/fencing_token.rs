//! Fencing tokens.

use std::fmt;

/// A number that is greater than every fencing token taken before for the same key, in any process;
/// across a failover only if the servers' clocks agree. Returned by
/// [`HeldLock::fencing_token`](crate::HeldLock::fencing_token), which says more.
///
/// ```
/// use lock_runtime::FencingToken;
///
/// let (earlier, later) = (FencingToken::new(7), FencingToken::new(8));
/// assert!(earlier < later);
/// assert_eq!(later.as_i64(), 8); // for a column of a database
/// assert_eq!(later.to_string(), "8");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates a token with this number. For implementations of [`LockStore`](super::LockStore),
    /// and for reading back a token that was stored.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number as databases store it. Numbers beyond [`i64::MAX`], which the stores of
    /// this crate do not reach, are returned as `i64::MAX`.
    #[must_use]
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

/// Writes the number in decimal digits.
impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
