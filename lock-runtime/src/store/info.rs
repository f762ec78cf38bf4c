//! Snapshots of locks, for operators.

use std::fmt;
use std::time::Duration;

use crate::store::holder::Holder;
use crate::store::{FencingToken, LockMode, StoreError, StoreFuture};

/// A snapshot of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The key: without the prefix if it comes from a [`LockManager`](crate::LockManager), whole if
    /// it comes from a store.
    pub key: Box<str>,
    /// The holders. A lock that is kept for its minimum hold is listed with the holder that
    /// released it.
    pub holders: Vec<HolderInfo>,
    /// The number of waiters in the store's queue. Exclusive calls that are not fair stand in a
    /// line inside their process first, so those of one process for one key count as one waiter.
    pub waiters: u64,
    /// The fencing token of the present holders, if the store keeps it. The stores of this crate
    /// keep it for a lock held for an owner, once a holder has asked for a token.
    pub fence: Option<FencingToken>,
    /// The last fencing token that the store has issued for any lock under its prefix. No token of
    /// this lock is larger, unless a failover or a loss of data has come between: see
    /// [`HeldLock::fencing_token`](crate::HeldLock::fencing_token).
    pub last_fence: Option<FencingToken>,
    /// The answer of each master of a quorum. Empty for other stores. A holder that is here and not among
    /// [`holders`](Self::holders) has less than a majority of the votes.
    pub masters: Vec<MasterInfo>,
}

/// The answer of one master of a quorum about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MasterInfo {
    /// The master's address.
    pub name: Box<str>,
    /// The holders that it knows.
    pub holders: Vec<HolderInfo>,
    /// The reason why it has not answered, if it has not.
    pub error: Option<Box<str>>,
}

impl MasterInfo {
    pub(super) fn of(name: impl Into<Box<str>>) -> Self {
        Self {
            name: name.into(),
            holders: Vec::new(),
            error: None,
        }
    }
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The holder, which includes its mode.
    pub holder: Holder,
    /// The rest of its lease, in whole milliseconds. `None` if the key has no expiry: another kind
    /// of client wrote it.
    pub remaining: Option<Duration>,
}

/// For authors of stores.
#[cfg(feature = "custom-store")]
impl LockInfo {
    /// Creates the snapshot of a lock without known holders or waiters, for stores to fill in.
    #[must_use]
    pub fn new(key: impl Into<Box<str>>) -> Self {
        Self::free(key)
    }

    /// Adds a holder.
    pub fn hold(&mut self, holder: Holder, remaining: Option<Duration>) {
        self.add(holder, remaining);
    }
}

impl LockInfo {
    /// Creates the snapshot of a lock without holders or waiters.
    pub(super) fn free(key: impl Into<Box<str>>) -> Self {
        Self {
            key: key.into(),
            holders: Vec::new(),
            waiters: 0,
            fence: None,
            last_fence: None,
            masters: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, holder: Holder, remaining: Option<Duration>) {
        self.holders.push(HolderInfo { holder, remaining });
    }

    /// Returns the mode in which the lock is held, or `None` if it is free. A semaphore's number of
    /// permits is the smallest among its holders.
    #[must_use]
    pub fn mode(&self) -> Option<LockMode> {
        let modes = self.holders.iter().map(|holding| holding.holder.mode());
        modes.reduce(|one, other| match (one, other) {
            (LockMode::Semaphore(one), LockMode::Semaphore(other)) => LockMode::Semaphore(one.min(other)),
            (one, _) => one,
        })
    }

    /// Returns `true` if the lock has no holders and no waiters.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.waiters == 0
    }
}

/// Writes one line for a log: the key, the mode, the holders with the rest of their leases, and the number of
/// waiters. Control characters, which another client's value may have, are escaped.
///
/// ```
/// # use lock_runtime::LockManager;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::connect("memory://").await?;
/// let held = locks.lock("inventory:7").acquire().await?;
/// // inventory:7: exclusive, held by web-1, pid 17 (29.9s left); 0 waiting
/// let info = locks.inspect("inventory:7").await?.ok_or("free")?;
/// assert!(info.to_string().starts_with("inventory:7: exclusive, held by "));
/// held.release().await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, &self.key)?;
        match self.mode() {
            None => f.write_str(": free")?,
            Some(mode) => write!(f, ": {mode}")?,
        }
        for (at, HolderInfo { holder, remaining }) in self.holders.iter().enumerate() {
            f.write_str(if at == 0 { ", held by " } else { " and " })?;
            write_line(f, &holder.to_string())?;
            match remaining {
                Some(remaining) => write!(f, " ({remaining:.1?} left)")?,
                None => f.write_str(" (without expiry)")?,
            }
        }
        write!(f, "; {} waiting", self.waiters)?;
        if let Some(fence) = self.fence {
            write!(f, "; fence {fence}")?;
        }
        if !self.masters.is_empty() {
            let answered = self.masters.iter().filter(|master| master.error.is_none()).count();
            write!(f, "; {answered} of {} masters have answered", self.masters.len())?;
        }
        Ok(())
    }
}

/// Writes a text with its control characters escaped.
fn write_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() {
            write!(f, "{}", c.escape_default())?;
        } else {
            fmt::Write::write_char(f, c)?;
        }
    }
    Ok(())
}

/// A part of the answer to [`LockStore::list`](crate::store::LockStore::list).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockPage {
    /// Held locks. One lock may be on several pages.
    pub locks: Vec<LockInfo>,
    /// The start of the next page; zero if this is the last one.
    pub next: u64,
}

/// Returns the error of a store that does not implement the operators' methods.
pub(super) fn unavailable<T: Send + 'static>() -> StoreFuture<'static, T> {
    Box::pin(std::future::ready(Err(StoreError::permanent(
        "this store has no operator's view",
    )
    .advise(
        "implement `inspect`, `list` and `force_release` of its `LockStore`, or look at it by its own tools",
    ))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(values: &[&str]) -> LockInfo {
        let mut info = LockInfo::free("k");
        for value in values {
            info.add(Holder::of(*value), None);
        }
        info
    }

    #[test]
    fn a_lock_is_shown_in_one_line() {
        let token = "0123456789abcdef0123456789abcdef";
        let mut shown = info(&[]);
        assert_eq!(shown.to_string(), "k: free; 0 waiting");
        shown.add(
            Holder::of(format!("r:{token}:web-1:17:shop::f")),
            Some(Duration::from_millis(12_345)),
        );
        shown.add(Holder::of("foreign\nvalue"), None);
        shown.waiters = 2;
        shown.fence = Some(FencingToken::new(7));
        shown.masters = vec![MasterInfo::of("one"), MasterInfo::of("two")];
        shown.masters[1].error = Some("no answer".into());
        assert_eq!(
            shown.to_string(),
            "k: read, held by web-1, pid 17, shop::f (12.3s left) and foreign\\nvalue (without expiry); 2 waiting; fence 7; 1 of 2 masters \
             have answered"
        );
    }

    #[test]
    fn the_smallest_number_of_permits_counts() {
        let token = "0123456789abcdef0123456789abcdef:host:1:f";
        let (five, three) = (format!("s5:{token}"), format!("s3:{token}"));
        assert_eq!(info(&[&five, &three, &five]).mode(), LockMode::of_permits(3));
        assert_eq!(info(&[token]).mode(), Some(LockMode::Exclusive));
        assert_eq!(info(&[]).mode(), None);
    }
}
