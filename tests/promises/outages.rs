//! Outages of the server: renewals, releases and waits after its return.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lock_runtime::clock::{BootClock, Clock, Moment};
use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, Lane, LockStore, Ownership, ReleaseRequest, RenewRequest, StoreFuture,
};
use lock_runtime::testing::TestLocks;
use lock_runtime::{Backoff, LockError, LockGuard, LockManager, LostReason};
use lock_tests::clock::ticking;
use lock_tests::proxy::Close;
use lock_tests::{Action, Command, Flow, PATIENCE, Proxy, Server, Stamp, eventually, lock_child, patient};
use tokio::task::JoinSet;

use crate::waiting::{members, stand};

async fn connected(url: &str) -> LockManager {
    patient(LockManager::builder(url)).await
}

/// Nobody calls, and nothing is held or waits.
#[tokio::test]
async fn an_idle_connection_that_falls_silent_is_replaced_before_a_call_needs_it() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // The silence that replaces a connection is longer than a busy machine's.
    let silence = Duration::from_secs(3);
    let builder = LockManager::builder(&proxy.url()).connect_timeout(silence);
    let locks = builder.response_timeout(silence).build().unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    locks.lock("first").acquire().await.unwrap().release().await.unwrap();
    let (before, silent) = (proxy.accepted(), u64::try_from(proxy.connections()).unwrap());
    assert!(silent >= 2, "{silent} connections");
    // Nothing is closed. A connection that has lost a command stays silent.
    proxy.both(Flow::Lose);
    eventually("each connection to be replaced", || async {
        proxy.accepted() >= before + silent
    })
    .await;
    proxy.heal();
    let mark = proxy.mark();
    eventually("an answer on each new connection", || async {
        let asked = proxy.commands().into_iter().skip(mark);
        let answered = asked.filter(|command| command.is("HELLO") && command.reply.is_some());
        let on: HashSet<u64> = answered.map(|command| command.connection).collect();
        u64::try_from(on.len()).unwrap() >= silent
    })
    .await;
    let guard = locks.lock("second").wait(PATIENCE).acquire().await;
    guard.unwrap().release().await.unwrap();
}

/// Bodies under way, each with the end of its last poll.
struct Bodies(JoinSet<(Duration, Stamp, Result<(), LockError>)>);

impl Bodies {
    /// Begins one body for each lease, and returns when the server watches the keys of all.
    async fn begin(locks: &LockManager, server: &Server, leases: &[Duration]) -> Self {
        let watched = server.info("tracking_total_keys").parse::<usize>().unwrap();
        let mut bodies = JoinSet::new();
        for (number, lease) in leases.iter().copied().enumerate() {
            let last = Arc::new(AtomicU64::new(0));
            let request = locks.lock(format!("outage:{number}")).lease(lease);
            bodies.spawn(async move {
                let ended = request.run(ticking(&last)).await;
                (lease, Stamp::from_nanos(last.load(Ordering::SeqCst)), ended)
            });
        }
        eventually("the server to watch every key", || async {
            server.info("tracking_total_keys") == (watched + leases.len()).to_string()
        })
        .await;
        Self(bodies)
    }

    /// Sees to it that each body was cancelled soon after `back`, since its key was gone: a second is promised, and a busy machine takes
    /// some more. A body that nobody tells runs on until the first renewal, for 20 s.
    async fn assert_ended_soon_after(mut self, back: Stamp) {
        while let Some(body) = self.0.join_next().await {
            let (lease, last_poll, ended) = body.unwrap();
            assert!(
                matches!(
                    ended,
                    Err(LockError::Lost {
                        reason: LostReason::Deleted,
                        ..
                    })
                ),
                "{ended:?}"
            );
            let overlap = last_poll.calm_since(back);
            assert!(
                overlap < Duration::from_secs(10),
                "with a lease of {lease:?} the old body ran on for {overlap:?}"
            );
        }
    }
}

/// Long enough for pauses that double to have grown: those from 10 or 20 ms on make the next try more than a second later.
const OUTAGE: Duration = Duration::from_millis(1350);

/// So many that finding out about one after the other, every 400 ms, takes far longer than to find out about all at once.
fn leases() -> Vec<Duration> {
    [30, 60, 120, 300].map(Duration::from_secs).repeat(15)
}

#[tokio::test]
async fn an_old_body_ends_within_a_second_of_the_return_of_a_server_without_its_data() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let bodies = Bodies::begin(&locks, &server, &leases()).await;
    server.kill();
    tokio::time::sleep(OUTAGE).await;
    server.start_again();
    let back = Stamp::now();
    tokio::time::timeout(PATIENCE * 2, bodies.assert_ended_soon_after(back))
        .await
        .expect("cancelled long before the end of a lease");
}

#[tokio::test]
async fn an_old_body_ends_within_a_second_of_an_outage_that_closed_no_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    let bodies = Bodies::begin(&locks, &server, &leases()).await;
    proxy.both(Flow::Lose);
    server.cmd(&["FLUSHALL"]);
    // Time for the report of it to be lost, too.
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The connections of before stay silent for good. New ones work.
    proxy.both(Flow::Pass);
    let back = Stamp::now();
    tokio::time::timeout(PATIENCE * 2, bodies.assert_ended_soon_after(back))
        .await
        .expect("cancelled long before the end of a lease");
}

#[tokio::test]
async fn every_lock_is_checked_when_any_connection_is_back() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    // No report of the server arrives, and the background connection stays as it is.
    proxy.pushes(false);
    // The oldest lock, about which the server is asked regularly, stays.
    let oldest = locks.lock("oldest").lease(PATIENCE).acquire().await.unwrap();
    eventually("the server to watch the oldest lock", || async {
        server.info("tracking_total_keys") == "2"
    })
    .await;
    let bodies = Bodies::begin(&locks, &server, &leases()).await;
    for number in 0..leases().len() {
        server.cmd(&["DEL", &format!("dist_lock:outage:{number}")]);
    }
    let acquire = proxy.on_next(
        |command| command.mentions("dist_lock:another"),
        Action::CloseBefore(Close::Reset),
    );
    let back = Stamp::now();
    let another = locks.lock("another").wait(PATIENCE).acquire().await.unwrap();
    assert_eq!(acquire.times(), 1, "its connection was closed, and it got another one");
    tokio::time::timeout(PATIENCE * 2, bodies.assert_ended_soon_after(back))
        .await
        .expect("cancelled long before the end of a lease");
    another.release().await.unwrap();
    oldest.release().await.unwrap();
}

/// As when another server without the data takes over behind a proxy.
#[tokio::test]
async fn a_loss_of_all_data_that_nothing_reports_ends_every_body_within_a_second() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    proxy.pushes(false);
    let bodies = Bodies::begin(&locks, &server, &leases()).await;
    server.cmd(&["FLUSHALL"]);
    let back = Stamp::now();
    // A question about this one would reveal nothing.
    let young = locks.lock("young").lease(PATIENCE).acquire().await.unwrap();
    tokio::time::timeout(PATIENCE * 2, bodies.assert_ended_soon_after(back))
        .await
        .expect("cancelled long before the end of a lease");
    young.release().await.unwrap();
}

#[tokio::test]
async fn a_check_that_a_release_overtakes_puts_no_other_lock_in_doubt() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    let mut held = Vec::new();
    for number in 0..3 {
        let lock = locks.lock(format!("old:{number}")).lease(PATIENCE);
        held.push(lock.acquire().await.unwrap());
    }
    eventually("the server to watch every key", || async {
        server.info("tracking_total_keys") == "4"
    })
    .await;
    let mut number = 0;
    loop {
        let (mark, connections) = (proxy.mark(), proxy.accepted());
        for _ in 0..5 {
            number += 1;
            let young = locks.lock(format!("young:{number}")).acquire().await.unwrap();
            let key = format!("dist_lock:young:{number}");
            let check = proxy.on_next(
                move |command| command.is_script() && command.mentions(&key),
                Action::Hold,
            );
            eventually("the check", || async { check.times() == 1 }).await;
            young.release().await.unwrap();
            proxy.release();
        }
        let asked = |key: &'static str| {
            proxy.commands()[mark..]
                .iter()
                .filter(move |command| command.mentions(key))
                .count()
        };
        eventually("a question about the oldest lock", || async {
            asked("dist_lock:old:0") > 0
        })
        .await;
        // On a machine that stood still, a check is late: a new connection is made, and when it is there, every lock is checked.
        if proxy.accepted() == connections {
            assert_eq!(asked("dist_lock:old:2"), 0, "it was checked, and no lock was lost");
            break;
        }
    }
    for lock in held {
        lock.release().await.unwrap();
    }
}

/// How many locks are lost at once.
const MANY: usize = 2000;

#[tokio::test]
async fn many_lost_locks_are_found_in_few_round_trips() {
    let many = std::env::var("LOCK_MANY").map_or(MANY, |many| many.parse().unwrap());
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut child = lock_child!("lose-many", proxy.url(), many.to_string(), "300000").spawn();
    for tenth in 1..10 {
        child.line(&format!("taken {} locks", tenth * many / 10)).await;
    }
    child.line("held").await;
    eventually("the server to watch every key", || async {
        server.info("tracking_total_keys").parse::<usize>().unwrap() >= many
    })
    .await;
    server.kill();
    let mark = proxy.mark();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.start_again();
    let back = Stamp::now();
    let lost = child.line("lost").await;
    let overlap = lost.words()[0].parse::<Stamp>().unwrap().since(back);
    let checks = proxy.commands()[mark..]
        .iter()
        .filter(|command| command.is_script() && command.reply.is_some())
        .count();
    println!("{many} old holders were found out {overlap:?} after the return, by {checks} scripts");
    // Two for a thousand locks: the server has forgotten the script. And those that were under way when it came back.
    assert!(
        checks <= 4 * many.div_ceil(1000) + 8,
        "{checks} round trips for {many} locks"
    );
}

// --- Renewals that fail ------------------------------------------------------------------------------------------------

/// A clock that a test has jump ahead. Between the jumps it goes, or stands.
#[derive(Clone, Debug)]
pub(super) struct JumpingClock {
    jumped: Arc<AtomicU64>,
    stands_at: Option<Moment>,
}

impl JumpingClock {
    pub(super) fn going() -> Self {
        Self {
            jumped: Arc::default(),
            stands_at: None,
        }
    }

    fn standing() -> Self {
        Self {
            stands_at: Some(BootClock.now()),
            ..Self::going()
        }
    }

    pub(super) fn jump(&self, span: Duration) {
        self.jumped
            .fetch_add(u64::try_from(span.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Moment {
        let now = self.stands_at.unwrap_or_else(|| BootClock.now());
        now.after(Duration::from_nanos(self.jumped.load(Ordering::SeqCst)))
    }
}

async fn connected_with(url: &str, clock: &JumpingClock) -> LockManager {
    patient(LockManager::builder(url).clock(clock.clone())).await
}

/// Whether a command renews, and does not only check, locks of this lease.
fn renews(lease: Duration) -> impl Fn(&Command) -> bool + Send + use<> {
    let lease = lease.as_millis().to_string();
    move |command| {
        let words = &command.arguments;
        command.is_script() && words.len() == 6 && words.last().is_some_and(|last| last == lease.as_bytes())
    }
}

const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// A lock that is to be renewed while the server refuses that. Its clock stands.
struct Overdue {
    server: Server,
    proxy: Proxy,
    clock: JumpingClock,
    locks: LockManager,
    guard: LockGuard,
    refuses: Arc<AtomicBool>,
}

impl Overdue {
    const LEASE: Duration = Duration::from_secs(120);

    /// Returns in a pause of 80 ms or more between two attempts.
    async fn begin() -> Self {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let clock = JumpingClock::standing();
        let locks = connected_with(&proxy.url(), &clock).await;
        let guard = locks.lock("refused").lease(Self::LEASE).acquire().await.unwrap();
        eventually("the server to watch the key", || async {
            clock.jump(Duration::from_millis(10));
            server.info("tracking_total_keys") == "2"
        })
        .await;
        let refuses = Arc::new(AtomicBool::new(true));
        let turned_away = {
            let (renews, refuses) = (renews(Self::LEASE), Arc::clone(&refuses));
            let is_refused = move |command: &Command| refuses.load(Ordering::SeqCst) && renews(command);
            proxy.on_each(is_refused, Action::error(LOADING))
        };
        clock.jump(Self::LEASE.mul_f64(0.7));
        eventually("the renewal to be refused a few times", || async {
            clock.jump(Duration::from_millis(10));
            turned_away.times() >= 4
        })
        .await;
        assert_eq!((guard.handle().renewals(), guard.handle().is_held()), (0, true));
        Self {
            server,
            proxy,
            clock,
            locks,
            guard,
            refuses,
        }
    }

    /// Has the lock checked: its key has changed.
    fn check(&self) {
        self.server.cmd(&["PEXPIRE", "dist_lock:refused", "60000"]);
    }
}

#[tokio::test]
async fn an_overdue_renewal_is_made_as_soon_as_a_check_is_answered() {
    let overdue = Overdue::begin().await;
    overdue.refuses.store(false, Ordering::SeqCst);
    overdue.check();
    eventually("the renewal, while the clock stands", || async {
        overdue.guard.handle().renewals() > 0
    })
    .await;
    overdue.guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_could_not_be_renewed_is_lost_as_unreachable_though_checks_were_answered() {
    let overdue = Overdue::begin().await;
    let renews = renews(Overdue::LEASE);
    let checks = move |command: &Command| command.mentions("dist_lock:refused") && !renews(command);
    let checked = overdue.proxy.on_next(checks, Action::HoldReply);
    overdue.check();
    checked.done().await;
    // The lease is over before the answer is there.
    overdue.clock.jump(Overdue::LEASE);
    overdue.proxy.release();
    eventually("the loss", || async {
        let stats = overdue.locks.stats();
        stats.lost_unreachable + stats.lost_expired > 0
    })
    .await;
    let lost = overdue.guard.handle().lost().await;
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

#[tokio::test(start_paused = true)]
async fn a_renewal_is_tried_again_in_what_is_left_of_the_lease_however_long_it_has_failed() {
    let kit = TestLocks::new();
    let request = kit.manager().lock("refused").lease(Duration::from_secs(30));
    let guard = request.acquire().await.unwrap();
    // No check is due during the outage, whose answer would hasten the renewal.
    tokio::time::sleep(Duration::from_secs(1)).await;
    kit.unreachable_for(Duration::from_millis(27_500));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(
        guard.handle().is_held(),
        "lost though the store took renewals for a second of the lease"
    );
    assert!(guard.handle().renewals() > 0);
}

/// Half a second itself is too short for a machine that stands still now and then. Of these leases a third is left when the renewal is due, in
/// which a store that is told of the silence a second later, if at all, renews none of them.
#[tokio::test]
async fn a_lease_of_half_a_second_or_more_survives_a_connection_that_falls_silent() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = [2000, 2600, 4000].map(Duration::from_millis);
    // A busy machine may keep the shortest of them from being renewed in time without any fault.
    let mut survived = [false; 3];
    let began = Instant::now();
    while survived != [true; 3] && began.elapsed() < PATIENCE {
        let mut calls = JoinSet::new();
        for (number, lease) in leases.into_iter().enumerate().filter(|(number, _)| !survived[*number]) {
            // Each with a connection of its own for renewals, which is silent from the first one on.
            let clock = JumpingClock::going();
            let locks = connected_with(&proxy.url(), &clock).await;
            let silenced = proxy.on_next(renews(lease), Action::LoseRequest);
            calls.spawn(async move {
                let key = format!("silent:{number}");
                let request = locks.lock(key).lease(lease).wait(PATIENCE);
                let ended = request.run(async {
                    clock.jump(lease.mul_f64(0.6));
                    silenced.done().await;
                    let lock = lock_runtime::current().unwrap();
                    eventually("a renewal", || async { lock.renewals() > 0 }).await;
                });
                (number, ended.await)
            });
        }
        while let Some(call) = calls.join_next().await {
            let (number, ended) = call.unwrap();
            survived[number] |= ended.is_ok();
        }
    }
    assert_eq!(survived, [true; 3], "the leases that were renewed, of {leases:?}");
}

/// A store that answers no renewal, and notes how long after the first one it was told that the answer is late.
#[derive(Debug, Default)]
struct SilentRenewals {
    tables: MemoryStore,
    asked: OnceLock<tokio::time::Instant>,
    told_after: OnceLock<Duration>,
}

impl LockStore for SilentRenewals {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.tables.acquire(request)
    }

    fn renew<'a>(&'a self, _: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        self.asked.get_or_init(tokio::time::Instant::now);
        Box::pin(std::future::pending())
    }

    fn renewal_is_late(&self, _: Lane) {
        self.told_after.get_or_init(|| self.asked.get().unwrap().elapsed());
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
}

/// A third of the lease is left when the renewal is due. The store is told in the first quarter of that, so that another connection has the rest.
#[tokio::test(start_paused = true)]
async fn a_store_is_told_of_a_late_renewal_while_most_of_the_time_is_left() {
    for lease in [500, 1100, 3000, 30_000].map(Duration::from_millis) {
        let store = Arc::new(SilentRenewals::default());
        let builder = LockManager::builder("memory://").store(store.clone());
        let guard = builder.build().unwrap().lock("k").lease(lease).acquire().await.unwrap();
        assert!(guard.handle().lost().await.is_lost());
        let told_after = *store.told_after.get().expect("it is never told");
        // A timer counts whole milliseconds.
        let latest = (lease / 12).min(Duration::from_millis(200)) + Duration::from_millis(2);
        assert!(
            told_after <= latest,
            "told after {told_after:?} of a lease of {lease:?}"
        );
    }
}

// --- Releases in the background ----------------------------------------------------------------------------------------

#[tokio::test]
async fn locks_that_were_dropped_during_an_outage_are_free_soon_after_it() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    let mut guards = Vec::new();
    for number in 0..100 {
        let request = locks.lock(format!("dropped:{number}")).lease(Duration::from_secs(120));
        guards.push(request.acquire().await.unwrap());
    }
    proxy.refuse(true);
    proxy.cut(Close::Reset);
    drop(guards);
    tokio::time::sleep(OUTAGE).await;
    proxy.refuse(false);
    let back = Stamp::now();
    eventually("the locks to be released", || async {
        !server.keys().iter().any(|key| key.contains("dropped"))
    })
    .await;
    let stayed = Stamp::now().calm_since(back);
    assert!(
        stayed < Duration::from_secs(10),
        "locks that nobody holds stayed for {stayed:?}"
    );
}

/// Another call of the process keeps alive whatever the first one has left in the queue.
#[tokio::test]
async fn a_place_that_was_left_during_an_outage_is_given_back_after_it_however_long_it_was() {
    let server = Server::start();
    let holder = connected(&server.url()).await.lock("k").acquire().await.unwrap();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::going();
    let locks = connected_with(&proxy.url(), &clock).await;
    let request = |wait| locks.lock("k").lease(Duration::from_secs(6)).wait(wait);
    let short = tokio::spawn(request(Duration::from_secs(5)).run(async {}));
    let left = stand(&server, "k", 1).await;
    proxy.both(Flow::Lose);
    let refused = short.await.unwrap();
    assert!(matches!(refused, Err(LockError::Busy { .. })), "{refused:?}");
    clock.jump(Duration::from_secs(60));
    tokio::time::sleep(OUTAGE).await;
    proxy.heal();
    proxy.cut(Close::Reset);
    let long = tokio::spawn(request(DAY).run(async {}));
    eventually("a place of the call that waits, and no other", || async {
        let places = members(&server, "k");
        places.len() == 1 && places != left
    })
    .await;
    holder.release().await.unwrap();
    long.await.unwrap().unwrap();
}

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn a_shutdown_with_nothing_held_takes_a_second_at_most_after_an_acquire_without_an_answer() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // What waits for the end of the clean-up, or of the grace, waits for so long.
    let long = Duration::from_secs(45);
    let builder = LockManager::builder(&proxy.url()).shutdown_grace(long);
    let locks = builder.response_timeout(long).build().unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    let lost = proxy.on_next(|command| command.mentions("dist_lock:lost"), Action::LoseRequest);
    tokio::select! {
        ended = locks.lock("lost").lease(DAY).acquire() => panic!("{ended:?}"),
        () = lost.done() => {}
    }
    let began = Stamp::now();
    locks.shutdown().await;
    let took = Stamp::now().calm_since(began);
    assert!(took < long / 3, "the shutdown took {took:?}");
}

#[tokio::test]
async fn what_cleans_up_after_an_acquire_without_an_answer_ends_when_that_cannot_arrive_any_more() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::going();
    let locks = connected_with(&proxy.url(), &clock).await;
    let is_acquire = |command: &Command| command.mentions("dist_lock:lost");
    let lost = proxy.on_next(is_acquire, Action::CloseBefore(Close::Reset));
    let refused = locks.lock("lost").lease(DAY).wait(Duration::ZERO).acquire().await;
    assert!(matches!(refused, Err(LockError::Store { .. })), "{refused:?}");
    assert_eq!(lost.times(), 1);
    // The clean-up needs the connections, and nothing else does.
    drop(locks);
    clock.jump(Duration::from_secs(6));
    eventually("the connections to be closed", || async { proxy.connections() == 0 }).await;
}

/// A call had been handed the lock, and did not learn whether it has taken it. Its lease is over when the manager is shut down.
#[tokio::test]
async fn a_shutdown_waits_for_a_lock_that_was_handed_over_no_longer_than_its_lease() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = connected(&server.url()).await.lock("k").acquire().await.unwrap();
    let grace = PATIENCE * 2;
    let locks = LockManager::builder(&proxy.url())
        .shutdown_grace(grace)
        .build()
        .unwrap();
    let request = locks
        .lock("k")
        .lease(Duration::from_secs(1))
        .wait(Duration::from_secs(5));
    let call = tokio::spawn(request.run(async {}));
    stand(&server, "k", 1).await;
    proxy.on_each(|command| command.mentions("dist_lock:k"), Action::LoseRequest);
    holder.release().await.unwrap();
    let refused = call.await.unwrap();
    assert!(refused.is_err(), "{refused:?}");
    let began = Stamp::now();
    locks.shutdown().await;
    let took = Stamp::now().calm_since(began);
    assert!(took < grace / 2, "the shutdown took {took:?}");
}

/// A server that closes each connection as soon as it is made.
async fn closing(dials: Arc<AtomicU64>) -> String {
    let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", door.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = door.accept().await {
            dials.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_do_not_dial_a_server_that_refuses_them_more_often_than_one_does() {
    const WAIT: Duration = Duration::from_secs(2);
    let dials = Arc::new(AtomicU64::new(0));
    let locks = LockManager::builder(&closing(Arc::clone(&dials)).await)
        .build()
        .unwrap();
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for number in 0..1000 {
        let call = locks.lock(format!("refused:{number}")).wait(WAIT).acquire();
        calls.spawn(async move { (call.await.map(drop), began.elapsed()) });
    }
    while let Some(call) = calls.join_next().await {
        let (refused, after) = call.unwrap();
        assert!(matches!(refused, Err(LockError::Store { .. })), "{refused:?}");
        assert!(
            after < WAIT + PATIENCE,
            "a call that may wait for {WAIT:?} took {after:?}"
        );
    }
    // A first try, quick second ones, and then one in 50 to 100 ms.
    let dials = dials.load(Ordering::SeqCst);
    let most = u64::try_from(began.elapsed().as_millis()).unwrap() / 50 + 5;
    assert!((2..=most).contains(&dials), "{dials} dials, of at most {most}");
}

#[tokio::test]
async fn the_first_redial_is_quick_and_a_call_that_cannot_wait_for_it_is_told_why() {
    let dials = Arc::new(AtomicU64::new(0));
    let locks = LockManager::builder(&closing(Arc::clone(&dials)).await)
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    let began = Instant::now();
    for number in 0..4 {
        // The first one waits for its try.
        let wait = Duration::from_millis(if number == 0 { 0 } else { 4 });
        let refused = locks.lock("refused").wait(wait).acquire().await;
        let Err(LockError::Store { source, .. }) = refused else {
            panic!("{number}: {refused:?}")
        };
        assert!(
            !source.to_string().contains("no connection within"),
            "{number}: {source}"
        );
    }
    eventually("the second dial", || async { dials.load(Ordering::SeqCst) >= 2 }).await;
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn all_calls_go_on_as_soon_as_one_has_found_the_server_back() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // A pause is between zero and this.
    let pause = PATIENCE * 10;
    let locks = patient(LockManager::builder(&proxy.url()).backoff(Backoff::new(pause, pause))).await;
    proxy.refuse(true);
    proxy.cut(Close::Reset);
    let mut calls = JoinSet::new();
    for number in 0..50 {
        calls.spawn(locks.lock(format!("waits:{number}")).wait(pause * 2).acquire());
    }
    // Each has asked in vain, and pauses.
    tokio::time::sleep(OUTAGE).await;
    proxy.refuse(false);
    let one = locks.lock("one").wait(PATIENCE).acquire().await.unwrap();
    let all = async {
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap().release().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("no call pauses after another has found the server back");
    one.release().await.unwrap();
}

/// The answers are more than the runtime passes on at a time, and all of them have arrived when it goes on.
#[tokio::test]
async fn calls_that_are_answered_while_their_runtime_stands_still_do_not_fail() {
    let server = Server::start();
    let limit = Duration::from_millis(300);
    let locks = LockManager::builder(&server.url())
        .response_timeout(limit)
        .build()
        .unwrap();
    drop(locks.lock("first").wait(PATIENCE).acquire().await.unwrap());
    server.pause();
    let mut calls = JoinSet::new();
    for call in 0..100 {
        let lock = locks.lock(format!("k:{call}")).wait(Duration::ZERO);
        calls.spawn(lock.lease(PATIENCE).acquire());
    }
    // They are polled, and so are the batcher and the connection.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    server.resume();
    std::thread::sleep(limit + Duration::from_millis(50));
    while !(0..100).all(|call| server.exists(&format!("dist_lock:k:{call}"))) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut failed = Vec::new();
    while let Some(call) = calls.join_next().await {
        failed.extend(call.unwrap().err());
    }
    assert!(failed.is_empty(), "{} calls failed: {}", failed.len(), failed[0]);
}
