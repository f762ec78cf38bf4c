//! The modes in the attribute: `mode`, `owner`, `reentrant`, `keys` and `lock_delay`.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use lock_runtime::{KeyProblem, LockError, LockManager, LockMode, RequestProblem, distributed_lock};
use tokio::sync::Barrier;

use crate::witness::{Shop, ShopError, is_taken, problem, released, start};

fn manager() -> LockManager {
    LockManager::builder("memory://").build().unwrap()
}

fn is_busy<T>(result: &Shop<T>) -> bool {
    matches!(result, Err(ShopError::Lock(LockError::Busy { .. })))
}

fn would_deadlock<T>(result: &Shop<T>) -> bool {
    matches!(result, Err(ShopError::Lock(LockError::WouldDeadlock { .. })))
}

/// Waits until all have come.
async fn meet(all: &Barrier) {
    let met = tokio::time::timeout(Duration::from_secs(30), all.wait()).await;
    met.expect("the others have come");
}

/// Who holds the lock, and how many calls of this tree do.
fn holds() -> (String, u32) {
    let lock = lock_runtime::current().expect("locked");
    (lock.mode().to_string(), lock.hold_count())
}

#[distributed_lock(key = "reentrant", reentrant, wait = 0)]
async fn reentrant(depth: u32) -> Shop<Vec<u32>> {
    let mut counts = vec![holds().1];
    if depth > 0 {
        counts.extend(Box::pin(reentrant(depth - 1)).await?);
        counts.push(holds().1);
    }
    assert!(is_taken("reentrant").await);
    Ok(counts)
}

#[distributed_lock(key = "reentrant", reentrant = false, wait = 0)]
async fn not_reentrant() -> Shop<()> {
    Ok(())
}

#[distributed_lock(key = "reentrant", reentrant = true, wait = 0)]
async fn around_another() -> Shop<bool> {
    Ok(would_deadlock(&not_reentrant().await))
}

#[distributed_lock(key = "reentrant", reentrant, wait = 0)]
async fn around_a_task() -> Shop<bool> {
    Ok(is_busy(&tokio::spawn(reentrant(0)).await.unwrap()))
}

#[tokio::test]
async fn reentrant_calls_pass_through_and_count_and_the_outermost_releases() {
    start().await;
    let counts = released("reentrant", reentrant(2)).await.unwrap();
    assert_eq!(counts, [1, 2, 3, 2, 1]);
    assert!(released("reentrant", around_another()).await.unwrap());
    // A spawned task does not inherit the lock.
    assert!(released("reentrant", around_a_task()).await.unwrap());
}

#[distributed_lock(key = "page:<id>", mode = read, wait = 0, manager = locks)]
async fn read(locks: &LockManager, id: u32, both: &Barrier) -> Shop<(String, u32)> {
    meet(both).await;
    Ok(holds())
}

#[distributed_lock(key = "page:<id>", mode = write, wait = 0, fencing, manager = locks)]
async fn write(locks: &LockManager, id: u32) -> Shop<String> {
    lock_runtime::current().expect("locked").fencing_token().await?;
    Ok(holds().0)
}

#[distributed_lock(key = "page:<id>", mode = write, manager = locks)]
async fn write_and_read(locks: &LockManager, id: u32) -> Shop<(String, u32)> {
    read(locks, id, &Barrier::new(1)).await
}

#[distributed_lock(key = "page:<id>", mode = read, manager = locks)]
async fn read_and_write(locks: &LockManager, id: u32) -> Shop<String> {
    // A read in a read passes without `reentrant`.
    read(locks, id, &Barrier::new(1)).await?;
    write(locks, id).await
}

#[tokio::test]
async fn readers_read_together_and_a_writer_writes_alone() {
    let locks = manager();
    // Neither body ends before both have begun.
    let both = Barrier::new(2);
    let (first, second) = tokio::join!(read(&locks, 1, &both), read(&locks, 1, &both));
    assert_eq!(first.unwrap(), ("read".to_owned(), 1));
    assert_eq!(second.unwrap(), ("read".to_owned(), 1));

    let both = Barrier::new(2);
    let mut reader = pin!(read(&locks, 1, &both));
    tokio::select! {
        biased;
        output = &mut reader => panic!("it is over: {output:?}"),
        () = std::future::ready(()) => {}
    }
    assert!(is_busy(&write(&locks, 1).await));
    assert_eq!(write(&locks, 2).await.unwrap(), "write");
    meet(&both).await;
    reader.await.unwrap();
    assert_eq!(write(&locks, 1).await.unwrap(), "write");
}

#[tokio::test]
async fn a_writer_may_read_inside_and_a_reader_may_not_write() {
    let locks = manager();
    assert_eq!(write_and_read(&locks, 1).await.unwrap(), ("write".to_owned(), 2));
    let upgrade = read_and_write(&locks, 1).await;
    assert!(would_deadlock(&upgrade), "{upgrade:?}");
    assert_eq!(write(&locks, 1).await.unwrap(), "write");
}

#[distributed_lock(key = "pool", mode = semaphore(2), wait = 0, manager = locks)]
async fn two_at_once(locks: &LockManager, both: &Barrier) -> Shop<String> {
    meet(both).await;
    Ok(holds().0)
}

#[distributed_lock(key = "pool of <permits>", mode = semaphore(*permits), wait = 0, manager = locks)]
async fn as_many_at_once(locks: &LockManager, (permits, _): (u32, &str)) -> Shop<String> {
    Ok(holds().0)
}

#[tokio::test]
async fn a_semaphore_admits_as_many_as_it_has_permits() {
    let locks = manager();
    let both = Barrier::new(3);
    let (mut first, mut second) = (pin!(two_at_once(&locks, &both)), pin!(two_at_once(&locks, &both)));
    tokio::select! {
        biased;
        output = &mut first => panic!("it is over: {output:?}"),
        output = &mut second => panic!("it is over: {output:?}"),
        () = std::future::ready(()) => {}
    }
    assert!(is_busy(&two_at_once(&locks, &both).await));
    let (first, second, ()) = tokio::join!(first, second, meet(&both));
    assert_eq!(
        (first.unwrap(), second.unwrap()),
        ("semaphore(2)".into(), "semaphore(2)".into())
    );

    assert_eq!(as_many_at_once(&locks, (3, "")).await.unwrap(), "semaphore(3)");
}

#[tokio::test]
async fn a_semaphore_without_permits_is_refused_at_run_time_too() {
    let refused = as_many_at_once(&manager(), (0, "")).await;
    assert_eq!(problem(refused), RequestProblem::NoPermits);
}

#[distributed_lock(key = "order:<order>", owner = "flow:<flow>", wait = 0, manager = locks)]
async fn step<F: fmt::Display>(locks: &LockManager, order: u32, flow: F, all: &Barrier) -> Shop<LockMode> {
    meet(all).await;
    let mode = lock_runtime::current().expect("locked").mode().clone();
    Ok(mode)
}

#[tokio::test]
async fn holders_of_one_owner_share_the_lock_and_others_wait() {
    let locks = manager();
    let both = Barrier::new(2);
    // Every call is a call tree of its own here.
    let (first, second) = tokio::join!(step(&locks, 1, "a:b", &both), step(&locks, 1, "a:b", &both));
    assert_eq!(first.unwrap(), LockMode::owner("flow:a%3Ab"));
    assert_eq!(second.unwrap(), LockMode::owner("flow:a%3Ab"));

    let both = Barrier::new(2);
    let mut first = pin!(step(&locks, 1, "a", &both));
    tokio::select! {
        biased;
        output = &mut first => panic!("it is over: {output:?}"),
        () = std::future::ready(()) => {}
    }
    assert!(is_busy(&step(&locks, 1, "b", &both).await));
    let (first, second) = tokio::join!(first, step(&locks, 1, "a", &both));
    assert_eq!(first.unwrap(), second.unwrap());
}

struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}

#[distributed_lock(key = "order", owner = "<flow>", manager = locks)]
async fn only_owner(locks: &LockManager, flow: &str) -> Shop<()> {
    Ok(())
}

#[tokio::test]
async fn an_owner_that_cannot_be_one_is_refused() {
    let locks = manager();
    let broken = step(&locks, 1, Broken, &Barrier::new(1)).await;
    assert!(
        matches!(
            broken,
            Err(ShopError::Lock(LockError::InvalidKey {
                problem: KeyProblem::Display,
                ..
            }))
        ),
        "{broken:?}"
    );
    let long = "x".repeat(1025);
    for (flow, expected) in [("", RequestProblem::NoOwner), (&long, RequestProblem::LongOwner)] {
        assert_eq!(problem(only_owner(&locks, flow).await), expected);
    }
}

#[distributed_lock(keys = ["account:<from>", "account:<to>"], wait = 0)]
async fn transfer(from: &str, to: &str) -> Shop<Vec<String>> {
    let lock = lock_runtime::current().expect("locked");
    let keys: Vec<_> = lock.keys().map(str::to_owned).collect();
    for key in &keys {
        assert!(is_taken(key).await, "{key}");
    }
    Ok(keys)
}

#[distributed_lock(keys = ["account:<from>", "fees", "account:<to>"], wait = 0, reentrant, lock_delay = 1, manager = locks)]
async fn transfer_with_fee(locks: &LockManager, (from, to): (u32, u32), again: bool) -> Shop<u32> {
    if again {
        return Box::pin(transfer_with_fee(locks, (to, from), false)).await;
    }
    Ok(holds().1)
}

#[tokio::test]
async fn several_keys_are_taken_together_in_order_and_each_once() {
    let locks = start().await;
    assert_eq!(
        released("account:b", transfer("b", "a")).await.unwrap(),
        ["account:a", "account:b"]
    );
    assert_eq!(transfer("a", "b").await.unwrap(), ["account:a", "account:b"]);
    assert_eq!(transfer("a", "a").await.unwrap(), ["account:a"]);

    let guard = locks.lock("account:b").acquire().await.unwrap();
    for (from, to) in [("a", "b"), ("b", "a")] {
        assert!(is_busy(&tokio::spawn(transfer(from, to)).await.unwrap()));
        assert!(!is_taken("account:a").await);
    }
    guard.release().await.unwrap();
    assert!(transfer("a", "b").await.is_ok());
}

#[tokio::test]
async fn reentrant_calls_pass_through_several_keys_in_any_order() {
    assert_eq!(transfer_with_fee(&manager(), (2, 1), true).await.unwrap(), 2);
}

#[tokio::test]
async fn one_bad_key_of_several_is_named() {
    start().await;
    let long = "x".repeat(1025);
    let refused = transfer("a", &long).await;
    assert!(
        matches!(
            refused,
            Err(ShopError::Lock(LockError::InvalidKey {
                problem: KeyProblem::TooLong(1033),
                ..
            }))
        ),
        "{refused:?}"
    );
}

#[distributed_lock(key = "delayed", lease = 10, lock_delay = "1m", renew = false, wait = 0, manager = locks)]
async fn delayed(locks: &LockManager, expires: bool) -> Shop<()> {
    if expires {
        std::future::pending::<()>().await;
    }
    Ok(())
}

#[distributed_lock(key = "delayed", wait = 300, lock_delay = DELAY, manager = locks)]
async fn next(locks: &LockManager) -> Shop<Duration> {
    const { assert!(DELAY.as_secs() == 60) };
    Ok(lock_runtime::current().expect("locked").remaining())
}

const DELAY: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn after_a_lease_that_ran_out_the_next_holder_waits_for_the_delay() {
    let locks = manager();
    let began = tokio::time::Instant::now();
    // Who releases leaves no delay.
    delayed(&locks, false).await.unwrap();
    let validity = next(&locks).await.unwrap();
    assert!(
        validity <= Duration::from_secs(30),
        "the delay is no part of the lease: {validity:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());

    let lost = delayed(&locks, true).await;
    assert!(matches!(lost, Err(ShopError::Lock(LockError::Lost { .. }))), "{lost:?}");
    let lost = began.elapsed();
    assert!(lost < Duration::from_secs(11), "{lost:?}");
    next(&locks).await.unwrap();
    let next = began.elapsed();
    assert!(
        next >= Duration::from_secs(70) && next < Duration::from_secs(80),
        "{next:?}"
    );
}
