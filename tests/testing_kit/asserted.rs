//! `assert_locked!`, in code that must run under a lock, and in tests.

use std::fmt;

use lock_runtime::testing::TestLocks;
use lock_runtime::{LockError, LockManager, assert_locked, current, distributed_lock};

use crate::witness::panic_of;

fn memory() -> LockManager {
    LockManager::builder("memory://").prefix("shop:").build().unwrap()
}

fn guarded(id: u64) {
    assert_locked!("item:{id}");
}

/// Every form of the macro.
fn asserted(id: u64) {
    struct Key(u64);
    impl fmt::Display for Key {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "item:{}", self.0)
        }
    }
    assert_locked!("item:7");
    assert_locked!("item:{id}");
    assert_locked!("item:{}", id);
    assert_locked!("item:{number}", number = id,);
    assert_locked!(format!("item:{id}"));
    assert_locked!(&Key(id));
    assert_locked!(Key(id),);
}

#[distributed_lock(key = "item:<id>", manager = locks)]
async fn outer(locks: &LockManager, id: u64) -> Result<(), LockError> {
    guarded(id);
    tokio::task::yield_now().await;
    inner(locks, id).await?;
    guarded(id);
    Ok(())
}

#[distributed_lock(key = "part:<id>", manager = locks)]
async fn inner(locks: &LockManager, id: u64) -> Result<(), LockError> {
    asserted(id);
    assert_locked!("part:{id}");
    Ok(())
}

#[tokio::test]
async fn code_under_the_lock_or_a_lock_inside_it_passes() {
    outer(&memory(), 7).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_key_of_several_counts() {
    let kit = TestLocks::new();
    let both = kit.manager().lock_all(["item:8", "item:7"]).run(async {
        guarded(7);
        guarded(8);
        let (message, ..) = panic_of(|| guarded(9));
        assert!(
            message.contains("`item:7`") && message.contains("`item:8`"),
            "{message}"
        );
    });
    both.await.unwrap();
    assert_eq!(kit.locked(), ["item:7", "item:8"]);
}

#[tokio::test]
async fn code_outside_panics_at_its_own_line_with_the_key_and_what_to_do() {
    let line = line!() + 1;
    let (message, file, at) = panic_of(|| assert_locked!("item:{}", 7));
    assert_eq!((&*file, at), (file!(), line));
    assert!(
        message.contains("`item:7`") && message.contains("under no lock"),
        "{message}"
    );
    assert!(message.contains("#[distributed_lock]"), "{message}");
}

#[tokio::test]
async fn code_under_other_locks_panics_and_names_them() {
    let locks = memory();
    let both = locks.lock("a").label("first").run(async {
        let inner = locks.lock("b").label("second").run(async { panic_of(|| guarded(7)).0 });
        inner.await
    });
    let message = both.await.unwrap().unwrap();
    for part in ["`item:7`", "`a` (exclusive, by first)", "`b` (exclusive, by second)"] {
        assert!(message.contains(part), "{part} is missing: {message}");
    }
    // The key in the store, with the prefix, is not what the user gave.
    let prefixed = locks.lock("k").run(async { panic_of(|| assert_locked!("shop:k")) });
    prefixed.await.unwrap();
}

#[tokio::test]
async fn spawned_tasks_and_code_beside_a_guard_are_not_under_the_lock() {
    let locks = memory();
    let spawned = locks.lock("item:7").run(async {
        tokio::spawn(async { panic_of(|| guarded(7)) }).await.unwrap();
    });
    spawned.await.unwrap();
    let guard = locks.lock("item:7").acquire().await.unwrap();
    panic_of(|| guarded(7));
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_does_not_count() {
    let kit = TestLocks::new();
    let request = kit.manager().lock("item:7").on_lost(lock_runtime::OnLost::Signal);
    let body = request.run(async {
        guarded(7);
        let lock = current().unwrap();
        kit.steal("item:7");
        lock.lost().await;
        let (message, ..) = panic_of(|| guarded(7));
        assert!(message.contains("another holder's value"), "{message}");
    });
    body.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tests_own_code_asserts_what_was_locked() {
    let kit = TestLocks::new();
    let (message, ..) = panic_of(|| assert_locked!("item:7"));
    assert!(
        message.contains("`item:7` was not locked") && message.contains("nothing"),
        "{message}"
    );

    outer(&kit.manager(), 7).await.unwrap();
    asserted(7);
    assert_locked!(kit, "item:7");
    assert_locked!(kit, "part:{}", 7);
    assert_locked!(kit, String::from("part:7"));
    kit.assert_locked("item:7");

    let line = line!() + 1;
    let (message, file, at) = panic_of(|| assert_locked!(kit, "item:8"));
    assert_eq!((&*file, at), (file!(), line));
    assert!(
        message.contains("`item:7` (exclusive, by ") && message.contains("::outer)"),
        "{message}"
    );

    kit.forget();
    panic_of(|| guarded(7));
}

#[tokio::test(start_paused = true)]
async fn under_a_lock_only_the_call_tree_counts() {
    let kit = TestLocks::new();
    kit.manager().lock("item:7").run(async {}).await.unwrap();
    guarded(7);
    let other = kit.manager().lock("item:8").run(async { panic_of(|| guarded(7)) });
    let (message, ..) = other.await.unwrap();
    assert!(message.contains("`item:8`"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_kit_speaks_for_its_own_thread_while_it_is_there() {
    let kit = TestLocks::new();
    kit.manager().lock("item:7").run(async {}).await.unwrap();
    let elsewhere = std::thread::spawn(|| panic_of(|| guarded(7)).0).join().unwrap();
    assert!(elsewhere.contains("under no lock"), "{elsewhere}");
    guarded(7);
    drop(kit);
    panic_of(|| guarded(7));
}
