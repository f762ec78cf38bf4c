//! A store under the test's control: when a request is sent, when it is carried out, when and how it is answered.
//!
//! It keeps the order that a connection keeps: what was sent before a release on the same
//! connection is carried out before it. On a cut connection the order is lost: requests in flight
//! arrive after the first release.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use lock_runtime::clock::Moment;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, LockStore, Ownership, QueueOutcome, QueueRequest, ReleaseRequest,
    RenewRequest, StoreError, StoreFuture,
};
use lock_runtime::{Backoff, Holder, LockManager, LockRequest};
use lock_tests::{PATIENCE, eventually};

use crate::dropping::{count_polls, drop_after, noting_gaps};

/// How an acquire is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Truth,
    /// The store did not do it, and says so.
    Refusal,
    /// Something went wrong after it was carried out, or before.
    Unknown,
    Never,
}

/// What becomes of the first place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The lock is handed to it.
    Handed,
    /// The lock is handed to it, and it hears of that so late that the lease has to be renewed first.
    HandedLate,
    /// It was lost.
    Lapsed,
    Unavailable,
    /// The store did not note it, and says so.
    Refused,
    /// Something went wrong after it was noted, or before.
    Unknown,
    Kept,
}

/// What happens to a call in the queue, in polls.
#[derive(Clone, Copy, Debug)]
struct Queueing {
    until_sent: usize,
    until_joined: usize,
    until_answered: usize,
    until_handed: usize,
    until_told: usize,
    place: Place,
}

/// What happens to an acquire, in polls.
#[derive(Clone, Copy, Debug)]
struct Script {
    until_sent: usize,
    until_applied: usize,
    until_answered: usize,
    answer: Answer,
    /// Somebody else has the key.
    busy: bool,
    /// The connection is cut as soon as the request is sent: it arrives all the same, but after the first release.
    cut: bool,
    /// A release needs so many polls.
    release_polls: usize,
    /// There is a queue. The second time that it is asked, the lock is handed over at once.
    queueing: Option<Queueing>,
}

#[derive(Debug, Default)]
struct Tables {
    slots: HashMap<String, String>,
    /// Sent and not yet carried out.
    on_its_way: Vec<(String, String)>,
    /// Those in the queue, and the joins that are on their way.
    queue: Vec<String>,
    joining: Vec<String>,
    queued: Vec<String>,
    /// What each acquire's fate was, in the order they were sent.
    sent: Vec<String>,
    /// Values whose acquire was answered with "busy" or a refusal.
    known_not_taken: Vec<String>,
    /// Values that a release was carried out for.
    released: Vec<String>,
    renewed: usize,
}

impl Tables {
    fn apply(&mut self, key: String, value: String) {
        self.slots.entry(key).or_insert(value);
    }

    fn deliver(&mut self) {
        for (key, value) in std::mem::take(&mut self.on_its_way) {
            self.apply(key, value);
        }
        for value in std::mem::take(&mut self.joining) {
            self.join(value);
        }
    }

    fn join(&mut self, value: String) {
        if self.slots.contains_key("k") {
            self.queue.push(value);
        } else {
            self.apply("k".to_owned(), value);
        }
    }

    /// Nothing is on its way, and whatever was sent was taken back or is known not to have been done.
    fn is_clean(&self) -> bool {
        let mut sent = self.sent.iter().chain(&self.queued);
        self.on_its_way.is_empty()
            && self.joining.is_empty()
            && self.queue.is_empty()
            && self.slots.values().all(|value| value == "another holder")
            && sent.all(|value| self.released.contains(value) || self.known_not_taken.contains(value))
    }

    /// Gives the lock back, to the first in the queue.
    fn hand_over(&mut self) {
        self.slots.remove("k");
        if !self.queue.is_empty() {
            let first = self.queue.remove(0);
            self.apply("k".to_owned(), first);
        }
    }
}

#[derive(Debug)]
struct Scripted {
    script: Script,
    tables: Mutex<Tables>,
}

/// The connections' numbers.
const FIRST: u64 = 1;
const SECOND: u64 = 2;

/// An acquire that was not carried out when it is dropped is on its way for ever, until something delivers it.
struct Sent<'a> {
    store: &'a Scripted,
    pair: Option<(String, String)>,
    join: Option<String>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let pair = self.pair.take();
        let join = self.join.take();
        let mut tables = self.store.tables();
        tables.on_its_way.extend(pair);
        tables.joining.extend(join);
    }
}

impl Scripted {
    fn new(script: Script) -> Arc<Self> {
        let store = Self {
            script,
            tables: Mutex::default(),
        };
        if script.busy {
            store.tables().apply("k".to_owned(), "another holder".to_owned());
        }
        Arc::new(store)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn acquire_by_script(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        let script = self.script;
        let (key, value) = (request.key.to_string(), request.value.as_str().to_owned());
        pending(script.until_sent).await;
        request.receipt.sent_on(FIRST);
        self.tables().sent.push(value.clone());
        let mut sent = Sent {
            store: self,
            pair: Some((key.clone(), value.clone())),
            join: None,
        };
        pending(script.until_applied).await;
        if script.answer != Answer::Refusal && !script.cut {
            sent.pair = None;
            self.tables().apply(key.clone(), value.clone());
        }
        pending(script.until_answered).await;
        match script.answer {
            Answer::Truth if script.cut => Err(StoreError::unknown("the connection was cut")),
            Answer::Truth => {
                let mut tables = self.tables();
                let holder = tables.slots.get(&key).cloned().unwrap_or_default();
                if holder == value {
                    return Ok(Attempt::Granted { fence: None });
                }
                tables.known_not_taken.push(value);
                Ok(Attempt::Busy {
                    holder: Some(Holder::new(holder)),
                    remaining: None,
                })
            }
            Answer::Refusal => {
                sent.pair = None;
                self.tables().known_not_taken.push(value);
                Err(StoreError::transient("out of memory"))
            }
            Answer::Unknown => Err(StoreError::unknown("the connection was reset")),
            Answer::Never => std::future::pending().await,
        }
    }

    async fn queue_by_script(&self, request: &QueueRequest<'_>, script: Queueing) -> Result<QueueOutcome, StoreError> {
        let value = request.value.as_str().to_owned();
        pending(script.until_sent).await;
        request.receipt.sent_on(FIRST);
        let again = {
            let mut tables = self.tables();
            tables.queued.push(value.clone());
            tables.queued.len() > 1
        };
        let granted = |since: Moment| Ok(QueueOutcome::Granted { fence: None, since });
        if again {
            // Behind the first one, which is being taken out of the queue.
            while !self.tables().queue.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut tables = self.tables();
            tables.hand_over();
            tables.join(value);
            return granted(request.clock.now());
        }
        let mut sent = Sent {
            store: self,
            pair: None,
            join: Some(value.clone()),
        };
        pending(script.until_joined).await;
        sent.join = None;
        if matches!(script.place, Place::Refused | Place::Unavailable) {
            self.tables().known_not_taken.push(value);
            return match script.place {
                Place::Refused => Err(StoreError::transient("out of memory")),
                _ => Ok(QueueOutcome::Unavailable),
            };
        }
        self.tables().join(value.clone());
        pending(script.until_answered).await;
        if script.place == Place::Unknown {
            return Err(StoreError::unknown("the connection was reset"));
        }
        request.receipt.answered();
        request
            .contention
            .see(Holder::new("another holder"), Some(Duration::from_secs(1)));
        pending(script.until_handed).await;
        match script.place {
            Place::Lapsed => {
                self.tables().queue.retain(|waiting| *waiting != value);
                return Ok(QueueOutcome::Lapsed);
            }
            Place::Kept => std::future::pending().await,
            _ => self.tables().hand_over(),
        }
        pending(script.until_told).await;
        let now = request.clock.now();
        let late = request.ttl.mul_f64(0.45);
        granted(match script.place {
            Place::HandedLate => Moment::from_nanos(now.as_nanos().saturating_sub(late.as_nanos().try_into().unwrap())),
            _ => now,
        })
    }

    async fn release_by_script(&self, request: &ReleaseRequest<'_>) -> Result<Ownership, StoreError> {
        let same = request.unanswered_on == Some(FIRST) && !self.script.cut;
        request.receipt.sent_on(if same { FIRST } else { SECOND });
        pending(self.script.release_polls).await;
        let mut tables = self.tables();
        if same {
            tables.deliver();
        }
        tables.released.push(request.value.as_str().to_owned());
        if request.queued.is_some() {
            tables.queue.retain(|value| value != request.value.as_str());
        }
        let verdict = match tables.slots.get(&**request.key) {
            Some(value) if value == request.value.as_str() => {
                tables.slots.remove(&**request.key);
                Ownership::Owned
            }
            Some(_) => Ownership::Foreign,
            None => Ownership::Gone,
        };
        // Only now does arrive what was sent on the connection that is gone.
        tables.deliver();
        Ok(verdict)
    }
}

/// Is pending so many times.
async fn pending(polls: usize) {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl LockStore for Scripted {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(self.acquire_by_script(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        Box::pin(async move {
            self.tables().renewed += requests.len();
            Ok(requests.iter().map(|_| Ownership::Owned).collect())
        })
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        Box::pin(self.release_by_script(request))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        match self.script.queueing {
            Some(script) => Box::pin(self.queue_by_script(request, script)),
            None => Box::pin(async { Ok(QueueOutcome::Unavailable) }),
        }
    }

    fn fence<'a>(&'a self, _: &'a str, _: &'a HolderValue) -> StoreFuture<'a, Fence> {
        Box::pin(async { Ok(Fence::NotOwned(Ownership::Gone)) })
    }
}

fn manager(store: &Arc<Scripted>) -> LockManager {
    LockManager::builder("scripted")
        .store(Arc::clone(store) as _)
        .prefix("")
        .default_lease(Duration::from_secs(60))
        .response_timeout(match store.script.answer {
            Answer::Never => Duration::from_millis(40),
            // An answer that comes is in time on a busy machine, too.
            _ => PATIENCE,
        })
        .backoff(Backoff::new(Duration::from_millis(1), Duration::from_millis(5)))
        .shutdown_grace(PATIENCE)
        .build()
        .unwrap()
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Exclusive,
    /// A lock that others may hold as well.
    Read,
    /// Several locks at once.
    All,
}

impl What {
    fn request(self, manager: &LockManager) -> LockRequest {
        match self {
            Self::Exclusive => manager.lock("k"),
            Self::Read => manager.lock("k").read(),
            Self::All => manager.lock_all(["j", "k", "l"]),
        }
    }
}

/// One attempt, a body of two polls, and the release.
async fn one_call(manager: LockManager, what: What) {
    let body = async { pending(2).await };
    let _ = what.request(&manager).wait(Duration::ZERO).run(body).await;
}

fn scripts() -> Vec<Script> {
    let mut scripts = Vec::new();
    for answer in [Answer::Truth, Answer::Refusal, Answer::Unknown, Answer::Never] {
        for busy in [false, true] {
            for cut in [false, true] {
                for polls in [[0, 0, 0], [2, 2, 2], [0, 1, 0], [1, 0, 1]] {
                    let [until_sent, until_applied, until_answered] = polls;
                    let release_polls = until_sent;
                    scripts.push(Script {
                        until_sent,
                        until_applied,
                        until_answered,
                        answer,
                        busy,
                        cut,
                        release_polls,
                        queueing: None,
                    });
                }
            }
        }
    }
    scripts
}

/// Shuts the manager down. It waits for less than a second for the clean-up of what was not answered, which a busy machine may not be done
/// with by then.
async fn shut_down(manager: &LockManager, what: &str, is_clean: impl Fn() -> bool) {
    let began = Instant::now();
    manager.shutdown().await;
    if began.elapsed() >= Duration::from_millis(800) {
        eventually(what, || async { is_clean() }).await;
    }
}

/// Drops the call after `polls` polls and waits until the background has nothing more to do.
async fn dropped(script: Script, asked: What, polls: usize) {
    let what = format!("{asked:?}, {script:?} dropped after poll {polls}");
    let store = Scripted::new(script);
    let manager = manager(&store);
    let mut longest_gap = Duration::ZERO;
    let call = noting_gaps(&mut longest_gap, one_call(manager.clone(), asked));
    let _ = drop_after(polls, call).await;
    // The lock thread takes back what a call may have got that was not polled for 800 ms, also if the answer says that it got nothing.
    let stood_still = longest_gap >= Duration::from_millis(300);
    if script.cut {
        // Whether anything is still on its way nobody can tell, so the background goes on until the lease has passed.
        eventually(&what, || async {
            let tables = store.tables();
            tables.on_its_way.is_empty() && tables.slots.values().all(|value| value == "another holder")
        })
        .await;
    } else {
        shut_down(&manager, &what, || store.tables().is_clean()).await;
    }

    let tables = store.tables();
    let left: Vec<_> = tables.slots.values().collect();
    assert_eq!(
        left,
        if script.busy { vec!["another holder"] } else { vec![] },
        "{what}"
    );
    assert!(
        tables.on_its_way.is_empty(),
        "{what}: {:?} may still arrive",
        tables.on_its_way
    );
    let values: HashSet<_> = tables.sent.iter().collect();
    assert!(values.len() <= 1, "{what}: one attempt was to be made");
    for value in values {
        let taken_back = tables.released.contains(value);
        let known_not_taken = tables.known_not_taken.contains(value);
        // Of several locks some may have been taken before one was not.
        assert!(
            taken_back != known_not_taken || (taken_back && (asked == What::All || stood_still)),
            "{what}: what may have been taken is released, and nothing else"
        );
    }
    assert!(
        tables.released.iter().all(|value| tables.sent.contains(value)),
        "{what}: {:?}",
        tables.released
    );
    assert_eq!(tables.renewed, 0, "{what}: a lock nobody holds was renewed");
}

#[tokio::test]
async fn exactly_what_was_sent_is_released() {
    let mut calls = 0;
    for script in scripts() {
        for what in [What::Exclusive, What::Read, What::All] {
            let store = Scripted::new(script);
            let polls = count_polls(one_call(manager(&store), what)).await;
            let mut running = tokio::task::JoinSet::new();
            for polls in 0..=polls + 1 {
                running.spawn(dropped(script, what, polls));
                calls += 1;
            }
            while let Some(ended) = running.join_next().await {
                ended.unwrap();
            }
        }
    }
    assert!(calls > 1000, "only {calls} calls were dropped");
}

/// A call that finds the lock taken, stands in the queue, and has a body of two polls.
async fn one_call_in_the_queue(manager: LockManager, what: What, place: Place) {
    let wait = match place {
        Place::Kept => Duration::from_millis(30),
        _ => PATIENCE,
    };
    let body = async { pending(2).await };
    let _ = what.request(&manager).wait(wait).run(body).await;
}

fn queue_scripts() -> Vec<Script> {
    let mut scripts = Vec::new();
    let places = [
        Place::Handed,
        Place::HandedLate,
        Place::Lapsed,
        Place::Unavailable,
        Place::Refused,
        Place::Unknown,
        Place::Kept,
    ];
    for place in places {
        for polls in [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [2, 0, 2, 0, 2], [0, 2, 0, 2, 0]] {
            let [until_sent, until_joined, until_answered, until_handed, until_told] = polls;
            scripts.push(Script {
                until_sent: 0,
                until_applied: 0,
                until_answered: 0,
                answer: Answer::Truth,
                busy: true,
                cut: false,
                release_polls: until_sent,
                queueing: Some(Queueing {
                    until_sent,
                    until_joined,
                    until_answered,
                    until_handed,
                    until_told,
                    place,
                }),
            });
        }
    }
    scripts
}

/// Drops a call in the queue after `polls` polls and waits until the background has nothing more to do.
async fn dropped_in_the_queue(script: Script, asked: What, place: Place, polls: usize) {
    let what = format!("{asked:?}, {script:?} dropped after poll {polls}");
    let store = Scripted::new(script);
    let manager = manager(&store);
    let _ = drop_after(polls, one_call_in_the_queue(manager.clone(), asked, place)).await;
    shut_down(&manager, &what, || store.tables().is_clean()).await;

    let mut tables = store.tables();
    assert!(
        tables.joining.is_empty(),
        "{what}: {:?} may still arrive",
        tables.joining
    );
    assert!(
        tables.queue.is_empty(),
        "{what}: {:?} is still in the queue",
        tables.queue
    );
    // Whoever has the lock now gives it back, and nobody is there to get it.
    if tables.slots.get("k").is_some_and(|value| value == "another holder") {
        tables.hand_over();
    }
    assert!(tables.slots.is_empty(), "{what}: {:?} is left", tables.slots);
    for value in &tables.queued {
        assert!(
            tables.released.contains(value) || tables.known_not_taken.contains(value),
            "{what}: nobody has taken {value} back"
        );
    }
    let late = usize::from(place == Place::HandedLate);
    assert!(tables.renewed <= late, "{what}: a lock nobody holds was renewed");
}

#[tokio::test]
async fn whoever_leaves_the_queue_is_taken_out_of_it_and_gives_back_what_it_was_handed() {
    let mut calls = 0;
    for script in queue_scripts() {
        for what in [What::Exclusive, What::Read, What::All] {
            let place = script.queueing.unwrap().place;
            let store = Scripted::new(script);
            let polls = count_polls(one_call_in_the_queue(manager(&store), what, place)).await;
            let got_in = store.tables().slots.is_empty();
            assert_eq!(
                got_in,
                place != Place::Kept,
                "{what:?}, {script:?}: an undisturbed call gets the lock and gives it back"
            );
            let mut running = tokio::task::JoinSet::new();
            for polls in 0..=polls + 1 {
                running.spawn(dropped_in_the_queue(script, what, place, polls));
                calls += 1;
            }
            while let Some(ended) = running.join_next().await {
                ended.unwrap();
            }
        }
    }
    assert!(calls > 600, "only {calls} calls were dropped");
}
