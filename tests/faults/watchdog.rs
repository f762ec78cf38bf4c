//! The watchdog keeps locks alive: in time, in bulk, for as long as their guards live, and no longer than they may.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use lock_runtime::clock::{Clock, Moment};
use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, Lane, LockStore, LossHint, LossReceiver, Ownership, ReleaseRequest,
    RenewRequest, StoreFuture,
};
use lock_runtime::{LockError, LockManager, LostReason, OnLost, ServerState, current};
use lock_tests::patience::eventually_blocking;
use lock_tests::{PATIENCE, Proxy, Server, Stamp, cases, eventually, eventually_some, lock_child};

use crate::stage::{JumpingClock, LEASE, LONG, connected, connected_by, gone, hog, renewals, renews, share, stored};

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}

#[tokio::test]
async fn a_lock_is_renewed_when_two_thirds_of_its_lease_have_passed() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = connected_by(&server.url(), &clock).await;
    let guard = locks.lock("thirds").lease(LONG).acquire().await.unwrap();
    for renewals in 1..=3 {
        // The lease counts from when the last command that set it was sent, and the deadline leaves a margin.
        let sent =
            guard.handle().deadline().as_nanos() - nanos((LONG * 99 / 100).saturating_sub(Duration::from_millis(2)));
        let due = Moment::from_nanos(sent).after(LONG * 2 / 3);
        clock.jump(due.since(clock.now()).saturating_sub(Duration::from_secs(5)));
        // The watchdog looks at the clock once a second.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let so_far = guard.handle().renewals();
        assert!(
            so_far < renewals || clock.now() >= due,
            "renewed long before it was due"
        );
        clock.jump(due.since(clock.now()));
        let since = Stamp::now();
        eventually("the renewal", || async { guard.handle().renewals() >= renewals }).await;
        let late = Stamp::now().calm_since(since);
        assert!(late < LONG / 20, "renewed only {late:?} after it was due");
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn locks_that_are_due_together_are_renewed_in_one_round_trip() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..300 {
        calls.spawn(locks.lock(format!("batch:{number}")).lease(LONG).acquire());
    }
    let guards: Vec<_> = calls.join_all().await.into_iter().map(Result::unwrap).collect();
    let mark = proxy.mark();
    clock.until_renewal();
    eventually("every lock to be renewed", || async {
        guards.iter().all(|guard| guard.handle().renewals() >= 1)
    })
    .await;
    let lease = LONG.as_millis().to_string().into_bytes();
    let round_trips = proxy.commands()[mark..]
        .iter()
        .filter(|command| command.is_script() && command.arguments.contains(&lease))
        .count();
    // At most a hundred in one, four such at a time, and those that came due meanwhile.
    assert!(
        (1..=100).contains(&round_trips),
        "{round_trips} round trips for 300 locks"
    );
    assert!(guards.iter().all(|guard| guard.handle().is_held()));
}

#[tokio::test]
async fn a_call_that_outlives_its_renewals_counts_as_hung_and_is_cancelled() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = connected_by(&server.url(), &clock).await;
    let started = clock.now();
    let call = locks.lock("hung").lease(LONG).max_renewals(2).run(async {
        let lock = current().unwrap();
        for renewals in 1..=2 {
            clock.until_renewal();
            eventually("a renewal", || async { lock.renewals() >= renewals }).await;
        }
        clock.until_renewal();
        std::future::pending::<()>().await;
    });
    let error = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap_err();
    let LockError::Hung { renewals: 2, held, .. } = &error else {
        panic!("{error:?}")
    };
    // Two renewals, and the moment of the third.
    assert!(*held >= LONG * 2 && *held <= clock.now().since(started), "{held:?}");
    assert_eq!(locks.stats().hung, 1);
    assert!(!server.exists(&stored("hung")), "a hung call's lock is given back");

    let none = locks.lock("hung").lease(LONG).max_renewals(0).run(async {
        clock.until_renewal();
        std::future::pending::<()>().await;
    });
    let none = none.await;
    assert!(matches!(none, Err(LockError::Hung { renewals: 0, .. })), "{none:?}");

    // A body that keeps its thread ends long after its lock.
    let kept = locks.lock("hung").lease(LONG).max_renewals(0).run(async {
        clock.until_renewal();
        while locks.stats().hung < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        clock.jump(LONG * 5);
        std::future::pending::<()>().await;
    });
    let kept = kept.await;
    assert!(
        matches!(&kept, Err(LockError::Hung { held, .. }) if *held <= LONG),
        "{kept:?}"
    );
}

#[tokio::test]
async fn a_lock_that_is_not_to_be_renewed_is_not() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let call = locks.lock("fixed").lease(LONG).renew(false).run(async {
        let lock = current().unwrap();
        clock.until_renewal();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        clock.jump(LONG);
        let _ = lock.lost().await;
        lock.renewals()
    });
    assert!(call.await.unwrap_err().is_lost());
    assert!(renewals(&proxy, "fixed", LONG).is_empty());
    assert_eq!(locks.stats().renewals, 0);
}

/// One server for the process's global manager. It is not dropped: the harness sees to its end.
fn global_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

/// Its time-outs are the usual ones, which a busy machine meets now and then.
async fn global_manager() -> &'static LockManager {
    static FAILED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    let fail = async {
        // Nobody listens there. It leaves nothing behind.
        assert!(lock_runtime::init("redis://127.0.0.1:1").await.is_err());
        assert!(lock_runtime::global().is_err());
    };
    FAILED.get_or_init(|| fail).await;
    let url = global_server().url();
    eventually_some("a connection", || async { lock_runtime::init(&url).await.ok() }).await
}

/// Whether the server was late with an answer.
fn is_late<T>(answer: &Result<T, LockError>) -> bool {
    matches!(answer, Err(LockError::Store { .. }))
}

#[test]
fn the_global_manager_outlives_the_runtime_that_made_it() {
    let server = global_server();
    let run = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = run();
    let _share = first.block_on(share());
    let guard = first.block_on(async {
        let locks = global_manager().await;
        locks.lock("global").lease(LEASE * 3 / 2).acquire().await.unwrap()
    });
    drop(first);
    // No runtime is there now but the lock thread's.
    eventually_blocking("a renewal", || guard.handle().renewals() >= 1);
    let second = run();
    second.block_on(async {
        let locks = global_manager().await;
        let busy = eventually_some("an answer", || async {
            let answer = locks.lock("global").wait(Duration::ZERO).acquire().await;
            Some(answer).filter(|answer| !is_late(answer))
        })
        .await;
        assert!(busy.is_err_and(|error| error.is_busy()));
        let value = locks.lock("another").lease(LONG).run(async { 7 }).await.unwrap();
        assert_eq!(value, 7);
        assert!(guard.handle().is_held());
        let released = guard.release().await;
        assert!(
            released.is_ok() || is_late(&released),
            "held over the end of its runtime: {released:?}"
        );
        gone(server, "global").await;
    });
}

cases! {
    // The same as two tests would do it, whichever comes first.
    one_test_uses_the_global_manager: uses_the_global_manager("one");
    another_test_uses_the_global_manager: uses_the_global_manager("two");
}

async fn uses_the_global_manager(key: &str) {
    let _share = share().await;
    let locks = global_manager().await;
    let call = locks.lock(key).lease(LEASE * 3 / 2).run(async {
        let lock = current().unwrap();
        eventually("a renewal", || async { lock.renewals() > 0 }).await;
    });
    call.await.unwrap();
    assert!(
        lock_runtime::init("redis://127.0.0.1:1").await.is_err(),
        "one process has one global manager"
    );
}

#[tokio::test]
async fn a_dropped_guard_is_not_renewed_any_more() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    let lease = Duration::from_secs(3);
    drop(locks.lock("dropped").lease(lease).acquire().await.unwrap());
    gone(&server, "dropped").await;
    let mark = proxy.mark();
    // It would be renewed when two thirds have passed.
    tokio::time::sleep(lease).await;
    let after: Vec<_> = proxy.commands()[mark..]
        .iter()
        .filter(|command| renews("dropped", lease)(command))
        .map(ToString::to_string)
        .collect();
    assert!(after.is_empty(), "{after:?}");
}

#[test]
fn twenty_thousand_locks_are_renewed_in_time_by_one_thread() {
    let _hog = hog();
    let server = Server::start();
    let count = 20_000;
    // Renewals have a good 12 s from when they are due until less is left than allowed.
    let lease = Duration::from_secs(40);
    let mut child = lock_child!("many", server.url(), count.to_string(), lease.as_millis().to_string()).spawn();
    for tenth in 1..10 {
        child.line_blocking(&format!("taken {} locks", tenth * count / 10));
    }
    let held = child.line_blocking("held");
    let [threads, threads_after, tasks, tasks_after] = held.words()[..] else {
        panic!("{held:?}")
    };
    assert_eq!(threads, threads_after, "threads before and with all locks");
    assert_eq!(
        tasks, tasks_after,
        "tasks of the user's runtime before and with all locks"
    );

    // From outside: any lock, at any moment, has more than 3 % of its lease left.
    let (mut samples, mut shortest) = (0_u64, lease);
    while child.lines().iter().all(|line| !line.text.starts_with("watched")) {
        for step in 0..50 {
            // Spread over all keys by a step that shares no factor with their number.
            let key = stored(&format!("many:{}", (samples * 50 + step) * 7_919 % count));
            shortest = shortest.min(server.time_left(&key).expect("no lock is lost"));
        }
        samples += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    let allowed = lease * 3 / 100;
    assert!(
        samples > 20 && shortest >= allowed,
        "{shortest:?} were left of {lease:?} by the server's clock, {samples} samples"
    );
    let watched = child.line_blocking("watched");
    let [left, renewals, lost] = watched.words()[..] else {
        panic!("{watched:?}")
    };
    assert_eq!(lost, "0", "locks lost");
    assert!(renewals.parse::<u32>().unwrap() >= 1, "a lock was never renewed");
    let left = Duration::from_millis(left.parse().unwrap());
    assert!(
        left + lease / 100 + Duration::from_millis(2) >= allowed,
        "{left:?} were left of {lease:?} by the holder's clock"
    );
}

#[tokio::test]
async fn a_watchdog_of_one_store_does_not_wait_for_another() {
    let _share = share().await;
    let (silent, healthy) = (Server::start(), Server::start());
    let (stuck, good) = (connected(&silent.url()).await, connected(&healthy.url()).await);
    let held = stuck.lock("silent").lease(LEASE).acquire().await.unwrap();
    let other = good.lock("healthy").lease(LEASE * 3 / 2).acquire().await.unwrap();
    silent.pause();
    let renewals = held.handle().renewals();
    eventually("two renewals on the healthy server", || async {
        other.handle().renewals() >= 2
    })
    .await;
    assert_eq!(held.handle().renewals(), renewals);
    silent.resume();
    other.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hung_call_and_one_that_outlives_a_shutdown_are_cancelled_also_where_a_loss_is_only_told() {
    let locks = LockManager::builder("memory://")
        .shutdown_grace(Duration::from_secs(1))
        .build()
        .unwrap();
    let body = std::future::pending::<()>;
    let hung = locks.lock("hung").on_lost(OnLost::Signal).max_renewals(1).run(body());
    let hung = tokio::time::timeout(LONG * 10, hung).await.expect("it is cancelled");
    assert!(matches!(hung, Err(LockError::Hung { renewals: 1, .. })), "{hung:?}");

    let stubborn = tokio::spawn(locks.lock("stubborn").on_lost(OnLost::Signal).run(body()));
    eventually("the body to run", || async { locks.stats().acquired == 2 }).await;
    locks.shutdown().await;
    let closed = tokio::time::timeout(LONG * 10, stubborn)
        .await
        .expect("it is cancelled");
    assert!(matches!(closed.unwrap(), Err(LockError::Closed { .. })));
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An executor that polls a future right where it is woken.
struct Inline {
    /// `None` while it is polled, and once it has ended.
    call: Mutex<Option<Call>>,
    /// Whether it was woken since its last poll began.
    woken: AtomicBool,
}

impl Inline {
    fn begin(call: impl Future<Output = ()> + Send + 'static) {
        // The budget of the task that happens to wake it is none of its own: once that is used up, it would wake itself for ever.
        let call: Call = Box::pin(tokio::task::unconstrained(call));
        let inline = Self {
            call: Mutex::new(Some(call)),
            woken: AtomicBool::default(),
        };
        Arc::new(inline).wake();
    }

    fn take(&self) -> Option<Call> {
        self.call.lock().unwrap().take()
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        // If it is being polled, on this thread or another one, it is polled once more there.
        while let Some(mut call) = self.take() {
            self.woken.store(false, Ordering::SeqCst);
            let waker = Waker::from(Arc::clone(&self));
            if call.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                return;
            }
            *self.call.lock().unwrap() = Some(call);
            if !self.woken.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}

#[test]
fn a_waker_that_acts_at_once_does_not_stop_the_lock_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = LockManager::builder("memory://").build().unwrap();
    let lease = Duration::from_millis(300);
    // Ended by the watchdog in each of its ways; the woken call then drops its guard on the lock thread.
    for request in [
        locks.lock("hung").lease(lease).max_renewals(0),
        locks.lock("expired").lease(lease).renew(false),
    ] {
        let (ended, end) = std::sync::mpsc::channel();
        let call = async move {
            let outcome = request.run(std::future::pending::<()>()).await;
            ended.send(outcome.unwrap_err().kind()).unwrap();
        };
        Inline::begin(call);
        end.recv_timeout(PATIENCE).expect("the call is woken and ends");
    }
    runtime.block_on(async {
        let other = locks.lock("other").lease(LEASE * 3 / 2).acquire().await.unwrap();
        eventually("the lock thread to renew another lock", || async {
            other.handle().renewals() >= 1
        })
        .await;
    });
}

/// A waker that panics, as that of an executor may which is full.
#[derive(Default)]
struct Panicking(AtomicBool);

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        panic!("this executor takes no more tasks");
    }
}

impl Panicking {
    /// Polls a call until it waits. Returns the call, and the waker.
    fn begin(call: impl Future + 'static) -> (Pin<Box<dyn Future<Output = ()>>>, Arc<Self>) {
        let mut call: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move { drop(call.await) });
        let panicking = Arc::new(Self::default());
        let waker = Waker::from(Arc::clone(&panicking));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        (call, panicking)
    }
}

#[test]
fn a_waker_that_panics_stops_neither_the_lock_thread_nor_the_end_of_another_lock() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = LockManager::builder("memory://").build().unwrap();
    runtime.block_on(async {
        let held = locks.lock("busy").acquire().await.unwrap();
        let soon = Duration::from_millis(100);
        let lease = Duration::from_millis(300);
        let busy = || locks.lock("busy").wait(soon);
        let hangs = |key: &str| {
            let request = locks.lock(key).lease(lease).max_renewals(0);
            request.run(std::future::pending::<()>())
        };
        let calls = [
            Panicking::begin(busy().acquire()),
            Panicking::begin(hangs("a")),
            Panicking::begin(hangs("b")),
        ];
        for (_, panicking) in &calls {
            eventually("each call to be woken", || async { panicking.0.load(Ordering::SeqCst) }).await;
        }
        let other = locks.lock("other").lease(LEASE * 3 / 2).acquire().await.unwrap();
        let waited = tokio::time::timeout(PATIENCE, busy().acquire()).await;
        let waited = waited.expect("a call's time is up as before");
        assert!(matches!(waited, Err(LockError::Busy { .. })), "{waited:?}");
        eventually("the lock thread to renew another lock", || async {
            other.handle().renewals() >= 1
        })
        .await;
        drop((held, calls));
    });
}

#[test]
fn a_waker_that_acts_at_once_on_the_state_of_a_server_does_not_stop_the_lock_thread() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .response_timeout(Duration::from_secs(5))
        .build()
        .unwrap();
    let mut changes = locks.health_changes();
    let (tells, told) = std::sync::mpsc::channel();
    let call = {
        let locks = locks.clone();
        async move {
            // On the lock thread, which tells it.
            while let Some(health) = changes.next().await {
                drop(locks.lock("k").try_acquire().await);
                tells.send(health.servers[0].state).unwrap();
            }
        }
    };
    Inline::begin(call);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    drop(runtime.block_on(locks.lock("first").wait(PATIENCE).acquire()).unwrap());
    // A server is dialled by calls. In a thread of its own, which a deadlock holds instead of the test.
    let (test_goes_on, test_ended) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        while test_ended.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
            drop(runtime.block_on(locks.lock("other").try_acquire()));
        }
    });
    let told = |state| while told.recv_timeout(PATIENCE).expect("the state is told") != state {};
    for _ in 0..3 {
        told(ServerState::Connected);
        server.kill();
        told(ServerState::Down);
        server.start_again();
    }
    drop(test_goes_on);
}

/// A store that answers no renewal.
#[derive(Debug, Default)]
struct SilentRenewals(MemoryStore);

impl LockStore for SilentRenewals {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.0.acquire(request)
    }

    fn renew<'a>(&'a self, _: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        Box::pin(std::future::pending())
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        self.0.release(request)
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        self.0.fence(key, value)
    }

    fn release_is_immediate(&self) -> bool {
        true
    }
}

/// There are more locks than are renewed at once: some end while they wait for their turn.
#[tokio::test(start_paused = true)]
async fn every_lock_of_a_silent_store_is_lost_as_unreachable() {
    let locks = LockManager::builder("memory://")
        .store(Arc::new(SilentRenewals::default()))
        .build()
        .unwrap();
    let mut guards = Vec::new();
    for number in 0..3000 {
        let request = locks.lock(format!("silent:{number}")).lease(Duration::from_secs(6));
        guards.push(request.acquire().await.unwrap());
    }
    for guard in &guards {
        let lost = guard.handle().lost().await;
        assert!(
            matches!(
                lost,
                LockError::Lost {
                    reason: LostReason::Unreachable,
                    ..
                }
            ),
            "{lost:?}"
        );
    }
    assert_eq!(locks.stats().lost_unreachable, 3000);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_before_a_skew_that_takes_most_of_its_lease_ends_it() {
    let lease = Duration::from_secs(15);
    for skew in [0, 5, 6, 10, 14] {
        let locks = LockManager::builder("memory://").skew(Duration::from_secs(skew));
        let request = locks.build().unwrap().lock("skewed").lease(lease).max_renewals(100);
        let guard = request.acquire().await.unwrap();
        tokio::time::sleep(lease * 2).await;
        assert!(guard.handle().is_held(), "lost with a skew of {skew} s: {guard:?}");
        guard.release().await.unwrap();
    }
}

/// A store of several servers, of which the second answers no renewal.
#[derive(Default)]
struct HalfDead {
    tables: MemoryStore,
    receiver: OnceLock<LossReceiver>,
    checks: AtomicU64,
    /// The number of times that a report was held up while the store was asked for a lane.
    held_up: AtomicU64,
}

impl std::fmt::Debug for HalfDead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HalfDead").field(&self.tables).finish()
    }
}

const DEAD: Lane = Lane(1);

impl LockStore for HalfDead {
    fn lane(&self, key: &str) -> Lane {
        if key.contains("reporting") {
            // A store whose servers change asks under a lock of its own, under which it also reports.
            let (report, done) = (self.receiver.get().unwrap().clone(), mpsc::channel());
            std::thread::spawn(move || {
                report(LossHint::All(Lane(0)));
                done.0.send(())
            });
            let is_held_up = done.1.recv_timeout(PATIENCE / 2).is_err();
            self.held_up.fetch_add(u64::from(is_held_up), Ordering::SeqCst);
        }
        if key.contains("dead") {
            DEAD
        } else {
            Lane(u32::from(key.contains("third")) * 2)
        }
    }

    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.tables.acquire(request)
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        if requests.iter().any(|request| self.lane(&request.key) == DEAD) {
            return Box::pin(std::future::pending());
        }
        let checks = requests.iter().filter(|request| request.extend.is_none()).count();
        self.checks.fetch_add(checks as u64, Ordering::SeqCst);
        self.tables.renew(requests)
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        self.tables.release(request)
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        self.tables.fence(key, value)
    }

    fn release_is_immediate(&self) -> bool {
        true
    }

    fn report_losses(&self, receiver: LossReceiver) -> bool {
        self.receiver.set(receiver).is_ok()
    }
}

/// There are more locks on the dead server than are renewed at once.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_holds_up_no_other_servers_locks() {
    let store = Arc::new(HalfDead::default());
    let locks = LockManager::builder("memory://").store(store.clone()).build().unwrap();
    let lease = Duration::from_secs(6);
    let take = |key: String| locks.lock(key).lease(lease).acquire();
    let mut dead = Vec::new();
    for number in 0..3000 {
        dead.push(take(format!("dead:{number}")).await.unwrap());
    }
    let mut alive = Vec::new();
    for number in 0..100 {
        alive.push(take(format!("alive:{number}")).await.unwrap());
    }
    for guard in &dead {
        assert!(matches!(
            guard.handle().lost().await,
            LockError::Lost {
                reason: LostReason::Unreachable,
                ..
            }
        ));
    }
    // Past the first leases: each was renewed although the dead server's locks were due before.
    tokio::time::sleep(lease / 3).await;
    for guard in &alive {
        assert!(
            guard.handle().renewals() >= 1,
            "a lock of the other server was not renewed: {guard:?}"
        );
    }
    assert_eq!(locks.stats().lost_unreachable, 3000, "{:?}", locks.stats());
    // What one server reports concerns its own locks only.
    let checks = || store.checks.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = checks();
    let report = store.receiver.get().unwrap();
    report(LossHint::All(DEAD));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        checks() < before + 100,
        "the report of one server had another one's locks checked"
    );
    let before = checks();
    report(LossHint::All(Lane(0)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(checks() >= before + 100, "{} checks", checks() - before);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_holds_up_no_locks_of_several_other_servers() {
    let locks = LockManager::builder("memory://")
        .store(Arc::new(HalfDead::default()))
        .build()
        .unwrap();
    let lease = Duration::from_secs(6);
    let take = |keys: [String; 2]| locks.lock_all(keys).lease(lease).acquire();
    let mut dead = Vec::new();
    for number in 0..500 {
        dead.push(
            take([format!("alive:{number}"), format!("dead:{number}")])
                .await
                .unwrap(),
        );
    }
    let alive = [
        take(["third:a".to_owned(), "x".to_owned()]).await.unwrap(),
        // In the other order.
        take(["a".to_owned(), "third:x".to_owned()]).await.unwrap(),
    ];
    for guard in &dead {
        guard.handle().lost().await;
    }
    tokio::time::sleep(lease / 3).await;
    for guard in &alive {
        assert!(
            guard.handle().renewals() >= 1,
            "a lock of two other servers was not renewed: {guard:?}"
        );
    }
    assert_eq!(locks.stats().lost_unreachable, 500, "{:?}", locks.stats());
}

#[tokio::test(start_paused = true)]
async fn a_store_can_report_losses_while_it_is_asked_for_a_lane() {
    let store = Arc::new(HalfDead::default());
    let locks = LockManager::builder("memory://").store(store.clone()).build().unwrap();
    let guard = locks.lock("reporting").lease(LEASE).acquire().await.unwrap();
    tokio::time::sleep(LEASE * 3).await;
    assert!(guard.handle().renewals() >= 1, "{guard:?}");
    store.receiver.get().unwrap()(LossHint::Back(Lane(0)));
    tokio::time::sleep(LEASE).await;
    assert_eq!(
        store.held_up.load(Ordering::SeqCst),
        0,
        "a report waited for the watchdog, which waited for the store"
    );
    guard.release().await.unwrap();
}
