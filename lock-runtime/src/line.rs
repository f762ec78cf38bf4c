//! Waiting inside the process: the calls of one manager for one key stand in line, and only the one in front talks to the
//! store. A lock that ends in front of a waiting call may pass to it without a trip to the store.
//!
//! The hand-over inside a process is that of lock cohorting: Dice, Marathe and Shavit, *Lock Cohorting: A General Technique
//! for Designing NUMA Locks*, 2012.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, btree_map};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::engine::is_forked;
use crate::held::{Held, Terms};
use crate::holder::Holder;
use crate::manager::Shared;
use crate::releaser::release_later;
use crate::store::StoreError;
use crate::watchdog::Watchdog;

/// How often, and for how long, a lock may pass from call to call inside one process before it goes back to the store.
///
/// Passing costs no trip to the store, and while it goes on no other process gets the lock. Whichever bound is reached first
/// ends it, so another process that waits does so for at most the time bound plus one call, per process in front of it.
///
/// ```
/// # use lock_runtime::{Handover, LockManager};
/// # use std::time::Duration;
/// let locks = LockManager::builder("memory://")
///     .handover(Handover::new(16, Duration::from_millis(20)))
///     .build()?;
/// # Ok::<(), lock_runtime::LockError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    passes: u32,
    time: Duration,
}

impl Handover {
    /// Every lock goes back to the store.
    pub const OFF: Self = Self::new(0, Duration::ZERO);

    /// At most `passes` times in a row, and not any more once the process has had the lock for `time`.
    #[must_use]
    pub const fn new(passes: u32, time: Duration) -> Self {
        Self { passes, time }
    }

    /// Whether a lock that was passed so often, and for so long, may pass once more.
    pub(crate) fn allows(self, passes: u32, time: Duration) -> bool {
        passes < self.passes && time < self.time
    }
}

impl Default for Handover {
    /// 128 times, 50 ms.
    fn default() -> Self {
        Self::new(128, Duration::from_millis(50))
    }
}

/// The lines of one manager.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<Arc<str>, Line>>);

/// The line for one key. It is there while somebody is in front.
#[derive(Debug, Default)]
struct Line {
    front: Front,
    /// Those behind, by when they came.
    waiting: BTreeMap<u64, Arc<Waiter>>,
    next: u64,
}

/// What the one in front is doing.
#[derive(Debug, Default)]
enum Front {
    /// It is asking the store, or has not begun to.
    #[default]
    Asking,
    /// It has asked, and heard this.
    Told(News),
    /// It has the lock.
    Holding(Arc<Held>),
}

impl Front {
    /// What it knows of the lock.
    fn heard(&self) -> Option<News> {
        match self {
            Self::Asking => None,
            Self::Told(news) => Some(news.clone()),
            Self::Holding(held) => Some(News {
                holder: Some(Holder::new(&*held.value)),
                remaining: (!held.has_ended()).then(|| held.deadline().since(held.now())),
                error: None,
            }),
        }
    }
}

/// What is known of a lock that cannot be had now.
#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    pub(crate) holder: Option<Holder>,
    pub(crate) remaining: Option<Duration>,
    /// The last answer was an error, not "busy".
    pub(crate) error: Option<StoreError>,
}

/// One call in line.
#[derive(Debug)]
struct Waiter {
    turn: Mutex<Turn>,
    task: AtomicWaker,
    /// What it will hold the lock by, and who is to watch it then.
    terms: Terms,
    watchdog: Arc<Watchdog>,
}

#[derive(Debug)]
enum Turn {
    NotYet,
    /// It is in front, and is to ask the store.
    Front(Place),
    /// It has got the lock from the one that was in front.
    Handed(Passed),
    /// It has been told.
    Over,
}

impl Waiter {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, turn: Turn) {
        *self.turn() = turn;
        self.task.wake();
    }
}

impl Lines {
    fn lines(&self) -> MutexGuard<'_, HashMap<Arc<str>, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the front of a line, and returns who is next.
    fn leave(&self, key: &Arc<str>) -> Option<Arc<Waiter>> {
        let mut lines = self.lines();
        let Entry::Occupied(mut line) = lines.entry(Arc::clone(key)) else {
            return None;
        };
        let before = std::mem::take(&mut line.get_mut().front);
        let next = line.get_mut().waiting.pop_first();
        if next.is_none() {
            line.remove();
        } else {
            // Until the next one has asked, this is the best that is known.
            line.get_mut().front = before.heard().map_or(Front::Asking, Front::Told);
        }
        drop(lines);
        drop(before);
        next.map(|(_, waiter)| waiter)
    }
}

/// The place in front of a line. Dropped, the next one gets it.
pub(crate) struct Place {
    manager: Arc<Shared>,
    key: Arc<str>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Place").field(&self.key).finish()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // In a forked child the lines may have been locked by a thread that is not there.
        if !is_forked()
            && let Some(next) = self.manager.lines.leave(&self.key)
        {
            // Should it have left meanwhile, its turn is dropped with it, and the one behind it gets the place.
            next.give(Turn::Front(Self::new(&self.manager, &self.key)));
        }
    }
}

/// A lock on its way from one call to the next. Dropped on the way, it is released.
pub(crate) struct Passed {
    /// How it was held, by a guard that has ended.
    pub(crate) held: Arc<Held>,
    place: Option<Place>,
    /// Lets `shutdown` wait for it.
    _tracked: TaskTrackerToken,
}

impl Passed {
    /// Takes the lock over, and the place in front with it.
    pub(crate) fn accept(mut self) -> Option<Place> {
        self.place.take()
    }
}

impl std::fmt::Debug for Passed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Passed").field(&self.held).finish()
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if self.place.is_some() {
            release_later(&self.held);
        }
    }
}

/// How a call has come to the front.
#[derive(Debug)]
pub(crate) enum Came {
    /// It is to ask the store.
    InFront(Place),
    /// It has got the lock.
    Handed(Passed),
}

impl Place {
    /// Stands in line for the key.
    pub(crate) fn enter(manager: &Arc<Shared>, key: &Arc<str>, terms: Terms, watchdog: &Arc<Watchdog>) -> Entered {
        let mut lines = manager.lines.lines();
        let line = match lines.entry(Arc::clone(key)) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(free) => {
                free.insert(Line::default());
                drop(lines);
                return Entered::InFront(Self::new(manager, key));
            }
        };
        let number = line.next;
        line.next += 1;
        let waiter = Arc::new(Waiter {
            turn: Mutex::new(Turn::NotYet),
            task: AtomicWaker::new(),
            terms,
            watchdog: Arc::clone(watchdog),
        });
        line.waiting.insert(number, Arc::clone(&waiter));
        drop(lines);
        Entered::Behind(Waiting {
            manager: Arc::clone(manager),
            key: Arc::clone(key),
            number,
            waiter,
        })
    }

    /// The place in front, if nobody has it.
    pub(crate) fn enter_if_free(manager: &Arc<Shared>, key: &Arc<str>) -> Option<Self> {
        let mut lines = manager.lines.lines();
        if lines.contains_key(key) {
            return None;
        }
        lines.insert(Arc::clone(key), Line::default());
        drop(lines);
        Some(Self::new(manager, key))
    }

    fn new(manager: &Arc<Shared>, key: &Arc<str>) -> Self {
        Self {
            manager: Arc::clone(manager),
            key: Arc::clone(key),
        }
    }

    fn show(&self, front: Front) {
        let mut lines = self.manager.lines.lines();
        let before = lines
            .get_mut(&self.key)
            .map(|line| std::mem::replace(&mut line.front, front));
        drop(lines);
        drop(before);
    }

    /// Lets those behind know what the store has said.
    pub(crate) fn tell(&self, news: &News) {
        self.show(Front::Told(news.clone()));
    }

    /// Lets those behind know who has the lock.
    pub(crate) fn holds(&self, held: &Arc<Held>) {
        self.show(Front::Holding(Arc::clone(held)));
    }

    /// Whether anybody waits behind.
    pub(crate) fn is_followed(&self) -> bool {
        let lines = self.manager.lines.lines();
        lines.get(&self.key).is_some_and(|line| !line.waiting.is_empty())
    }

    /// Passes a lock whose guard has ended to the next in line, if that one can go on with it as it is.
    pub(crate) fn pass(self, held: &Arc<Held>) -> Result<(), Self> {
        let waiter = {
            let mut lines = self.manager.lines.lines();
            lines.get_mut(&self.key).and_then(|line| {
                let first = line.waiting.first_entry()?;
                let waiter = first.get();
                let fits = waiter.terms.lease == held.terms.lease
                    && waiter.terms.lock_delay == held.terms.lock_delay
                    && waiter.terms.renew
                    && Arc::ptr_eq(&waiter.watchdog, &held.watchdog);
                fits.then(|| first.remove())
            })
        };
        let Some(waiter) = waiter else { return Err(self) };
        let passed = Passed {
            held: Arc::clone(held),
            _tracked: held.manager.held.token(),
            place: Some(self),
        };
        waiter.give(Turn::Handed(passed));
        Ok(())
    }
}

/// Where a call stands.
pub(crate) enum Entered {
    InFront(Place),
    Behind(Waiting),
}

/// A call in line that is not in front. Dropped, it leaves no trace.
pub(crate) struct Waiting {
    manager: Arc<Shared>,
    key: Arc<str>,
    number: u64,
    waiter: Arc<Waiter>,
}

impl Waiting {
    /// Waits for the front. Cancel safe.
    pub(crate) async fn turn(&self) -> Came {
        poll_fn(|cx| {
            self.waiter.task.register(cx.waker());
            self.come().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn come(&self) -> Option<Came> {
        let mut turn = self.waiter.turn();
        match std::mem::replace(&mut *turn, Turn::Over) {
            Turn::Front(place) => Some(Came::InFront(place)),
            Turn::Handed(passed) => Some(Came::Handed(passed)),
            Turn::NotYet => {
                *turn = Turn::NotYet;
                None
            }
            Turn::Over => None,
        }
    }

    /// What is known of the lock. The error of a store that has not answered yet is for the caller to tell.
    pub(crate) fn news(&self) -> Option<News> {
        let lines = self.manager.lines.lines();
        lines.get(&self.key)?.front.heard()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        let mut lines = self.manager.lines.lines();
        let waited = lines.get_mut(&self.key).and_then(|line| {
            // The line may be another one by now, and the number another call's.
            let btree_map::Entry::Occupied(at) = line.waiting.entry(self.number) else {
                return None;
            };
            Arc::ptr_eq(at.get(), &self.waiter).then(|| at.remove())
        });
        drop(lines);
        // One that was called to the front as it left gives its turn to the next.
        if waited.is_none() {
            drop(self.come());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockError, LockManager, OnLost};

    fn behind(entered: Entered) -> Option<Waiting> {
        match entered {
            Entered::Behind(waiting) => Some(waiting),
            Entered::InFront(_) => None,
        }
    }

    #[test]
    fn a_call_that_leaves_takes_nobody_else_along() -> Result<(), LockError> {
        let manager = LockManager::builder("memory://").build()?.into_shared();
        let (watchdog, _) = manager.pace();
        let key: Arc<str> = "k".into();
        let terms = Terms {
            lease: Duration::from_secs(1),
            renew: true,
            max_renewals: 9,
            at_least: Duration::ZERO,
            on_lost: OnLost::Cancel,
            pipelined: false,
            lock_delay: Duration::ZERO,
        };
        let enter = || Place::enter(&manager, &key, terms, &watchdog);
        let front = enter();
        let first = behind(enter());
        drop(front);
        // It is called, and dropped in the middle: first its place …
        drop(first.as_ref().and_then(Waiting::come));
        // … then two others come …
        let front = enter();
        let second = behind(enter());
        // … then the rest of it.
        drop(first);
        drop(front);
        assert!(
            second.and_then(|second| second.come()).is_some(),
            "nobody calls the second one"
        );
        Ok(())
    }
}
