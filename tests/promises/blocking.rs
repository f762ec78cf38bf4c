//! Locks for threads that have no runtime.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use lock_runtime::{LockError, LockManager, RequestProblem};
use lock_tests::patience::eventually_blocking;
use lock_tests::{Alone, PATIENCE, Server};

fn locks(server: &Server) -> LockManager {
    LockManager::builder(&server.url())
        .response_timeout(PATIENCE)
        .default_wait(PATIENCE)
        .build()
        .unwrap()
}

#[test]
fn threads_without_a_runtime_take_turns() {
    let server = Server::start();
    let managers = [locks(&server), locks(&server)];
    let inside = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for locks in managers.iter().cycle().take(8) {
            scope.spawn(|| {
                for _ in 0..20 {
                    let guard = locks.lock("stock").acquire_blocking().unwrap();
                    let alone = Alone::enter(&inside);
                    std::thread::sleep(Duration::from_millis(1));
                    drop(alone);
                    guard.release_blocking().unwrap();
                }
            });
        }
    });
    assert_eq!(server.value("dist_lock:stock"), None);
}

#[test]
fn a_thread_is_told_that_a_lock_is_busy_and_gives_its_own_back_by_dropping_it() {
    let server = Server::start();
    let locks = locks(&server);
    let guard = locks.lock("stock").acquire_blocking().unwrap();
    let busy = locks.lock("stock").wait(Duration::ZERO).acquire_blocking();
    assert!(busy.is_err_and(|error| error.is_busy()));
    drop(guard);
    eventually_blocking("the release", || server.value("dist_lock:stock").is_none());
}

/// A lease is renewed while the thread does something else.
#[test]
fn the_watchdog_renews_what_a_thread_holds_and_tells_of_its_loss() {
    let server = Server::start();
    let lease = Duration::from_secs(9);
    let guard = locks(&server).lock("stock").lease(lease).acquire_blocking().unwrap();
    let renewed = || guard.handle().renewals() >= 1;
    eventually_blocking("a renewal", renewed);
    assert!(guard.handle().is_held());
    server.cmd(&["DEL", "dist_lock:stock"]);
    eventually_blocking("the loss", || !guard.handle().is_held());
    assert!(matches!(guard.release_blocking(), Err(LockError::Lost { .. })));
}

#[tokio::test]
async fn on_a_thread_of_a_runtime_they_say_what_to_do_instead() {
    let server = Server::start();
    let locks = locks(&server);
    let refused = locks.lock("stock").acquire_blocking().unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("await `acquire` and `release` instead"), "{said}");
    let guard = locks.lock("stock").acquire().await.unwrap();
    let refused = guard.release_blocking().unwrap_err();
    assert!(
        matches!(
            refused,
            LockError::InvalidRequest {
                problem: RequestProblem::InRuntime,
                ..
            }
        ),
        "{refused}"
    );
    // It is given back in the background, and where blocking is allowed, the runtime waits.
    let guard = tokio::task::spawn_blocking(move || {
        let refused = locks.lock("stock").acquire_blocking();
        assert!(refused.is_err());
        tokio::runtime::Handle::current().block_on(locks.lock("stock").acquire())
    });
    guard.await.unwrap().unwrap().release().await.unwrap();
}
