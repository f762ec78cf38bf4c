//! Inspection of locks, and forced releases, for operators.

use std::collections::BTreeMap;

use crate::error::LockError;
use crate::host;
use crate::key::Names;
use crate::manager::{LockManager, LockPages};
use crate::store::info::LockInfo;
use crate::store::{self, Effect, StoreFuture};

/// Returns a pattern that matches `text` only.
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

/// For operators: consoles, admin endpoints, scripts. Code that takes and releases locks needs none
/// of these methods. Every answer is a snapshot, which may be outdated when it arrives.
impl LockManager {
    /// Returns a snapshot of the lock `key`: its holders, the rest of their leases, and the number
    /// of waiters, all at one moment. Returns `None` when the lock is free and no call waits for
    /// it.
    ///
    /// On a quorum, asks all masters, and returns what each has said in
    /// [`masters`](LockInfo::masters). Fails if a majority does not answer, as do
    /// [`list`](Self::list) and [`force_release`](Self::force_release).
    ///
    /// # Errors
    /// [`LockError::InvalidKey`], [`LockError::Closed`], and [`LockError::Store`] when the store
    /// does not answer within the response time-out, cannot be inspected, or has data other than a
    /// lock under the key.
    ///
    /// # Cancel safety
    /// This method changes nothing, so its future can be dropped at any time.
    ///
    /// ```
    /// # use lock_runtime::{LockManager, LockMode};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::connect("memory://").await?;
    /// assert!(locks.inspect("inventory:7").await?.is_none());
    /// let guard = locks.lock("inventory:7").acquire().await?;
    /// if let Some(info) = locks.inspect("inventory:7").await? {
    ///     assert_eq!(info.mode(), Some(LockMode::Exclusive));
    ///     assert_eq!(info.holders[0].holder.pid(), Some(std::process::id()));
    /// }
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn inspect(&self, key: impl Into<String>) -> Result<Option<LockInfo>, LockError> {
        host::take_part().await;
        let key = Names::one(key.into()).map_err(LockError::of_key)?.first;
        let whole = format!("{}{key}", self.prefix());
        let found = self.look(&key, self.shared().store().inspect(&whole)).await?;
        Ok(found.map(|info| self.without_prefix(info)))
    }

    /// Returns the held locks whose keys match `pattern`, sorted by key.
    ///
    /// The pattern is a glob in Redis's syntax, and must match a whole key without the manager's
    /// prefix: `*`, `?`, `[a-z]`, `[^x]`, and `\` before a character that stands for itself.
    ///
    /// Each lock is a snapshot of one moment, but not all of the same moment. A lock that is taken
    /// or released meanwhile may be missing or listed. The server scans its whole database in
    /// parts, so that other clients are not held up. With an empty prefix, every string in the
    /// database whose key matches looks like a lock.
    ///
    /// # Errors
    /// [`LockError::Closed`], and [`LockError::Store`] when the store does not answer for one part
    /// within the response time-out, or cannot be inspected. The key in these errors is the
    /// pattern.
    ///
    /// # Cancel safety
    /// This method changes nothing, so its future can be dropped at any time.
    pub async fn list(&self, pattern: &str) -> Result<Vec<LockInfo>, LockError> {
        host::take_part().await;
        let mut pages = self.list_pages(pattern);
        let mut found = BTreeMap::new();
        while let Some(page) = pages.next().await? {
            found.extend(page.into_iter().map(|info| (info.key.clone(), info)));
        }
        Ok(found.into_values().collect())
    }

    /// Returns the held locks whose keys match `pattern` page by page, as the store finds them: for
    /// stores with more locks than are wanted in memory at once. Otherwise the same as
    /// [`list`](Self::list), which is about patterns and about locks that change meanwhile.
    ///
    /// The pages are in no order, a page may be empty, and one lock may be on several pages.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::connect("memory://").await?;
    /// let guard = locks.lock("inventory:7").acquire().await?;
    /// let mut pages = locks.list_pages("inventory:*");
    /// let mut held = 0;
    /// while let Some(page) = pages.next().await? {
    ///     held += page.len();
    /// }
    /// assert_eq!(held, 1);
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn list_pages(&self, pattern: &str) -> LockPages {
        LockPages {
            locks: self.clone(),
            pattern: pattern.into(),
            whole: literal(self.prefix()) + pattern,
            next: Some(0),
        }
    }

    /// Takes the lock away from all its holders, and hands it to the first waiter; in a shared
    /// mode, to the waiters that may enter, within 250 ms. Returns `true` if the lock was held.
    ///
    /// A holder's body is cancelled as soon as its process notices the loss: within a round trip or
    /// two where the server reports changed keys, and otherwise, as in memory, at the next renewal, after
    /// two thirds of the lease. Until then it **runs beside the next holder**: use this for holders
    /// that are known to be dead or stuck.
    ///
    /// # Errors
    /// The errors of [`inspect`](Self::inspect). After [`LockError::Store`] the lock may have been
    /// released, unless the store refused the command. Data that is not a lock is left unchanged;
    /// but with an empty prefix, or under a key that another kind of client uses too, any string
    /// looks like a lock.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the lock may have been released, or may still
    /// be released afterwards.
    pub async fn force_release(&self, key: impl Into<String>) -> Result<bool, LockError> {
        host::take_part().await;
        let key = Names::one(key.into()).map_err(LockError::of_key)?.first;
        let whole = format!("{}{key}", self.prefix());
        let released = self.ask(&key, self.shared().store().force_release(&whole)).await?;
        if released {
            tracing::warn!(key, "a lock was released by force");
        }
        Ok(released)
    }

    /// Lets the masters of a quorum vote at once that give no vote because they may have forgotten some:
    /// after their first use, a restart or a flush. Returns `true` if there were any.
    ///
    /// The caller vouches that no process holds a lock that such a master may have forgotten. If one
    /// does, **another one may get the same lock beside it**. Without this call, such a master votes once
    /// the longest lease is over.
    ///
    /// A store that is no quorum has nothing to open.
    ///
    /// # Errors
    /// [`LockError::Closed`], and [`LockError::Store`] when fewer than a majority of the masters answer. Those
    /// that do answer vote from then on. The key in these errors is empty.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, some of the masters may have been opened.
    pub async fn open_quorum(&self) -> Result<bool, LockError> {
        host::take_part().await;
        let opened = self.ask("", self.shared().store().open_now()).await?;
        if opened {
            tracing::warn!(store = %self.shared().backend.url, "masters of the quorum that may have forgotten locks vote from now on");
        }
        Ok(opened)
    }

    /// Asks a question that changes nothing, so that no error leaves anything in doubt.
    async fn look<T>(&self, key: &str, question: StoreFuture<'_, T>) -> Result<T, LockError> {
        self.ask(key, question).await.map_err(|error| match error {
            LockError::Store { key, began, source } => LockError::Store {
                key,
                began,
                source: source.with_effect(Effect::None),
            },
            other => other,
        })
    }

    async fn ask<T>(&self, key: &str, question: StoreFuture<'_, T>) -> Result<T, LockError> {
        let shared = self.shared();
        if shared.backend.closed.is_closed() {
            return Err(LockError::Closed {
                key: key.into(),
                began: false,
            });
        }
        let (_, timer) = shared.pace();
        let answer = store::within(shared.host(), timer, shared.backend.access.response_timeout, question).await;
        answer.map_err(|source| LockError::Store {
            key: key.into(),
            began: false,
            source,
        })
    }

    fn without_prefix(&self, mut info: LockInfo) -> LockInfo {
        info.key = self.shared().backend.name(&info.key).into();
        info
    }
}

impl LockPages {
    /// Returns the next page, or `None` after the last one. Each page is one question to the store, which
    /// examines a part of its keys for it.
    ///
    /// # Errors
    /// The errors of [`LockManager::list`]. The next call asks for the same page again.
    ///
    /// # Cancel safety
    /// Cancel safe: if the future is dropped, the next call asks for the same page again.
    pub async fn next(&mut self) -> Result<Option<Vec<LockInfo>>, LockError> {
        host::take_part().await;
        let Some(from) = self.next else {
            return Ok(None);
        };
        let question = self.locks.shared().store().list(&self.whole, from);
        let page = self.locks.look(&self.pattern, question).await?;
        self.next = Some(page.next).filter(|next| *next != 0);
        let locks = page.locks.into_iter().map(|info| self.locks.without_prefix(info));
        Ok(Some(locks.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_matches_only_itself() {
        assert_eq!(literal(r"a*b?[c]\d-^"), r"a\*b\?\[c]\\d-^");
    }
}
