//! Releases and clean-ups in the background.

use std::pin::pin;
use std::time::Duration;

use lock_runtime::{LockError, LockManager};
use lock_tests::patience::eventually_blocking;
use lock_tests::{PATIENCE, Server, eventually};

/// So long that nothing ends a lock but its release.
const LONG: Duration = Duration::from_secs(60);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// A connected manager whose time-outs no busy machine meets.
async fn connected(url: &str) -> LockManager {
    let builder = LockManager::builder(url).connect_timeout(PATIENCE);
    let locks = builder.response_timeout(PATIENCE).build().unwrap();
    locks.check_connection().await.unwrap();
    locks
}

/// A call that does not wait for its release.
async fn pipelined(locks: &LockManager, key: &str, wait: Duration) -> Result<(), LockError> {
    let request = locks.lock(key).lease(LONG).wait(wait).pipelined(true);
    request.run(async {}).await
}

/// A second release that finds the lock gone is no loss.
fn no_release_came_late(locks: &LockManager) {
    let stats = locks.stats();
    let late = (stats.lost_deleted, stats.lost_taken, stats.unconfirmed);
    assert_eq!(late, (0, 0, 0), "{stats:?}");
}

#[test]
fn a_pipelined_release_is_sent_though_its_runtime_is_not_driven_any_more() {
    let server = Server::start();
    let runtime = runtime();
    let locks = runtime.block_on(connected(&server.url()));
    for key in ["first", "second"] {
        runtime.block_on(pipelined(&locks, key, PATIENCE)).unwrap();
        // Synchronous code, for as long as it likes. The lease is longer than this waits.
        let stored = format!("dist_lock:{key}");
        eventually_blocking("the release", || !server.exists(&stored));
    }
    // The runtime finds that its own releases come too late, which is no loss.
    runtime.block_on(async {
        locks.lock("other").run(async {}).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    });
    no_release_came_late(&locks);
    runtime.block_on(locks.shutdown());
}

#[test]
fn a_call_finds_the_lock_free_whose_pipelined_release_came_before_it() {
    let server = Server::start();
    let runtime = runtime();
    let locks = runtime.block_on(connected(&server.url()));
    // With pauses in which the runtime has not sent the release yet, in which the lock thread is about to, and in which it has.
    for pause in (0..100).step_by(3) {
        runtime.block_on(pipelined(&locks, "order", PATIENCE)).unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        let next = runtime.block_on(pipelined(&locks, "order", Duration::ZERO));
        // The lock was free as well if it was taken back from this thread, which had stood still.
        let was_free = |error: &LockError| error.is_retryable() && !error.is_busy();
        assert!(
            next.as_ref().err().is_none_or(was_free),
            "{pause} ms after a pipelined release: {next:?}"
        );
    }
    no_release_came_late(&locks);
    runtime.block_on(locks.shutdown());
}

#[test]
fn a_pipelined_release_whose_runtime_ends_is_sent_and_no_loss() {
    let server = Server::start();
    let runtime = runtime();
    let locks = runtime.block_on(connected(&server.url()));
    runtime.block_on(pipelined(&locks, "ends", PATIENCE)).unwrap();
    drop(runtime);
    eventually_blocking("the release", || !server.exists("dist_lock:ends"));
    let stats = locks.stats();
    assert_eq!((stats.lost_deleted, stats.lost_taken), (0, 0), "{stats:?}");
}

/// As in a `select!` whose other branch is a signal, with the call in scope until the end.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_waiting_call_that_is_polled_no_more() {
    let server = Server::start();
    let other = connected(&server.url()).await;
    let locks = LockManager::builder(&server.url())
        .shutdown_grace(LONG * 60)
        .build()
        .unwrap();
    let held = other.lock("k").lease(LONG * 2).acquire().await.unwrap();
    let mut waiting = pin!(locks.lock("k").wait(LONG).acquire());
    let queue = "dist_lock:%lock-queue:{dist_lock:k}";
    tokio::select! {
        ended = &mut waiting => panic!("{:?}", ended.err()),
        () = eventually("a place in the queue", || async { server.exists(queue) }) => {}
    }
    let down = tokio::time::timeout(PATIENCE, locks.shutdown()).await;
    down.expect("the call holds nothing");
    assert!(matches!(waiting.await, Err(LockError::Closed { .. })));
    held.release().await.unwrap();
}
