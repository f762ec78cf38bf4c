//! Calls that ask the store, as seen by the lock thread. A call may stop being polled at any await,
//! and then blocks others with the place in front of its line and with the locks that the store has
//! granted it or will grant it. The lock thread therefore asks such a call for a sign of life by
//! waking it, and takes the place and the locks away if it is not polled. The lock thread and the
//! call take a grant out of one cell, so it is either released or held.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use slab::Slab;

use crate::hold::guard::Guard;
use crate::hold::upkeep::{Stake, Watchdog};
use crate::hold::{Backend, Keeper, LineKey};
use crate::host::{Moment, Mutex, Sharded, SignOfLife, Timer};
use crate::store::abandon::UNDER_WAY;
use crate::store::responder::{Answer, Receive};
use crate::store::{Attempt, Receipt, StoreError, StoreFuture};

/// The interval at which the lock thread asks the call in front of a line for a sign of life, while
/// other calls wait behind it.
const ASK_EVERY: Duration = Duration::from_millis(400);
/// The time that the call in front has to give the sign.
const ANSWERS_WITHIN: Duration = Duration::from_millis(150);
/// The time that a call has after sending a request. A busy runtime must not lose its grants, which
/// would make it busier. With each grant that the same call has lost in this way, the time doubles,
/// up to [`CLAIMS_WITHIN_AT_LAST`].
const CLAIMS_WITHIN: Duration = Duration::from_millis(800);
const CLAIMS_WITHIN_AT_LAST: Duration = Duration::from_secs(12);
/// If the lock thread looks again only after this long, the whole process counts as having stood
/// still, and no call is blamed for not being polled.
const STOOD_STILL: Duration = Duration::from_millis(300);

/// One call on its way to a lock.
#[derive(Default)]
pub(super) struct Caller {
    /// The lock thread asks for it.
    pub(super) sign: SignOfLife,
    /// The number of grants that the lock thread has taken away from it.
    losses: AtomicU32,
    /// The receipt of the request that is under way.
    receipt: Receipt,
    /// The answer to the call's first attempt, if that was sent in a batch.
    answer: Answer<Attempt>,
    stake: Mutex<Option<AtStake>>,
    /// The lock that it has already, and waits to use.
    kept: Mutex<Option<Box<Guard>>>,
}

/// A grant that a call may have received.
struct AtStake {
    stake: Stake,
    /// `true` once the call has claimed it.
    is_claimed: bool,
    /// The last time the lock thread released the grant because the call was not polled. The grant
    /// then no longer belongs to the call, whatever the store answers.
    taken_back: Option<Moment>,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("sign", &self.sign)
            .finish_non_exhaustive()
    }
}

impl Caller {
    /// Polls a future as the call's own. Cancel safe if the future is.
    // Takes it pinned: a future that is given as an argument takes its room twice.
    pub(super) async fn attend<F: Future>(&self, mut future: Pin<&mut F>) -> F::Output {
        poll_fn(|cx| {
            self.is_polled(cx);
            future.as_mut().poll(cx)
        })
        .await
    }

    pub(super) fn is_polled(&self, cx: &Context<'_>) {
        self.sign.register(cx);
        self.sign.give();
    }

    pub(super) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Begins an attempt. From here on a grant belongs to the call only if the call
    /// [claims](Self::claim) it.
    pub(super) fn begin(&self, stake: Stake) {
        let mut mine = self.stake.lock();
        // Reset while `stake` is locked, since `take_back` reads the receipt under the same lock.
        self.receipt.begin();
        *mine = Some(AtStake {
            stake,
            is_claimed: false,
            taken_back: None,
        });
    }

    /// Makes the grant of an attempt the call's own. Returns `false` if it has been or will be taken back.
    pub(super) fn claim(&self) -> bool {
        let mut mine = self.stake.lock();
        let mine = mine.as_mut().filter(|mine| mine.taken_back.is_none());
        mine.is_some_and(|mine| !std::mem::replace(&mut mine.is_claimed, true))
    }

    /// Returns `true` if the grant of the attempt is the call's own.
    pub(super) fn has_claimed(&self) -> bool {
        self.stake.lock().as_ref().is_some_and(|mine| mine.is_claimed)
    }

    /// Ends an attempt. Returns what was at stake.
    pub(super) fn end(&self) -> Option<Stake> {
        Some(self.stake.lock().take()?.stake)
    }

    /// Keeps a lock that the call waits to use. From here on it belongs to the call only if the call
    /// [claims](Self::claim_kept) it.
    pub(super) fn keep(&self, guard: Guard) {
        *self.kept.lock() = Some(Box::new(guard));
    }

    /// Returns that lock, or `None` if the call was not polled and has lost it.
    pub(super) fn claim_kept(&self) -> Option<Box<Guard>> {
        self.kept.lock().take()
    }

    /// Returns `true` while the call has, or may be granted, a lock.
    fn may_have_a_lock(&self) -> bool {
        self.receipt.may_grant() || self.kept.lock().is_some()
    }

    /// Gives back the lock that the call waits to use, if the call has been asleep for as long as it
    /// may wait: it would fail if it were polled now.
    fn give_back_kept(&self, backend: &Backend, now: Moment) {
        let limit = backend.replicas_within().max(CLAIMS_WITHIN);
        if self.sign.owed_for(now).is_some_and(|asleep| asleep >= limit) {
            // Dropped while nothing is locked.
            drop(self.claim_kept());
        }
    }

    /// Releases any grant of the store to the call if the call has been asleep for too long.
    fn take_back(&self, backend: &Arc<Backend>, now: Moment) {
        let losses = self.losses.load(Ordering::Relaxed).min(8);
        let limit = CLAIMS_WITHIN.saturating_mul(1 << losses).min(CLAIMS_WITHIN_AT_LAST);
        let stake = {
            let mut mine = self.stake.lock();
            // Checked while `stake` is locked: the call may have been polled meanwhile, and have
            // begun another attempt.
            let is_asleep = self.sign.owed_for(now).is_some_and(|asleep| asleep >= limit);
            let is_open = |mine: &&mut AtStake| is_asleep && !mine.is_claimed && self.receipt.may_grant();
            let Some(mine) = mine.as_mut().filter(is_open) else {
                return;
            };
            // Released again, but only after `UNDER_WAY`: the call's runtime may stand still that
            // long before it sends the request.
            if mine.taken_back.is_some_and(|at| now.since(at) < UNDER_WAY) {
                return;
            }
            if mine.taken_back.replace(now).is_none() {
                self.losses.fetch_add(1, Ordering::Relaxed);
            }
            mine.stake.clone()
        };
        // From here on the call cannot claim the grant. `stake` is unlocked, since some stores wake
        // other calls at once.
        stake.give_back(backend, &self.receipt, true);
    }
}

impl Receive<Attempt> for Caller {
    fn receive(&self, answer: Result<Attempt, StoreError>) {
        self.answer.put(answer);
        self.sign.wake();
    }
}

/// An attempt that was sent at once. Completes with its answer. Dropping it gives the answer up.
pub(super) struct Asked<'a> {
    pub(super) caller: &'a Caller,
    /// `None` if it was sent in a batch: the caller then receives the answer.
    pub(super) by_itself: Option<StoreFuture<'static, Attempt>>,
    /// `true` if it is to be made again, by `acquire`, should it have had no effect.
    pub(super) is_first_try: bool,
}

impl Future for Asked<'_> {
    type Output = Result<Attempt, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.caller.is_polled(cx);
        match &mut self.by_itself {
            Some(answer) => answer.as_mut().poll(cx),
            None => self.caller.answer.poll(),
        }
    }
}

/// The calls of one manager that ask the store.
pub(super) struct Callers {
    backend: Arc<Backend>,
    places: Arc<dyn Places>,
    lists: Sharded<Mutex<List>>,
}

/// The calls that began in some threads.
#[derive(Default)]
struct List {
    listed: Slab<Listed>,
    /// `true` while the watchdog looks at the calls.
    watched: bool,
    /// `true` if a call has come since the watchdog's last look.
    busy: bool,
    /// The time of the last look.
    looked: Option<Moment>,
}

#[derive(Clone)]
struct Listed {
    caller: Arc<Caller>,
    front: Option<Ahead>,
}

impl Listed {
    fn may_be_in_the_way(&self, now: Moment) -> bool {
        let sign = &self.caller.sign;
        let is_due = self.front.is_some() && !sign.was_asked_within(ASK_EVERY, now);
        is_due || sign.is_owed() || self.caller.may_have_a_lock()
    }
}

/// A place or lead behind which other calls wait.
#[derive(Clone)]
pub(super) enum Ahead {
    /// The place `number` in the line for `key`.
    Place {
        key: LineKey,
        number: u64,
    },
    Lead(Arc<dyn Lead>),
}

/// The lines of a manager, as the lock thread sees them.
pub(super) trait Places: Send + Sync {
    /// Gives a place to the next call.
    fn revoke(&self, key: &LineKey, number: u64);

    /// Returns `true` if calls wait behind a place.
    fn is_followed(&self, key: &LineKey, number: u64) -> bool;
}

/// The lead of a flight, as the lock thread sees it.
pub(super) trait Lead: Send + Sync {
    /// Gives it to the next call.
    fn revoke(&self);

    /// Returns `true` if calls wait behind it.
    fn is_followed(&self) -> bool;
}

impl Ahead {
    fn revoke(&self, places: &dyn Places) {
        match self {
            Self::Place { key, number } => places.revoke(key, *number),
            Self::Lead(lead) => lead.revoke(),
        }
    }

    fn is_followed(&self, places: &dyn Places) -> bool {
        match self {
            Self::Place { key, number } => places.is_followed(key, *number),
            Self::Lead(lead) => lead.is_followed(),
        }
    }
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed: usize = self.lists.iter().map(|list| list.lock().listed.len()).sum();
        f.debug_tuple("Callers").field(&listed).finish()
    }
}

impl Callers {
    pub(super) fn new(backend: &Arc<Backend>, places: Arc<dyn Places>) -> Arc<Self> {
        Arc::new(Self {
            backend: Arc::clone(backend),
            places,
            lists: Sharded::default(),
        })
    }

    fn list(&self, number: usize) -> MutexGuard<'_, List> {
        self.lists.at(number).lock()
    }

    /// Checks that the calls of a list which block others are polled. Returns `false` if there are none to
    /// look at for now.
    pub(super) fn sweep(&self, number: usize, now: Moment) -> bool {
        let mut list = self.list(number);
        if list.listed.is_empty() && !list.busy {
            list.watched = false;
            list.looked = None;
            list.listed.shrink_to_fit();
            return false;
        }
        list.busy = false;
        let stood_still = list.looked.replace(now).is_some_and(|at| now.since(at) >= STOOD_STILL);
        // Skips the calls that block no other call: thousands may wait in the store's queue.
        let listed = list.listed.iter().map(|(_, listed)| listed);
        let listed: Vec<_> = listed.filter(|listed| listed.may_be_in_the_way(now)).cloned().collect();
        drop(list);
        for Listed { caller, front } in listed {
            let asleep = caller.sign.owed_for(now);
            if stood_still && asleep.is_some() {
                caller.sign.restart(now);
                caller.sign.wake();
                continue;
            }
            let is_due = asleep.is_some() || !caller.sign.was_asked_within(ASK_EVERY, now);
            let mut is_in_the_way = caller.may_have_a_lock();
            if is_due && let Some(front) = &front {
                if asleep.is_some_and(|asleep| asleep >= ANSWERS_WITHIN) {
                    front.revoke(&*self.places);
                } else {
                    is_in_the_way |= front.is_followed(&*self.places);
                }
            }
            match asleep {
                Some(_) => {
                    caller.take_back(&self.backend, now);
                    caller.give_back_kept(&self.backend, now);
                }
                None if is_in_the_way => {
                    caller.sign.ask(now);
                    caller.sign.wake();
                }
                // The call is in no other call's way: it is not asked, and not looked at again for
                // a while.
                None if is_due => caller.sign.restart(now),
                None => {}
            }
        }
        true
    }
}

/// A call that asks the store, from its first question to its last answer.
pub(super) struct Asking {
    callers: Arc<Callers>,
    /// The number of its list, and its place in that, if it is listed.
    place: Option<(usize, usize)>,
    pub(super) caller: Arc<Caller>,
}

impl Asking {
    /// Starts watching `caller`; `front` is the place or lead that it has.
    pub(super) fn begin(
        callers: &Arc<Callers>,
        watchdog: &Arc<Watchdog>,
        caller: Arc<Caller>,
        front: Option<Ahead>,
    ) -> Self {
        // Its time begins now: as a follower, it may have been asked for a sign.
        caller.sign.give();
        let mut place = None;
        // A paused clock, which only a test has, does not measure for how long a call was not
        // polled. No call is listed then.
        if watchdog.timer() == Timer::LockThread {
            let listed = Listed {
                caller: Arc::clone(&caller),
                front,
            };
            let number = callers.lists.here();
            let mut list = callers.list(number);
            place = Some((number, list.listed.insert(listed)));
            list.busy = true;
            let is_watched = std::mem::replace(&mut list.watched, true);
            drop(list);
            if !is_watched {
                let host = callers.backend.host().clone();
                let callers = Arc::downgrade(callers);
                watchdog.watch_calls(&host, move |now| {
                    callers.upgrade().is_some_and(|callers| callers.sweep(number, now))
                });
            }
        }
        Self {
            callers: Arc::clone(callers),
            place,
            caller,
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // In a forked child, the list may have been locked by a thread that does not exist here.
        if let Some((list, place)) = self.place.filter(|_| !self.callers.backend.host().is_forked()) {
            let listed = self.callers.list(list).listed.try_remove(place);
            drop(listed);
        }
    }
}

#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::LockManager;
    use crate::acquire::shared::Shared;
    use crate::acquire::unconfirmed::UnconfirmedAcquire;
    use crate::key::Keys;
    use crate::store::LockMode;
    use crate::store::holder::new_value;

    /// The interval at which the lock thread looks in these tests.
    const STEP: Duration = Duration::from_millis(50);

    fn manager() -> Arc<Shared> {
        Arc::clone(LockManager::builder("memory://").build().unwrap().shared())
    }

    /// Lists a call that only the test looks at.
    fn listed(manager: &Shared) -> Arc<Caller> {
        let caller: Arc<Caller> = Arc::default();
        let listed = Listed {
            caller: Arc::clone(&caller),
            front: None,
        };
        let mut all = manager.callers.list(manager.callers.lists.here());
        all.listed.clear();
        all.listed.insert(listed);
        caller
    }

    /// Polls the call, which sends a request.
    fn send<'a>(manager: &'a Arc<Shared>, caller: &Arc<Caller>) -> UnconfirmedAcquire<'a> {
        caller.is_polled(&Context::from_waker(Waker::noop()));
        let lease = Duration::from_secs(30);
        let key = "k".into();
        let keys = Keys::from(&key);
        let value = new_value(manager.host(), "f", &LockMode::Exclusive).unwrap();
        let pending = UnconfirmedAcquire::arm(&manager.backend, caller, Stake::new(keys, value, lease, None));
        pending.receipt().sent_on(1);
        pending
    }

    fn is_taken_back(caller: &Caller) -> bool {
        let stake = caller.stake.lock();
        stake.as_ref().is_some_and(|stake| stake.taken_back.is_some())
    }

    /// Looks repeatedly until the call loses its possible grant, and returns the time since the
    /// first look.
    fn taken_after(manager: &Arc<Shared>, caller: &Caller, from: Moment) -> Duration {
        let mut now = from;
        while !is_taken_back(caller) {
            assert!(now.since(from) < 2 * CLAIMS_WITHIN_AT_LAST, "it is never taken back");
            now = now.after(STEP);
            manager.callers.sweep(manager.callers.lists.here(), now);
        }
        now.since(from.after(STEP))
    }

    #[test]
    fn a_call_has_its_time_anew_after_the_whole_process_stood_still() {
        let manager = manager();
        let caller = listed(&manager);
        let pending = send(&manager, &caller);
        let mut now = Moment::from_nanos(1_000_000_000);
        manager.callers.sweep(manager.callers.lists.here(), now);
        // The process stands still twice, the second time for longer than a call that is not polled
        // may keep a grant.
        for stood_still in [STOOD_STILL, CLAIMS_WITHIN_AT_LAST] {
            let almost = now.after(CLAIMS_WITHIN.saturating_sub(STEP));
            while now < almost {
                now = now.after(STEP);
                manager.callers.sweep(manager.callers.lists.here(), now);
            }
            now = now.after(stood_still);
            manager.callers.sweep(manager.callers.lists.here(), now);
            assert!(!is_taken_back(&caller), "judged after {stood_still:?}");
        }
        // From there on the lock thread judges it like any other call.
        assert_eq!(taken_after(&manager, &caller, now), CLAIMS_WITHIN.saturating_sub(STEP));
        assert!(pending.claim().is_none());
    }

    #[test]
    fn a_call_is_judged_while_the_lock_thread_is_only_slow() {
        let manager = manager();
        let caller = listed(&manager);
        let pending = send(&manager, &caller);
        let mut now = Moment::from_nanos(1_000_000_000);
        for _ in 0..4 {
            manager.callers.sweep(manager.callers.lists.here(), now);
            now = now.after(STOOD_STILL.saturating_sub(Duration::from_nanos(1)));
        }
        assert!(is_taken_back(&caller));
        drop(pending);
    }

    #[test]
    fn a_call_has_twice_the_time_after_each_grant_it_has_lost() {
        let manager = manager();
        let caller = listed(&manager);
        for (nth, millis) in [800, 1_600, 3_200, 6_400, 12_000, 12_000].into_iter().enumerate() {
            let pending = send(&manager, &caller);
            let from = Moment::from_nanos(1_000_000_000).after(Duration::from_secs(60) * u32::try_from(nth).unwrap());
            // No pause between two looks: the process did not stand still.
            manager.callers.list(manager.callers.lists.here()).looked = None;
            let taken = taken_after(&manager, &caller, from);
            assert_eq!(taken, Duration::from_millis(millis), "after {nth} losses");
            assert!(pending.claim().is_none(), "the call has what it has lost");
        }
        // Another call begins with the shortest time.
        let caller = listed(&manager);
        let pending = send(&manager, &caller);
        manager.callers.list(manager.callers.lists.here()).looked = None;
        let from = Moment::from_nanos(1_000_000_000);
        assert_eq!(taken_after(&manager, &caller, from), CLAIMS_WITHIN);
        drop(pending);
    }
}
