//! The record of the locks that a kit's manager has granted.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Weak};

use super::{Kit, TestLocks};
use crate::acquire::Observer;
use crate::diagnostics::{ask, list};
use crate::hold::Hold;
use crate::host::Mutex;
use crate::manager::{LockManager, global};
use crate::store::LockMode;

/// A lock that was taken, as returned by [`TestLocks::locked`].
///
/// It is equal to its key, so a list of them can be compared with a list of keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Locked {
    key: Box<str>,
    mode: LockMode,
    function: &'static str,
}

impl Locked {
    /// Returns the key, without the manager's prefix. A lock of several keys has one entry for
    /// each.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the mode in which the lock was taken.
    #[must_use]
    pub fn mode(&self) -> &LockMode {
        &self.mode
    }

    /// Returns the path of the function that took the lock, or the [holder's
    /// name](crate::LockRequest::label). Empty if there is neither.
    #[must_use]
    pub fn function(&self) -> &str {
        self.function
    }
}

impl PartialEq<str> for Locked {
    fn eq(&self, key: &str) -> bool {
        *self.key == *key
    }
}

impl PartialEq<&str> for Locked {
    fn eq(&self, key: &&str) -> bool {
        *self == **key
    }
}

impl fmt::Debug for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        list(&mut text, std::iter::once(self.parts()));
        f.write_str(&text)
    }
}

impl Locked {
    fn parts(&self) -> (&str, &LockMode, &str) {
        (&self.key, &self.mode, self.function)
    }
}

/// The locks that one manager's calls were granted, by the store or by each other.
#[derive(Debug, Default)]
pub(super) struct Record(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    locked: Vec<Locked>,
    /// The locks that may still be held.
    held: Vec<Weak<Hold>>,
}

impl Observer for Record {
    fn granted(&self, held: &Arc<Hold>) {
        let mut entries = self.0.lock();
        entries.held.retain(|held| held.strong_count() > 0);
        entries.held.push(Arc::downgrade(held));
        entries.locked.extend(held.tenure.keys().iter().map(|key| Locked {
            key: held.tenure.manager.name(key).into(),
            mode: held.tenure.value.mode().clone(),
            function: held.options.site.function,
        }));
    }
}

impl Record {
    pub(super) fn locked(&self) -> Vec<Locked> {
        self.0.lock().locked.clone()
    }

    pub(super) fn forget(&self) {
        self.0.lock().locked.clear();
    }

    /// Returns the locks of this whole key that have not ended.
    pub(super) fn held(&self, key: &str) -> Vec<Arc<Hold>> {
        let held: Vec<_> = self.0.lock().held.iter().filter_map(Weak::upgrade).collect();
        held.into_iter()
            .filter(|held| !held.has_ended() && held.tenure.keys().iter().any(|other| **other == *key))
            .collect()
    }

    pub(super) fn check(&self, key: &str) -> Result<(), String> {
        missing(key, self.0.lock().locked.iter())
    }
}

/// Returns an error with the message to show unless `key` is among the locks taken.
fn missing<'a>(key: &str, locked: impl Iterator<Item = &'a Locked> + Clone) -> Result<(), String> {
    if locked.clone().any(|locked| *locked == *key) {
        return Ok(());
    }
    let mut problem = format!("`{key}` was not locked; the kit has seen locked: ");
    if !list(&mut problem, locked.map(Locked::parts)) {
        problem.push_str("nothing");
    }
    problem
        .push_str("; compare the key with the template, and let the tested code take its locks from the kit's manager");
    Err(problem)
}

thread_local! {
    /// The kits created on this thread.
    static MADE_HERE: RefCell<Vec<Weak<Kit>>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn made_here(kit: &TestLocks) {
    ask(seen_here);
    MADE_HERE.with_borrow_mut(|kits| {
        kits.retain(|kit| kit.strong_count() > 0);
        kits.push(Arc::downgrade(&kit.kit));
    });
}

/// Returns an error with the message to show unless a kit of this thread has recorded a lock of
/// `key`, or `None` if this thread has no kit.
fn seen_here(key: &str) -> Option<Result<(), String>> {
    let kits = MADE_HERE.try_with(|kits| kits.borrow().iter().filter_map(Weak::upgrade).collect::<Vec<_>>());
    let kits = kits.ok().filter(|kits| !kits.is_empty())?;
    let locked: Vec<_> = kits.iter().flat_map(|kit| kit.record.locked()).collect();
    Some(missing(key, locked.iter()))
}

/// Replaces the global manager on this thread by a kit's, until it is dropped. See
/// [`TestLocks::as_global`].
#[must_use = "it ends when this is dropped"]
#[derive(Debug)]
pub struct AsGlobal {
    /// Makes the type `!Send`: it belongs to this thread.
    _here: std::marker::PhantomData<*const ()>,
}

impl AsGlobal {
    pub(super) fn begin(manager: &LockManager) -> Self {
        global::stand_in(manager.clone());
        Self {
            _here: std::marker::PhantomData,
        }
    }
}

impl Drop for AsGlobal {
    fn drop(&mut self) {
        global::stand_down();
    }
}
