//! The defaults of a manager, and what replaces them for one call.

use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockRequest, RequestProblem, current, distributed_lock};

use crate::witness::{Shop, ShopError, problem};

fn manager(defaults: fn(LockRequest) -> LockRequest) -> LockManager {
    LockManager::builder("memory://").defaults(defaults).build().unwrap()
}

fn would_deadlock<T>(result: &Result<T, LockError>) -> bool {
    matches!(result, Err(LockError::WouldDeadlock { .. }))
}

fn mode() -> String {
    current().expect("locked").mode().to_string()
}

#[distributed_lock(key = "k", manager = locks)]
async fn plain(locks: &LockManager) -> Shop<String> {
    Ok(mode())
}

#[distributed_lock(key = "k", mode = exclusive, manager = locks)]
async fn exclusive(locks: &LockManager) -> Shop<String> {
    Ok(mode())
}

#[distributed_lock(key = "k", mode = semaphore(5), manager = locks)]
async fn semaphore(locks: &LockManager) -> Shop<String> {
    Ok(mode())
}

#[distributed_lock(key = "k", owner = "me", manager = locks)]
async fn owner(locks: &LockManager) -> Shop<String> {
    Ok(mode())
}

#[tokio::test]
async fn a_default_mode_is_that_of_every_call_and_another_one_replaces_it() {
    let locks = manager(LockRequest::read);
    assert_eq!(plain(&locks).await.unwrap(), "read");
    assert_eq!(locks.lock("k").run(async { mode() }).await.unwrap(), "read");
    assert_eq!(exclusive(&locks).await.unwrap(), "exclusive");
    assert_eq!(semaphore(&locks).await.unwrap(), "semaphore(5)");
    assert_eq!(owner(&locks).await.unwrap(), "owner me");
    let write = locks.lock("k").write().run(async { mode() });
    assert_eq!(write.await.unwrap(), "write");
    let two = locks
        .lock("k")
        .write()
        .semaphore(2)
        .acquire()
        .await
        .map_err(ShopError::Lock);
    assert_eq!(problem(two), RequestProblem::TwoModes);
}

/// How many calls of this tree hold the lock.
#[distributed_lock(key = "nested", manager = locks)]
async fn inner(locks: &LockManager) -> Result<u32, LockError> {
    Ok(current().expect("locked").hold_count())
}

#[distributed_lock(key = "nested", reentrant = false, manager = locks)]
async fn apart(locks: &LockManager) -> Result<u32, LockError> {
    Ok(0)
}

#[distributed_lock(key = "nested", manager = locks)]
async fn outer(locks: &LockManager) -> Result<[u32; 2], LockError> {
    assert!(would_deadlock(&apart(locks).await));
    let request = || locks.lock("nested");
    assert!(would_deadlock(&request().reentrant(false).acquire().await));
    let count = || current().map_or(0, |lock| lock.hold_count());
    Ok([inner(locks).await?, request().run(async { count() }).await?])
}

#[tokio::test]
async fn nested_calls_re_enter_by_default_unless_one_says_that_it_does_not() {
    let locks = manager(|call| call.reentrant(true));
    assert_eq!(outer(&locks).await.unwrap(), [2, 2]);
    // What the outer call is given says nothing of the calls inside.
    let locks_of = locks.clone();
    let inside = locks
        .lock("nested")
        .reentrant(false)
        .run(async move { inner(&locks_of).await });
    assert_eq!(inside.await.unwrap().unwrap(), 2);
}

#[distributed_lock(key = "turns", manager = locks)]
async fn turn(locks: &LockManager) -> Shop<()> {
    tokio::task::yield_now().await;
    Ok(())
}

#[distributed_lock(key = "turns", fair = false, manager = locks)]
async fn unfair_turn(locks: &LockManager) -> Shop<()> {
    tokio::task::yield_now().await;
    Ok(())
}

/// A fair call passes its lock on to no other call of its process.
#[tokio::test(start_paused = true)]
async fn a_default_of_fair_is_switched_off_for_one_call() {
    let locks = manager(|call| call.fair(true));
    let by_hand = || locks.lock("turns").run(async { tokio::task::yield_now().await });
    let (first, second) = tokio::join!(turn(&locks), turn(&locks));
    first.and(second).unwrap();
    let (first, second) = tokio::join!(by_hand(), by_hand());
    first.and(second).unwrap();
    assert_eq!(locks.stats().passed, 0);
    let (first, second) = tokio::join!(unfair_turn(&locks), unfair_turn(&locks));
    first.and(second).unwrap();
    assert_eq!(locks.stats().passed, 1);
}

#[distributed_lock(keys = ["a", "b"], manager = locks)]
async fn both(locks: &LockManager) -> Shop<()> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], mode = exclusive, fair = false, manager = locks)]
async fn both_as_they_can_be(locks: &LockManager) -> Shop<()> {
    Ok(())
}

#[distributed_lock(key = "k", mode = read, manager = locks)]
async fn fenced_read(locks: &LockManager) -> Shop<()> {
    Ok(())
}

#[distributed_lock(key = "k", mode = read, fencing = false, manager = locks)]
async fn read(locks: &LockManager) -> Shop<()> {
    Ok(())
}

#[tokio::test]
async fn a_default_that_a_call_cannot_have_is_an_error_until_it_is_switched_off() {
    let locks = manager(|call| call.fair(true));
    assert_eq!(problem(both(&locks).await), RequestProblem::SeveralFair);
    both_as_they_can_be(&locks).await.unwrap();
    let locks = manager(LockRequest::write);
    assert_eq!(problem(both(&locks).await), RequestProblem::SeveralInAMode);
    both_as_they_can_be(&locks).await.unwrap();
    let locks = manager(|call| call.fencing(true));
    assert_eq!(problem(fenced_read(&locks).await), RequestProblem::ManyToFence);
    read(&locks).await.unwrap();
}

#[distributed_lock(key = "long", manager = locks)]
async fn long(locks: &LockManager) -> Result<(), LockError> {
    std::future::pending().await
}

#[distributed_lock(key = "long", max_hold = "5s", manager = locks)]
async fn long_by_time(locks: &LockManager) -> Result<(), LockError> {
    std::future::pending().await
}

#[distributed_lock(key = "long", lease = 15, max_renewals = 3, manager = locks)]
async fn long_by_renewals(locks: &LockManager) -> Result<(), LockError> {
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn a_limit_in_one_form_replaces_a_default_in_the_other() {
    let held = |hung| match hung {
        Err(LockError::Hung { held, .. }) => held.as_secs(),
        other => panic!("{other:?}"),
    };
    let locks = manager(|call| call.max_renewals(100));
    assert_eq!(held(long_by_time(&locks).await), 5);
    let locks = manager(|call| call.max_hold(Duration::from_secs(3600)));
    assert_eq!(held(long(&locks).await), 3600);
    assert_eq!(held(long_by_renewals(&locks).await), 40);
}
