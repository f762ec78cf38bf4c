//! The locks that a kit has recorded.

use std::time::Duration;

use lock_runtime::testing::TestLocks;
use lock_runtime::{LockError, LockManager, LockMode, distributed_lock};

#[distributed_lock(key = "item:<id>")]
async fn with_the_global_manager(id: u64) -> Result<(), LockError> {
    tokio::task::yield_now().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn locks_are_told_in_the_order_of_their_grants_with_function_and_mode() {
    let kit = TestLocks::new();
    let _global = kit.as_global();
    let _held = kit.hold("foreign");
    with_the_global_manager(7).await.unwrap();
    kit.manager()
        .lock("by-hand")
        .label("a-name")
        .run(async {})
        .await
        .unwrap();
    let once = kit.manager().lock("foreign").wait(Duration::ZERO);
    assert!(once.acquire().await.is_err());
    let locked = kit.locked();
    assert_eq!(locked, ["item:7", "by-hand"]);
    assert!(locked[0].function().ends_with("::record::with_the_global_manager"));
    assert_eq!(
        (locked[1].function(), locked[1].mode()),
        ("a-name", &LockMode::Exclusive)
    );
    assert!(kit.was_locked("item:7") && !kit.was_locked("foreign"));
    kit.forget();
    assert!(kit.locked().is_empty() && !kit.was_locked("item:7"));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_passes_from_call_to_call_is_told_for_each() {
    let kit = TestLocks::new();
    let call = || tokio::spawn(kit.manager().lock("k").run(tokio::task::yield_now()));
    let calls = [call(), call(), call()];
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert!(kit.manager().stats().passed > 0, "none was passed on");
    assert_eq!(kit.locked(), ["k", "k", "k"]);
}

#[tokio::test(start_paused = true)]
async fn keys_are_told_without_the_prefix() {
    let kit = TestLocks::with(LockManager::builder("memory://").prefix("shop:"));
    let guard = kit.manager().lock("k").acquire().await.unwrap();
    assert!(kit.was_locked("k") && kit.is_locked("k") && !kit.was_locked("shop:k"));
    kit.delete("k");
    assert!(guard.handle().lost().await.is_lost());
}

#[test]
fn tests_on_two_threads_have_a_global_manager_each() {
    let (first, other) = std::sync::mpsc::channel::<()>();
    let (second, end) = std::sync::mpsc::channel::<()>();
    let test = |before: std::sync::mpsc::Receiver<()>, after: std::sync::mpsc::Sender<()>, id: u64| {
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let kit = TestLocks::new();
                let global = kit.as_global();
                let _ = after.send(());
                let _ = before.recv();
                // The other one is there as well.
                with_the_global_manager(id).await.unwrap();
                assert_eq!(kit.locked(), [&*format!("item:{id}")]);
                drop(global);
                let none = with_the_global_manager(id).await;
                assert!(matches!(none, Err(LockError::NotConfigured { .. })));
            });
        }
    };
    let one = std::thread::spawn(test(other, second, 1));
    let two = std::thread::spawn(test(end, first, 2));
    one.join().unwrap();
    two.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_another_thread_is_told_about_the_kit() {
    let kit = TestLocks::new();
    let _global = kit.as_global();
    let elsewhere = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(with_the_global_manager(1))
    });
    let none = elsewhere.join().unwrap().unwrap_err().to_string();
    assert!(
        none.contains("`TestLocks::as_global` is for the calls of its own thread") && none.contains("`init_with`"),
        "{none}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_inner_of_two_kits_is_the_global_one_until_it_is_dropped() {
    let (outer, inner) = (TestLocks::new(), TestLocks::new());
    let _outer = outer.as_global();
    {
        let _inner = inner.as_global();
        with_the_global_manager(1).await.unwrap();
    }
    with_the_global_manager(2).await.unwrap();
    assert_eq!(inner.locked(), ["item:1"]);
    assert_eq!(outer.locked(), ["item:2"]);
}
