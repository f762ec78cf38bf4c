//! Callers that are no longer polled, at any await on their way to a lock: in a `select!` loop, or
//! with their whole runtime.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockRequest, ServerState, distributed_lock};
use lock_tests::proxy::Close;
use lock_tests::{Alone, Flow, PATIENCE, Proxy, Server, Stamp, eventually};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A lease that cannot end during a test.
const LONG: Duration = Duration::from_secs(120);

/// Less than the `wait` of the calls, and far more than they take: a frozen caller may delay others for its key by a second and a half. Without
/// an end to that it would be [`LONG`].
const SOON: Duration = Duration::from_secs(PATIENCE.as_secs() * 9 / 10);

fn manager(server: &Server) -> LockManager {
    manager_at(&server.url())
}

fn manager_at(url: &str) -> LockManager {
    LockManager::builder(url)
        .prefix("")
        .default_lease(LONG)
        .default_wait(PATIENCE)
        .response_timeout(PATIENCE)
        .build()
        .unwrap()
}

fn is_taken(server: &Server, key: &str) -> bool {
    server.ask::<u32>(&["EXISTS", key]) == 1
}

/// How many stand in the store's queues.
fn places(server: &Server, key: &str) -> usize {
    let of = |kind: &str| server.ask::<usize>(&["ZCOUNT", &format!("%lock-{kind}:{{{key}}}"), "1", "+inf"]);
    of("queue") + of("shared")
}

/// How a caller freezes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It is polled no more; its runtime goes on.
    Parked,
    /// Its runtime stands still.
    Blocked,
    /// Its runtime goes on for a while, and then stands still.
    BlockedLater,
}

/// A caller that was polled so often, and then no more.
struct Frozen {
    /// Whether its call was over by then.
    over: bool,
    thaw: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Frozen {
    /// Polls a call `polls` times in a runtime of its own. `go_on`: whether it is polled again once it is thawed, to its end.
    async fn after<T: 'static>(
        polls: usize,
        how: How,
        go_on: bool,
        call: impl Future<Output = Result<T, LockError>> + Send + 'static,
    ) -> Self {
        let (tell, told) = oneshot::channel();
        let (thaw, thawed) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut call = Box::pin(call);
                let mut left = polls;
                let got = poll_fn(|cx| {
                    if left == 0 {
                        return Poll::Ready(None);
                    }
                    left -= 1;
                    call.as_mut().poll(cx).map(Some)
                })
                .await;
                tell.send(got.is_some()).unwrap();
                if got.is_some() {
                    return;
                }
                match how {
                    How::Blocked => thawed.recv().unwrap(),
                    How::BlockedLater => {
                        tokio::time::sleep(Duration::from_millis(30)).await;
                        thawed.recv().unwrap();
                    }
                    How::Parked => {
                        while thawed.try_recv() == Err(mpsc::TryRecvError::Empty) {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                if go_on {
                    drop(timeout(PATIENCE, call).await.expect("it hangs").unwrap());
                }
            });
        });
        let over = timeout(PATIENCE, told).await.expect("it hangs").unwrap();
        Self { over, thaw, thread }
    }

    async fn thaw(self) {
        // One that was over is gone.
        let _ = self.thaw.send(());
        tokio::task::spawn_blocking(|| self.thread.join())
            .await
            .unwrap()
            .unwrap();
    }
}

/// How long a call takes to get its lock.
async fn delay(request: LockRequest, what: &str) -> Duration {
    let began = Stamp::now();
    let guard = timeout(SOON, request.acquire()).await;
    let guard = guard.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}")).unwrap();
    let took = Stamp::now().calm_since(began);
    guard.release().await.unwrap();
    took
}

/// Freezes calls for free locks at each await. A call of another runtime of the same process gets the lock, and so does another process.
async fn free_locks(how: How, request: fn(&LockManager, &str) -> LockRequest) {
    let server = Server::start();
    let (ours, theirs) = (manager(&server), manager(&server));
    ours.lock("connected").run(async {}).await.unwrap();
    theirs.lock("connected").run(async {}).await.unwrap();
    let mut polls = 1;
    loop {
        let key = format!("free-{polls}");
        let frozen = Frozen::after(polls, how, true, request(&ours, &key).acquire()).await;
        // What it has sent arrives first.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let what = format!("a free lock, frozen after poll {polls}, {how:?}");
        let (own, other) = tokio::join!(delay(request(&ours, &key), &what), delay(request(&theirs, &key), &what));
        println!("{what}: {own:?}, another process {other:?}");
        let over = frozen.over;
        frozen.thaw().await;
        eventually("the end of its lock", || async { !is_taken(&server, &key) }).await;
        if over {
            assert!(polls > 2, "it waits {polls} times only");
            break;
        }
        polls += 1;
    }
}

/// The same for locks that another process holds, and releases once the call has frozen, or stands in the queue.
async fn busy_locks(how: How, request: fn(&LockManager, &str) -> LockRequest) {
    let server = Server::start();
    let (ours, theirs) = (manager(&server), manager(&server));
    ours.lock("connected").run(async {}).await.unwrap();
    let mut polls = 1;
    loop {
        let key = format!("busy-{polls}");
        let held = request(&theirs, &key).acquire().await.unwrap();
        let holds = async {
            eventually("a place in the queue", || async { places(&server, &key) > 0 }).await;
            held.release().await.unwrap();
        };
        let freezes = Frozen::after(polls, how, true, request(&ours, &key).acquire());
        tokio::pin!(holds, freezes);
        let (frozen, released) = tokio::select! {
            biased;
            frozen = &mut freezes => (frozen, false),
            () = &mut holds => (freezes.await, true),
        };
        let what = format!("a busy lock, frozen after poll {polls}, {how:?}");
        let own = tokio::spawn({
            let (request, what) = (request(&ours, &key), what.clone());
            async move { delay(request, &what).await }
        });
        let other = tokio::spawn({
            let (request, what) = (request(&theirs, &key), what.clone());
            async move { delay(request, &what).await }
        });
        if !released && !frozen.over {
            // Behind the frozen one, as far as that has come.
            eventually("others in the queue", || async { places(&server, &key) > 0 }).await;
        }
        if !released {
            timeout(PATIENCE, holds).await.expect("it hangs");
        }
        let (own, other) = (own.await.unwrap(), other.await.unwrap());
        println!("{what}: {own:?}, another process {other:?}");
        let over = frozen.over;
        frozen.thaw().await;
        eventually("the end of its lock", || async { !is_taken(&server, &key) }).await;
        if over {
            assert!(polls > 3, "it waits {polls} times only");
            break;
        }
        polls += 1;
    }
}

#[tokio::test]
async fn a_call_for_a_free_lock_that_is_polled_no_more_holds_up_no_other() {
    free_locks(How::Parked, |locks, key| locks.lock(key)).await;
}

#[tokio::test]
async fn a_call_for_a_free_lock_in_a_runtime_that_stands_still_holds_up_no_other() {
    tokio::join!(
        free_locks(How::Blocked, |locks, key| locks.lock(key)),
        free_locks(How::BlockedLater, |locks, key| locks.lock(key)),
    );
}

#[tokio::test]
async fn a_call_with_a_fencing_token_that_is_polled_no_more_holds_up_no_other() {
    free_locks(How::Parked, |locks, key| locks.lock(key).fencing(true)).await;
}

#[tokio::test]
async fn calls_in_the_other_modes_that_are_polled_no_more_hold_up_no_other() {
    tokio::join!(
        free_locks(How::Parked, |locks, key| locks.lock(key).fair(true)),
        free_locks(How::Parked, |locks, key| locks.lock(key).write()),
        free_locks(How::BlockedLater, |locks, key| locks.lock(key).semaphore(1)),
    );
}

#[tokio::test]
async fn a_call_for_a_busy_lock_that_is_polled_no_more_holds_up_no_other() {
    busy_locks(How::Parked, |locks, key| locks.lock(key)).await;
}

#[tokio::test]
async fn a_call_for_a_busy_lock_in_a_runtime_that_stands_still_holds_up_no_other() {
    tokio::join!(
        busy_locks(How::Blocked, |locks, key| locks.lock(key)),
        busy_locks(How::BlockedLater, |locks, key| locks.lock(key)),
    );
}

#[tokio::test]
async fn calls_in_the_other_modes_for_a_busy_lock_that_are_polled_no_more_hold_up_no_other() {
    tokio::join!(
        busy_locks(How::Parked, |locks, key| locks.lock(key).fair(true)),
        busy_locks(How::Parked, |locks, key| locks.lock(key).write()),
    );
}

fn both(locks: &LockManager, key: &str) -> LockRequest {
    locks.lock_all([key.to_owned(), format!("{key}-too")])
}

#[tokio::test]
async fn a_call_for_several_keys_that_is_polled_no_more_holds_up_no_other() {
    tokio::join!(
        free_locks(How::Parked, both),
        free_locks(How::BlockedLater, both),
        busy_locks(How::Parked, both)
    );
}

/// A call for several keys that waits for the last of them and keeps those before it.
#[tokio::test]
async fn keys_that_are_kept_by_a_call_that_is_polled_no_more_go_to_others() {
    let server = Server::start();
    let (ours, theirs) = (manager(&server), manager(&server));
    let second = theirs.lock("b").acquire().await.unwrap();
    let mut frozen = parked(ours.lock_all(["a", "b", "c"]).acquire());
    stand(&mut frozen, &server, "b").await;
    let third = theirs.lock("c").acquire().await.unwrap();
    second.release().await.unwrap();
    stand(&mut frozen, &server, "c").await;
    assert!(is_taken(&server, "a") && is_taken(&server, "b"), "it keeps nothing");
    tokio::join!(
        delay(ours.lock("a"), "a key that is kept"),
        delay(theirs.lock("b"), "a key that is kept")
    );
    third.release().await.unwrap();
    let all = timeout(PATIENCE, frozen).await.expect("it hangs").unwrap();
    for key in ["a", "b", "c"] {
        assert!(is_taken(&server, key), "it has no `{key}`");
    }
    all.release().await.unwrap();
    assert_eq!(
        server.keys().iter().filter(|key| key.len() == 1).count(),
        0,
        "{:?}",
        server.keys()
    );
}

/// Each has a place in the server's queue. One after the other, they would let the lock pass in 12 s.
#[tokio::test]
async fn many_calls_of_a_runtime_that_stands_still_hold_up_no_other_longer_than_one_does() {
    const MANY: usize = 20;
    let server = Server::start();
    let (ours, theirs) = (manager(&server), manager(&server));
    let held = theirs.lock("k").fair(true).acquire().await.unwrap();
    let calls: Vec<_> = (0..MANY).map(|_| ours.lock("k").fair(true).acquire()).collect();
    let (stand, standing) = oneshot::channel();
    let (thaw, thawed) = mpsc::channel();
    let blocked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut waiting: JoinSet<_> = calls.into_iter().collect();
            standing.await.unwrap();
            thawed.recv().unwrap();
            while let Some(guard) = waiting.join_next().await {
                guard.unwrap().unwrap().release().await.unwrap();
            }
        });
    });
    eventually("all in the queue", || async { places(&server, "k") == MANY }).await;
    stand.send(()).unwrap();
    let other = tokio::spawn(async move { delay(theirs.lock("k").fair(true), "behind them").await });
    eventually("another one behind them", || async { places(&server, "k") == MANY + 1 }).await;
    held.release().await.unwrap();
    let took = other.await.unwrap();
    println!("behind {MANY} calls that are not polled: {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    thaw.send(()).unwrap();
    // They ask anew, and all of them get the lock.
    timeout(PATIENCE, tokio::task::spawn_blocking(|| blocked.join()))
        .await
        .expect("they hang")
        .unwrap()
        .unwrap();
    assert_eq!(server.value("k"), None);
}

/// Nobody drives the runtime that it began in any more, nor that runtime's connection.
#[tokio::test]
async fn a_call_in_the_stores_queue_goes_on_in_another_runtime() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .prefix("")
        .default_lease(LONG)
        .default_wait(PATIENCE)
        .response_timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    let held = locks.lock("k").acquire().await.unwrap();
    let mut call = Box::pin(locks.lock("k").fair(true).acquire());
    let first = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        let begin = scope.spawn(|| {
            first.block_on(async {
                tokio::select! {
                    _ = &mut call => panic!("the lock is held"),
                    () = eventually("a place in the queue", || async { places(&server, "k") == 1 }) => {}
                }
            });
        });
        begin.join().unwrap();
    });
    let call = tokio::spawn(call);
    held.release().await.unwrap();
    let guard = timeout(SOON, call).await.expect("it waits for a lock that is free");
    guard.unwrap().unwrap().release().await.unwrap();
    first.shutdown_background();
}

/// The lock is another process's and stays it. Behind a frozen call, another one still asks, and tries again by itself.
#[tokio::test]
async fn the_line_moves_on_while_the_call_in_front_waits_frozen() {
    let server = Server::start();
    let (ours, theirs) = (manager(&server), manager(&server));
    let held = theirs.lock("k").acquire().await.unwrap();
    let mut frozen = parked(ours.lock("k").acquire());
    stand(&mut frozen, &server, "k").await;
    let members = || server.ask::<Vec<String>>(&["ZRANGEBYSCORE", "%lock-queue:{k}", "1", "+inf"]);
    let first = members();
    let next = tokio::spawn(ours.lock("k").acquire());
    eventually("the next in line in the store's queue", || async {
        members().iter().any(|member| !first.contains(member))
    })
    .await;
    // The frozen one keeps its own place there while it answers, and gets its turn.
    let both = async {
        let first = (&mut frozen).await.unwrap();
        first.release().await.unwrap();
        next.await.unwrap().unwrap().release().await.unwrap();
    };
    tokio::join!(async { held.release().await.unwrap() }, async {
        timeout(SOON, both).await.expect("it hangs");
    });
    assert_eq!(server.value("k"), None);
}

type Call<T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send>>;

fn poll<T>(call: &mut Call<T>) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending(), "it does not wait");
}

/// Polls a call until it stands in the store's queue.
async fn stand<T>(call: &mut Call<T>, server: &Server, key: &str) {
    let began = Stamp::now();
    while places(server, key) == 0 {
        poll(call);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(Stamp::now().since(began) < PATIENCE, "it never stands in the queue");
    }
}

/// A call that was polled once.
fn parked<T>(call: impl Future<Output = Result<T, LockError>> + Send + 'static) -> Call<T> {
    let mut call: Call<T> = Box::pin(call);
    poll(&mut call);
    call
}

/// Around the moment at which a lock is taken back that was granted to a call which is polled no more, the call either has it, or asks anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_polled_as_its_lock_is_taken_back_has_it_or_asks_anew() {
    let server = Server::start();
    let (ours, theirs) = (manager(&server), manager(&server));
    ours.lock("connected").run(async {}).await.unwrap();
    let mut rounds = tokio::task::JoinSet::new();
    for nth in 0..80_u64 {
        let (ours, theirs) = (ours.clone(), theirs.clone());
        rounds.spawn(async move {
            let key = format!("round-{nth}");
            let inside = Arc::new(AtomicUsize::new(0));
            let body = || {
                let inside = Arc::clone(&inside);
                async move {
                    let _inside = Alone::enter(&inside);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let first = parked(ours.lock(&*key).run(body()));
            tokio::time::sleep(Duration::from_millis(20)).await;
            let second = tokio::spawn(ours.lock(&*key).run(body()));
            let third = tokio::spawn(theirs.lock(&*key).run(body()));
            tokio::time::sleep(Duration::from_millis(600 + 10 * nth)).await;
            timeout(PATIENCE, first).await.expect("it hangs").unwrap();
            timeout(PATIENCE, second).await.expect("it hangs").unwrap().unwrap();
            timeout(PATIENCE, third).await.expect("it hangs").unwrap().unwrap();
        });
    }
    while let Some(round) = rounds.join_next().await {
        round.unwrap();
    }
    timeout(PATIENCE, ours.shutdown()).await.expect("it hangs");
    timeout(PATIENCE, theirs.shutdown()).await.expect("it hangs");
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}

/// A call that tries once was granted its lock too long ago.
#[tokio::test]
async fn a_call_without_a_wait_says_that_its_lock_was_taken_back() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = manager_at(&proxy.url());
    locks.lock("connected").run(async {}).await.unwrap();
    let mark = proxy.mark();
    let call = parked(locks.lock("granted").wait(Duration::ZERO).acquire());
    // A busy machine may look at the key only after its end.
    eventually("its grant", || async {
        let mut asked = proxy.commands().into_iter().skip(mark);
        asked.any(|command| command.mentions("granted") && command.reply.is_some())
    })
    .await;
    eventually("its end", || async { server.value("granted").is_none() }).await;
    let error = call.await.unwrap_err();
    assert!(matches!(error, LockError::Store { .. }), "{error:?}");
    assert!(lock_tests::chain(&error).contains("not polled"), "{error}");
    locks.lock("granted").run(async {}).await.unwrap();
}

/// What annotated calls share.
struct Stage {
    locks: LockManager,
    runs: AtomicU32,
}

#[distributed_lock(key = "report", coalesce, manager = stage.locks)]
async fn report(stage: &Stage, fails: bool) -> Result<u32, LockError> {
    let run = stage.runs.fetch_add(1, Ordering::Relaxed) + 1;
    if fails {
        std::future::pending::<()>().await;
    }
    Ok(run)
}

fn stage(locks: LockManager) -> Arc<Stage> {
    Arc::new(Stage {
        locks,
        runs: AtomicU32::new(0),
    })
}

fn call(stage: &Arc<Stage>, fails: bool) -> Call<u32> {
    let stage = Arc::clone(stage);
    Box::pin(async move { report(&stage, fails).await })
}

/// The lead of calls that coalesce goes to one that is polled no more. One that is polled leads instead, and has a result.
#[tokio::test]
async fn a_lead_that_is_offered_to_a_call_that_is_polled_no_more_goes_to_another() {
    // Calls wait for longer than the test does.
    let locks = LockManager::builder("memory://").default_wait(PATIENCE);
    let stage = stage(locks.build().unwrap());
    let mut leader = call(&stage, true);
    poll(&mut leader);
    let mut frozen = call(&stage, false);
    poll(&mut frozen);
    let next = tokio::spawn(call(&stage, false));
    tokio::task::yield_now().await;
    drop(leader);
    let result = timeout(SOON, next).await.expect("no call leads").unwrap();
    assert_eq!(result.unwrap(), 2);
    // Passed over, it follows again, and has a copy.
    assert_eq!(timeout(PATIENCE, frozen).await.expect("it hangs").unwrap(), 2);
}

/// The leader is polled no more while it waits for the lock.
#[tokio::test]
async fn a_leader_that_is_polled_no_more_before_it_has_the_lock_loses_the_lead() {
    let server = Server::start();
    let (stage, theirs) = (stage(manager(&server)), manager(&server));
    let held = theirs.lock("report").acquire().await.unwrap();
    let mut frozen = call(&stage, false);
    stand(&mut frozen, &server, "report").await;
    let next = tokio::spawn(call(&stage, false));
    tokio::task::yield_now().await;
    held.release().await.unwrap();
    let result = timeout(SOON, next).await.expect("no call leads").unwrap();
    assert_eq!(result.unwrap(), 1);
    assert_eq!(timeout(PATIENCE, frozen).await.expect("it hangs").unwrap(), 2);
    assert_eq!(server.value("report"), None);
}

/// The leader is polled no more once its body is over, while it waits for the release. The lock is free then.
#[tokio::test]
async fn a_leader_that_is_polled_no_more_during_its_release_loses_those_that_wait() {
    let server = Server::start();
    let stage = stage(manager(&server));
    let mut frozen = call(&stage, false);
    poll(&mut frozen);
    let mut others: JoinSet<_> = (0..3).map(|_| call(&stage, false)).collect();
    tokio::task::yield_now().await;
    // The body ends in the poll in which it begins, and the release is sent in that poll too.
    while stage.runs.load(Ordering::Relaxed) == 0 {
        poll(&mut frozen);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let results = async {
        let mut results = Vec::new();
        while let Some(result) = others.join_next().await {
            results.push(result.unwrap().unwrap());
        }
        results
    };
    let results = timeout(SOON, results)
        .await
        .expect("they wait for one that is polled no more");
    assert_eq!(results, [2; 3], "what the frozen call has is not for them any more");
    // It has its own result all the same.
    assert_eq!(timeout(PATIENCE, frozen).await.expect("it hangs").unwrap(), 1);
    assert_eq!(server.value("report"), None);
}

/// The first in the queue is handed the lock and polled no more. Its notice stays unread, and its place is lost. That is no reason to ask
/// the server about it again and again, while others wait behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_that_a_frozen_call_does_not_read_causes_no_storm_of_looks() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let ours = manager_at(&proxy.url());
    let key = "unread";
    let guard = ours.lock(key).fair(true).acquire().await.unwrap();
    let mut frozen = Box::pin(ours.lock(key).fair(true).acquire());
    let mut context = Context::from_waker(Waker::noop());
    eventually("the call that will freeze to stand in the queue", || {
        assert!(frozen.as_mut().poll(&mut context).is_pending(), "it does not wait");
        let stands = places(&server, key) == 1;
        async move { stands }
    })
    .await;
    let next = tokio::spawn(ours.lock(key).fair(true).acquire());
    eventually("the next one to stand in the queue", || async {
        places(&server, key) == 2
    })
    .await;
    let last = tokio::spawn(ours.lock(key).fair(true).acquire());
    eventually("the last one to stand in the queue", || async {
        places(&server, key) == 3
    })
    .await;
    guard.release().await.unwrap();
    let next = timeout(SOON, next).await.expect("it hangs").unwrap().unwrap();
    let (before, since) = (proxy.commands().len(), Stamp::now());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = proxy.commands().len() - before;
    // Four looks, and some commands for each, in each second that this has taken.
    let most = 60 * usize::try_from(Stamp::now().since(since).as_secs()).unwrap();
    assert!(asked < most, "{asked} commands in a second in which nothing happened");
    next.release().await.unwrap();
    let last = timeout(SOON, last).await.expect("it hangs").unwrap().unwrap();
    last.release().await.unwrap();
    drop(frozen);
    eventually("the queue to be empty", || async { places(&server, key) == 0 }).await;
}

/// The runtime stands still while its connection is made, for longer than that may take. The server's answer has arrived meanwhile: a call
/// that comes afterwards does not fail for the time before it.
#[tokio::test]
async fn a_connection_that_is_made_while_the_runtime_stands_still_is_not_given_up() {
    let server = Server::start();
    let limit = Duration::from_secs(4);
    let locks = LockManager::builder(&server.url())
        .prefix("")
        .connect_timeout(limit)
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    let first = tokio::spawn(locks.lock("first").wait(PATIENCE).run(async {}));
    // The call asks for a connection, the task that makes it begins, and the system is asked for it.
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    std::thread::sleep(limit * 2);
    let second = locks.lock("second").wait(Duration::ZERO).run(async {}).await;
    assert!(second.is_ok(), "a call failed for the time before it: {second:?}");
    assert!(first.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_connection_that_hangs_while_the_runtime_stands_still_is_made_anew_soon_after() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let limit = Duration::from_secs(8);
    let locks = LockManager::builder(&proxy.url())
        .prefix("")
        .connect_timeout(limit)
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    proxy.both(Flow::Lose);
    let first = tokio::spawn(locks.lock("first").wait(PATIENCE).run(async {}));
    proxy.wait_for("a greeting that is lost", |_| true).await;
    proxy.heal();
    std::thread::sleep(limit + Duration::from_secs(1));
    // Less than what hangs since then would take once more.
    let second = locks.lock("second").wait(limit * 3 / 4).run(async {}).await;
    assert!(second.is_ok(), "a call waited for a connection from before: {second:?}");
    assert!(first.await.unwrap().is_ok());
}

/// It is polled once, while there is no connection to send it on. Its lock expires, since nobody renews it any more.
#[tokio::test]
async fn a_release_that_stands_still_before_it_is_sent_holds_up_no_call_of_its_process() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = manager_at(&proxy.url());
    let lease = Duration::from_secs(6);
    let guard = locks.lock("k").lease(lease).acquire().await.unwrap();
    proxy.refuse(true);
    proxy.cut(Close::Reset);
    eventually("the loss of every connection", || async {
        locks.health().servers[0].state == ServerState::Down
    })
    .await;
    let mut release = Box::pin(guard.release());
    assert!(poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await);
    proxy.refuse(false);
    let next = timeout(SOON, locks.lock("k").acquire()).await;
    next.expect("it is held up").unwrap().release().await.unwrap();
    drop(release);
}

/// Its connection has been quiet, so that its runtime first reads what has arrived on it.
#[tokio::test]
async fn a_release_on_a_quiet_connection_is_sent_though_its_call_is_polled_no_more() {
    let server = Server::start();
    let (ours, theirs) = (manager(&server), manager(&server));
    let guard = ours.lock("k").acquire().await.unwrap();
    // From 50 ms on, the connection may have ended unseen.
    std::thread::sleep(Duration::from_millis(60));
    let release = parked(guard.release());
    let next = timeout(SOON, theirs.lock("k").acquire()).await;
    next.expect("the release is not sent").unwrap().release().await.unwrap();
    release.await.unwrap();
}
