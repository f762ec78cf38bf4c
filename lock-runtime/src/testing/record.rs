//! What a kit has seen locked.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Kit, TestLocks};
use crate::assert::list;
use crate::held::Held;
use crate::manager::LockManager;
use crate::store::Mode;

/// A lock that was taken, as [`TestLocks::locked`] tells it.
///
/// It equals its key, so that a list of them can be compared with a list of keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Locked {
    key: Box<str>,
    mode: Mode,
    function: &'static str,
}

impl Locked {
    /// The key, without the manager's prefix. A lock of several keys is one entry for each.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How it was taken.
    #[must_use]
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// The path of the function that took it, or the [holder's name](crate::LockRequest::holder); empty where there is none.
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
    fn parts(&self) -> (&str, &Mode, &str) {
        (&self.key, &self.mode, self.function)
    }
}

/// The locks that one manager's calls have got, whether from the store or from each other.
#[derive(Debug, Default)]
pub(crate) struct Record(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    locked: Vec<Locked>,
    /// Those that may be held still.
    held: Vec<Weak<Held>>,
}

/// Notes a lock that a call has got.
pub(crate) fn note(held: &Arc<Held>) {
    if let Some(record) = &held.manager.record {
        let mut entries = record.entries();
        entries.held.retain(|held| held.strong_count() > 0);
        entries.held.push(Arc::downgrade(held));
        entries.locked.extend(held.keys().iter().map(|key| Locked {
            key: held.manager.name(key).into(),
            mode: held.mode.clone(),
            function: held.function,
        }));
    }
}

impl Record {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn locked(&self) -> Vec<Locked> {
        self.entries().locked.clone()
    }

    pub(super) fn forget(&self) {
        self.entries().locked.clear();
    }

    /// The locks of this whole key that have not ended.
    pub(super) fn held(&self, key: &str) -> Vec<Arc<Held>> {
        let held: Vec<_> = self.entries().held.iter().filter_map(Weak::upgrade).collect();
        held.into_iter()
            .filter(|held| !held.has_ended() && held.keys().iter().any(|other| **other == *key))
            .collect()
    }

    pub(super) fn check(&self, key: &str) -> Result<(), String> {
        missing(key, self.entries().locked.iter())
    }
}

/// Whether `key` is among what was locked, or what to say.
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
    /// The kits that this thread has made.
    static MADE_HERE: RefCell<Vec<Weak<Kit>>> = const { RefCell::new(Vec::new()) };
    /// The managers that stand in for the global one on this thread, the last one first in rank.
    static GLOBAL_HERE: RefCell<Vec<LockManager>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn made_here(kit: &TestLocks) {
    MADE_HERE.with_borrow_mut(|kits| {
        kits.retain(|kit| kit.strong_count() > 0);
        kits.push(Arc::downgrade(&kit.kit));
    });
}

/// Whether a kit of this thread has seen `key` locked, or what to say. `None`: this thread has no kit.
pub(crate) fn seen_here(key: &str) -> Option<Result<(), String>> {
    let kits = MADE_HERE.try_with(|kits| kits.borrow().iter().filter_map(Weak::upgrade).collect::<Vec<_>>());
    let kits = kits.ok().filter(|kits| !kits.is_empty())?;
    let locked: Vec<_> = kits.iter().flat_map(|kit| kit.record.locked()).collect();
    Some(missing(key, locked.iter()))
}

/// The manager that stands in for the global one on this thread.
pub(crate) fn global_here() -> Option<LockManager> {
    GLOBAL_HERE
        .try_with(|managers| managers.borrow().last().cloned())
        .ok()
        .flatten()
}

/// Lets a kit's manager stand in for the global one on this thread. See [`TestLocks::as_global`].
#[must_use = "it ends when this is dropped"]
#[derive(Debug)]
pub struct AsGlobal {
    /// Not to be sent to another thread.
    _here: std::marker::PhantomData<*const ()>,
}

impl AsGlobal {
    pub(super) fn begin(manager: &LockManager) -> Self {
        GLOBAL_HERE.with_borrow_mut(|managers| managers.push(manager.clone()));
        Self {
            _here: std::marker::PhantomData,
        }
    }
}

impl Drop for AsGlobal {
    fn drop(&mut self) {
        // The thread's locals may be gone already while it ends.
        let _ = GLOBAL_HERE.try_with(|managers| managers.borrow_mut().pop());
    }
}
