//! Tasks that belong to a lock end before it is released, however it ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_runtime::clock::{BootClock, Clock, Moment};
use lock_runtime::{HeldLock, LockError, LockManager, OnLost, current};
use lock_tests::{PATIENCE, Server, eventually, patient};

/// So long that nothing ends it but what the test does.
const LONG: Duration = Duration::from_secs(60);
/// For how long a task keeps its thread.
const BUSY: Duration = Duration::from_millis(150);
/// How often a task is spawned as its lock ends.
const ROUNDS: usize = 1_000;

async fn connected(server: &Server) -> LockManager {
    patient(LockManager::builder(&server.url())).await
}

/// Whether the key was still held when a task's future went.
#[derive(Clone, Default)]
struct Gone(Arc<Mutex<Option<bool>>>);

impl Gone {
    fn told(&self) -> Option<bool> {
        *self.0.lock().unwrap()
    }

    #[track_caller]
    fn assert_under_lock(&self, what: &str) {
        assert_eq!(
            self.told(),
            Some(true),
            "the task's lock was gone before the task, after {what}"
        );
    }
}

/// Part of a task's future.
struct Part<'a> {
    server: &'a Server,
    key: &'static str,
    gone: Gone,
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let held = self.server.exists(self.key);
        self.gone.0.lock().unwrap().get_or_insert(held);
    }
}

/// A server that tasks can ask.
fn lasting() -> &'static Server {
    Box::leak(Box::new(Server::start()))
}

/// A task that keeps its thread for a while once it has begun, and never ends by itself.
async fn started(lock: &HeldLock, server: &'static Server, key: &'static str) -> Gone {
    let gone = Gone::default();
    let began = Arc::new(tokio::sync::Notify::new());
    let part = Part {
        server,
        key,
        gone: gone.clone(),
    };
    let begins = Arc::clone(&began);
    drop(lock.spawn(async move {
        let _part = part;
        begins.notify_one();
        tokio::task::yield_now().await;
        std::thread::sleep(BUSY);
        std::future::pending::<()>().await;
    }));
    began.notified().await;
    gone
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_call_ends_after_its_tasks_and_releases_after_them() {
    let server = lasting();
    let locks = connected(server).await;
    let gone = locks
        .lock("run")
        .lease(LONG)
        .run(async { started(&current().unwrap(), server, "dist_lock:run").await })
        .await
        .unwrap();
    gone.assert_under_lock("the end of its body");
    assert!(!server.exists("dist_lock:run"));

    let guard = locks.lock("guard").lease(LONG).acquire().await.unwrap();
    let gone = started(guard.handle(), server, "dist_lock:guard").await;
    guard.release().await.unwrap();
    gone.assert_under_lock("its guard's release");
    assert!(!server.exists("dist_lock:guard"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_call_that_is_dropped_or_panics_releases_after_its_tasks() {
    let server = lasting();
    let locks = connected(server).await;
    for (key, panics) in [("dist_lock:dropped", false), ("dist_lock:panicked", true)] {
        let (send, gone) = tokio::sync::oneshot::channel();
        let locks = locks.clone();
        let name = key.strip_prefix("dist_lock:").unwrap();
        let call = tokio::spawn(async move {
            let body = async {
                let gone = started(&current().unwrap(), server, key).await;
                send.send(gone).ok();
                assert!(!panics, "the body panics, as it should");
                std::future::pending::<()>().await;
            };
            locks.lock(name).lease(LONG).run(body).await
        });
        let gone = gone.await.unwrap();
        call.abort();
        assert_eq!(call.await.unwrap_err().is_panic(), panics);
        eventually("the release", || async { !server.exists(key) }).await;
        gone.assert_under_lock(key);
    }
}

#[tokio::test]
async fn a_lost_lock_cancels_its_tasks_before_the_call_ends() {
    let server = lasting();
    let locks = connected(server).await;
    let gone = Gone::default();
    let part = gone.clone();
    let lost = locks
        .lock("k")
        .lease(LONG)
        .run(async {
            let lock = current().unwrap();
            let part = Part {
                server,
                key: "dist_lock:k",
                gone: part,
            };
            let token = lock.cancellation_token();
            drop(lock.spawn(async move {
                let _part = part;
                std::future::pending::<()>().await;
            }));
            tokio::task::yield_now().await;
            server.cmd(&["DEL", "dist_lock:k"]);
            // Of the body's own: it is cancelled in another poll.
            token.cancelled().await;
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    assert_eq!(gone.told(), Some(false), "the task was not gone when the call ended");
}

/// A clock that can be put forward, as that of a host that was suspended.
#[derive(Clone, Debug, Default)]
struct Jumping(Arc<AtomicBool>);

impl Clock for Jumping {
    fn now(&self) -> Moment {
        let jump = if self.0.load(Ordering::SeqCst) {
            LONG * 2
        } else {
            Duration::ZERO
        };
        BootClock.now().after(jump)
    }
}

#[tokio::test]
async fn a_task_is_looked_after_by_the_clock_before_each_of_its_polls() {
    let server = lasting();
    let clock = Jumping::default();
    let locks = patient(LockManager::builder(&server.url()).clock(clock.clone())).await;
    let late = Arc::new(AtomicBool::new(false));
    let (polled, jumped) = (Arc::clone(&late), Arc::clone(&clock.0));
    let lost = locks
        .lock("k")
        .lease(LONG)
        .run(async {
            let gone = Gone::default();
            let part = Part {
                server,
                key: "dist_lock:k",
                gone: gone.clone(),
            };
            drop(current().unwrap().spawn(async move {
                let _part = part;
                loop {
                    polled.fetch_or(jumped.load(Ordering::SeqCst), Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            }));
            tokio::task::yield_now().await;
            // Neither the body nor the lock thread, which sleeps, is awake when the time has passed.
            tokio::spawn(async move { clock.0.store(true, Ordering::SeqCst) });
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    assert!(!late.load(Ordering::SeqCst), "a task was polled after its lock's lease");
}

#[tokio::test]
async fn a_task_is_a_part_of_the_call_tree() {
    let server = lasting();
    let locks = connected(server).await;
    let nested = locks.clone();
    locks
        .lock("k")
        .run(async {
            let lock = current().unwrap();
            let task = lock.spawn(async move {
                let lock = current().expect("a task has its lock");
                assert_eq!((lock.key(), lock.hold_count()), ("k", 1));
                nested.lock("k").reentrant(true).run(async {}).await.unwrap();
                let waits = nested.lock("k").wait(LONG).acquire().await.unwrap_err();
                assert!(matches!(waits, LockError::WouldDeadlock { .. }), "{waits}");
                // And so are the tasks that it spawns in turn.
                let deeper = lock.spawn(async { current().map(|lock| lock.key().to_owned()) });
                deeper.await.unwrap()
            });
            assert_eq!(task.await.unwrap().as_deref(), Some("k"));
            assert_eq!(lock.hold_count(), 1);
            let own = tokio::spawn(async { current().is_none() });
            assert!(own.await.unwrap());
        })
        .await
        .unwrap();
    assert!(!server.exists("dist_lock:k"));
}

/// The clock is exact, so that the call's end tells if its task was woken.
#[tokio::test(start_paused = true)]
async fn a_body_is_cancelled_in_time_though_a_task_of_its_lock_has_re_entered_the_lock() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let again = locks.clone();
    let began = tokio::time::Instant::now();
    let call = locks.lock("entered").max_hold(LONG).run(async move {
        let lock = current().unwrap();
        // Not awaited here: this body is not polled again after it.
        drop(lock.spawn(async move { again.lock("entered").reentrant(true).run(async {}).await }));
        std::future::pending::<()>().await;
    });
    let ended = tokio::time::timeout(LONG * 10, call).await.unwrap();
    assert!(matches!(ended, Err(LockError::Hung { .. })), "{ended:?}");
    assert!(began.elapsed() < LONG * 2, "after {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_task_keeps_the_locks_around_its_own() {
    let server = lasting();
    let locks = connected(server).await;
    let (send, gone) = tokio::sync::oneshot::channel();
    let inner = locks.clone();
    let outer = locks.clone();
    let call = tokio::spawn(async move {
        let body = async {
            let body = async {
                let lock = current().unwrap();
                let tree = lock.spawn(async { current().map(|lock| lock.key().to_owned()) });
                assert_eq!(tree.await.unwrap().as_deref(), Some("inner"));
                send.send(started(&lock, server, "dist_lock:outer").await).ok();
                std::future::pending::<()>().await;
            };
            inner.lock("inner").lease(LONG).run(body).await
        };
        outer.lock("outer").lease(LONG).run(body).await
    });
    let gone = gone.await.unwrap();
    call.abort();
    eventually("the release", || async { !server.exists("dist_lock:outer") }).await;
    gone.assert_under_lock("the outer call was dropped");
    // Each is released in the background, in no order.
    eventually("the release of the inner one", || async {
        !server.exists("dist_lock:inner")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn under_signal_a_task_goes_on_after_the_loss_and_ends_with_the_body() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let went_on = Arc::new(AtomicBool::new(false));
    let goes_on = Arc::clone(&went_on);
    let lost = locks
        .lock("k")
        .lease(Duration::from_secs(1))
        .renew(false)
        .on_lost(OnLost::Signal)
        .run(async {
            let lock = current().unwrap();
            let token = lock.cancellation_token();
            let task = lock.spawn(async move {
                current().unwrap().lost().await;
                goes_on.store(true, Ordering::SeqCst);
            });
            task.await.unwrap();
            assert!(token.is_cancelled(), "the token tells of a loss whatever happens then");
            drop(lock.spawn(std::future::pending::<()>()));
        })
        .await
        .unwrap_err();
    assert!(lost.is_lost() && went_on.load(Ordering::SeqCst), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_shielded_step_in_a_task_is_not_cut_in_half() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let steps = Arc::new(Mutex::new(Vec::new()));
    for (at, shielded_by_body) in [false, true].into_iter().enumerate() {
        let done = Arc::clone(&steps);
        let run = locks.lock("k").run(async {
            let lock = current().unwrap();
            let task = lock.clone().spawn(async move {
                let step = tokio::time::sleep(Duration::from_secs(2));
                if shielded_by_body {
                    step.await;
                } else {
                    current().unwrap().shielded(step).await.unwrap();
                }
                done.lock().unwrap().push(at);
                // Not a part of the step.
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
            if shielded_by_body {
                // The step waits for the task, which must not be cancelled then either.
                let hung = lock.shielded(tokio::time::sleep(Duration::from_secs(4))).await;
                hung.unwrap();
            }
            drop(task);
        });
        tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
    }
    assert_eq!(*steps.lock().unwrap(), [0, 1]);
}

/// Waits until all tasks of this runtime's only thread have done what they can.
async fn settled() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_last_shielded_step_only_wakes_tasks_that_have_to_end() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let [first, second] = [(); 2].map(|()| Arc::new(tokio::sync::Notify::new()));
    let (counted, steps) = (Arc::clone(&polls), [Arc::clone(&first), Arc::clone(&second)]);
    let (tell, told) = tokio::sync::oneshot::channel();
    let call = tokio::spawn(locks.lock("k").run(async move {
        let lock = current().unwrap();
        let polled = Arc::clone(&counted);
        drop(lock.spawn(std::future::poll_fn(move |_| {
            polled.fetch_add(1, Ordering::SeqCst);
            std::task::Poll::<()>::Pending
        })));
        settled().await;
        for _ in 0..10 {
            lock.shielded(async {}).await.unwrap();
            settled().await;
        }
        tell.send(counted.load(Ordering::SeqCst)).unwrap();
        for step in steps {
            drop(lock.spawn(async move { current().unwrap().shielded(step.notified()).await }));
        }
        settled().await;
    }));
    assert_eq!(told.await.unwrap(), 1, "a task was woken for nothing");
    eventually("the body's end", || async { polls.load(Ordering::SeqCst) == 2 }).await;
    settled().await;
    assert!(!call.is_finished());
    first.notify_one();
    settled().await;
    assert_eq!(
        polls.load(Ordering::SeqCst),
        2,
        "a task was woken before the last step was done"
    );
    assert!(!call.is_finished(), "the call has ended before its tasks");
    second.notify_one();
    tokio::time::timeout(PATIENCE, call)
        .await
        .expect("it hangs")
        .unwrap()
        .unwrap();
}

/// A task is spawned by another thread just as the lock is given back: the task has its part in the lock before that, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_a_task_that_is_spawned_as_it_ends() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let (hand, handed) = std::sync::mpsc::channel::<(HeldLock, Arc<AtomicUsize>)>();
    let runtime = tokio::runtime::Handle::current();
    let spawner = std::thread::spawn(move || {
        let _entered = runtime.enter();
        for (lock, turn) in handed {
            turn.store(1, Ordering::SeqCst);
            while turn.load(Ordering::SeqCst) == 1 {
                std::thread::yield_now();
            }
            drop(lock.spawn(std::future::pending::<()>()));
            turn.store(3, Ordering::SeqCst);
        }
    });
    for round in 0..ROUNDS {
        let guard = locks.lock("k").acquire().await.unwrap();
        let turn = Arc::new(AtomicUsize::new(0));
        hand.send((guard.handle().clone(), Arc::clone(&turn))).unwrap();
        while turn.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        turn.store(2, Ordering::SeqCst);
        for _ in 0..round % 60 {
            std::hint::spin_loop();
        }
        guard.release().await.unwrap();
        let next = locks.lock("k").wait(Duration::ZERO).acquire().await;
        assert!(next.is_ok(), "the call ended before its task, in round {round}");
        while turn.load(Ordering::SeqCst) != 3 {
            std::thread::yield_now();
        }
    }
    drop(hand);
    spawner.join().unwrap();
}

#[tokio::test]
async fn tasks_of_a_lock_that_has_ended_are_not_run() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    let (lock, token) = (guard.handle().clone(), guard.handle().cancellation_token());
    assert!(!token.is_cancelled());
    guard.release().await.unwrap();
    assert!(token.is_cancelled() && lock.cancellation_token().is_cancelled());
    let task = lock.spawn(async { panic!("it was run") });
    let ended: Result<(), _> = tokio::time::timeout(PATIENCE, task).await.unwrap();
    assert!(ended.unwrap_err().is_cancelled());
    // A token that is cancelled by another hand ends nothing else.
    let guard = locks.lock("k").acquire().await.unwrap();
    guard.handle().cancellation_token().cancel();
    let task = guard.handle().spawn(async { 7 });
    assert_eq!(task.await.unwrap(), 7);
    assert!(!guard.handle().cancellation_token().is_cancelled() && guard.handle().is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_task_that_panics_or_is_aborted_leaves_the_lock_to_its_body() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let run = locks.lock("k").run(async {
        let lock = current().unwrap();
        let panicked = lock.spawn(async { panic!("as it should") });
        let panicked: Result<(), _> = panicked.await;
        assert!(panicked.unwrap_err().is_panic());
        let aborted = lock.spawn(std::future::pending::<()>());
        aborted.abort();
        assert!(aborted.await.unwrap_err().is_cancelled());
        assert!(lock.is_held() && lock.hold_count() == 1);
        // Thousands of short ones.
        for _ in 0..2_000 {
            lock.spawn(async {}).await.unwrap();
        }
        // One that nobody awaits, in a runtime that has nothing else to do.
        drop(lock.spawn(std::future::pending::<()>()));
    });
    tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
    assert!(locks.inspect("k").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn blocking_work_is_told_by_the_token_of_a_loss() {
    let server = lasting();
    let locks = connected(server).await;
    let worked = Arc::new(Mutex::new(None));
    let work = Arc::clone(&worked);
    let run = locks.lock("k").lease(LONG).run(async {
        let token = current().unwrap().cancellation_token();
        drop(tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            while !token.is_cancelled() && began.elapsed() < LONG {
                std::thread::sleep(Duration::from_millis(1));
            }
            *work.lock().unwrap() = Some(began.elapsed());
        }));
        server.cmd(&["DEL", "dist_lock:k"]);
        std::future::pending::<()>().await;
    });
    assert!(run.await.unwrap_err().is_lost());
    eventually("the blocking work to end", || async {
        worked.lock().unwrap().is_some()
    })
    .await;
    assert!(worked.lock().unwrap().unwrap() < LONG / 2);
}

#[tokio::test]
async fn a_shutdown_waits_for_tasks_and_ends_those_that_do_not_end() {
    let locks = LockManager::builder("memory://")
        .shutdown_grace(Duration::from_millis(50))
        .build()
        .unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    let task = guard.handle().spawn(std::future::pending::<()>());
    drop(guard);
    assert!(
        tokio::time::timeout(PATIENCE, task)
            .await
            .unwrap()
            .unwrap_err()
            .is_cancelled()
    );
    let guard = Arc::new(Mutex::new(None));
    let later = locks.lock("k").acquire().await.unwrap();
    let task = later.handle().spawn(std::future::pending::<()>());
    *guard.lock().unwrap() = Some(later);
    tokio::time::timeout(PATIENCE, async {
        tokio::join!(locks.shutdown(), async {
            assert!(task.await.unwrap_err().is_cancelled());
            drop(guard.lock().unwrap().take());
        })
    })
    .await
    .unwrap();
}
