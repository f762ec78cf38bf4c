//! Calls that have nothing to wait for let the other tasks of their runtime run.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, current, distributed_lock};

type Call = Box<dyn FnMut() -> Pin<Box<dyn Future<Output = ()>>>>;

/// More calls than tokio lets a task make without a pause.
const CALLS: u32 = 1_000;

fn call<F: Future<Output = ()> + 'static>(mut call: impl FnMut() -> F + 'static) -> Call {
    Box::new(move || Box::pin(call()))
}

#[distributed_lock(key = "coalesced", coalesce, manager = locks)]
async fn coalesced(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

fn memory() -> LockManager {
    LockManager::builder("memory://").build().unwrap()
}

/// Every public future that may be ready at once.
async fn calls() -> Vec<(&'static str, Call)> {
    let (locks, closed) = (memory(), memory());
    closed.shutdown().await;
    let held = Arc::new(locks.lock("held").acquire().await.unwrap());
    let lost = locks
        .lock("lost")
        .renew(false)
        .lease(Duration::from_millis(100))
        .acquire()
        .await
        .unwrap();
    lost.handle().lost().await;
    let lost = Arc::new(lost);
    let kept = Arc::clone(&held);
    macro_rules! call {
        ($name:literal, $from:ident, $call:expr) => {{
            let $from = $from.clone();
            (
                $name,
                call(move || {
                    let $from = $from.clone();
                    async move {
                        let _ = $call.await;
                    }
                }),
            )
        }};
    }
    vec![
        call!("run", locks, locks.lock("free").run(async {})),
        call!("acquire", locks, locks.lock("free").acquire()),
        call!("lock_all", locks, locks.lock_all(["a", "b"]).acquire()),
        call!("busy", locks, locks.lock("held").try_acquire()),
        call!("without a key", locks, locks.lock_all::<String>([]).acquire()),
        call!("closed", closed, closed.lock("free").run(async {})),
        call!("coalesced", locks, coalesced(&locks)),
        call!("coalesced, closed", closed, coalesced(&closed)),
        call!("inspect", locks, locks.inspect("held")),
        call!("inspect, closed", closed, closed.inspect("held")),
        call!("list", locks, locks.list("*")),
        call!("force_release", locks, locks.force_release("free")),
        call!("connect, refused", locks, async {
            let _ = &locks;
            LockManager::connect("nonsense").await
        }),
        call!("check_connection", locks, locks.check_connection()),
        call!("check_setup", locks, locks.check_setup()),
        call!("shutdown", closed, closed.shutdown()),
        call!("verify", held, held.handle().verify()),
        call!("fencing_token", held, held.handle().fencing_token()),
        call!("shielded", kept, kept.handle().shielded(async {})),
        call!("verify, lost", lost, lost.handle().verify()),
        call!("lost", lost, lost.handle().lost()),
    ]
}

#[test]
fn calls_that_never_wait_let_other_tasks_run() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        assert!(current().is_none());
        for (name, mut call) in calls().await {
            let has_run = Arc::new(AtomicBool::new(false));
            let other = Arc::clone(&has_run);
            tokio::spawn(async move { other.store(true, Ordering::SeqCst) });
            let mut made = 0;
            while made < CALLS && !has_run.load(Ordering::SeqCst) {
                call().await;
                made += 1;
            }
            assert!(
                has_run.load(Ordering::SeqCst),
                "{name}: nothing else ran during {made} calls"
            );
        }
    });
}
