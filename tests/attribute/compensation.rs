//! `on_lost = path::to::fn`: a function that runs after a body was cancelled.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, current, distributed_lock};

use crate::witness::Shop;

/// What has happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn note(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn taken(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Notes its end.
struct Argument(Log, &'static str);

impl Drop for Argument {
    fn drop(&mut self) {
        self.0.note(self.1);
    }
}

tokio::task_local! {
    static LOG: Log;
}

mod orders {
    use super::{Duration, LOG, LockError, current};

    // Like a word of the argument's own, and another path.
    pub(super) async fn cancel(lost: LockError) {
        assert!(current().is_none(), "the body's lock is gone");
        tokio::time::sleep(Duration::from_millis(10)).await;
        LOG.with(|log| log.note(lost.kind()));
    }
}

#[distributed_lock(key = "<key>", lease = 1, renew = false, wait = 0, on_lost = orders::cancel, manager = locks)]
async fn book(locks: &LockManager, key: &str, log: Log, _argument: Argument, work: Duration) -> Shop<&'static str> {
    let _body = Argument(log.clone(), "body");
    let task = Argument(log.clone(), "task");
    drop(current().unwrap().spawn(async move {
        let _task = task;
        std::future::pending::<()>().await;
    }));
    tokio::time::sleep(work).await;
    Ok("booked")
}

async fn booked(locks: &LockManager, log: &Log, key: &str, work: Duration) -> Shop<&'static str> {
    let argument = Argument(log.clone(), "argument");
    LOG.scope(log.clone(), book(locks, key, log.clone(), argument, work))
        .await
}

#[tokio::test(start_paused = true)]
async fn the_function_is_called_after_the_body_and_before_the_call_returns() {
    let (locks, log) = (LockManager::connect("memory://").await.unwrap(), Log::default());
    let lost = booked(&locks, &log, "k", Duration::from_secs(9)).await;
    assert!(lost.is_err(), "{lost:?}");
    let noted = log.taken();
    // The body's task ends beside it.
    assert_eq!(noted.last(), Some(&"lost"), "{noted:?}");
    assert_eq!(noted.len(), 4, "{noted:?}");
}

#[tokio::test(start_paused = true)]
async fn the_function_is_not_called_for_a_body_that_was_not_cancelled_by_its_lock() {
    let (locks, log) = (LockManager::connect("memory://").await.unwrap(), Log::default());
    assert_eq!(booked(&locks, &log, "k", Duration::ZERO).await.unwrap(), "booked");
    let held = locks.lock("k").acquire().await.unwrap();
    assert!(booked(&locks, &log, "k", Duration::ZERO).await.is_err());
    held.release().await.unwrap();
    // A call that is dropped runs nothing more.
    let dropped = tokio::time::timeout(
        Duration::from_millis(1),
        booked(&locks, &log, "k", Duration::from_secs(9)),
    );
    assert!(dropped.await.is_err());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let noted = log.taken();
    assert!(!noted.contains(&"lost") && !noted.contains(&"busy"), "{noted:?}");
}

async fn note(lost: LockError) {
    LOG.with(|log| log.note(lost.kind()));
}

#[distributed_lock(key = "hangs", max_hold = "3s", on_lost = note, on_busy = skip, manager = locks)]
async fn hangs(locks: &LockManager) {
    std::future::pending::<()>().await;
}

#[distributed_lock(key = "late", lease = 6, renew = false, on_lost = note, manager = locks)]
async fn late(locks: &LockManager) -> Result<(), LockError> {
    // Its one poll ends after the lease: it is not cancelled.
    std::thread::sleep(Duration::from_millis(6_100));
    Ok(())
}

#[distributed_lock(key = "panics", on_lost = note, manager = locks)]
async fn panics(locks: &LockManager, panics: bool) -> Result<(), LockError> {
    assert!(!panics, "as it should");
    Ok(())
}

#[distributed_lock(key = "closed", on_lost = note, coalesce, manager = locks)]
async fn closed(locks: LockManager) -> Result<(), LockError> {
    std::future::pending().await
}

struct Desk<T>(T);

trait Works {
    async fn work(&self, locks: &LockManager) -> Result<(), LockError>;
}

impl<T: std::fmt::Display> Works for Desk<T> {
    #[distributed_lock(key = "desk:<self.0>", lease = 1, renew = false, on_lost = note, manager = locks)]
    async fn work(&self, locks: &LockManager) -> Result<(), LockError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_hangs_or_is_shut_down_is_made_up_for_too() {
    let locks = LockManager::builder("memory://")
        .shutdown_grace(Duration::from_secs(1))
        .build()
        .unwrap();
    let log = Log::default();
    let noting = |log: &Log| log.clone();
    LOG.scope(noting(&log), hangs(&locks)).await;
    assert_eq!(log.taken(), ["hung"]);
    assert!(LOG.scope(noting(&log), Desk(7).work(&locks)).await.is_err());
    assert_eq!(log.taken(), ["lost"]);
    let call = tokio::spawn(LOG.scope(noting(&log), closed(locks.clone())));
    tokio::task::yield_now().await;
    locks.shutdown().await;
    assert!(call.await.unwrap().is_err());
    assert_eq!(log.taken(), ["closed"]);
    // Closed before it began.
    assert!(LOG.scope(noting(&log), closed(locks)).await.is_err());
    assert!(log.taken().is_empty());
}

#[tokio::test]
async fn a_body_that_ran_to_its_end_or_panicked_is_not_made_up_for() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let log = Log::default();
    let locks_too = locks.clone();
    let scope = LOG.scope(log.clone(), async move { panics(&locks_too, true).await });
    assert!(tokio::spawn(scope).await.unwrap_err().is_panic());
    let server = lock_tests::Server::start();
    let on_server = lock_tests::patient(LockManager::builder(&server.url())).await;
    let completed = LOG.scope(log.clone(), late(&on_server)).await.unwrap_err();
    assert!(
        matches!(completed, LockError::Lost { completed: true, .. }),
        "{completed:?}"
    );
    assert!(log.taken().is_empty());
}
