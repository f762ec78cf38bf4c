//! Faults of the process that holds the lock (`docs/faults.md`, rows 1 to 17).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_runtime::clock::{Clock, Moment};
use lock_runtime::store::redis::RedisStore;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, LockStore, Ownership, ReleaseRequest, RenewRequest, StoreFuture,
};
use lock_runtime::{LockError, LockManager, LostReason, current};
use lock_tests::clock::{kept_for, ticking};
use lock_tests::{Action, PATIENCE, PATIENT, Proxy, Server, Stamp, StoreJudge, eventually, lock_child};
use tokio::sync::Notify;

use crate::stage::{
    HandClock, JumpingClock, LEASE, LONG, builder, cancelled, connected, connected_by, gone, hurried, lost, releases,
    renewals, renews, share, stored,
};

// docs/faults.md, row 1.
#[tokio::test]
async fn a_killed_holder_blocks_others_for_the_rest_of_its_lease_and_no_longer() {
    let server = Server::start();
    let mut child = lock_child!("hold", server.url(), "killed", "6000").spawn();
    child.line("holding").await;

    child.kill();
    let before = Stamp::now();
    let left = server.time_left(&stored("killed")).unwrap_or_default();
    let looked = Stamp::now();
    let locks = connected(&server.url()).await;
    let guard = locks.lock("killed").wait(PATIENCE).acquire().await.unwrap();

    let granted = Stamp::now();
    let waited = granted.since(before);
    assert!(waited >= kept_for(left), "granted after {waited:?} of {left:?}");
    // A backoff step is a quarter of a second at most, and who waits for more than the lease waits in vain.
    let waited = granted.calm_since(looked);
    assert!(
        waited <= left + Duration::from_secs(10),
        "granted only after {waited:?} of {left:?}"
    );
    guard.release().await.unwrap();
}

// docs/faults.md, row 2.
#[tokio::test]
async fn a_stopped_process_does_not_go_on_after_its_lease_and_its_write_is_refused() {
    // A process may be stopped in the middle of a poll, which then ends late and is counted; nobody can prevent that. Not each time, though.
    for _ in 0..5 {
        let server = Server::start();
        let polled_late = stopped_beyond_its_lease(&server).await;
        let Some(late) = polled_late else { return };
        eprintln!("stopped in the middle of a poll, which ended {late:?} after the stop");
    }
    panic!("the body was polled after its lease each time");
}

/// How long after the stop the last poll ended, if that was one poll that was counted as an overrun.
async fn stopped_beyond_its_lease(server: &Server) -> Option<Duration> {
    let resource = Server::start();
    let judge = StoreJudge::on(&resource);
    let mut child = lock_child!("hold", server.url(), "stopped", "4000").spawn();
    let held = child.line("holding").await;
    let first: u64 = held.words()[0].parse().unwrap();
    assert!(judge.write("child", first));

    child.stop();
    let stopped = Stamp::now();
    let locks = connected(&server.url()).await;
    let request = locks.lock("stopped").lease(LONG).wait(PATIENCE).fencing(true);
    let guard = request.acquire().await.unwrap();
    let second = guard.handle().fencing_token().await.unwrap().get();
    assert!(second > first);
    assert!(judge.write("successor", second));

    child.cont();
    let ended = child.line("ended").await;
    let [outcome, last_poll, overruns] = ended.words()[..] else {
        panic!("{ended:?}")
    };
    assert!(["lost:Expired", "lost:Unreachable"].contains(&outcome), "{outcome}");
    child.say(&format!("write {}", resource.url()));
    let wrote = child.line("wrote").await;
    assert_eq!(wrote.words(), ["false"], "the fenced resource took a stale write");
    guard.handle().verify().await.expect("the successor is not disturbed");
    guard.release().await.unwrap();

    let late = last_poll.parse::<Stamp>().unwrap().since(stopped);
    assert!(
        late.is_zero() || overruns == "1",
        "polled {late:?} after the stop, {overruns} overruns"
    );
    (!late.is_zero()).then_some(late)
}

// docs/faults.md, row 3. Nothing tells the body but the look at the clock before its poll: it is woken before the watchdog is.
#[tokio::test]
async fn a_suspended_host_finds_its_body_cancelled_when_it_wakes() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = builder(&server.url()).clock(clock.clone()).build().unwrap();
    for round in 0..20 {
        let (begun, wake) = (Notify::new(), Notify::new());
        let polled_again = AtomicBool::new(false);
        let body = async {
            begun.notify_one();
            wake.notified().await;
            polled_again.store(true, Ordering::SeqCst);
        };
        let call = locks.lock(format!("suspended:{round}")).lease(LONG).run(body);
        let suspend = async {
            begun.notified().await;
            clock.jump(LONG);
            wake.notify_one();
        };
        let (ended, ()) = tokio::join!(call, suspend);
        assert!(
            !polled_again.load(Ordering::SeqCst),
            "the body was polled after its lease"
        );
        assert_asleep(ended);
        gone(&server, &format!("suspended:{round}")).await;
    }
}

// docs/faults.md, row 3, for a body that waits for something else: the watchdog looks at the clock by itself.
#[tokio::test]
async fn a_suspended_host_finds_a_waiting_body_cancelled_soon_after_it_wakes() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = builder(&server.url()).clock(clock.clone()).build().unwrap();
    let begun = Notify::new();
    let call = locks.lock("suspended").lease(LONG).run(async {
        begun.notify_one();
        std::future::pending::<()>().await;
    });
    let suspend = async {
        begun.notified().await;
        clock.jump(LONG);
    };
    let (ended, ()) = tokio::time::timeout(PATIENCE, async { tokio::join!(call, suspend) })
        .await
        .unwrap();
    assert_asleep(ended);
}

/// The lock was lost before its body had ended. A first check may have been under way as the host fell asleep, and counts as a server that
/// does not answer.
#[track_caller]
fn assert_asleep(ended: Result<(), LockError>) {
    let lost = lost(ended);
    assert!(
        [LostReason::Expired, LostReason::Unreachable]
            .map(cancelled)
            .contains(&lost),
        "{lost:?}"
    );
}

// docs/faults.md, row 4.
#[test]
fn blocked_workers_do_not_stop_renewals() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let clock = JumpingClock::default();
    let locks = runtime.block_on(connected_by(&server.url(), &clock));
    let sleepers = Arc::new(AtomicUsize::new(0));
    // Each of the two workers runs a body that blocks it for three renewals.
    let (calls, unblock): (Vec<_>, Vec<_>) = [0, 1]
        .map(|worker| {
            let sleepers = Arc::clone(&sleepers);
            let (unblock, unblocked) = std::sync::mpsc::channel();
            let call = runtime.spawn(locks.lock(format!("blocked:{worker}")).lease(LONG).run(async move {
                sleepers.fetch_add(1, Ordering::SeqCst);
                unblocked.recv().unwrap();
                let lock = current().unwrap();
                (lock.renewals(), lock.ensure(Duration::from_millis(1)).is_ok())
            }));
            (call, unblock)
        })
        .into_iter()
        .unzip();
    lock_tests::patience::eventually_blocking("both workers to be blocked", || sleepers.load(Ordering::SeqCst) == 2);
    for round in 1..=3 {
        clock.until_renewal();
        lock_tests::patience::eventually_blocking("both locks to be renewed", || locks.stats().renewals >= 2 * round);
        for worker in [0, 1] {
            assert!(server.exists(&stored(&format!("blocked:{worker}"))), "lost");
        }
    }
    for unblock in unblock {
        unblock.send(()).unwrap();
    }
    for call in calls {
        let (renewals, held) = runtime.block_on(call).unwrap().expect("the lock was held to the end");
        assert!(renewals >= 3 && held, "{renewals} renewals");
    }
    let stats = locks.stats();
    assert!(stats.renewals >= 6, "{stats:?}");
    assert_eq!((stats.overruns, stats.lost_expired, stats.lost_unreachable), (0, 0, 0));
}

// docs/faults.md, row 5.
#[tokio::test]
async fn a_body_that_keeps_its_thread_past_the_deadline_is_not_polled_again_and_is_counted() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = connected_by(&server.url(), &clock).await;
    let went_on = AtomicBool::new(false);
    let call = locks.lock("busy-loop").lease(LONG).renew(false).run(async {
        // The time passes during one poll.
        clock.jump(LONG);
        tokio::task::yield_now().await;
        went_on.store(true, Ordering::SeqCst);
    });
    assert_eq!(lost(call.await), cancelled(LostReason::Expired));
    assert!(
        !went_on.load(Ordering::SeqCst),
        "the body was polled after its deadline"
    );
    assert_eq!(locks.stats().overruns, 1);
    assert_eq!(locks.stats().lost_expired, 1);
}

// docs/faults.md, row 6.
#[test]
fn a_runtime_that_is_shut_down_releases_its_locks() {
    let server = Server::start();
    for background in [true, false] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let locks = runtime.block_on(connected(&server.url()));
        let guard = runtime.block_on(locks.lock("guard").lease(LONG).acquire()).unwrap();
        let (began, body) = std::sync::mpsc::channel();
        runtime.spawn(locks.lock("body").lease(LONG).run(async move {
            began.send(()).unwrap();
            std::future::pending::<()>().await;
        }));
        body.recv().unwrap();
        if background {
            runtime.shutdown_background();
        } else {
            drop(runtime);
        }
        // The guard outlived its runtime; nothing panics when it goes.
        assert!(guard.handle().is_held() && server.exists(&stored("guard")));
        drop(guard);
        lock_tests::patience::eventually_blocking("both locks to be released", || {
            !server.exists(&stored("guard")) && !server.exists(&stored("body"))
        });
    }
}

// docs/faults.md, row 7.
#[tokio::test]
async fn a_panic_drops_the_body_then_releases_then_goes_on() {
    /// Looks from the destructor of one of the body's locals whether the lock is still there.
    struct LooksWhenDropped(Arc<Server>, Arc<AtomicBool>);
    impl Drop for LooksWhenDropped {
        fn drop(&mut self) {
            self.1.store(self.0.exists(&stored("panic")), Ordering::SeqCst);
        }
    }
    let server = Arc::new(Server::start());
    let locks = connected(&server.url()).await;
    let was_held = Arc::new(AtomicBool::new(false));
    let local = LooksWhenDropped(Arc::clone(&server), Arc::clone(&was_held));
    let call = tokio::spawn(locks.lock("panic").lease(LONG).run(async move {
        let _local = local;
        tokio::task::yield_now().await;
        std::panic::resume_unwind(Box::new(7_u8));
    }));
    let payload = call.await.unwrap_err().into_panic();
    assert_eq!(
        payload.downcast_ref(),
        Some(&7_u8),
        "the caller gets the body's own panic"
    );
    assert!(
        was_held.load(Ordering::SeqCst),
        "the lock was given back before the body's locals were gone"
    );
    gone(&server, "panic").await;
}

struct PanicsWhenDropped;
impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("destructor"));
    }
}

// docs/faults.md, row 8.
#[tokio::test]
async fn a_panicking_destructor_does_not_keep_the_lock() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let (began, body) = tokio::sync::oneshot::channel();
    let call = tokio::spawn(locks.lock("destructor").lease(LONG).run(async move {
        let _bomb = PanicsWhenDropped;
        began.send(()).unwrap();
        std::future::pending::<()>().await;
    }));
    body.await.unwrap();
    call.abort();
    // tokio contains the panic of the future that it drops.
    let _ = call.await;
    gone(&server, "destructor").await;
}

// docs/faults.md, row 8. A second panic while the first one unwinds would abort this whole process.
#[test]
fn a_guard_dropped_by_a_panic_does_not_panic_itself() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = runtime.block_on(connected(&server.url()));
    let take = |key: &str| runtime.block_on(locks.lock(key).lease(LONG).acquire()).unwrap();
    let (held, lost, dead) = (take("held"), take("lost"), take("dead"));
    let with_guard = |guard, prepare: &dyn Fn()| {
        let thrown = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard;
            prepare();
            std::panic::resume_unwind(Box::new("body"));
        }));
        assert_eq!(thrown.unwrap_err().downcast_ref(), Some(&"body"));
    };
    with_guard(held, &|| {});
    runtime.block_on(gone(&server, "held"));
    with_guard(lost, &|| drop(server.cmd(&["SET", &stored("lost"), "another"])));
    assert_eq!(server.value(&stored("lost")).as_deref(), Some("another"));
    with_guard(dead, &|| server.kill());
}

// docs/faults.md, row 10.
#[tokio::test]
async fn a_call_dropped_while_its_renewal_is_under_way_leaves_nothing_behind() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let (began, body) = tokio::sync::oneshot::channel();
    let call = tokio::spawn(locks.lock("renewing").lease(LONG).run(async {
        began.send(()).unwrap();
        std::future::pending::<()>().await;
    }));
    body.await.unwrap();
    let held = proxy.on_next(renews("renewing", LONG), Action::HoldReply);
    clock.until_renewal();
    held.done().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    proxy.wait_for("the release", releases("renewing")).await;
    gone(&server, "renewing").await;
    proxy.release();
    // By the renewal of another lock, the renewal that was under way is over.
    let before = renewals(&proxy, "renewing", LONG).len();
    let other = locks.lock("other").lease(LONG).acquire().await.unwrap();
    clock.until_renewal();
    eventually("another lock to be renewed", || async { other.handle().renewals() > 0 }).await;
    assert_eq!(
        renewals(&proxy, "renewing", LONG).len(),
        before,
        "a dropped call was renewed"
    );
    other.release().await.unwrap();
    assert!(!server.exists(&stored("renewing")));
}

// docs/faults.md, row 11.
#[tokio::test]
async fn a_call_dropped_while_its_release_is_under_way_releases_all_the_same() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = hurried(&proxy.url()).await;
    let guard = locks.lock("releasing").lease(LONG).acquire().await.unwrap();
    let held = proxy.on_next(releases("releasing"), Action::LoseRequest);
    let release = tokio::spawn(guard.release());
    held.done().await;
    release.abort();
    assert!(release.await.unwrap_err().is_cancelled());
    gone(&server, "releasing").await;
}

// docs/faults.md, row 12.
#[tokio::test]
async fn a_body_that_ends_as_the_lease_ends_is_not_a_plain_success() {
    let server = Server::start();
    let clock = HandClock::default();
    clock.set(Moment::from_nanos(1_000_000_000));
    let locks = builder(&server.url()).clock(clock.clone()).build().unwrap();
    // By how many nanoseconds the body ends before its deadline.
    for (early, good) in [(1_000_000, true), (1, true), (0, false)] {
        let ran = AtomicBool::new(false);
        let call = locks.lock("edge").lease(LONG).renew(false).run(async {
            let deadline = current().unwrap().deadline().as_nanos();
            clock.set(Moment::from_nanos(deadline - early));
            ran.store(true, Ordering::SeqCst);
        });
        let ended = call.await;
        assert!(ran.load(Ordering::SeqCst));
        if good {
            ended.expect("the body ended in time");
        } else {
            assert_eq!(lost(ended), (LostReason::Expired, true));
        }
        gone(&server, "edge").await;
    }
}

/// A store on a real server whose renewals panic.
#[derive(Debug)]
struct PanickingRenewals {
    store: RedisStore,
    panics: Arc<AtomicUsize>,
}

impl LockStore for PanickingRenewals {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.store.acquire(request)
    }

    fn renew<'a>(&'a self, _: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        self.panics.fetch_add(1, Ordering::SeqCst);
        std::panic::resume_unwind(Box::new("renewal"));
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        self.store.release(request)
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        self.store.fence(key, value)
    }
}

// docs/faults.md, row 13.
#[tokio::test]
async fn a_panicking_watchdog_ends_its_own_lock_in_time_and_no_other() {
    let _share = share().await;
    let server = Server::start();
    let healthy = connected(&server.url()).await;
    let other = healthy.lock("healthy").lease(LEASE * 3 / 2).acquire().await.unwrap();

    let panics = Arc::new(AtomicUsize::new(0));
    let broken = PanickingRenewals {
        store: RedisStore::open(&server.url(), "dist_lock:", PATIENT).unwrap(),
        panics: Arc::clone(&panics),
    };
    let broken = LockManager::builder("panics://")
        .store(Arc::new(broken))
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    for round in 0..2 {
        let last_poll = AtomicU64::new(0);
        let deadline = AtomicU64::new(0);
        let before = panics.load(Ordering::SeqCst);
        let call = broken.lock("broken").lease(LEASE * 2).wait(PATIENCE).run(async {
            deadline.store(current().unwrap().deadline().as_nanos(), Ordering::SeqCst);
            ticking(&last_poll).await;
        });
        let ended = tokio::time::timeout(PATIENCE, call).await.unwrap();
        assert_eq!(lost(ended), cancelled(LostReason::Unreachable), "round {round}");
        assert!(panics.load(Ordering::SeqCst) > before, "round {round}");
        let (last_poll, deadline) = (last_poll.load(Ordering::SeqCst), deadline.load(Ordering::SeqCst));
        let overruns = broken.stats().overruns;
        assert!(
            last_poll <= deadline || overruns > 0,
            "polled {} ns after the deadline",
            last_poll - deadline
        );
    }
    let renewals = other.handle().renewals();
    eventually("the other manager's lock to be renewed again", || {
        let renewed = other.handle().renewals() > renewals;
        async move { renewed }
    })
    .await;
    other
        .release()
        .await
        .expect("the other manager's lock was held throughout");
}

// docs/faults.md, row 14.
#[tokio::test]
async fn a_renewal_under_way_has_no_effect_after_the_release() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let guard = locks.lock("zombie").lease(LONG).acquire().await.unwrap();
    let held = proxy.on_next(renews("zombie", LONG), Action::Hold);
    clock.until_renewal();
    held.done().await;
    guard.release().await.unwrap();
    assert!(!server.exists(&stored("zombie")));

    // The successor's lock must not be lengthened either.
    let successor = connected(&server.url()).await;
    let successor = successor.lock("zombie").lease(LONG * 10).acquire().await.unwrap();
    let value = server.value(&stored("zombie"));
    proxy.release();
    answered(&proxy, "zombie").await;
    assert_eq!(server.value(&stored("zombie")), value);
    let left = server.time_left(&stored("zombie")).unwrap();
    assert!(left > LONG, "the late renewal set the expiry to {left:?}");
    successor.release().await.unwrap();
    assert!(!server.exists(&stored("zombie")));
}

// docs/faults.md, row 14, where the release keeps the key for the minimum hold: that must neither end sooner nor later.
#[tokio::test]
async fn a_renewal_under_way_does_not_change_the_minimum_hold() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    // More than the rest of the lease at that time, and less.
    for (key, at_least) in [("longer", LONG * 5), ("shorter", LONG * 19 / 20)] {
        let asked = clock.now();
        let guard = locks.lock(key).lease(LONG).at_least(at_least).acquire().await.unwrap();
        let held = proxy.on_next(renews(key, LONG), Action::Hold);
        clock.until_renewal();
        held.done().await;
        guard.release().await.unwrap();
        let kept = server
            .time_left(&stored(key))
            .expect("the key is kept for its minimum hold");
        proxy.release();
        answered(&proxy, key).await;
        let left = server
            .time_left(&stored(key))
            .expect("the key is kept for its minimum hold");
        let rest = at_least.saturating_sub(clock.now().since(asked));
        assert!(
            left <= kept,
            "{key}: the late renewal changed the rest of the minimum hold from {kept:?} to {left:?}"
        );
        // Whole milliseconds are how servers count.
        assert!(
            left + Duration::from_millis(2) >= rest,
            "{key}: {left:?} are left of {rest:?}"
        );
    }
}

/// Waits until every renewal of this lock that went through the proxy has been executed.
async fn answered(proxy: &Proxy, key: &str) {
    let stored = stored(key);
    eventually("the server to answer the late renewal", || {
        let open = proxy.count(|command| command.is_script() && command.mentions(&stored) && command.reply.is_none());
        async move { open == 0 }
    })
    .await;
}

// docs/faults.md, row 15.
#[tokio::test]
async fn a_spawned_task_is_neither_cancelled_nor_under_the_lock() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let (task, spawned) = tokio::sync::oneshot::channel();
    let go_on = Arc::new(Notify::new());
    let theirs = Arc::clone(&go_on);
    let call = locks.lock("spawns").lease(LONG).run(async move {
        let held = current().unwrap();
        let work = tokio::spawn(async move {
            assert!(current().is_none(), "a spawned task does not count as locked");
            theirs.notified().await;
            assert!(current().is_none());
            held.is_held()
        });
        assert!(task.send(work).is_ok());
        server.cmd(&["DEL", &stored("spawns")]);
        std::future::pending::<()>().await;
    });
    assert_eq!(lost(call.await), cancelled(LostReason::Deleted));
    go_on.notify_one();
    let held = spawned.await.unwrap().await.expect("the task was not cancelled");
    assert!(!held, "the handle that the task was given tells it");
}

// docs/faults.md, row 16.
#[tokio::test]
async fn a_forked_process_has_no_lock_and_takes_none_from_its_parent() {
    let server = Server::start();
    let mut child = lock_child!("fork", server.url(), "forked").spawn();
    child.line("holding").await;
    let value = server.value(&stored("forked"));
    child.say("fork");
    child.line("shut down").await;
    // A lock cannot be taken after the fork, and the attempt ends.
    for asked in ["other", "built"] {
        let refused = child.line(asked).await.words().join(" ");
        let advice = "this process was forked from one that already used locks; start it by exec, or use locks only after the fork";
        assert!(refused.ends_with(advice), "{refused}");
    }
    assert_eq!(child.line("fork").await.words(), ["lost:Forked"]);
    assert_eq!(
        server.value(&stored("forked")),
        value,
        "the fork touched its parent's lock"
    );
    child.say("end");
    child.line("waited 0").await;
    assert_eq!(child.line("parent").await.words(), ["ok"]);
    assert!(!server.exists(&stored("forked")));
}

// docs/faults.md, row 16.
#[tokio::test]
async fn a_forked_process_waits_for_no_thread_of_its_parent() {
    // The thread that takes locks under locks is stopped by the fork at any point.
    let mut child = lock_child!("fork-among-nested").spawn();
    child.line("ended 200").await;
}

// docs/faults.md, row 17.
#[tokio::test]
async fn a_nested_call_with_the_same_key_fails_at_once() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let inner = |key: &'static str| {
        locks
            .lock(key)
            .lease(LONG)
            .wait(PATIENCE)
            .run(async { current().unwrap().key().to_owned() })
    };
    let started = Stamp::now();
    let ended = locks
        .lock("outer")
        .lease(LONG)
        .run(async {
            assert!(matches!(inner("outer").await, Err(LockError::WouldDeadlock { .. })));
            // Also through a lock on another key, and beside other work.
            let through = locks.lock("between").lease(LONG).run(inner("outer")).await.unwrap();
            assert!(matches!(through, Err(LockError::WouldDeadlock { .. })));
            let (beside, ()) = tokio::join!(inner("outer"), tokio::task::yield_now());
            assert!(matches!(beside, Err(LockError::WouldDeadlock { .. })));
            assert_eq!(inner("another").await.unwrap(), "another");
        })
        .await;
    ended.expect("the outer call is none the worse for it");
    let took = Stamp::now().calm_since(started);
    assert!(took < PATIENCE / 2, "it waited for {took:?}");
    assert_eq!(inner("outer").await.unwrap(), "outer");
}

// docs/faults.md, row 17.
#[tokio::test]
async fn a_call_handed_out_of_its_outer_lock_may_take_that_lock_when_it_has_ended() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let blocker = locks.lock("inner").lease(LONG).acquire().await.unwrap();
    let handed_out = locks.lock("outer").lease(LONG).run(async {
        let outer = || locks.lock("outer").lease(LONG).wait(PATIENCE).acquire();
        let inner = locks.lock("inner").lease(LONG).wait(PATIENCE);
        let mut call = Box::pin(inner.run(async move { outer().await.map(drop) }));
        // It has begun inside, and waits.
        assert!(
            std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx)))
                .await
                .is_pending()
        );
        [call]
    });
    let [call] = handed_out.await.unwrap();
    blocker.release().await.unwrap();
    call.await.unwrap().expect("the outer lock is free");
    gone(&server, "outer").await;
}
