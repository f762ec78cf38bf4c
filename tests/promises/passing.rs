//! Locks that pass from call to call inside a process.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::{HandoverLimits, LockManager};
use lock_tests::proxy::Hit;
use lock_tests::{Action, Alone, Command, Lag, PATIENCE, Proxy, Server, Stamp, eventually};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// What another process has.
const OTHER: &str = "another process";

/// A hand-over that has no end.
const ALWAYS: HandoverLimits = HandoverLimits::new(100_000, Duration::from_secs(100));

/// Less than the `wait` of the calls, and far more than they take.
const SOON: Duration = Duration::from_secs(PATIENCE.as_secs() * 9 / 10);

fn manager(server: &Server, handover: HandoverLimits) -> LockManager {
    manager_at(&server.url(), handover)
}

fn manager_at(url: &str, handover: HandoverLimits) -> LockManager {
    LockManager::builder(url)
        .prefix("")
        .default_lease(Duration::from_secs(120))
        .default_wait(PATIENCE)
        .response_timeout(PATIENCE)
        .handover(handover)
        .build()
        .unwrap()
}

/// How many stand in the store's queue.
fn places(server: &Server, key: &str) -> usize {
    server.ask(&["ZCOUNT", &format!("%lock-queue:{{{key}}}"), "1", "+inf"])
}

/// When bodies began.
#[derive(Clone, Debug, Default)]
struct Begins(Arc<Mutex<Vec<Stamp>>>);

impl Begins {
    fn note(&self) {
        self.0.lock().unwrap().push(Stamp::now());
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn after(&self, stamp: Stamp) -> usize {
        self.0.lock().unwrap().iter().filter(|began| **began > stamp).count()
    }
}

/// How many bodies of a line of short calls begin after another process has got the lock, which is taken away after `before` bodies.
/// And whether the lock had been looked at by then: it is then the server that reports the loss.
async fn bodies_beside_another_holder(
    server: &Server,
    proxy: &Proxy,
    locks: &LockManager,
    key: &str,
    before: usize,
) -> (usize, bool) {
    // Checks come on other connections than what calls ask, such as the first ones.
    let mut first = proxy.commands().into_iter();
    let calls_ask_on = first.find(|command| command.mentions("connected")).unwrap().connection;
    let mark = proxy.mark();
    let begins = Begins::default();
    let mut calls = JoinSet::new();
    for _ in 0..500 {
        let (request, begins) = (locks.lock(key), begins.clone());
        calls.spawn(request.run(async move {
            begins.note();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }));
    }
    while begins.count() < before {
        tokio::task::yield_now().await;
    }
    server.cmd(&["DEL", key]);
    server.cmd(&["SET", key, OTHER]);
    let taken = Stamp::now();
    let is_check = |command: &Command| command.connection != calls_ask_on && command.mentions(key);
    let looked = proxy.commands()[mark..].iter().any(is_check);
    // The next call in line asks the store once it is known.
    eventually("a call in the store's queue", || async { places(server, key) == 1 }).await;
    calls.shutdown().await;
    assert_eq!(server.value(key).as_deref(), Some(OTHER));
    (begins.after(taken), looked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_bodies_begin_under_a_lock_that_was_lost_while_it_passed_from_call_to_call() {
    for handover in [
        HandoverLimits::default(),
        HandoverLimits::new(100_000, Duration::from_secs(5)),
    ] {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let locks = manager_at(&proxy.url(), handover);
        // How long a trip takes is known from the second one on: the first one connects.
        for _ in 0..3 {
            locks.lock("connected").run(async {}).await.unwrap();
        }
        // Before the lock was first looked at, each body's end sees that the look is late, however late it is.
        let mut line = 0;
        let beside = loop {
            line += 1;
            assert!(line <= 100, "each lock was looked at before its first body had ended");
            let key = format!("line-{line}");
            let (beside, looked) = bodies_beside_another_holder(&server, &proxy, &locks, &key, 1).await;
            if !looked {
                break beside;
            }
        };
        assert!(
            beside <= 20,
            "{handover:?}, not looked at: {beside} bodies begun beside another holder"
        );
        // After that the server says so, which a machine without a processor to spare hears late.
        let (beside, looked) = bodies_beside_another_holder(&server, &proxy, &locks, "long-line", 12).await;
        assert!(looked, "{handover:?}: it was not looked at in twelve bodies");
        assert!(
            beside <= 200,
            "{handover:?}, told by the server: {beside} bodies begun beside another holder"
        );
    }
}

/// From here on, the answers to the checks of this lock are held back.
async fn checks_without_answer(proxy: &Proxy, ours: &LockManager, key: &'static str) -> Hit {
    // A check counts as late by what a round trip takes, which the shortest of many tells, also on a busy machine.
    for _ in 0..50 {
        ours.lock("connected").run(async {}).await.unwrap();
    }
    // Checks come on other connections than what calls ask.
    let calls_ask_on = proxy.commands().last().unwrap().connection;
    let checks = move |command: &Command| command.connection != calls_ask_on && command.mentions(key);
    proxy.on_each(checks, Action::HoldReply)
}

/// However long the answer takes, the calls of a line that go on meanwhile are few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_being_checked_in_vain_passes_on_no_more() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (ours, theirs) = (manager_at(&proxy.url(), ALWAYS), manager(&server, ALWAYS));
    let key = "checked-in-vain";
    let checked = checks_without_answer(&proxy, &ours, key).await;
    let guard = ours.lock(key).acquire().await.unwrap();
    let begins = Begins::default();
    let mut calls = JoinSet::new();
    for _ in 0..500 {
        let (request, begins) = (ours.lock(key), begins.clone());
        calls.spawn(request.run(async move {
            begins.note();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }));
    }
    let other = tokio::spawn(theirs.lock(key).acquire());
    eventually("the other process in the store's queue", || async {
        places(&server, key) == 1
    })
    .await;
    checked.done().await;
    guard.release().await.unwrap();
    let other = timeout(SOON, other).await.expect("it hangs").unwrap().unwrap();
    let bodies = begins.count();
    assert!(bodies <= 100, "{bodies} bodies began while the check had no answer");
    proxy.heal();
    other.release().await.unwrap();
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
    assert_eq!(begins.count(), 500);
    assert_eq!(server.value(key), None);
}

/// A call that stands in line, and is polled no more.
fn parked<T>(call: impl Future<Output = T> + Send + 'static) -> Pin<Box<dyn Future<Output = T> + Send>> {
    let mut call: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(call);
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending(), "it does not wait");
    call
}

#[tokio::test]
async fn a_call_that_is_not_polled_holds_up_neither_its_line_nor_other_processes() {
    let server = Server::start();
    for (handover, key) in [(HandoverLimits::default(), "passes"), (HandoverLimits::OFF, "returns")] {
        let (ours, theirs) = (manager(&server, handover), manager(&server, handover));
        let guard = ours.lock(key).acquire().await.unwrap();
        // Behind it: calls of a runtime that is blocked, one that is polled no more, and one like any other.
        let blocked = Arc::new(AtomicBool::new(false));
        let (unblock, unblocked) = mpsc::channel();
        let runtime = std::thread::spawn({
            let ours = ours.clone();
            let blocked = Arc::clone(&blocked);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let calls: Vec<_> = (0..5).map(|_| tokio::spawn(ours.lock(key).run(async {}))).collect();
                    tokio::task::yield_now().await;
                    blocked.store(true, Ordering::SeqCst);
                    unblocked.recv().unwrap();
                    for call in calls {
                        call.await.unwrap().unwrap();
                    }
                });
            }
        });
        eventually("a blocked runtime", || async { blocked.load(Ordering::SeqCst) }).await;
        let unpolled = parked(ours.lock(key).acquire());
        let next = tokio::spawn(ours.lock(key).acquire());
        let other = tokio::spawn(theirs.lock(key).acquire());
        eventually("the other process in the store's queue", || async {
            places(&server, key) == 1
        })
        .await;
        guard.release().await.unwrap();
        // Less than the `wait` of the calls.
        let other = timeout(SOON, other).await.expect("it hangs").unwrap().unwrap();
        other.release().await.unwrap();
        let guard = timeout(SOON, next).await.expect("it hangs").unwrap().unwrap();
        // Passed over, they stand in line all the same.
        unblock.send(()).unwrap();
        guard.release().await.unwrap();
        let guard = timeout(PATIENCE, unpolled).await.expect("it hangs").unwrap();
        guard.release().await.unwrap();
        tokio::task::spawn_blocking(|| runtime.join()).await.unwrap().unwrap();
        ours.lock(key).run(async {}).await.unwrap();
        assert_eq!(server.value(key), None);
    }
}

/// A call that is polled no more while it asks for the token of the lock that has passed to it.
#[tokio::test]
async fn a_passed_lock_whose_call_is_not_polled_while_it_asks_for_a_token_goes_to_another_process() {
    let server = Server::start();
    let (ours, theirs) = (manager(&server, ALWAYS), manager(&server, ALWAYS));
    let key = "frozen-at-the-fence";
    // From here on the server knows the script, and a token is one round trip.
    let loaded = ours.lock("loaded").acquire().await.unwrap();
    let mut before = loaded.handle().fencing_token().await.unwrap().get();
    loaded.release().await.unwrap();
    let last = || server.ask::<u64>(&["GET", "%lock-fence"]);
    let first = Stamp::now();
    loop {
        let guard = ours.lock(key).acquire().await.unwrap();
        let mut frozen = parked(ours.lock(key).fencing(true).acquire());
        let mut other = tokio::spawn(theirs.lock(key).acquire());
        eventually("the other process in the store's queue", || async {
            places(&server, key) == 1
        })
        .await;
        guard.release().await.unwrap();
        let mut context = Context::from_waker(Waker::noop());
        assert!(frozen.as_mut().poll(&mut context).is_pending(), "it asks for no token");
        eventually("a token, or a lock for the other process", || async {
            last() > before || other.is_finished()
        })
        .await;
        let wasted = last();
        let other = timeout(SOON, &mut other).await.expect("it hangs").unwrap().unwrap();
        other.release().await.unwrap();
        // Passed over, it stands in line all the same.
        let guard = timeout(PATIENCE, frozen).await.expect("it hangs").unwrap();
        let token = guard.handle().fencing_token().await.unwrap().get();
        guard.release().await.unwrap();
        assert_eq!(server.value(key), None);
        // The lock was taken back before this thread came to poll the call.
        if wasted == before && Stamp::now().since(first) < PATIENCE {
            before = token;
            continue;
        }
        assert!(wasted > before, "it asks for no token");
        assert!(token > wasted, "a token of an earlier holder");
        break;
    }
}

/// A call that is polled keeps the lock that has passed to it, however long its token takes.
#[tokio::test]
async fn a_passed_lock_stays_with_a_call_whose_token_is_slow_to_come() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = manager_at(&proxy.url(), ALWAYS);
    let fences = |command: &Command| command.is_script() && command.mentions("%lock-fence");
    let (first, lag) = (Stamp::now(), Lag::watch());
    loop {
        tokio::task::yield_now().await;
        let _ = lag.longest();
        let guard = locks.lock("k").acquire().await.unwrap();
        let value = server.value("k");
        let mut next = parked(locks.lock("k").fencing(true).acquire());
        let asked = proxy.on_next(fences, Action::DelayReply(Duration::from_millis(500)));
        guard.release().await.unwrap();
        let guard = timeout(PATIENCE, &mut next).await.expect("it hangs").unwrap();
        assert_eq!(asked.times(), 1);
        let now_held = server.value("k");
        assert_eq!(
            guard.handle().fencing_token().await.unwrap().get(),
            server.ask::<u64>(&["GET", "%lock-fence"])
        );
        guard.release().await.unwrap();
        // It counts as not polled after two sweeps of the watchdog, 100 ms apart.
        let lag = lag.longest();
        if now_held != value && lag > Duration::from_millis(50) && Stamp::now().since(first) < PATIENCE {
            continue;
        }
        assert_eq!(
            now_held, value,
            "it was taken back from a call that was polled within {lag:?}"
        );
        break;
    }
}

/// Around the moment at which a turn is taken back, it is either accepted or taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_polled_as_its_turn_is_taken_back_loses_nothing() {
    let server = Server::start();
    let locks = manager(&server, HandoverLimits::default());
    let mut rounds = JoinSet::new();
    for nth in 0..60_u64 {
        let locks = locks.clone();
        rounds.spawn(async move {
            let key = format!("round-{nth}");
            let inside = Arc::new(AtomicUsize::new(0));
            let guard = locks.lock(&*key).acquire().await.unwrap();
            let mut late = Vec::new();
            for _ in 0..2 {
                let inside = Arc::clone(&inside);
                late.push(parked(locks.lock(&*key).run(async move {
                    let _inside = Alone::enter(&inside);
                    tokio::task::yield_now().await;
                })));
            }
            let next = locks.lock(&*key).run({
                let inside = Arc::clone(&inside);
                async move { drop(Alone::enter(&inside)) }
            });
            let next = tokio::spawn(next);
            tokio::task::yield_now().await;
            guard.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(90 + 2 * nth)).await;
            if nth % 3 == 0 {
                drop(late.pop());
            }
            for call in late {
                timeout(PATIENCE, call).await.expect("it hangs").unwrap();
            }
            timeout(PATIENCE, next).await.expect("it hangs").unwrap().unwrap();
        });
    }
    while let Some(round) = rounds.join_next().await {
        round.unwrap();
    }
    timeout(PATIENCE, locks.shutdown()).await.expect("it hangs");
    assert_eq!(server.keys().len(), 0, "{:?}", server.keys());
}
