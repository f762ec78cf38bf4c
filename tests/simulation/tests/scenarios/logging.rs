//! What is logged when locks are lost.

use std::future::pending;
use std::time::Duration;

use lock_runtime::LockError;
use tokio::time::sleep;

use crate::log::{Line, Log};
use crate::world::{ms, play};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// Returns the only line.
fn the_one(lines: &[Line]) -> &Line {
    assert_eq!(lines.len(), 1, "{lines:#?}");
    &lines[0]
}

fn duration(line: &Line, name: &str) -> Duration {
    let text = line.field(name);
    let number: f64 = text.trim_end_matches("ms").trim_end_matches('s').parse().unwrap();
    Duration::from_secs_f64(if text.ends_with("ms") { number / 1e3 } else { number })
}

/// The watchdog finds it, the body is cancelled, and the call gives it back.
#[test]
fn a_lost_lock_is_told_once_with_its_key_reason_age_and_function() {
    play(|world| async move {
        let caller = world.process(0);
        let (log, _logging) = Log::collect(&caller.locks);
        let request = caller.locks.lock("stock").lease(LEASE).label("shop::reduce");
        let call = caller.spawn(request.run(pending::<()>()));
        world.at(ms(5_000)).await;
        drop(world.server.command(&["DEL", "dist_lock:stock"]));
        assert!(matches!(call.await.unwrap(), Err(LockError::Lost { .. })));
        sleep(SECOND).await;
        let warnings = log.warnings();
        let told = the_one(&warnings);
        assert_eq!(told.field("key"), "stock");
        assert_eq!(told.field("function"), "shop::reduce");
        assert_eq!(told.field("reason"), "the key was gone before its time");
        let age = duration(told, "age");
        assert!(age > ms(4_900) && age < ms(5_100), "{age:?}");
    });
}

/// The store finds it: `verify`, and the release.
#[test]
fn a_loss_that_a_call_finds_is_told_once() {
    play(|world| async move {
        let caller = world.process(0);
        let (log, _logging) = Log::collect(&caller.locks);
        let held = caller.locks.lock("stock").lease(LEASE).acquire();
        let held = caller.spawn(held).await.unwrap().unwrap();
        drop(world.server.command(&["SET", "dist_lock:stock", "other"]));
        assert!(held.verify().await.is_err());
        assert!(held.release().await.is_err());
        assert_eq!(
            the_one(&log.warnings()).field("reason"),
            "the key held another holder's value"
        );
        log.clear();

        let held = caller.locks.lock("shop").lease(LEASE).acquire();
        let held = caller.spawn(held).await.unwrap().unwrap();
        drop(world.server.command(&["DEL", "dist_lock:shop"]));
        assert!(caller.spawn(held.release()).await.unwrap().is_err());
        assert_eq!(the_one(&log.warnings()).field("key"), "shop");
        log.clear();

        let held = caller.locks.lock("sent").lease(LEASE).pipelined().acquire();
        let held = caller.spawn(held).await.unwrap().unwrap();
        drop(world.server.command(&["DEL", "dist_lock:sent"]));
        drop(caller.spawn(held.release()).await.unwrap());
        sleep(SECOND).await;
        assert_eq!(the_one(&log.warnings()).field("key"), "sent");
    });
}

/// A lease that is not renewed and runs out is a loss as well, and one that is given back in time is none.
#[test]
fn a_lease_that_runs_out_is_told_and_a_release_in_time_is_not() {
    play(|world| async move {
        let caller = world.process(0);
        let (log, _logging) = Log::collect(&caller.locks);
        let fixed = |key: &str| caller.locks.lock(key).lease(LEASE).renew(false);
        caller
            .spawn(fixed("in-time").run(sleep(10 * SECOND)))
            .await
            .unwrap()
            .unwrap();
        assert!(log.warnings().is_empty(), "{:#?}", log.warnings());
        assert!(caller.spawn(fixed("late").run(pending::<()>())).await.unwrap().is_err());
        let warnings = log.warnings();
        let told = the_one(&warnings);
        assert_eq!((told.field("key"), told.field("reason")), ("late", "its lease ran out"));
    });
}

/// A server that has lost its data.
#[test]
fn of_many_locks_that_are_lost_at_once_each_is_told_once() {
    play(|world| async move {
        let caller = world.process(0);
        let calls: Vec<_> = (0..200)
            .map(|number| {
                caller.spawn(
                    caller
                        .locks
                        .lock(format!("stock:{number}"))
                        .lease(LEASE)
                        .run(pending::<()>()),
                )
            })
            .collect();
        let many = caller
            .locks
            .lock_all((0..9).map(|number| format!("many:{number}")))
            .lease(LEASE);
        let many = caller.spawn(many.run(pending::<()>()));
        sleep(SECOND).await;
        let (log, _logging) = Log::collect(&caller.locks);
        drop(world.server.command(&["FLUSHALL"]));
        for call in calls.into_iter().chain([many]) {
            assert!(matches!(call.await.unwrap(), Err(LockError::Lost { .. })));
        }
        sleep(SECOND).await;
        let mut keys: Vec<_> = log.warnings().iter().map(|line| line.field("key").to_owned()).collect();
        keys.sort();
        assert_eq!(keys.len(), 201, "{keys:?}");
        keys.dedup();
        assert_eq!(keys.len(), 201);
        assert!(
            keys.iter().any(|key| key.starts_with("many:0") && key.contains('6')),
            "{keys:?}"
        );
    });
}
