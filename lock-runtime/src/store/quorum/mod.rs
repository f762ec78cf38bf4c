//! A store that keeps each lock on several independent masters: RedLock. The holder of a lock is the call with
//! the votes of a majority of them.
//!
//! An uncontended attempt asks all masters at once. Where the lock is busy, the call waits in the queue of
//! one master, the first in order, and collects the other votes when its turn comes: so the calls go one
//! after the other, and do not take votes from each other. A release asks all masters. Without
//! contention, a lock thus costs two round trips, and two commands at each master.
//!
//! Three rules keep two holders apart:
//! - A vote is a key with an expiry at one master, which has one value at a time. The lock's deadline is that
//!   of the majority-th latest vote.
//! - A value whose vote was given back at a master does not count there again: a release that arrives late
//!   would take the new vote as well. Each further round has a value of its own.
//! - A master that may have forgotten votes gives none until their leases are over.
//!
//! The choice of the first master, and of where calls wait, only decides in which order calls get the lock.
//!
//! Locks are exclusive. The other modes count their holders in one place, and `fair` needs one queue: no
//! majority can be made of several counts or orders that differ.

mod attempt;
mod ballot;
mod count;
mod held;
mod master;
mod operators;
mod queue;
mod requests;
pub(crate) mod url;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use self::attempt::{Wanted, Whom};
use self::ballot::Ballots;
use self::count::Count;
use self::master::Master;
use crate::host::{Clock, Host, Moment, Mutex, Timer, TokioClock};
use crate::key::KeyProblem;
use crate::store::access::Access;
use crate::store::health::ServerHealth;
use crate::store::info::LockInfo;
use crate::store::{
    Abandoned, AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Fence, FencingToken, HolderValue, Lane,
    LockMode, LockPage, LockStore, LossHint, LossReceiver, Ownership, QueueOutcome, QueueRequest, Receipt,
    ReleaseRequest, RenewRequest, StoreError, StoreFuture, Tracked,
};

/// The time for which a key that was busy counts as wanted by others.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// The number of keys that a store remembers as busy.
const REMEMBERED_KEYS: usize = 1024;
/// The time for which a call with the first vote asks for the others again, before it waits in the queue of
/// the master where the lock is busy.
const SPLIT_FOR: Duration = Duration::from_millis(100);

/// A store that keeps each lock on several independent masters, and grants it to the caller with the votes of
/// a majority: RedLock.
///
/// [`LockManager::connect`](crate::LockManager::connect) creates one from a `redlock://` URL, and
/// [`LockManager::builder_quorum`](crate::LockManager::builder_quorum) from stores. This type is only needed
/// to use a store without a manager.
pub struct QuorumStore(Arc<Quorum>);

#[derive(Debug)]
struct Quorum {
    host: Host,
    /// In the order in which all processes name them.
    masters: Box<[Arc<Master>]>,
    response_timeout: Duration,
    longest_lease: OnceLock<Duration>,
    /// The clock of all waits: tokio's if all masters live in this process.
    clock: Arc<dyn Clock>,
    /// `true` if waits follow the clock of the caller's runtime while that clock is paused.
    follows_paused_clocks: bool,
    /// `true` if all masters answer without waiting.
    is_immediate: bool,
    ballots: Ballots,
    /// The master where each key was seen busy last, and when.
    busy: Mutex<HashMap<Box<str>, (usize, Moment)>>,
    /// Notified when a master can vote again, or can no longer.
    changed: Notify,
    /// The number of calls that wait in a queue.
    waiting: AtomicUsize,
    /// `true` while a task asks the masters regularly.
    is_calling: AtomicBool,
    /// Counts the releases that the store itself leaves to the lock thread.
    cleaning: Tracked,
    place: Option<String>,
    health: watch::Sender<Vec<ServerHealth>>,
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.masters.iter().map(|master| &master.name);
        f.debug_tuple("QuorumStore").field(&names.collect::<Vec<_>>()).finish()
    }
}

impl QuorumStore {
    /// Creates a store of several masters, which all processes must give in the same order. Each has a name
    /// for messages, such as its address. A master that gives no answer for half of `response_timeout` is
    /// passed over until it answers.
    ///
    /// # Errors
    /// Fails if their number is even, or less than three, or if two have one name.
    #[cfg(feature = "custom-store")]
    pub fn of(
        masters: impl IntoIterator<Item = (String, Arc<dyn LockStore>)>,
        response_timeout: Duration,
    ) -> Result<Self, StoreError> {
        Self::new(&Host::process(), masters.into_iter().collect(), response_timeout)
    }

    pub(crate) fn new(
        host: &Host,
        masters: Vec<(String, Arc<dyn LockStore>)>,
        response_timeout: Duration,
    ) -> Result<Self, StoreError> {
        check_number(masters.len())?;
        let mut names = HashSet::new();
        if let Some((twice, _)) = masters.iter().find(|(name, _)| !names.insert(name)) {
            return Err(StoreError::permanent(format!(
                "it names `{twice}` twice, which would vote twice: give each master once"
            )));
        }
        host.start().map_err(StoreError::permanent)?;
        let is_immediate = masters.iter().all(|(_, store)| store.release_is_immediate());
        Ok(Self::start(Quorum::of(host, masters, response_timeout, is_immediate)))
    }

    fn start(quorum: Quorum) -> Self {
        let quorum = Arc::new(quorum);
        quorum.follow_health();
        Self(quorum)
    }

    /// Refuses longer leases, since the masters stay closed for no longer after they may have forgotten
    /// some.
    pub(crate) fn with_longest_lease(self, lease: Duration) -> Self {
        let _ = self.0.longest_lease.set(lease);
        self
    }
}

/// Returns an error if so many masters make no quorum.
fn check_number(masters: usize) -> Result<(), StoreError> {
    let reason = match masters {
        0 => "a quorum needs the addresses of its masters",
        1 => "a quorum of one master is no safer than that server alone",
        2 => "a quorum of two masters stops when either of them does",
        even if even % 2 == 0 => {
            "a quorum of an even number of masters survives the loss of no more of them than one with a master less"
        }
        _ => return Ok(()),
    };
    Err(StoreError::permanent(format!("{reason}; give 3 or 5 masters")))
}

/// Returns `true` if a server that said this cannot be a master of a quorum.
fn is_misplaced(error: &StoreError) -> bool {
    let said = error.cause().to_string();
    let kinds = ["is a sentinel", "is a node of a cluster"];
    said.starts_with("READONLY ") || kinds.iter().any(|kind| said.contains(kind))
}

impl Quorum {
    fn of(
        host: &Host,
        masters: Vec<(String, Arc<dyn LockStore>)>,
        response_timeout: Duration,
        is_immediate: bool,
    ) -> Self {
        let follows_paused_clocks = masters.iter().all(|(_, store)| store.release_is_immediate());
        let place = masters.iter().map(|(_, store)| store.place().map(str::to_owned));
        let place: Option<Vec<_>> = place.collect();
        let place = place.map(|mut places| {
            places.sort_unstable();
            places.join(",")
        });
        let master =
            |(name, store): (String, _)| Master::new(name, Access::new(host.clone(), store, None, response_timeout));
        let masters: Box<[_]> = masters.into_iter().map(master).collect();
        let (health, _) = watch::channel(Vec::new());
        Self {
            host: host.clone(),
            masters,
            response_timeout,
            longest_lease: OnceLock::new(),
            clock: if follows_paused_clocks {
                Arc::new(TokioClock)
            } else {
                host.clock()
            },
            follows_paused_clocks,
            is_immediate,
            ballots: Ballots::default(),
            busy: Mutex::default(),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
            is_calling: AtomicBool::new(false),
            cleaning: Tracked {
                held: TaskTracker::new(),
                unanswered: TaskTracker::new(),
            },
            place,
            health,
        }
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn timer(&self) -> Timer {
        if self.follows_paused_clocks {
            Timer::of_tokio()
        } else {
            Timer::LockThread
        }
    }

    /// Returns the master where the key was busy last, if that was not long ago.
    fn busy_at(&self, key: &str) -> Option<usize> {
        let now = self.now();
        let busy = self.busy.lock();
        let (at, seen) = *busy.get(key)?;
        (now.since(seen) < BUSY_FOR).then_some(at)
    }

    /// Remembers where a call that finds the key busy has to wait.
    fn note_busy(&self, key: &str, at: usize) {
        let now = self.now();
        let mut busy = self.busy.lock();
        if let Some(known) = busy.get_mut(key) {
            *known = (at, now);
            return;
        }
        if busy.len() >= REMEMBERED_KEYS {
            busy.retain(|_, (_, seen)| now.since(*seen) < BUSY_FOR);
        }
        if busy.len() >= REMEMBERED_KEYS {
            busy.clear();
        }
        busy.insert(key.into(), (at, now));
    }

    async fn acquire(self: &Arc<Self>, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        request.receipt.sent_on(1);
        let keys = std::slice::from_ref(request.key);
        let wanted = Wanted {
            ttl: request.ttl,
            fence: request.fence,
            tell_remaining: request.tell_remaining,
            receipt: request.receipt,
        };
        Ok(match self.take(keys, request.value, wanted).await? {
            AttemptAll::Granted { fence } => Attempt::Granted { fence },
            AttemptAll::Busy { holder, remaining, .. } => Attempt::Busy { holder, remaining },
        })
    }

    async fn acquire_all(self: &Arc<Self>, request: &AcquireAllRequest<'_>) -> Result<AttemptAll, StoreError> {
        request.receipt.sent_on(1);
        if let Some(former) = request.former {
            for key in request.keys {
                let receipt = Receipt::default();
                let release = ReleaseRequest::plain(key, former, &receipt);
                self.release_votes(&release).await?;
            }
        }
        let wanted = Wanted {
            ttl: request.ttl,
            fence: request.fence,
            tell_remaining: true,
            receipt: request.receipt,
        };
        // Keeps no keys before the busy one, so that a minority of votes never holds others up.
        self.take(request.keys, request.value, wanted).await
    }

    async fn take(
        self: &Arc<Self>,
        keys: &[Arc<str>],
        value: &HolderValue,
        wanted: Wanted<'_>,
    ) -> Result<AttemptAll, StoreError> {
        if !self.sees_majority() {
            return Err(self.too_few(None));
        }
        let now = self.now();
        let ballot = self.ballots.enter(keys, value, self.masters.len(), now, wanted.ttl);
        // Where others want the lock, asks the first master alone at first: a call that is going to wait does
        // not take votes from the one that has the first vote.
        let is_wanted = keys.iter().any(|key| self.busy_at(key).is_some()) && ballot.stood_at().is_none();
        let whom = if is_wanted { Whom::First } else { Whom::All };
        let (mut counted, mut tally, mut late) = self.ask_masters(&ballot, wanted, whom).await;
        let mut first = tally.first_granted().filter(|_| ballot.stood_at().is_none());
        if whom == Whom::First && counted == Count::Open {
            let next = first.map_or(Whom::All, Whom::AllBut);
            let fence = first.and_then(|first| tally.fence_of(first));
            if let Some(first) = first {
                ballot.stand_at(first);
            }
            (counted, tally, late) = self.ask_masters(&ballot, wanted, next).await;
            match first {
                Some(first) => tally.add_fence(first, fence),
                None => first = tally.first_granted(),
            }
        }
        // Calls that ask at the same time may share the votes. The one with the first vote keeps that and
        // asks again, and the others give theirs back.
        let kept = first.filter(|_| !self.is_immediate);
        if let Some(first) = kept {
            let fence = tally.fence_of(first);
            let until = self.now().after(SPLIT_FOR.min(wanted.ttl / 2));
            for round in 1.. {
                if !matches!(counted, Count::Busy(at) if at > first) || ballot.is_over() || self.now() >= until {
                    break;
                }
                ballot.stand_at(first);
                self.give_back(&ballot, &tally, late, Some(first), wanted.ttl).await;
                self.host.sleep(self.timer(), self.pause(round)).await;
                ballot.begin_round(round);
                (counted, tally, late) = self.ask_masters(&ballot, wanted, Whom::AllBut(first)).await;
                tally.add_fence(first, fence);
            }
        }
        if counted == Count::Won {
            ballot.keep(late);
            self.send_late(&ballot, wanted.ttl);
            let fence = if wanted.fence {
                Some(self.settle_fence(&ballot, &tally).await?)
            } else {
                None
            };
            return Ok(AttemptAll::Granted { fence });
        }
        ballot.end();
        self.give_back(&ballot, &tally, late, None, wanted.ttl).await;
        self.ballots.remove(value.as_str(), &ballot);
        let Count::Busy(at) = counted else {
            return Err(self.too_few(Some(&mut tally)));
        };
        let seen = tally.seen_at(at);
        if let Some(key) = keys.get(seen.key) {
            self.note_busy(key, at);
        }
        Ok(AttemptAll::Busy {
            at: seen.key,
            holder: seen.holder,
            remaining: seen.remaining,
        })
    }

    /// Connects to all masters. A majority is enough.
    async fn reach(self: &Arc<Self>) -> Result<(), StoreError> {
        let limit = self.response_timeout;
        let timer = self.timer();
        let asked = self.masters.iter().map(|master| {
            let connects = async {
                master.access.store.connect().await?;
                master.access.store.identity().await
            };
            crate::store::within(&self.host, timer, limit, connects)
        });
        let answers = join_all(asked).await;
        let mut known: HashMap<Box<str>, &Master> = HashMap::new();
        let mut reached = 0;
        for (at, (master, answer)) in self.masters.iter().zip(answers).enumerate() {
            match answer {
                Ok(Some(identity)) => {
                    reached += 1;
                    if let Some(other) = known.insert(identity, master) {
                        return Err(StoreError::permanent(format!(
                            "`{}` and `{}` are the same server, which would vote twice",
                            other.name, master.name
                        ))
                        .advise("give each master once"));
                    }
                }
                Ok(None) => reached += 1,
                Err(error) if error.opens_in().is_some() => {
                    self.has_failed(at, &error);
                    tracing::info!(master = &*master.name, %error, "a master of the quorum does not vote yet");
                    reached += 1;
                }
                Err(error) if is_misplaced(&error) => {
                    return Err(error
                        .into_permanent()
                        .about(&master.name)
                        .advise("give servers of their own as the masters, which are no replicas, sentinels or nodes of a cluster"));
                }
                Err(error) if error.is_permanent() => return Err(error.about(&master.name)),
                Err(error) => {
                    self.has_failed(at, &error);
                    tracing::warn!(master = &*master.name, %error, "a master of the quorum is not reached");
                }
            }
        }
        if reached < self.majority() {
            return Err(self.too_few(None));
        }
        Ok(())
    }

    /// Keeps the health of all masters together.
    fn follow_health(self: &Arc<Self>) {
        let receivers = self.masters.iter().filter_map(|master| master.access.store.health());
        let receivers: Vec<watch::Receiver<Vec<ServerHealth>>> = receivers.collect();
        let all = {
            let receivers = receivers.clone();
            move || -> Vec<ServerHealth> {
                receivers
                    .iter()
                    .flat_map(|receiver| receiver.borrow().clone())
                    .collect()
            }
        };
        self.health.send_replace(all());
        for mut receiver in receivers {
            let (quorum, all) = (Arc::downgrade(self), all.clone());
            let follows = async move {
                while receiver.changed().await.is_ok() {
                    let Some(quorum) = quorum.upgrade() else { return };
                    quorum.health.send_replace(all());
                }
            };
            // Without a task, the health stays as it was at first.
            drop(self.host.spawn(follows));
        }
    }
}

/// Calls a method of an `Arc<Quorum>` in a boxed future.
macro_rules! boxed {
    ($quorum:expr, |$this:ident| $future:expr) => {{
        let $this = &$quorum;
        Box::pin(async move { $future.await })
    }};
}

impl LockStore for QuorumStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        boxed!(self.0, |quorum| quorum.acquire(request))
    }

    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        boxed!(self.0, |quorum| quorum.acquire_all(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        Box::pin(async move {
            let verdicts = self.0.renew_votes(requests).await;
            let verdicts: Option<Vec<_>> = verdicts.into_iter().collect();
            verdicts.ok_or_else(|| self.0.too_few(None).into_unknown())
        })
    }

    fn renew_each<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Option<Ownership>>> {
        Box::pin(async move {
            let verdicts = self.0.renew_votes(requests).await;
            if !verdicts.is_empty() && verdicts.iter().all(Option::is_none) {
                return Err(self.0.too_few(None).into_unknown());
            }
            Ok(verdicts)
        })
    }

    fn health(&self) -> Option<watch::Receiver<Vec<ServerHealth>>> {
        let has_some = !self.0.health.borrow().is_empty();
        has_some.then(|| self.0.health.subscribe())
    }

    fn may_miss(&self) -> usize {
        self.0.masters.len() - self.0.majority()
    }

    fn place(&self) -> Option<&str> {
        self.0.place.as_deref()
    }

    fn skew(&self) -> Duration {
        let skews = self.0.masters.iter().map(|master| master.access.store.skew());
        skews.max().unwrap_or_default()
    }

    fn refuses(&self, key: &str) -> Option<KeyProblem> {
        self.0
            .masters
            .iter()
            .find_map(|master| master.access.store.refuses(key))
    }

    fn renewal_is_late(&self, _: Lane) {
        for (at, master) in self.0.masters.iter().enumerate() {
            if master.is_up() {
                master.access.store.renewal_is_late(Lane::default());
                self.0.suspect(at);
            }
        }
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        boxed!(self.0, |quorum| quorum.release_votes(request))
    }

    fn abandon(&self, abandoned: &Abandoned) -> bool {
        self.0.abandon_votes(abandoned);
        true
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        Box::pin(async move { self.0.fence_votes(&key.into(), value).await })
    }

    fn raise_fence<'a>(
        &'a self,
        key: &'a str,
        value: &'a HolderValue,
        fence: FencingToken,
    ) -> StoreFuture<'a, Ownership> {
        let _ = (key, value, fence);
        Box::pin(std::future::ready(Err(StoreError::permanent(
            "a quorum cannot be a master of another one",
        ))))
    }

    fn connect(&self) -> StoreFuture<'_, ()> {
        boxed!(self.0, |quorum| quorum.reach())
    }

    fn check_setup(&self, min_replicas: u32) -> StoreFuture<'_, Vec<String>> {
        boxed!(self.0, |quorum| quorum.look_at_setup(min_replicas))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        boxed!(self.0, |quorum| quorum.stand(request))
    }

    fn report_losses(&self, receiver: LossReceiver) -> bool {
        let mut any = false;
        for (at, master) in self.0.masters.iter().enumerate() {
            let (quorum, receiver) = (Arc::downgrade(&self.0), Arc::clone(&receiver));
            let back = Arc::downgrade(&master.access);
            any |= master.access.store.report_losses(Arc::new(move |hint| {
                if let LossHint::Back(_) = hint {
                    if let Some(access) = back.upgrade() {
                        access.back.notify_waiters();
                    }
                    if let Some(quorum) = quorum.upgrade() {
                        quorum.suspect(at);
                    }
                }
                // What one master reports is a hint: the runtime asks, and a majority answers.
                receiver(hint.in_lane(Lane::default()));
            }));
        }
        any
    }

    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        boxed!(self.0, |quorum| quorum.look_at(key))
    }

    fn list<'a>(&'a self, pattern: &'a str, from: u64) -> StoreFuture<'a, LockPage> {
        boxed!(self.0, |quorum| quorum.list_page(pattern, from))
    }

    fn force_release<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        boxed!(self.0, |quorum| quorum.take_away(key))
    }

    fn open_now(&self) -> StoreFuture<'_, bool> {
        boxed!(self.0, |quorum| quorum.open_all())
    }

    fn longest_lease(&self) -> Option<Duration> {
        self.0.longest_lease.get().copied()
    }

    fn refuses_mode(&self, mode: &LockMode, fair: bool) -> bool {
        *mode != LockMode::Exclusive || fair
    }

    fn release_is_immediate(&self) -> bool {
        self.0.follows_paused_clocks
    }

    fn acquire_now(&self, request: &AcquireRequest<'_>) -> Option<Result<Attempt, StoreError>> {
        if !self.0.is_immediate {
            return None;
        }
        self.acquire(request).now_or_never()
    }

    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Ownership> {
        if !self.0.is_immediate {
            return None;
        }
        self.release(request).now_or_never()?.ok()
    }
}

#[cfg(test)]
mod tests;
