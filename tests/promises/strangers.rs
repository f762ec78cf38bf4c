//! Clients of other kinds, which poll for a lock that the calls of this crate hand to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{HandoverLimits, LockError, LockManager, LockManagerBuilder};
use lock_tests::{Lag, PATIENCE, Proxy, Server, Stamp, eventually};
use tokio::task::JoinSet;

/// What the poller writes into a lock.
const POLLER: &str = "a poller";
/// How long a body of ours takes.
const BODY: Duration = Duration::from_millis(2);
/// A lease that cannot end during a test.
const LONG: Duration = Duration::from_secs(120);
/// How many turns each side has before a fight ends.
const TURNS: (usize, usize) = (2, 20);

fn builder(server: &Server) -> LockManagerBuilder {
    LockManager::builder(&server.url())
        .prefix("")
        .default_lease(LONG)
        .default_wait(PATIENCE)
        .response_timeout(PATIENCE)
}

/// How often a lock was had.
#[derive(Debug, Default)]
struct Turns {
    poller: AtomicUsize,
    ours: AtomicUsize,
    /// How many are in.
    inside: AtomicUsize,
    over: AtomicBool,
}

impl Turns {
    fn enter(&self) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

/// How our calls come to the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// In line within their process.
    Line,
    /// Each by a place of its own in the store's queue.
    Queue,
}

/// Calls of these managers, so many of each, fight for a lock with a client that tries every 10 ms, until both have had their
/// turns.
async fn fight(server: &Arc<Server>, key: &'static str, managers: &[LockManager], calls: usize, by: By) {
    let turns = Arc::new(Turns::default());
    let poller = {
        let (server, turns) = (Arc::clone(server), Arc::clone(&turns));
        tokio::task::spawn_blocking(move || {
            while !turns.is_over() {
                if server
                    .ask::<Option<String>>(&["SET", key, POLLER, "NX", "PX", "60000"])
                    .is_some()
                {
                    turns.enter();
                    turns.poller.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(BODY);
                    turns.leave();
                    assert_eq!(server.value(key).as_deref(), Some(POLLER));
                    server.cmd(&["DEL", key]);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        })
    };
    let mut bodies = JoinSet::new();
    for locks in managers.iter().flat_map(|locks| std::iter::repeat_n(locks, calls)) {
        let (locks, turns) = (locks.clone(), Arc::clone(&turns));
        bodies.spawn(async move {
            while !turns.is_over() {
                let request = locks.lock(key);
                let request = request.fair(by == By::Queue);
                let guard = request.acquire().await.unwrap();
                turns.enter();
                turns.ours.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(BODY).await;
                turns.leave();
                guard.release().await.unwrap();
            }
        });
    }
    eventually(
        &format!("both sides have had their turns ({by:?}, {calls} calls)"),
        || async { turns.poller.load(Ordering::SeqCst) >= TURNS.0 && turns.ours.load(Ordering::SeqCst) >= TURNS.1 },
    )
    .await;
    turns.over.store(true, Ordering::SeqCst);
    poller.await.unwrap();
    bodies.join_all().await;
}

/// How many a second is shown in virtual time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poller_and_calls_that_wait_get_turns_beside_each_other() {
    let server = Arc::new(Server::start());
    let managers = [0, 1].map(|_| builder(&server).build().unwrap());
    tokio::join!(
        fight(&server, "in the store's queue", &managers, 4, By::Queue),
        fight(&server, "in the line of one process", &managers[..1], 8, By::Line),
        fight(&server, "in those of two", &managers, 8, By::Line),
        // Nobody stands behind the call that releases the lock, which asks for it again at once.
        fight(&server, "one at a time", &managers, 1, By::Line),
    );
}

/// A manager that leaves a lock free for `pause` after each release.
fn each_left_free(url: &str, pause: Duration) -> LockManagerBuilder {
    LockManager::builder(url)
        .prefix("")
        .response_timeout(PATIENCE)
        .handover(HandoverLimits::OFF)
        .leave_free(pause, Duration::ZERO)
}

/// The release of the call in front and the attempt of the next one go by the same connection, one right behind the other.
#[tokio::test]
async fn what_a_release_leaves_free_is_not_taken_by_the_next_in_line() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = each_left_free(&proxy.url(), Duration::from_millis(12))
        .default_wait(PATIENCE)
        .build()
        .unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        calls.spawn(locks.lock("k").run(tokio::time::sleep(BODY)));
    }
    calls.join_all().await;
    let commands = proxy.commands();
    let mut left_free = 0;
    let mut may_take = true;
    for command in &commands {
        // Old servers take a lock by a script, which names no channel as that for a place in the queue does.
        let waits = command.mentions("%lock-wake:");
        let takes = command.is("SET k") || command.is_script() && command.mentions("%lock-queue:{k}") && !waits;
        if command.arguments.last().is_some_and(|last| last.ends_with(b":1")) {
            left_free += 1;
            may_take = false;
        } else if waits {
            may_take = true;
        }
        assert!(may_take || !takes, "after {left_free} releases: {command:?}");
    }
    assert!(left_free >= 10, "{left_free} of 20 releases may have left it free");
}

/// Such a user can neither ask for the time nor use the queue.
#[tokio::test]
async fn a_user_with_the_fewest_permissions_gives_back_what_others_wait_for() {
    let server = Server::start();
    let rules = "~* +get +mget +set +pttl +pexpire +del +eval +evalsha";
    let user = ["ACL", "SETUSER", "app", "reset", "on", ">secret"];
    let user: Vec<_> = user.into_iter().chain(rules.split(' ')).collect();
    server.cmd(&user);
    let url = server.url().replacen("redis://", "redis://app:secret@", 1);
    let locks = each_left_free(&url, Duration::from_millis(12))
        .default_lease(LONG)
        .default_wait(PATIENCE)
        .build()
        .unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        calls.spawn(locks.lock("k").run(tokio::time::sleep(BODY)));
    }
    let ended = tokio::time::timeout(PATIENCE / 2, calls.join_all()).await;
    let ended = ended.expect("a lock was not given back");
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
}

/// The calls go on right after the moment in which the lock was left free, and not only when they next look: within 250 ms.
#[tokio::test]
async fn fair_calls_keep_their_order_and_lose_only_the_moment_in_which_the_lock_is_left_free() {
    const CALLS: usize = 120;
    let server = Server::start();
    let managers = [0, 1].map(|_| {
        let builder = builder(&server).leave_free(Duration::from_millis(12), Duration::ZERO);
        builder.build().unwrap()
    });
    let guard = managers[0].lock("k").acquire().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut calls = JoinSet::new();
    for call in 0..CALLS {
        let (locks, order) = (managers[call % 2].clone(), Arc::clone(&order));
        calls.spawn(async move {
            let guard = locks.lock("k").fair(true).acquire().await.unwrap();
            order.lock().unwrap().push(call);
            guard.release().await.unwrap();
        });
        eventually("a call in the queue", || async {
            server.ask::<usize>(&["ZCOUNT", "%lock-queue:{k}", "1", "+inf"]) == call + 1
        })
        .await;
    }
    let began = Stamp::now();
    guard.release().await.unwrap();
    calls.join_all().await;
    let took = Stamp::now().calm_since(began);
    assert_eq!(*order.lock().unwrap(), (0..CALLS).collect::<Vec<_>>());
    // 12 ms each, and what the trips take; a look of the waiters would come after 250 ms each.
    assert!(took < Duration::from_secs(20), "{took:?} for {CALLS} calls");
    // What tells when the lock was left free stays a little longer than those who waited.
    let left = server.time_left("%lock-queue:{k}");
    assert!(left.is_some_and(|left| left <= Duration::from_secs(5)), "{left:?}");
    assert!(server.is_trace("%lock-queue:{k}"));
}

/// A call that comes when its process may just have left the lock free goes straight to the store's queue. Those behind it learn there who
/// has the lock.
#[tokio::test]
async fn calls_behind_one_that_went_straight_to_the_queue_are_told_who_has_the_lock() {
    let server = Arc::new(Server::start());
    let ours = builder(&server)
        .leave_free(Duration::from_millis(500), Duration::ZERO)
        .build()
        .unwrap();
    let theirs = builder(&server).build().unwrap();
    let key = "contended";
    let guard = theirs.lock(key).acquire().await.unwrap();
    let busy = ours.lock(key).wait(Duration::ZERO).run(async {}).await;
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    guard.release().await.unwrap();
    // Somebody else wanted it lately, so this release may leave it free.
    ours.lock(key).run(async {}).await.unwrap();
    let guard = theirs.lock(key).acquire().await.unwrap();
    let first = tokio::spawn(ours.lock(key).acquire());
    eventually("the first call to stand in the queue", || async {
        server.ask::<usize>(&["ZCOUNT", &format!("%lock-queue:{{{key}}}"), "1", "+inf"]) == 1
    })
    .await;
    let second = ours.lock(key).wait(Duration::from_secs(2)).run(async {}).await;
    let is_told = matches!(&second, Err(LockError::Busy { holder: Some(_), .. }));
    assert!(is_told, "it is not told who has the lock: {second:?}");
    guard.release().await.unwrap();
    first.await.unwrap().unwrap().release().await.unwrap();
}

/// Nobody has the lock while it is left free for clients of other kinds, and those who wait have it just as little.
#[tokio::test]
async fn calls_behind_one_that_found_the_lock_left_free_are_told_that_it_is_busy() {
    let server = Server::start();
    let builder = |builder: LockManagerBuilder| builder.default_lease(LONG).default_wait(PATIENCE).build().unwrap();
    let ours = builder(each_left_free(&server.url(), Duration::from_millis(500)));
    let theirs = builder(
        LockManager::builder(&server.url())
            .prefix("")
            .response_timeout(PATIENCE),
    );
    let (begun, lag) = (Stamp::now(), Lag::watch());
    for scene in 0.. {
        let key = format!("k{scene}");
        let (key, queue) = (key.as_str(), format!("%lock-queue:{{{key}}}"));
        let stand = |many: usize| {
            let (server, queue) = (&server, queue.as_str());
            eventually("the calls to stand in the queue", move || async move {
                server.ask::<usize>(&["ZCOUNT", queue, "1", "+inf"]) == many
            })
        };
        // The first release that finds a waiter hands the lock over, and notes when.
        let mut held = ours.lock(key).acquire().await.unwrap();
        for next in [&theirs, &ours] {
            let next = tokio::spawn(next.lock(key).acquire());
            stand(1).await;
            held.release().await.unwrap();
            held = next.await.unwrap().unwrap();
        }
        let other = tokio::spawn(theirs.lock(key).acquire());
        stand(1).await;
        held.release().await.unwrap();
        let first = tokio::spawn(ours.lock(key).acquire());
        stand(2).await;
        let _ = lag.longest();
        // Less than the moment for which it is left free, which is never longer than half a second.
        let second = ours.lock(key).wait(Duration::from_millis(300)).run(async {}).await;
        // Where this process stood still, the other one has the lock by now, or the call in front was not polled and has lost its place.
        // Such a scene shows nothing: another key has one of its own.
        let is_left_free = !other.is_finished();
        let ended = Stamp::now();
        // The watch is told of the last moments a tick later.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let stood_still = lag.longest() > Duration::from_millis(100);
        let is_last = is_left_free && !stood_still || ended.since(begun) > PATIENCE;
        if is_last {
            let is_busy = matches!(&second, Err(LockError::Busy { .. }));
            assert!(is_busy, "it says that the store has not answered: {second:?}");
        }
        other.await.unwrap().unwrap().release().await.unwrap();
        first.await.unwrap().unwrap().release().await.unwrap();
        if is_last {
            break;
        }
    }
}
