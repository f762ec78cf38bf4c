//! Lets calls wait inside the process: the calls of one manager for one key stand in line, and only
//! the call in front talks to the store. A lock that ends in front of a waiting call may pass to it
//! without a round trip to the store. The call in front owns a `QueueHead`, and a call that a lock
//! is passed to owns a `Handover`. Both are offered first, and the waiter's task accepts the offer
//! when it is polled. Dropping the first gives the place to the next call, and dropping the second
//! also releases the lock, so neither is lost with a call that is cancelled as its turn comes. The
//! lines are never locked together with the watchdog's schedule, and no call is woken while they are
//! locked.
//!
//! The handover inside a process is that of lock cohorting: Dice, Marathe and Shavit, *Lock
//! Cohorting: A General Technique for Designing NUMA Locks*, 2012.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::acquire::callers::{Ahead, Places};
use crate::acquire::line::{self, Numbers};
use crate::hold::upkeep::Watchdog;
use crate::hold::{Backend, Hold, Known, LineKey, LocalQueues, LockOptions, QueueHead, Tenure};
use crate::host::{Moment, Mutex};
use crate::store::holder::Holder;
use crate::store::{LeaveFree, StoreError};

/// A map by keys, which are looked up several times for each lock.
type ByKey<T> = HashMap<LineKey, T, BuildHasherDefault<Known>>;

/// The lines of one manager.
#[derive(Debug)]
pub(super) struct Lines {
    this: Weak<Self>,
    backend: Arc<Backend>,
    /// Keys may come from outside, so their hashes cannot be foreseen.
    hasher: foldhash::fast::RandomState,
    /// The lines by the hashes of their keys, so that threads that use different locks seldom meet here.
    shards: [Mutex<Shard>; SHARDS],
}

const SHARDS: usize = 32;

/// The lines of some keys.
// On cache lines of its own, or threads that use different shards would meet all the same.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    lines: ByKey<Line>,
    numbers: Numbers,
    openings: Openings,
}

/// Returns the line for the key, if `place` is the one in front of it.
fn line_with<'a>(lines: &'a mut ByKey<Line>, key: &LineKey, place: u64) -> Option<&'a mut Line> {
    lines.get_mut(key).filter(|line| line.calls.place == place)
}

impl Shard {
    /// Creates a place in front for a call that takes it without an offer. Returns `None` if another call is in front.
    fn first_place(&mut self, key: &LineKey, backend: &Backend) -> Option<Place> {
        let line = self.lines.entry(key.clone()).or_default();
        if !line.calls.vacant {
            return None;
        }
        let left_free = std::mem::take(&mut line.left_free) || self.openings.is_open(key, backend);
        let number = line.calls.new_place(&mut self.numbers);
        Some(Place { number, left_free })
    }
}

/// The locks that other processes wanted lately, whose releases may leave them free for clients of
/// other kinds though nobody in line waits.
#[derive(Debug, Default)]
struct Openings {
    by_key: ByKey<Wanted>,
    /// The number of entries at which the old ones are removed.
    many: usize,
}

#[derive(Debug)]
struct Wanted {
    /// The last time at which somebody else was found to have the lock.
    seen: Moment,
    /// The time of the latest release that may have left it free.
    opened: Option<Moment>,
}

impl Openings {
    /// The time for which a lock counts as wanted.
    const LATELY: Duration = Duration::from_secs(2);
    /// The number of releases that may leave a lock free, in each interval in which the store does
    /// so once. Only the store knows about the releases of other processes.
    const TRIES: u32 = 4;
    /// The number of entries for which removing old ones is not worth the time.
    const FEW: usize = 64;

    /// Records that somebody else has the lock.
    fn see(&mut self, key: &LineKey, now: Moment) {
        if let Some(wanted) = self.by_key.get_mut(key) {
            wanted.seen = now;
            return;
        }
        if self.by_key.len() >= self.many.max(Self::FEW) {
            self.by_key.retain(|_, wanted| now.since(wanted.seen) < Self::LATELY);
            self.many = 2 * self.by_key.len();
        }
        let wanted = Wanted {
            seen: now,
            opened: None,
        };
        self.by_key.insert(key.clone(), wanted);
    }

    /// Returns `true` if a release at this moment may leave the lock free.
    fn open(&mut self, key: &LineKey, backend: &Backend, settings: LeaveFree) -> bool {
        let Some(wanted) = self.by_key.get_mut(key) else {
            return false;
        };
        let now = backend.now();
        let interval = settings.every / Self::TRIES;
        let is_early = wanted.opened.is_some_and(|latest| now.since(latest) < interval);
        let opens = now.since(wanted.seen) < Self::LATELY && !is_early;
        if opens {
            wanted.opened = Some(now);
        }
        opens
    }

    /// Returns `true` if a release without a call behind it may have left the lock free, and that
    /// is not over yet.
    fn is_open(&self, key: &LineKey, backend: &Backend) -> bool {
        let latest = self.by_key.get(key).and_then(|wanted| wanted.opened);
        match (latest, backend.leave_free) {
            (Some(latest), Some(settings)) => backend.now().since(latest) < settings.pause,
            _ => false,
        }
    }
}

/// The line for one key. It exists while a call is in front or waits.
#[derive(Debug, Default)]
struct Line {
    calls: line::Line<Turn, Terms>,
    front: Front,
    /// The moment since which, as far as is known, the lock has not been left free for clients of
    /// other kinds.
    taken_since: Option<Moment>,
    /// `true` if the release under way may leave the lock free.
    left_free: bool,
}

type Waiter = line::Waiter<Turn, Terms>;
type Offered = line::Offered<Turn, Terms>;

/// A place in front.
#[derive(Clone, Copy)]
struct Place {
    number: u64,
    /// `true` if the call in front before may have left the lock to other clients for a while.
    left_free: bool,
}

/// The terms on which a lock can pass to a call: its lease, `lock_delay` and watchdog have to be these, and
/// `renew` set.
#[derive(Debug)]
struct Terms {
    lease: Duration,
    lock_delay: Duration,
    renew: bool,
    watchdog: Arc<Watchdog>,
}

impl Terms {
    fn fit(&self, hold: &Hold) -> bool {
        self.lease == hold.options.lease
            && self.lock_delay == hold.options.lock_delay
            && self.renew
            && std::ptr::addr_eq(Arc::as_ptr(&self.watchdog), Arc::as_ptr(&hold.tenure.watchdog))
    }
}

/// The state of the call in front.
#[derive(Debug, Default)]
enum Front {
    /// It is asking the store, or is about to.
    #[default]
    Asking,
    /// It has asked, with this answer.
    Answered(Contention),
    /// It has the lock.
    Holding(Arc<Hold>),
}

impl Front {
    /// Returns the call's latest information about the lock.
    fn contention(&self) -> Option<Contention> {
        match self {
            Self::Asking => None,
            Self::Answered(contention) => Some(contention.clone()),
            Self::Holding(held) => Some(Contention {
                holder: Some(held.holder()),
                remaining: (!held.has_ended()).then(|| held.tenure.deadline().since(held.tenure.now())),
                error: None,
            }),
        }
    }
}

/// The latest information about a lock that is not available.
#[derive(Clone, Debug, Default)]
pub(super) struct Contention {
    pub(super) holder: Option<Holder>,
    pub(super) remaining: Option<Duration>,
    /// The last answer, if it was an error and not "busy".
    pub(super) error: Option<StoreError>,
}

#[derive(Debug)]
enum Turn {
    /// The call is in front, and has to ask the store.
    Front(QueueHead),
    /// The call got the lock from the call that was in front.
    Handed(Handover),
}

impl Turn {
    /// Returns `true` if the call gets this lock.
    fn hands(&self, held: &Arc<Hold>) -> bool {
        matches!(self, Self::Handed(passed) if Arc::ptr_eq(&passed.held, held))
    }
}

impl Lines {
    pub(super) fn new(backend: &Arc<Backend>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            backend: Arc::clone(backend),
            hasher: foldhash::fast::RandomState::default(),
            shards: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// Locks the lines that include the key's.
    fn shard(&self, key: &LineKey) -> MutexGuard<'_, Shard> {
        // By other bits of the hash than those by which a map finds its entries.
        #[allow(clippy::cast_possible_truncation)] // the rest is less than 32
        let shard = &self.shards[(key.hash >> 40) as usize % SHARDS];
        shard.lock()
    }

    /// Gives a call its turn, and has the watchdog take the turn back if the call is not polled.
    fn give(self: &Arc<Self>, key: &LineKey, offered: Offered, turn: Turn) {
        offered.give(turn, |terms, watch| {
            let (lines, key) = (Arc::downgrade(self), key.clone());
            terms.watchdog.watch_calls(self.backend.host(), move |now| {
                let lines = lines.upgrade();
                lines.is_some_and(|lines| lines.sweep(&key, watch, now))
            });
        });
    }

    /// Takes back a turn on offer if its call has not been polled since the last sweep. Returns
    /// `false` if the line needs no further sweep.
    fn sweep(&self, key: &LineKey, watch: u64, now: Moment) -> bool {
        let swept = {
            let mut shard = self.shard(key);
            let line = shard.lines.get_mut(key);
            line.map(|line| line.calls.sweep(watch, now))
        };
        swept.is_some_and(line::Swept::end)
    }

    /// Leaves the front of a line. Returns the next call and the number of its place.
    fn next_after(&self, key: &LineKey, place: u64) -> Option<(Offered, Place)> {
        let mut shard = self.shard(key);
        let Shard {
            lines,
            numbers,
            openings,
        } = &mut *shard;
        let line = line_with(lines, key, place)?;
        let before = std::mem::take(&mut line.front);
        let next = line.calls.leave(numbers).map(|(next, number)| {
            let left_free = std::mem::take(&mut line.left_free) || openings.is_open(key, &self.backend);
            (next, Place { number, left_free })
        });
        let over = if line.calls.is_over() {
            lines.remove(key)
        } else {
            // This is the best information until the next call has asked.
            line.front = before.contention().map_or(Front::Asking, Front::Answered);
            None
        };
        drop(shard);
        drop((before, over));
        next
    }

    /// Returns the conditions on which the release by the call in front may leave the lock free for
    /// a while. Returns `None` if a call in line is awake and the line has not yet kept the lock
    /// for `settings.every`; if no call is awake, and nobody else wanted the lock lately, or a recent
    /// release could have left it free.
    fn leave_how_free(&self, key: &LineKey, place: u64, settings: LeaveFree) -> Option<LeaveFree> {
        let mut shard = self.shard(key);
        let Shard { lines, openings, .. } = &mut *shard;
        let mut line = line_with(lines, key, place);
        let awake = line.as_mut().filter(|line| line.calls.is_awake());
        let Some(line) = awake else {
            let opens = openings.open(key, &self.backend, settings);
            // A call that comes while the release is under way must not take what it leaves free.
            if let Some(line) = line.filter(|_| opens) {
                line.left_free = true;
            }
            return opens.then_some(settings);
        };
        let now = self.backend.now();
        let since = *line.taken_since.get_or_insert(now);
        if now.since(since) < settings.every {
            return None;
        }
        line.taken_since = Some(now);
        line.left_free = true;
        Some(LeaveFree {
            is_due: true,
            ..settings
        })
    }
}

/// A lock on its way from one call to the next. Dropping it on the way releases the lock.
pub(super) struct Handover {
    /// The former call's hold, whose guard has ended.
    pub(super) held: Arc<Hold>,
    place: Option<QueueHead>,
    /// Lets `shutdown` wait for this lock.
    _tracked: TaskTrackerToken,
}

impl Handover {
    /// Takes over the lock and the place in front.
    pub(super) fn accept(mut self) -> (Arc<Tenure>, Option<QueueHead>) {
        (Arc::clone(&self.held.tenure), self.place.take())
    }

    /// Releases the lock and keeps the place in front.
    pub(super) fn give_back(mut self) -> Option<QueueHead> {
        self.release();
        self.place.take()
    }

    fn release(&self) {
        self.held.tenure.forget();
        self.held.tenure.watchdog.release_later(&self.held);
    }
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handover").field(&self.held).finish()
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.release();
        }
    }
}

/// The way in which a call has come to the front.
#[derive(Debug)]
pub(super) enum Promotion {
    /// It has to ask the store.
    InFront(QueueHead),
    /// It may continue with this lock, which is on offer until it [accepts](Waiting::accept) it.
    Handed(Arc<Hold>),
}

/// Creates the handle of a place in front.
fn head(lines: &Arc<Lines>, key: &LineKey, Place { number, left_free }: Place) -> QueueHead {
    QueueHead::new(Arc::clone(lines) as _, key, number, left_free)
}

/// Joins the line for the key.
pub(super) fn enter(queues: &Arc<Lines>, key: &Arc<str>, options: &LockOptions, watchdog: &Arc<Watchdog>) -> Position {
    let key = &LineKey::new(key, &queues.hasher);
    let mut shard = queues.shard(key);
    if let Some(place) = shard.first_place(key, &queues.backend) {
        drop(shard);
        return Position::InFront(head(queues, key, place));
    }
    let terms = Terms {
        lease: options.lease,
        lock_delay: options.lock_delay,
        renew: options.renew,
        watchdog: Arc::clone(watchdog),
    };
    let Shard { lines, numbers, .. } = &mut *shard;
    let (number, waiter) = lines.entry(key.clone()).or_default().calls.join(numbers, terms);
    drop(shard);
    Position::Behind(Waiting {
        queues: Arc::clone(queues),
        key: key.clone(),
        number,
        waiter,
    })
}

/// Takes the place in front if it is free.
pub(super) fn enter_if_free(queues: &Arc<Lines>, key: &Arc<str>) -> Option<QueueHead> {
    let key = &LineKey::new(key, &queues.hasher);
    let place = queues.shard(key).first_place(key, &queues.backend)?;
    Some(head(queues, key, place))
}

impl Lines {
    fn show(&self, key: &LineKey, place: u64, front: Front) {
        let mut shard = self.shard(key);
        let line = line_with(&mut shard.lines, key, place);
        let before = line.map(|line| std::mem::replace(&mut line.front, front));
        drop(shard);
        drop(before);
    }

    /// Passes the store's answer on to the calls behind.
    pub(super) fn report(&self, head: &QueueHead, contention: &Contention) {
        if self.backend.leave_free.is_some() && contention.error.is_none() {
            self.shard(&head.key).openings.see(&head.key, self.backend.now());
        }
        self.show(&head.key, head.number, Front::Answered(contention.clone()));
    }
}

/// Returns the pause for which the previous call in front may have left the lock free for other
/// clients, or `None` if it did not.
pub(super) fn left_free(backend: &Backend, head: &QueueHead) -> Option<Duration> {
    let settings = backend.leave_free.filter(|_| head.left_free)?;
    Some(settings.pause)
}

/// Returns a handle by which the lock thread can take the place away.
pub(super) fn ahead(head: &QueueHead) -> Ahead {
    Ahead::Place {
        key: head.key.clone(),
        number: head.number,
    }
}

impl Places for Lines {
    fn revoke(&self, key: &LineKey, number: u64) {
        let woken = {
            let mut shard = self.shard(key);
            line_with(&mut shard.lines, key, number).map(|line| line.calls.revoke())
        };
        line::wake(woken.unwrap_or_default());
    }

    fn is_followed(&self, key: &LineKey, number: u64) -> bool {
        let mut shard = self.shard(key);
        line_with(&mut shard.lines, key, number).is_some_and(|line| !line.calls.waiting.is_empty())
    }
}

impl LocalQueues for Lines {
    fn holds(&self, key: &LineKey, place: u64, held: &Arc<Hold>) {
        self.show(key, place, Front::Holding(Arc::clone(held)));
    }

    fn is_followed(&self, key: &LineKey, place: u64) -> bool {
        if self.backend.host().is_forked() {
            return false;
        }
        let mut shard = self.shard(key);
        line_with(&mut shard.lines, key, place).is_some_and(|line| line.calls.is_awake())
    }

    fn leave_free(&self, key: &LineKey, place: u64) -> Option<LeaveFree> {
        let settings = self.backend.leave_free.filter(|_| !self.backend.host().is_forked())?;
        self.leave_how_free(key, place, settings)
    }

    fn leave(&self, key: &LineKey, place: u64) {
        // In a forked child, the lines may have been locked by a thread that does not exist here.
        if self.backend.host().is_forked() {
            return;
        }
        if let Some((next, place)) = self.next_after(key, place)
            && let Some(this) = self.this.upgrade()
        {
            // If the next call has left meanwhile, its turn is dropped and the call behind it gets
            // the place.
            this.give(key, next, Turn::Front(head(&this, key, place)));
        }
    }

    fn pass(self: Arc<Self>, mut head: QueueHead, hold: &Arc<Hold>) -> Result<(), QueueHead> {
        let offered = {
            let mut shard = self.shard(&head.key);
            let Shard { lines, numbers, .. } = &mut *shard;
            line_with(lines, &head.key, head.number).and_then(|line| {
                let offered = line.calls.offer(numbers, |terms| terms.fit(hold))?;
                // Taking the place away from the former call, if it was not polled, is of no effect any more.
                head.number = line.calls.new_place(numbers);
                Some(offered)
            })
        };
        let Some(offered) = offered else { return Err(head) };
        // From here on, findings of the watchdog concern the next call and no longer the one that
        // has ended.
        hold.tenure.part();
        let key = head.key.clone();
        let passed = Handover {
            held: Arc::clone(hold),
            _tracked: hold.tenure.manager.held.token(),
            place: Some(head),
        };
        self.give(&key, offered, Turn::Handed(passed));
        Ok(())
    }
}

/// The position of a call in its line.
pub(super) enum Position {
    InFront(QueueHead),
    Behind(Waiting),
}

/// A call in line that is not in front. Dropping it leaves no trace.
pub(super) struct Waiting {
    queues: Arc<Lines>,
    key: LineKey,
    number: u64,
    waiter: Arc<Waiter>,
}

impl Waiting {
    /// Waits for the front. Cancel safe.
    pub(super) async fn turn(&self) -> Promotion {
        poll_fn(|cx| {
            self.waiter.sign.register(cx);
            let came = self.come().or_else(|| self.wake_up());
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Takes the place in front if it is vacant because all waiting calls were asleep.
    fn wake_up(&self) -> Option<Promotion> {
        if !self.waiter.sign.give() {
            return None;
        }
        let mut shard = self.queues.shard(&self.key);
        let calls = &mut shard.lines.get_mut(&self.key)?.calls;
        if !calls.vacant {
            return None;
        }
        calls.take_out(self.number)?;
        let place = shard.first_place(&self.key, &self.queues.backend)?;
        drop(shard);
        Some(Promotion::InFront(head(&self.queues, &self.key, place)))
    }

    fn come(&self) -> Option<Promotion> {
        if let Some(Turn::Front(place)) = self.waiter.turn.accept_if(|turn| matches!(turn, Turn::Front(_))) {
            return Some(Promotion::InFront(place));
        }
        let handed = self.waiter.turn.look(|turn| match turn {
            // Given while the turn is locked, which the sweep locks as well.
            Turn::Handed(passed) => {
                self.waiter.sign.give();
                Some(Arc::clone(&passed.held))
            }
            Turn::Front(_) => None,
        });
        handed.flatten().map(Promotion::Handed)
    }

    /// Returns `true` while this lock is on offer. Asking shows that the call is awake.
    fn is_offered(&self, held: &Arc<Hold>) -> bool {
        let is_offered = self.waiter.turn.look(|turn| {
            let is_offered = turn.hands(held);
            if is_offered {
                self.waiter.sign.give();
            }
            is_offered
        });
        is_offered == Some(true)
    }

    /// Waits until a lock on offer is taken back, which happens if this future is no longer polled.
    /// Cancel safe.
    pub(super) async fn withdrawn(&self, held: &Arc<Hold>) {
        poll_fn(|cx| {
            self.waiter.sign.register(cx);
            if self.is_offered(held) {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    /// Takes a lock on offer. Returns `None` if it was taken back and the call stands in line
    /// again.
    pub(super) fn accept(&self, held: &Arc<Hold>) -> Option<Handover> {
        match self.waiter.turn.accept_if(|turn| turn.hands(held))? {
            Turn::Handed(passed) => Some(passed),
            Turn::Front(_) => None,
        }
    }

    /// Returns the latest information about the lock, or `None` if the line has ended or the call
    /// in front has no answer yet.
    pub(super) fn contention(&self) -> Option<Contention> {
        self.queues.shard(&self.key).lines.get(&self.key)?.front.contention()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.queues.backend.host().is_forked() {
            return;
        }
        let mut shard = self.queues.shard(&self.key);
        let lines = &mut shard.lines;
        let line = lines.get_mut(&self.key);
        let waited = line.and_then(|line| line.calls.take_out(self.number));
        // A turn that arrived as this call left is in `turn`; dropping it passes it to the next
        // call. Closed while the lines are locked, so a sweep cannot take the turn back in between, which
        // would put this call in line again. A turn that arrives later goes to the next call too.
        let turn = self.waiter.turn.close();
        let is_over = lines.get(&self.key).is_some_and(|line| line.calls.is_over());
        let line = if is_over { lines.remove(&self.key) } else { None };
        drop(shard);
        drop((turn, line, waited));
    }
}

#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[cfg(test)]
mod tests {
    // Under a paused clock, no sweep takes a turn back while a test stands still.
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::acquire::shared::Shared;
    use crate::error::EndCause;
    use crate::hold::Grant;
    use crate::{ConfigError, LockManager};

    /// Polls a call once.
    fn polled<F: Future>(call: F) -> Pin<Box<F>> {
        let mut call = Box::pin(call);
        let is_pending = call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert!(is_pending, "it does not wait");
        call
    }

    fn line_key(manager: &Shared, key: &Arc<str>) -> LineKey {
        LineKey::new(key, &manager.lines.hasher)
    }

    fn behind(entered: Position) -> Option<Waiting> {
        match entered {
            Position::Behind(waiting) => Some(waiting),
            Position::InFront(_) => None,
        }
    }

    /// A shard and an entry of its map are found by different bits of one hash.
    #[test]
    fn keys_are_spread_over_the_shards_and_inside_of_them() -> Result<(), ConfigError> {
        let manager = Arc::clone(LockManager::builder("memory://").build()?.shared());
        let keys: Vec<_> = (0..64 * 1024)
            .map(|number: u32| line_key(&manager, &format!("dist_lock:item:{number}").into()).hash)
            .collect();
        for part in [|hash: u64| hash >> 40 & 31, |hash| hash & 31, |hash| hash >> 59] {
            let mut counts = [0; 32];
            for hash in &keys {
                counts[usize::try_from(part(*hash)).unwrap()] += 1;
            }
            assert!(counts.iter().all(|count| (1_024..4_096).contains(count)), "{counts:?}");
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_leaves_takes_nobody_else_along() -> Result<(), ConfigError> {
        let manager = Arc::clone(LockManager::builder("memory://").build()?.shared());
        let (watchdog, _) = manager.pace();
        let key: Arc<str> = "k".into();
        let enter = || super::enter(&manager.lines, &key, &LockOptions::default(), &watchdog);
        let front = enter();
        let first = behind(enter());
        drop(front);
        // The first call gets its turn and is dropped midway: first its turn …
        drop(first.as_ref().and_then(Waiting::come));
        // … then two other calls come …
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

    #[tokio::test(start_paused = true)]
    async fn a_place_is_not_taken_away_from_the_call_that_it_was_passed_to() -> Result<(), ConfigError> {
        let locks = LockManager::builder("memory://").build()?;
        let manager = Arc::clone(locks.shared());
        let guard = locks.lock("k").acquire().await.unwrap();
        let line = line_key(&manager, &"dist_lock:k".into());
        let place = || manager.lines.shard(&line).lines[&line].calls.place;
        let before = place();
        let waiting: Vec<_> = (0..2).map(|_| polled(locks.lock("k").acquire())).collect();
        drop(guard);
        assert!(place() != before, "the place has not been passed on");
        // As if the former call had not been polled.
        manager.lines.revoke(&line, before);
        assert!(!manager.lines.shard(&line).lines[&line].calls.vacant);
        drop(waiting);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_has_ended_on_its_way_to_a_call_gives_its_place_on() -> Result<(), ConfigError> {
        let locks = LockManager::builder("memory://").build()?;
        let manager = Arc::clone(locks.shared());
        let (watchdog, _) = manager.pace();
        let key: Arc<str> = "another".into();
        let enter = || super::enter(&manager.lines, &key, &LockOptions::default(), &watchdog);
        let Position::InFront(place) = enter() else {
            panic!("another call is in front")
        };
        let behind = behind(enter());
        let guard = locks.lock("k").acquire().await.unwrap().into_guard();
        let tenure = Arc::clone(&guard.held().tenure);
        tenure.end_with(EndCause::Closed);
        let grant = Grant::passed(tenure, &LockOptions::default(), manager.now(), None, Some(place));
        let held = Hold::new(grant, LockOptions::default(), None, tracing::Span::none());
        assert!(
            behind.and_then(|behind| behind.come()).is_some(),
            "it waits behind a lock that has ended"
        );
        drop(held);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_just_asked_for_a_sign_of_life_gets_its_turn() -> Result<(), ConfigError> {
        let manager = Arc::clone(LockManager::builder("memory://").build()?.shared());
        let (watchdog, _) = manager.pace();
        let key: Arc<str> = "k".into();
        let enter = || super::enter(&manager.lines, &key, &LockOptions::default(), &watchdog);
        let front = enter();
        let (first, second) = (behind(enter()), behind(enter()));
        drop(front);
        let line = line_key(&manager, &key);
        let watch = manager.lines.shard(&line).lines[&line].calls.watch.unwrap();
        // A sweep asks all calls for a sign, and the first one leaves before the second is polled.
        assert!(manager.lines.sweep(&line, watch, Moment::from_nanos(1)));
        drop(first);
        assert!(second.and_then(|second| second.come()).is_some(), "it counts as asleep");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_leaves_while_its_turn_is_on_its_way_leaves_no_line_behind() -> Result<(), ConfigError> {
        let manager = Arc::clone(LockManager::builder("memory://").build()?.shared());
        let (watchdog, _) = manager.pace();
        let key: Arc<str> = "k".into();
        let front = enter(&manager.lines, &key, &LockOptions::default(), &watchdog);
        let behind = behind(enter(&manager.lines, &key, &LockOptions::default(), &watchdog));
        let Position::InFront(place) = front else {
            panic!("another call is in front")
        };
        // The end of the place in front, in two steps: the next call is found …
        let line = line_key(&manager, &key);
        let next = manager.lines.next_after(&line, place.number);
        // … and is gone before it is told.
        drop(behind);
        if let Some((next, place)) = next {
            let turn = Turn::Front(head(&manager.lines, &line, place));
            manager.lines.give(&line, next, turn);
        }
        drop(place);
        assert!(
            manager.lines.shard(&line).lines.is_empty(),
            "a call that has left keeps the place in front"
        );
        Ok(())
    }
}
