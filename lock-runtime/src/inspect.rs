//! The operator's view: who holds which lock, who waits, and how to take a lock away.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::LockError;
use crate::holder::Holder;
use crate::key;
use crate::manager::LockManager;
use crate::store::{Mode, StoreError, StoreFuture};

/// How one lock stood at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The key: without the manager's prefix from a [`LockManager`], whole from a store.
    pub key: Box<str>,
    /// Who holds it. A lock that is kept for its minimum hold is told as held by whoever released it.
    pub holders: Vec<Holding>,
    /// How many stand in the store's queue for it. Of the calls of one process for one key in the modes that stand in line
    /// within the process, that is one.
    pub waiters: u64,
    /// The fencing token of the present holders, where the store keeps it: of a lock held for an owner, if one was asked for.
    pub fence: Option<u64>,
    /// The last fencing token that the store has given out, for whichever lock under its prefix: none of this lock is larger.
    pub last_fence: Option<u64>,
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// Who, and in which mode.
    pub holder: Holder,
    /// The rest of its lease, to the millisecond. `None`: the key has no expiry, so another kind of client wrote it.
    pub remaining: Option<Duration>,
}

impl LockInfo {
    /// A lock that nobody is known to hold or to wait for, for stores to fill in.
    #[must_use]
    pub fn new(key: impl Into<Box<str>>) -> Self {
        Self {
            key: key.into(),
            holders: Vec::new(),
            waiters: 0,
            fence: None,
            last_fence: None,
        }
    }

    /// Adds a holder.
    pub fn hold(&mut self, holder: Holder, remaining: Option<Duration>) {
        self.holders.push(Holding { holder, remaining });
    }

    /// How the lock is held; of a semaphore with the number of permits that counts, the smallest. `None`: nobody holds it.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        let modes = self.holders.iter().map(|holding| holding.holder.mode());
        modes.reduce(|one, other| match (one, other) {
            (Mode::Semaphore(one), Mode::Semaphore(other)) => Mode::Semaphore(one.min(other)),
            (one, _) => one,
        })
    }

    /// Whether nobody holds it and nobody waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.waiters == 0
    }
}

/// A part of the answer to [`LockStore::list`](crate::store::LockStore::list).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockPage {
    /// Locks that are held. One may come on several pages.
    pub locks: Vec<LockInfo>,
    /// Where the next page begins; zero: this was the last one.
    pub next: u64,
}

/// What a store answers that has no operator's view.
pub(crate) fn unavailable<T: Send + 'static>() -> StoreFuture<'static, T> {
    Box::pin(std::future::ready(Err(StoreError::permanent(
        "this store cannot be inspected",
    ))))
}

/// `text` as a pattern that matches nothing else.
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// For operators: consoles, admin endpoints, scripts. None of this is needed to take and give back locks, and nothing that it
/// tells is still true for certain when the answer arrives.
impl LockManager {
    /// Who holds the lock `key`, for how long, and how many wait: all at one moment. `None` when it is free and nobody waits.
    ///
    /// # Errors
    /// [`LockError::InvalidKey`], [`LockError::Closed`], and [`LockError::Store`] when the store does not answer within the
    /// response time-out, cannot be inspected, or has something else than a lock under the key.
    ///
    /// # Cancel safety
    /// Nothing is changed, so it can be dropped at any time.
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager, Mode};
    /// # async fn example() -> Result<(), LockError> {
    /// let locks = LockManager::connect("memory://").await?;
    /// assert!(locks.inspect("inventory:7").await?.is_none());
    /// let guard = locks.lock("inventory:7").acquire().await?;
    /// if let Some(info) = locks.inspect("inventory:7").await? {
    ///     assert_eq!(info.mode(), Some(Mode::Exclusive));
    ///     assert_eq!(info.holders[0].holder.pid(), Some(std::process::id()));
    /// }
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn inspect(&self, key: impl Into<String>) -> Result<Option<LockInfo>, LockError> {
        let key = key::check(key.into())?;
        let whole = format!("{}{key}", self.prefix());
        let found = self.ask(&key, self.shared().store.inspect(&whole)).await?;
        Ok(found.map(|info| self.without_prefix(info)))
    }

    /// The locks that are held and whose keys match `pattern`, by key. The pattern is a glob as Redis reads it, of whole keys
    /// without the manager's prefix: `*`, `?`, `[a-z]`, `[^x]`, and `\` before a character that is meant as it is.
    ///
    /// Each lock is told as of one moment, but not all as of the same one. What is taken or released meanwhile may be listed or
    /// not. A server's whole database is looked through, a part at a time, so that nobody is held up; with an empty prefix,
    /// every string that is kept there and matches looks like a lock.
    ///
    /// # Errors
    /// [`LockError::Closed`], and [`LockError::Store`] when the store does not answer a part of it within the response
    /// time-out, or cannot be inspected. Their key is the pattern.
    ///
    /// # Cancel safety
    /// Nothing is changed, so it can be dropped at any time.
    pub async fn list(&self, pattern: &str) -> Result<Vec<LockInfo>, LockError> {
        let whole = literal(self.prefix()) + pattern;
        let mut found = BTreeMap::new();
        let mut from = 0;
        loop {
            let page = self.ask(pattern, self.shared().store.list(&whole, from)).await?;
            for info in page.locks {
                let info = self.without_prefix(info);
                // Patterns cannot tell the library's own keys apart.
                if !info.key.starts_with(key::RESERVED) {
                    found.insert(info.key.clone(), info);
                }
            }
            from = page.next;
            if from == 0 {
                return Ok(found.into_values().collect());
            }
        }
    }

    /// Takes the lock away from all who hold it, and hands it to the first who waits; of a mode that several may hold, to those who may
    /// enter, within 250 ms. Returns whether anybody held it.
    ///
    /// A holder's body is cancelled as soon as its process notices: within a round trip or two where the server reports
    /// changed keys, and else at its next renewal, after two thirds of its lease. Until then it **runs beside the next
    /// holder**: this is for holders that are known to be dead or stuck.
    ///
    /// # Errors
    /// As for [`inspect`](Self::inspect). After [`LockError::Store`] it may have been done, unless the store refused it. What
    /// is no lock is not touched; but with an empty prefix, or under a key that another kind of client uses too, any string
    /// looks like one.
    ///
    /// # Cancel safety
    /// Dropped before it returns, it may have been done, or may still be done.
    pub async fn force_release(&self, key: impl Into<String>) -> Result<bool, LockError> {
        let key = key::check(key.into())?;
        let whole = format!("{}{key}", self.prefix());
        let released = self.ask(&key, self.shared().store.force_release(&whole)).await?;
        if released {
            tracing::warn!(key, "a lock was released by force");
        }
        Ok(released)
    }

    async fn ask<T>(&self, key: &str, question: StoreFuture<'_, T>) -> Result<T, LockError> {
        let shared = self.shared();
        if shared.closed.is_cancelled() {
            return Err(LockError::Closed { key: key.into() });
        }
        let (_, timer) = shared.pace();
        let answer = timer.answer(shared.response_timeout, question).await;
        answer.map_err(|source| LockError::Store {
            key: key.into(),
            source,
        })
    }

    fn without_prefix(&self, mut info: LockInfo) -> LockInfo {
        info.key = key::without(self.prefix(), &info.key).into();
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(values: &[&str]) -> LockInfo {
        let mut info = LockInfo::new("k");
        for value in values {
            info.hold(Holder::new(*value), None);
        }
        info
    }

    #[test]
    fn the_smallest_number_of_permits_counts() {
        let token = "0123456789abcdef0123456789abcdef:host:1:f";
        let (five, three) = (format!("s5:{token}"), format!("s3:{token}"));
        assert_eq!(info(&[&five, &three, &five]).mode(), Some(Mode::Semaphore(3)));
        assert_eq!(info(&[token]).mode(), Some(Mode::Exclusive));
        assert_eq!(info(&[]).mode(), None);
    }

    #[test]
    fn a_prefix_matches_only_itself() {
        assert_eq!(literal(r"a*b?[c]\d-^"), r"a\*b\?\[c]\\d-^");
    }
}
