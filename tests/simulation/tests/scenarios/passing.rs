//! What becomes of a lock that passes from call to call inside a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::HandoverLimits;
use tokio::time::sleep;

use crate::world::{ms, play};

/// Without the server's reports of changed keys, the lock is checked every 4 ms while it passes on.
#[test]
fn few_calls_begin_beside_another_holder_though_the_server_reports_nothing() {
    for handover in [
        HandoverLimits::default(),
        HandoverLimits::new(100_000, Duration::from_secs(5)),
    ] {
        play(move |world| async move {
            world.server.command(&["ACL", "SETUSER", "default", "-client|tracking"]);
            let caller = world.process_with(0, |builder| builder.handover(handover));
            let began = Arc::new(AtomicUsize::new(0));
            for lost_after in 0..20 {
                let mut calls = Vec::new();
                for _ in 0..60 {
                    let began = Arc::clone(&began);
                    let request = caller.locks.lock("stock").wait(Duration::from_secs(60));
                    calls.push(caller.spawn(request.run(async move {
                        began.fetch_add(1, Ordering::SeqCst);
                        sleep(ms(2)).await;
                    })));
                }
                while began.load(Ordering::SeqCst) == 0 {
                    sleep(ms(1)).await;
                }
                sleep(ms(lost_after)).await;
                let before = began.load(Ordering::SeqCst);
                world
                    .server
                    .command(&["SET", "dist_lock:stock", "another", "PX", "300"]);
                sleep(ms(250)).await;
                let beside = began.swap(0, Ordering::SeqCst) - before;
                // A check is due after 4 ms, or just under way, and the lock thread and the way there take a little more.
                assert!(beside <= 5, "{handover:?}: {beside} bodies begun beside another holder");
                for call in calls {
                    drop(call.await.unwrap());
                }
                began.store(0, Ordering::SeqCst);
            }
        });
    }
}
