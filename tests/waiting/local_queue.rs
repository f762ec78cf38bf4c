//! The line inside the process: first come, first served; one contender per key; and locks that pass from call to call.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, LockStore, Ownership, QueueOutcome, QueueRequest, ReleaseRequest,
    RenewRequest, StoreFuture,
};
use lock_runtime::{
    HandoverLimits, HeldLock, LockError, LockGuard, LockInfo, LockManager, LockManagerBuilder, LostReason, current,
    distributed_lock,
};
use lock_tests::clock::kept_for;
use lock_tests::{Alone, Command, Flow, PATIENCE, Proxy, Server, eventually, lock_child, on_each};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;

use crate::queue::{processes, subscribes};

/// A lease that cannot end during a test.
const LONG: Duration = Duration::from_secs(120);
const KEY: &str = "hot";
/// The key of its queue.
const QUEUE: &str = "%lock-queue:{hot}";
/// As often as anybody likes.
const EVER: HandoverLimits = HandoverLimits::new(u32::MAX, Duration::from_secs(1_000_000));

/// Where the locks of a test are kept.
#[derive(Clone)]
struct Stage {
    memory: Arc<Counted>,
    server: Option<Arc<(Server, Proxy)>>,
}

impl Stage {
    fn in_memory() -> Self {
        Self {
            memory: Arc::default(),
            server: None,
        }
    }

    fn on_a_server() -> Self {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        Self {
            memory: Arc::default(),
            server: Some(Arc::new((server, proxy))),
        }
    }

    /// A manager like a process of its own.
    fn builder(&self) -> LockManagerBuilder {
        let builder = match self.server.as_deref() {
            Some((_, proxy)) => LockManager::builder(&proxy.url()),
            None => LockManager::builder("memory://").store(Arc::clone(&self.memory) as _),
        };
        // Healthy calls must not meet a time-out on a busy machine.
        builder
            .prefix("")
            .default_lease(LONG)
            .default_wait(PATIENCE)
            .response_timeout(PATIENCE)
    }

    fn manager(&self, handover: HandoverLimits) -> LockManager {
        self.builder().handover(handover).build().unwrap()
    }

    /// In memory, time stands still from here on while anything is done: no call counts as one that is not polled, however busy the
    /// machine is.
    fn stops_time(&self) {
        if self.server.is_none() {
            tokio::time::pause();
        }
    }

    /// Whether a manager's lock has passed so often from call to call. It has to where time stands still. On a server, where it does not, a
    /// machine that stands still has calls count as ones that are not polled: their lock goes back to the store, and passes less often.
    /// One or two passes may then be missing altogether.
    fn has_passed(&self, locks: &LockManager, often: u64) -> bool {
        let passed = locks.stats().passed;
        let is_possible = match self.server {
            None => passed == often,
            Some(_) => passed <= often && (passed > 0 || often <= 2),
        };
        assert!(is_possible, "it has passed {passed} times, and not {often}");
        passed == often
    }

    /// How many stand in the store's queue.
    fn places(&self) -> usize {
        if let Some((server, _)) = self.server.as_deref() {
            return server.ask(&["ZCOUNT", QUEUE, "1", "+inf"]);
        }
        // It answers at once.
        let mut asked = self.memory.inspect(KEY);
        match asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Some(info))) => usize::try_from(info.waiters).unwrap(),
            Poll::Ready(Ok(None)) => 0,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until calls of so many managers stand in the store's queue. Each has one place there, or more: where time does not stand
    /// still, a call in front that is not polled for a while keeps its place, and the next one takes a place as well.
    async fn stand_in_the_store(&self, managers: usize) {
        let stand = || match self.server.as_deref() {
            Some((server, _)) => processes(server, QUEUE).len() == managers,
            None if managers == 0 => self.places() == 0,
            None => self.places() >= managers,
        };
        let what = format!("calls of {managers} managers in the store's queue");
        eventually(&what, || async { stand() }).await;
    }

    /// How many different places in its queue a server has been asked for so far.
    fn places_asked_for(&self) -> usize {
        let Some((_, proxy)) = self.server.as_deref() else {
            return 0;
        };
        let commands = proxy.commands();
        let words = commands.iter().flat_map(|command| &command.arguments);
        let places: HashSet<_> = words.filter(|word| is_place(word)).collect();
        places.len()
    }

    /// The value under the key.
    async fn value(&self) -> Option<String> {
        match self.server.as_deref() {
            Some((server, _)) => server.value(KEY),
            None => match self
                .manager(HandoverLimits::OFF)
                .lock(KEY)
                .wait(Duration::ZERO)
                .acquire()
                .await
            {
                Err(LockError::Busy { holder, .. }) => Some(holder.unwrap().value().to_owned()),
                Ok(guard) => {
                    guard.release().await.unwrap();
                    None
                }
                Err(error) => panic!("{error}"),
            },
        }
    }

    /// Waits until neither a lock nor a place in a queue is left.
    async fn nothing_is_left(&self) {
        eventually("the lock to be given back", || async {
            match self.server.as_deref() {
                // The counter of tokens stays.
                Some((server, _)) => server.keys().iter().all(|key| key == "%lock-fence"),
                None => self.places() == 0 && self.value().await.is_none(),
            }
        })
        .await;
    }
}

/// Whether a word of a command is a place in the queue: `<claim>:<fence>:<process>:<value>`.
fn is_place(word: &[u8]) -> bool {
    let mut parts = word.splitn(4, |byte| *byte == b':');
    let has = |part: Option<&[u8]>, fits: fn(&u8) -> bool| part.is_some_and(|part| part.iter().all(fits));
    has(parts.next(), u8::is_ascii_digit)
        && has(parts.next(), |byte| matches!(byte, b'0' | b'1'))
        && has(parts.next(), u8::is_ascii_hexdigit)
        && parts.next().is_some()
}

/// A memory store that counts what it is asked for.
#[derive(Debug, Default)]
struct Counted {
    store: MemoryStore,
    acquires: AtomicUsize,
    queues: AtomicUsize,
    releases: AtomicUsize,
}

impl Counted {
    fn counts(&self) -> [usize; 3] {
        [&self.acquires, &self.queues, &self.releases].map(|count| count.load(Ordering::SeqCst))
    }
}

impl LockStore for Counted {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        self.store.acquire(request)
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        self.store.renew(requests)
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        self.store.release(request)
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        self.store.fence(key, value)
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        self.queues.fetch_add(1, Ordering::SeqCst);
        self.store.queue(request)
    }

    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        self.store.inspect(key)
    }

    fn release_is_immediate(&self) -> bool {
        true
    }

    fn release_now(&self, request: &ReleaseRequest<'_>) -> Option<Ownership> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        self.store.release_now(request)
    }
}

/// A call that has not ended.
type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Acquiring = Call<Result<LockGuard, LockError>>;

/// A call that stands in line behind a lock of its own process.
fn in_line<T>(call: impl Future<Output = T> + Send + 'static) -> Call<T> {
    let mut call: Call<T> = Box::pin(call);
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending(), "it does not wait");
    call
}

/// Polls a future so often, at its own pace, and drops it.
async fn drop_after<T>(polls: usize, mut future: Call<T>) -> Option<T> {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// The end of a call, which must come.
async fn ended<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, call).await.expect("it hangs")
}

/// Starts calls one after the other, each of which stands in line when the next one starts. In a runtime of one thread.
async fn line_up<T: Send + 'static>(
    calls: impl IntoIterator<Item: Future<Output = T> + Send + 'static>,
) -> Vec<JoinHandle<T>> {
    let mut line = Vec::new();
    for call in calls {
        line.push(tokio::spawn(call));
        yield_now().await;
    }
    line
}

/// What happened, in order.
#[derive(Clone, Debug, Default)]
struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T: Clone> Log<T> {
    fn note(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    fn entries(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }
}

on_each! {
    in_memory: Stage::in_memory(), on_a_server: Stage::on_a_server();
    [
        calls_are_served_in_the_order_they_came_in,
        one_call_of_a_process_stands_in_the_store_however_many_wait,
        waiters_cancelled_in_any_order_leave_no_trace,
        one_cancelled_as_it_is_called_loses_neither_turn_nor_lock,
        a_lock_passes_with_the_deadline_it_has,
        tokens_grow_from_call_to_call_however_they_are_taken,
        a_former_holder_gets_no_token_of_the_lock_it_passed_on,
        other_processes_get_in_after_so_many_passes,
        without_hand_over_every_lock_comes_from_the_store,
        a_lock_with_other_terms_does_not_pass,
        a_minimum_hold_is_kept_before_the_lock_passes,
        a_lost_lock_is_not_passed_and_its_guard_blocks_nobody,
        a_body_that_panics_or_is_dropped_passes_the_lock_on_after_its_arguments,
        shutdown_ends_all_who_stand_in_line,
        a_call_that_waited_behind_its_own_process_names_the_holder,
        all_who_wait_for_a_foreign_holder_are_told_of_it,
        a_call_that_tries_once_does_not_stand_in_line,
    ]
}

async fn calls_are_served_in_the_order_they_came_in(stage: &Stage) {
    stage.stops_time();
    for handover in [EVER, HandoverLimits::new(3, LONG), HandoverLimits::OFF] {
        let locks = stage.manager(handover);
        let guard = locks.lock(KEY).acquire().await.unwrap();
        let log = Log::default();
        let calls = line_up((0..100).map(|nth| {
            let (locks, log) = (locks.clone(), log.clone());
            async move {
                let body = async {
                    log.note(nth);
                    yield_now().await;
                };
                locks.lock(KEY).run(body).await
            }
        }))
        .await;
        guard.release().await.unwrap();
        for call in calls {
            ended(call).await.unwrap().unwrap();
        }
        assert_eq!(log.entries(), (0..100).collect::<Vec<_>>(), "{handover:?}");
        stage.nothing_is_left().await;
    }
}

async fn one_call_of_a_process_stands_in_the_store_however_many_wait(stage: &Stage) {
    stage.stops_time();
    let (ours, theirs) = (stage.manager(EVER), stage.manager(EVER));
    let guard = theirs.lock(KEY).acquire().await.unwrap();
    let calls = line_up((0..100).map(|_| ours.lock(KEY).run(async {}))).await;
    stage.stand_in_the_store(1).await;
    if let Some((_, proxy)) = stage.server.as_deref() {
        // One look at the lock, and one place in the queue, and the same for another call if the first one is not polled for a while.
        // What is refreshed meanwhile comes on another connection.
        let mut asked = proxy.commands();
        let background = |command: &Command| subscribes(command) || command.is("CLIENT TRACKING");
        let elsewhere: Vec<_> = asked
            .iter()
            .filter(|command| background(command))
            .map(|command| command.connection)
            .collect();
        asked.retain(|command| !elsewhere.contains(&command.connection));
        let taking = |nth| {
            asked
                .iter()
                .filter(|command| command.mentions(KEY) && command.connection == nth)
                .count()
        };
        let most = asked.iter().map(|command| taking(command.connection)).max();
        assert!(
            most.unwrap() <= 16,
            "{most:?} commands on one connection while 100 wait"
        );
    } else {
        // Its holder's attempt, and one of those who wait.
        assert_eq!(stage.memory.counts(), [2, 1, 0]);
    }
    guard.release().await.unwrap();
    for call in calls {
        ended(call).await.unwrap().unwrap();
    }
    // The first one's from the store, and from then on from hand to hand. A machine that stands still in the middle of
    // that has a call count as one that is not polled.
    let stats = ours.stats();
    assert!(stats.acquired == 100 && (90..=99).contains(&stats.passed), "{stats:?}");
    stage.nothing_is_left().await;
}

/// An order that is different in each run, and shown when a test fails.
fn shuffled(count: usize) -> Vec<usize> {
    use std::hash::{BuildHasher, RandomState};
    let seed = RandomState::new();
    let mut order: Vec<_> = (0..count).collect();
    order.sort_by_key(|nth| seed.hash_one(nth));
    println!("the order begins with {:?}", &order[..order.len().min(20)]);
    order
}

async fn waiters_cancelled_in_any_order_leave_no_trace(stage: &Stage) {
    let (ours, theirs) = (stage.manager(EVER), stage.manager(EVER));
    // Behind a holder of the same process, and behind one of another, where one of them stands in the store.
    for behind in [&ours, &theirs] {
        let before = ours.stats();
        let guard = behind.lock(KEY).acquire().await.unwrap();
        let mut line: Vec<Option<Acquiring>> = Vec::new();
        for _ in 0..10_000 {
            line.push(Some(in_line(ours.lock(KEY).acquire())));
        }
        let order = shuffled(line.len());
        let (last, cancelled) = order.split_last().unwrap();
        for (nth, place) in cancelled.iter().enumerate() {
            line[*place] = None;
            // Those that have come to the front meanwhile go on.
            if nth % 1000 == 0 {
                let next = line.iter_mut().flatten().next().unwrap();
                let mut context = Context::from_waker(Waker::noop());
                assert!(next.as_mut().poll(&mut context).is_pending());
                yield_now().await;
            }
        }
        let last = line[*last].take().unwrap();
        let last = tokio::spawn(last);
        yield_now().await;
        guard.release().await.unwrap();
        let guard = ended(last).await.unwrap().unwrap();
        guard.release().await.unwrap();
        stage.nothing_is_left().await;
        assert_eq!(ours.stats().busy, before.busy);
        // Nobody is in front who could be in the way.
        let guard = ours.lock(KEY).acquire().await.unwrap();
        assert_eq!(stage.places(), 0);
        guard.release().await.unwrap();
    }
    // Nothing is under way.
    ended(ours.shutdown()).await;
}

async fn one_cancelled_as_it_is_called_loses_neither_turn_nor_lock(stage: &Stage) {
    for handover in [EVER, HandoverLimits::OFF] {
        let locks = stage.manager(handover);
        for polls in 0..8 {
            for by_drop in [false, true] {
                let guard = locks.lock(KEY).acquire().await.unwrap();
                let request = || locks.lock(KEY).fencing(true);
                let (first, second) = (in_line(request().acquire()), in_line(request().acquire()));
                let third = in_line(request().acquire());
                if by_drop {
                    drop(guard);
                } else {
                    guard.release().await.unwrap();
                }
                // Called by now. Whatever it does after that, the next one's turn comes.
                drop(drop_after(polls, first).await);
                drop(drop_after(polls, second).await);
                let guard = ended(third)
                    .await
                    .unwrap_or_else(|error| panic!("{handover:?}, {polls} polls: {error}"));
                assert_eq!(
                    ended(guard.handle().fencing_token()).await.unwrap(),
                    guard.handle().fencing_token().await.unwrap()
                );
                guard.release().await.unwrap();
                stage.nothing_is_left().await;
            }
        }
        ended(locks.shutdown()).await;
    }
}

async fn a_lock_passes_with_the_deadline_it_has(stage: &Stage) {
    stage.stops_time();
    let locks = stage.manager(EVER);
    let guard = locks.lock(KEY).acquire().await.unwrap();
    let granted = guard.handle().deadline();
    let value = stage.value().await.unwrap();
    let calls = line_up((0..20).map(|nth| {
        let request = locks.lock(KEY);
        let request = request.fencing(nth % 2 == 0);
        request.run(async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let lock = current().unwrap();
            (lock.deadline(), lock.renewals(), lock.remaining() <= LONG)
        })
    }))
    .await;
    guard.release().await.unwrap();
    let mut seen = Vec::new();
    for call in calls {
        seen.push(ended(call).await.unwrap().unwrap());
    }
    if stage.has_passed(&locks, 20) {
        assert!(seen.iter().all(|lock| *lock == (granted, 0, true)), "{seen:?}");
    }
    let guard = locks.lock(KEY).acquire().await.unwrap();
    assert!(guard.handle().deadline() > granted, "a new grant");
    assert_ne!(stage.value().await.unwrap(), value);
}

/// Over many renewals, and by the store's own word.
#[tokio::test(start_paused = true)]
async fn a_passed_lock_is_never_relied_on_for_longer_than_the_store_keeps_it() {
    let stage = Stage::in_memory();
    let locks = stage.manager(EVER);
    let lease = Duration::from_secs(3);
    let other = stage.manager(HandoverLimits::OFF);
    let renewed = Arc::new(AtomicU64::new(0));
    let gate = locks.lock(KEY).lease(lease).acquire().await.unwrap();
    let calls = line_up((0..200).map(|nth| {
        let (other, renewed) = (other.clone(), Arc::clone(&renewed));
        locks.lock(KEY).lease(lease).wait(10 * LONG).run(async move {
            // None of them is as long as the lease, all of them together are.
            for _ in 0..nth % 7 {
                let lock = current().unwrap();
                // First: a renewal may come between, and the store knows of it before this lock does.
                let relied_on = lock.remaining();
                // In a task of its own, which is not under the lock.
                let asking = tokio::spawn(other.lock(KEY).wait(Duration::ZERO).acquire());
                let error = asking.await.unwrap().unwrap_err();
                let LockError::Busy {
                    retry_after: Some(left),
                    ..
                } = error
                else {
                    panic!("{error}")
                };
                assert!(relied_on <= left, "{relied_on:?} of {left:?}");
                assert!(!lock.remaining().is_zero());
                tokio::time::sleep(Duration::from_millis(130)).await;
            }
            renewed.fetch_add(u64::from(current().unwrap().renewals()), Ordering::SeqCst);
        })
    }))
    .await;
    gate.release().await.unwrap();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(locks.stats().passed, 200);
    assert!(renewed.load(Ordering::SeqCst) > 20, "{renewed:?} renewals");
}

async fn tokens_grow_from_call_to_call_however_they_are_taken(stage: &Stage) {
    stage.stops_time();
    let locks = stage.manager(EVER);
    let log = Log::default();
    let guard = locks.lock(KEY).fencing(true).acquire().await.unwrap();
    log.note(guard.handle().fencing_token().await.unwrap().get());
    let calls = line_up((0..90).map(|nth| {
        let log = log.clone();
        // With the lock, later, and not at all, in every order of two.
        let kind = [0, 1, 2, 1, 0, 2, 0, 0, 1, 1, 2, 2][nth % 12];
        let request = locks.lock(KEY);
        let request = request.fencing(kind == 0);
        request.run(async move {
            let lock = current().unwrap();
            yield_now().await;
            if kind < 2 {
                let token = lock.fencing_token().await.unwrap().get();
                assert_eq!(lock.fencing_token().await.unwrap().get(), token);
                log.note(token);
            }
        })
    }))
    .await;
    guard.release().await.unwrap();
    for call in calls {
        ended(call).await.unwrap().unwrap();
    }
    stage.has_passed(&locks, 90);
    let tokens = log.entries();
    assert!(tokens.len() > 60 && tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    // Also larger than all of them is one that the store grants.
    let guard = stage.manager(EVER).lock(KEY).fencing(true).acquire().await.unwrap();
    assert!(guard.handle().fencing_token().await.unwrap().get() > *tokens.last().unwrap());
}

async fn a_former_holder_gets_no_token_of_the_lock_it_passed_on(stage: &Stage) {
    stage.stops_time();
    let locks = stage.manager(EVER);
    let guard = locks.lock(KEY).acquire().await.unwrap();
    let kept: HeldLock = guard.handle().clone();
    let next = in_line(locks.lock(KEY).acquire());
    // Asked for while it is the holder, and answered when it is not any more.
    let asked = kept.clone();
    let mut asking = Box::pin(async move { asked.fencing_token().await });
    let early = match asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.unwrap()),
        Poll::Pending => None,
    };
    guard.release().await.unwrap();
    let next = ended(next).await.unwrap();
    stage.has_passed(&locks, 1);
    match early {
        Some(token) => assert!(next.handle().fencing_token().await.unwrap() > token),
        None => assert!(ended(asking).await.is_err_and(|error| error.is_lost())),
    }
    assert!(early.is_some() || kept.fencing_token().await.is_err_and(|error| error.is_lost()));
    assert!(kept.verify().await.is_err() && !kept.is_held() && kept.remaining().is_zero());
    assert!(next.handle().is_held());
    next.handle().verify().await.unwrap();
    next.release().await.unwrap();
}

async fn other_processes_get_in_after_so_many_passes(stage: &Stage) {
    stage.stops_time();
    for passes in [1, 3] {
        let (ours, theirs) = (
            stage.manager(HandoverLimits::new(passes, LONG)),
            stage.manager(HandoverLimits::OFF),
        );
        let log = Log::default();
        let rounds = 3;
        let asked_before = stage.places_asked_for();
        let left = Arc::new([rounds * (passes as usize + 1), rounds].map(AtomicUsize::new));
        let call = |who: usize| {
            let (stage, log, left) = (stage.clone(), log.clone(), Arc::clone(&left));
            [&ours, &theirs][who].lock(KEY).run(async move {
                log.note(['o', 't'][who]);
                left[who].fetch_sub(1, Ordering::SeqCst);
                // A lock is not passed while it is being renewed, and one that was handed over is renewed soon.
                let lock = current().unwrap();
                eventually("the whole lease", || async { lock.remaining() > LONG / 2 }).await;
                // The others come to the store only after their last call: let them be there before this one ends.
                if left[1 - who].load(Ordering::SeqCst) > 0 {
                    eventually("the others in the store's queue", || async { stage.places() > 0 }).await;
                }
            })
        };
        let gate = stage.manager(EVER).lock(KEY).acquire().await.unwrap();
        let calls_of = |who: usize| (0..left[who].load(Ordering::SeqCst)).map(move |_| who);
        let mut calls = line_up(calls_of(0).map(call)).await;
        stage.stand_in_the_store(1).await;
        calls.extend(line_up(calls_of(1).map(call)).await);
        stage.stand_in_the_store(2).await;
        gate.release().await.unwrap();
        for call in calls {
            ended(call).await.unwrap().unwrap();
        }
        let round = "o".repeat(passes as usize + 1) + "t";
        let has_passed = stage.has_passed(&ours, 3 * u64::from(passes));
        // A call that has lost its place in front has asked for one in the queue that none is meant to have.
        let asked = stage.places_asked_for() - asked_before;
        if has_passed && (stage.server.is_none() || asked == 2 * rounds) {
            assert_eq!(log.entries().into_iter().collect::<String>(), round.repeat(rounds));
        }
        assert_eq!(theirs.stats().passed, 0);
        stage.nothing_is_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn other_processes_get_in_after_so_much_time() {
    let stage = Stage::in_memory();
    let ours = stage.manager(HandoverLimits::new(u32::MAX, Duration::from_secs(10)));
    let theirs = stage.manager(EVER);
    let log = Log::default();
    let call = |locks: &LockManager, name: char| {
        let log = log.clone();
        locks.lock(KEY).wait(LONG).run(async move {
            log.note(name);
            tokio::time::sleep(Duration::from_secs(1)).await;
        })
    };
    let mut calls = line_up((0..25).map(|_| call(&ours, 'o'))).await;
    calls.extend(line_up((0..2).map(|_| call(&theirs, 't'))).await);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // It passes on at its first to ninth second, and not at its tenth; the others pass one to the other.
    let expected = format!("{}tt{}{}", "o".repeat(10), "o".repeat(10), "o".repeat(5));
    assert_eq!(log.entries().into_iter().collect::<String>(), expected);
    assert_eq!((ours.stats().passed, theirs.stats().passed), (9 + 9 + 4, 1));
}

async fn without_hand_over_every_lock_comes_from_the_store(stage: &Stage) {
    stage.stops_time();
    // Too little of one bound is as good as none.
    for handover in [
        HandoverLimits::OFF,
        HandoverLimits::new(u32::MAX, Duration::ZERO),
        HandoverLimits::new(0, LONG),
        EVER,
    ] {
        let locks = stage.manager(handover);
        let guard = locks.lock(KEY).acquire().await.unwrap();
        let value = stage.value().await.unwrap();
        let line: Vec<_> = (0..10).map(|_| in_line(locks.lock(KEY).acquire())).collect();
        let counts = stage.memory.counts();
        let mut values = vec![value];
        guard.release().await.unwrap();
        let mut asked = 0;
        for call in line {
            let guard = ended(call).await.unwrap();
            values.push(stage.value().await.unwrap());
            asked += 1;
            guard.release().await.unwrap();
        }
        values.sort();
        values.dedup();
        let stats = locks.stats();
        if handover == EVER {
            let all = stage.has_passed(&locks, 10);
            assert!(!all || values.len() == 1, "{} values", values.len());
        } else {
            assert_eq!((values.len(), stats.passed), (11, 0), "{handover:?}");
            if stage.server.is_none() {
                let [acquires, _, releases] = stage.memory.counts();
                // One of each for every call, besides those by which the value was looked at.
                assert_eq!(acquires - counts[0], 10 + asked);
                assert_eq!(releases - counts[2], 11);
            }
        }
        stage.nothing_is_left().await;
    }
}

async fn a_lock_with_other_terms_does_not_pass(stage: &Stage) {
    stage.stops_time();
    let locks = stage.manager(EVER);
    let request = || locks.lock(KEY);
    let short = Duration::from_secs(60);
    let moment = Duration::from_millis(1);
    let cases = [
        ("the same", request(), request(), true),
        ("a shorter lease", request(), request().lease(short), false),
        ("a longer lease", request().lease(short), request(), false),
        ("the first is not renewed", request().renew(false), request(), false),
        ("the second is not renewed", request(), request().renew(false), false),
        (
            "both are not renewed",
            request().renew(false),
            request().renew(false),
            false,
        ),
        ("a minimum hold to come", request(), request().at_least(moment), true),
        (
            "other limits",
            request(),
            request().max_renewals(3).wait(short).label("other").fencing(true),
            true,
        ),
        ("a fair call does not pass on", request().fair(true), request(), false),
        ("and gets nothing passed", request(), request().fair(true), false),
    ];
    for (case, first, second, passes) in cases {
        let before = locks.stats();
        let guard = first.acquire().await.unwrap();
        let value = stage.value().await.unwrap();
        let next = tokio::spawn(second.acquire());
        yield_now().await;
        guard.release().await.unwrap();
        let guard = ended(next).await.unwrap().unwrap();
        let after = locks.stats();
        assert_eq!(after.acquired - before.acquired, 2, "{case}");
        let passed = after.passed - before.passed;
        assert_eq!(stage.value().await.unwrap() == value, passed == 1, "{case}");
        assert!(
            passed == u64::from(passes) || stage.server.is_some() && passed == 0,
            "{case}"
        );
        guard.release().await.unwrap();
        stage.nothing_is_left().await;
    }
    stage.has_passed(&locks, 3);
}

async fn a_minimum_hold_is_kept_before_the_lock_passes(stage: &Stage) {
    stage.stops_time();
    let locks = stage.manager(EVER);
    let at_least = Duration::from_millis(2500);
    // Connected: from here on nothing takes as long as that.
    locks.lock(KEY).run(async {}).await.unwrap();
    let began = Instant::now();
    let guard = locks.lock(KEY).at_least(at_least).acquire().await.unwrap();
    let next = tokio::spawn(locks.lock(KEY).at_least(at_least).acquire());
    yield_now().await;
    guard.release().await.unwrap();
    let guard = ended(next).await.unwrap().unwrap();
    assert!(began.elapsed() >= kept_for(at_least), "after {:?}", began.elapsed());
    assert_eq!(locks.stats().passed, 0);
    // Once it is over, it passes as any other, and the next one's hold counts from then.
    let next = tokio::spawn(locks.lock(KEY).at_least(at_least).acquire());
    tokio::time::sleep(at_least).await;
    let passed = Instant::now();
    guard.release().await.unwrap();
    let guard = ended(next).await.unwrap().unwrap();
    stage.has_passed(&locks, 1);
    guard.release().await.unwrap();
    let _guard = ended(stage.manager(EVER).lock(KEY).acquire()).await.unwrap();
    assert!(passed.elapsed() >= kept_for(at_least), "after {:?}", passed.elapsed());
}

async fn a_lost_lock_is_not_passed_and_its_guard_blocks_nobody(stage: &Stage) {
    let locks = stage.manager(EVER);
    let short = Duration::from_millis(200);
    for kept in [false, true] {
        let request = locks.lock(KEY);
        let guard = match stage.server.as_deref() {
            None => request.lease(short).renew(false).acquire().await.unwrap(),
            Some(_) => request.acquire().await.unwrap(),
        };
        let next = tokio::spawn(locks.lock(KEY).acquire());
        yield_now().await;
        if let Some((server, _)) = stage.server.as_deref() {
            // Its release and the next call find that out, or the watchdog does.
            server.cmd(&["DEL", KEY]);
        }
        if kept {
            let error = ended(guard.handle().lost()).await;
            assert!(error.is_lost(), "{error}");
            let next = ended(next).await.unwrap().unwrap();
            assert!(guard.release().await.unwrap_err().is_lost());
            assert!(next.handle().is_held(), "the former holder's release touched it");
            next.handle().verify().await.unwrap();
            next.release().await.unwrap();
        } else {
            ended(guard.handle().lost()).await;
            drop(guard);
            ended(next).await.unwrap().unwrap().release().await.unwrap();
        }
        stage.nothing_is_left().await;
    }
    assert_eq!(locks.stats().passed, 0);
}

/// An argument that notes its end.
struct Witness(Log<&'static str>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.note("argument gone");
    }
}

#[distributed_lock(key = "hot", manager = locks)]
async fn does(locks: &LockManager, witness: Witness, what: &'static str) -> Result<(), LockError> {
    witness.0.note(what);
    yield_now().await;
    match what {
        "panics" => panic!("as asked for"),
        "hangs" => std::future::pending().await,
        _ => Ok(()),
    }
}

async fn a_body_that_panics_or_is_dropped_passes_the_lock_on_after_its_arguments(stage: &Stage) {
    stage.stops_time();
    let locks = stage.manager(EVER);
    let log = Log::default();
    let call = |what| {
        let (locks, witness) = (locks.clone(), Witness(log.clone()));
        async move { does(&locks, witness, what).await }
    };
    let gate = locks.lock(KEY).acquire().await.unwrap();
    let mut calls = line_up([call("panics"), call("hangs"), call("ends")]).await.into_iter();
    gate.release().await.unwrap();
    let panicked = ended(calls.next().unwrap()).await;
    assert!(panicked.is_err_and(|error| error.is_panic()));
    eventually("the second body", || async { log.entries().contains(&"hangs") }).await;
    let hanging = calls.next().unwrap();
    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    ended(calls.next().unwrap()).await.unwrap().unwrap();
    let gone = "argument gone";
    assert_eq!(log.entries(), ["panics", gone, "hangs", gone, "ends", gone]);
    stage.has_passed(&locks, 3);
    stage.nothing_is_left().await;
}

async fn shutdown_ends_all_who_stand_in_line(stage: &Stage) {
    for ours in [true, false] {
        let locks = stage.builder().shutdown_grace(LONG).build().unwrap();
        let other = stage.manager(EVER);
        let guard = (if ours { &locks } else { &other }).lock(KEY).acquire().await.unwrap();
        let calls = line_up((0..50).map(|_| locks.lock(KEY).acquire())).await;
        stage.stand_in_the_store(usize::from(!ours)).await;
        let down = tokio::spawn({
            let locks = locks.clone();
            async move { locks.shutdown().await }
        });
        for call in calls {
            let error = ended(call).await.unwrap().unwrap_err();
            assert!(matches!(error, LockError::Closed { .. }), "{error}");
        }
        assert!(guard.handle().is_held());
        assert!(stage.value().await.is_some());
        let mut guard = Some(guard);
        if ours {
            guard.take().unwrap().release().await.unwrap();
        }
        ended(down).await.unwrap();
        if let Some(guard) = guard {
            guard.release().await.unwrap();
        }
        assert_eq!(locks.stats().passed, 0);
        stage.nothing_is_left().await;
    }
}

async fn a_call_that_waited_behind_its_own_process_names_the_holder(stage: &Stage) {
    let locks = stage.manager(EVER);
    let wait = Duration::from_millis(50);
    let guard = locks.lock(KEY).label("shop::sell").acquire().await.unwrap();
    let value = stage.value().await.unwrap();
    let names = async |function| {
        let error = locks.lock(KEY).wait(wait).acquire().await.unwrap_err();
        let LockError::Busy {
            waited,
            holder,
            retry_after,
            ..
        } = error
        else {
            panic!("{error}")
        };
        let holder = holder.expect("a holder");
        assert_eq!(holder.function(), Some(function));
        assert!(
            retry_after.is_some_and(|rest| rest <= LONG && rest > LONG / 2),
            "{retry_after:?}"
        );
        assert!(waited >= wait);
        holder.value().to_owned()
    };
    assert_eq!(names("shop::sell").await, value);
    // A lock that was passed on is stored under the name of the one that took it, but has another holder.
    let next = in_line(locks.lock(KEY).label("shop::buy").acquire());
    guard.release().await.unwrap();
    let guard = ended(next).await.unwrap();
    assert_eq!(names("shop::buy").await, stage.value().await.unwrap());
    guard.release().await.unwrap();
    assert_eq!(locks.stats().busy, 2);
}

async fn all_who_wait_for_a_foreign_holder_are_told_of_it(stage: &Stage) {
    stage.stops_time();
    let _guard = stage
        .manager(EVER)
        .lock(KEY)
        .label("shop::sell")
        .acquire()
        .await
        .unwrap();
    // All at once, and some of those in line for less time than the one in front. Each line is of another manager, and long enough for an
    // answer of the store.
    let mut lines = Vec::new();
    for waits in [[7, 7, 7], [7, 3, 5], [5, 7, 3]] {
        let ours = stage.manager(EVER);
        // Connected.
        ours.lock("another").acquire().await.unwrap().release().await.unwrap();
        let wait = move |nth: usize| Duration::from_secs(waits[nth % 3]);
        let calls = line_up((0..30).map(|nth| ours.lock(KEY).wait(wait(nth)).acquire())).await;
        lines.push((waits, calls));
    }
    for (waits, calls) in lines {
        let wait = |nth: usize| Duration::from_secs(waits[nth % 3]);
        for (nth, call) in calls.into_iter().enumerate() {
            match ended(call).await.unwrap() {
                Err(LockError::Busy {
                    holder: Some(holder),
                    waited,
                    ..
                }) => {
                    assert_eq!(holder.function(), Some("shop::sell"));
                    let is_late = waited >= wait(nth) + Duration::from_secs(5);
                    assert!(
                        waited >= wait(nth) && (stage.server.is_some() || !is_late),
                        "{waited:?}"
                    );
                }
                Err(error) => panic!("call {nth} of {waits:?}: {error:?}"),
                Ok(_) => panic!("call {nth} of {waits:?} got the lock"),
            }
        }
    }
    stage.stand_in_the_store(0).await;
}

async fn a_call_that_tries_once_does_not_stand_in_line(stage: &Stage) {
    stage.stops_time();
    let locks = stage.manager(EVER);
    let once = || locks.lock(KEY).wait(Duration::ZERO);
    // Alone it is in front as any other, and passes the lock on.
    let guard = once().acquire().await.unwrap();
    let line = line_up((0..3).map(|_| locks.lock(KEY).acquire())).await;
    let mut line = line.into_iter();
    for fair in [false, true] {
        let request = if fair { once().fair(true) } else { once() };
        assert!(ended(request.acquire()).await.unwrap_err().is_busy());
    }
    guard.release().await.unwrap();
    let guard = ended(line.next().unwrap()).await.unwrap().unwrap();
    stage.has_passed(&locks, 1);
    // It is served at once, and not after those in line.
    assert!(ended(once().acquire()).await.unwrap_err().is_busy());
    guard.release().await.unwrap();
    let guard = ended(line.next().unwrap()).await.unwrap().unwrap();
    let once = once().acquire();
    drop(guard);
    // Neither this one nor the one that was in line before it hangs.
    drop(ended(once).await);
    ended(line.next().unwrap())
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    stage.nothing_is_left().await;
    // On a server the last call that tries once gets the lock if the one in line is not polled for a while.
    let acquired = locks.stats().acquired;
    assert!(acquired == 4 || stage.server.is_some() && acquired == 5, "{acquired}");
}

/// Whoever stands behind a call that gets no answer is not told that the lock is busy: nobody knows.
#[tokio::test]
async fn those_in_line_for_a_store_that_is_gone_or_silent_are_told_of_it() {
    for silent in [false, true] {
        let stage = Stage::on_a_server();
        let locks = stage
            .builder()
            .response_timeout(Duration::from_millis(100))
            .build()
            .unwrap();
        eventually("the first lock", || async {
            locks.lock(KEY).run(async {}).await.is_ok()
        })
        .await;
        let (server, proxy) = stage.server.as_deref().unwrap();
        if silent {
            proxy.both(Flow::Lose);
        } else {
            server.kill();
        }
        for waits in [[300, 300, 300], [300, 50, 150]] {
            let wait = |nth: usize| Duration::from_millis(waits[nth % 3]);
            let calls = line_up((0..9).map(|nth| locks.lock(KEY).wait(wait(nth)).acquire())).await;
            for (nth, call) in calls.into_iter().enumerate() {
                let error = ended(call).await.unwrap().unwrap_err();
                assert!(
                    matches!(error, LockError::Store { .. }),
                    "{silent}, call {nth} of {waits:?}: {error}"
                );
            }
        }
        assert_eq!(locks.stats().busy, 0);
    }
}

/// From many threads at once, with everything that can come between.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_meets_anybody_and_nobody_hangs_whoever_leaves_when() {
    for stage in [Stage::in_memory(), Stage::on_a_server()] {
        let managers = [
            stage.manager(EVER),
            stage.manager(HandoverLimits::new(2, LONG)),
            stage.manager(HandoverLimits::OFF),
        ];
        let inside = Arc::new(AtomicUsize::new(0));
        let calls: Vec<_> = (0..600_usize)
            .map(|nth| {
                let locks = managers[nth % 3].clone();
                let inside = Arc::clone(&inside);
                let call = async move {
                    let request = locks.lock(KEY);
                    let request = match nth % 7 {
                        0 => request.lease(LONG / 2),
                        1 => request.renew(false),
                        2 => request.fencing(true),
                        3 => request.fair(true),
                        _ => request,
                    };
                    let guard = request.acquire().await?;
                    // Left before the guard, also where it is dropped here.
                    let visit = Alone::enter(&inside);
                    yield_now().await;
                    drop(visit);
                    if nth % 4 == 0 {
                        drop(guard);
                        Ok(())
                    } else {
                        guard.release().await
                    }
                };
                let leaves = nth % 5 == 0;
                tokio::spawn(async move {
                    if leaves {
                        let limit = Duration::from_micros((nth as u64 * 37) % 20_000);
                        tokio::time::timeout(limit, call).await.ok()
                    } else {
                        Some(call.await)
                    }
                })
            })
            .collect();
        for call in calls {
            if let Some(result) = ended(call).await.unwrap() {
                result.unwrap();
            }
        }
        stage.nothing_is_left().await;
        for locks in managers {
            ended(locks.shutdown()).await;
        }
    }
}

/// A fork has a copy of the line, but not of the threads that move it.
#[tokio::test]
async fn a_forked_process_passes_no_lock_on_and_hangs_nowhere() {
    let server = Server::start();
    let mut child = lock_child!("fork-in-line", server.url(), KEY).spawn();
    child.line("holding").await;
    let value = server.value(&format!("dist_lock:{KEY}"));
    assert!(value.is_some());
    child.say("fork");
    // How its body ended, whether those in line got the lock, and how often it was passed.
    assert_eq!(child.line("fork").await.words(), ["lost:Forked", "none", "0"]);
    assert_eq!(
        server.value(&format!("dist_lock:{KEY}")),
        value,
        "the fork touched its parent's lock"
    );
    child.say("end");
    // It passes less often only if the machine stands still meanwhile: a call that is not polled gets no lock passed.
    let parent = child.line("parent").await;
    assert!(
        matches!(parent.words()[..], ["ok", "both", "0" | "1" | "2"]),
        "{parent:?}"
    );
    eventually("the key to be gone", || async { server.keys().is_empty() }).await;
}

#[tokio::test]
async fn a_lost_lock_says_why_to_the_one_that_lost_it_and_to_nobody_else() {
    let stage = Stage::on_a_server();
    let locks = stage.manager(EVER);
    let (server, _) = stage.server.as_deref().unwrap();
    let guard = locks.lock(KEY).acquire().await.unwrap();
    let next = in_line(locks.lock(KEY).acquire());
    guard.release().await.unwrap();
    let guard = ended(next).await.unwrap();
    stage.has_passed(&locks, 1);
    // A lock that was passed is watched as any other.
    server.cmd(&["SET", KEY, "somebody"]);
    let error = ended(guard.handle().lost()).await;
    assert!(
        matches!(
            error,
            LockError::Lost {
                reason: LostReason::Taken,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(locks.stats().lost_taken, 1);
    drop(guard);
    assert_eq!(server.value(KEY).as_deref(), Some("somebody"));
}
