//! What is logged when locks are lost, and when servers and sentinels are away.

use std::future::pending;
use std::time::Duration;

use lock_runtime::LockError;
use tokio::time::sleep;
use tracing::Level;

use crate::log::{Line, Log};
use crate::world::{Caller, World, ms, play, play_behind_sentinels, play_in_a_cluster};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
/// A lease that outlasts an outage of a minute.
const LONG: Duration = Duration::from_secs(600);
const OUTAGE: Duration = Duration::from_secs(60);

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
        assert_eq!(told.field("reason"), "deleted");
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
        assert!(held.handle().verify().await.is_err());
        assert!(held.release().await.is_err());
        assert_eq!(the_one(&log.warnings()).field("reason"), "taken");
        log.clear();

        let held = caller.locks.lock("shop").lease(LEASE).acquire();
        let held = caller.spawn(held).await.unwrap().unwrap();
        drop(world.server.command(&["DEL", "dist_lock:shop"]));
        assert!(caller.spawn(held.release()).await.unwrap().is_err());
        assert_eq!(the_one(&log.warnings()).field("key"), "shop");
        log.clear();

        let held = caller.locks.lock("sent").lease(LEASE).pipelined(true).acquire();
        let held = caller.spawn(held).await.unwrap().unwrap();
        drop(world.server.command(&["DEL", "dist_lock:sent"]));
        drop(caller.spawn(held.release()).await.unwrap());
        sleep(SECOND).await;
        assert_eq!(the_one(&log.warnings()).field("key"), "sent");
    });
}

/// With and without waiting for it.
#[test]
fn a_release_that_is_not_confirmed_names_its_lock() {
    play(|world| async move {
        let caller = world.process(0);
        let mut held = Vec::new();
        for (key, pipelined) in [("waited-for", false), ("sent", true)] {
            let guard = caller.locks.lock(key).lease(LONG).pipelined(pipelined).acquire();
            held.push(caller.spawn(guard).await.unwrap().unwrap());
        }
        let (log, _logging) = Log::collect(&caller.locks);
        world.network.darken(&world.server);
        for guard in held {
            drop(caller.spawn(guard.release()).await.unwrap());
        }
        sleep(5 * SECOND).await;
        for key in ["waited-for", "sent"] {
            let warnings = log.warnings();
            let its = warnings.iter().filter(|line| line.field("key") == key).count();
            assert_eq!(its, 1, "{key}: {warnings:#?}");
        }
    });
}

#[test]
fn a_body_that_a_shutdown_cancels_is_named() {
    play(|world| async move {
        let caller = world.process(0);
        let body = caller.spawn(caller.locks.lock("stock").label("shop::reduce").run(pending::<()>()));
        let guard = caller.locks.lock("bare").acquire();
        let guard = caller.spawn(guard).await.unwrap().unwrap();
        let (log, _logging) = Log::collect(&caller.locks);
        let locks = caller.locks.clone();
        caller.spawn(async move { locks.shutdown().await }).await.unwrap();
        assert!(matches!(body.await.unwrap(), Err(LockError::Closed { .. })));
        drop(guard);
        let warnings = log.warnings();
        let told = the_one(&warnings);
        assert_eq!((told.field("key"), told.field("function")), ("stock", "shop::reduce"));
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
        assert_eq!((told.field("key"), told.field("reason")), ("late", "expired"));
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

/// Begins locks that are held, and calls that wait for the first of them.
async fn busy(caller: &Caller) {
    for number in 0..3 {
        drop(
            caller.spawn(
                caller
                    .locks
                    .lock(format!("stock:{number}"))
                    .lease(LONG)
                    .run(pending::<()>()),
            ),
        );
    }
    sleep(ms(100)).await;
    for _ in 0..5 {
        drop(caller.spawn(caller.locks.lock("stock:0").wait(LONG).run(pending::<()>())));
    }
    sleep(SECOND).await;
}

/// Has the server go and come back after a minute.
async fn one_outage(world: &World, goes: impl Fn(), comes: impl Fn()) {
    let caller = world.process(0);
    busy(&caller).await;
    // Locks that are given back during the outage.
    let given_back = caller.spawn(caller.locks.lock("given").lease(LONG).acquire());
    let given_back = given_back.await.unwrap().unwrap();
    let (log, _logging) = Log::collect(&caller.locks);
    goes();
    sleep(10 * SECOND).await;
    drop(given_back);
    let told = the_one(&log.warnings()).clone();
    assert!(
        !told.field("address").is_empty() && !told.field("error").is_empty(),
        "{told:?}"
    );
    assert_eq!(told.field("locks"), "4", "{told:?}");
    sleep(OUTAGE - 10 * SECOND).await;
    assert_eq!(log.lines(Level::INFO).len(), 0, "{:#?}", log.lines(Level::INFO));
    comes();
    sleep(10 * SECOND).await;
    let infos = log.lines(Level::INFO);
    let over = the_one(&infos);
    assert_eq!(over.field("address"), told.field("address"));
    let lasted = duration(over, "lasted");
    assert!(
        lasted >= OUTAGE - 5 * SECOND && lasted <= OUTAGE + 5 * SECOND,
        "{lasted:?}"
    );
    assert_eq!(log.warnings().len(), 1, "{:#?}", log.warnings());
    let debug = log.lines(Level::DEBUG);
    assert!(debug.len() <= 20, "{} lines in a minute: {debug:#?}", debug.len());
}

#[test]
fn an_outage_of_a_minute_is_a_warning_and_its_end_and_few_other_lines() {
    play(|world| async move {
        let (down, up) = (
            || world.network.take_down(&world.server),
            || world.server.go_down(false),
        );
        one_outage(&world, down, up).await;
    });
}

#[test]
fn an_outage_of_a_server_that_refuses_nothing_is_told_as_well() {
    play(|world| async move {
        let (dark, light) = (|| world.network.darken(&world.server), || world.server.go_dark(false));
        one_outage(&world, dark, light).await;
    });
}

#[test]
fn a_connection_that_is_made_anew_at_once_is_no_outage() {
    play(|world| async move {
        let caller = world.process(0);
        busy(&caller).await;
        let (log, _logging) = Log::collect(&caller.locks);
        for _ in 0..3 {
            world.network.cut_all(&world.server);
            sleep(5 * SECOND).await;
        }
        for level in [Level::WARN, Level::INFO] {
            assert!(log.lines(level).is_empty(), "{:#?}", log.lines(level));
        }
    });
}

#[test]
fn each_node_of_a_cluster_that_is_away_is_told_with_its_own_locks() {
    play_in_a_cluster(|world, cluster| async move {
        let caller = world.process(0);
        let keys = [
            "stock:0", "stock:1", "stock:2", "stock:3", "stock:4", "stock:5", "stock:6", "stock:7",
        ];
        for key in keys {
            drop(caller.spawn(caller.locks.lock(key).lease(LONG).run(pending::<()>())));
        }
        sleep(SECOND).await;
        let node = cluster.node(1);
        let there = keys
            .iter()
            .filter(|key| cluster.server_of(format!("dist_lock:{key}").as_bytes()).is(node));
        let there = there.count().to_string();
        assert!(there != "0" && there != "8", "all keys are on one node");
        let (log, _logging) = Log::collect(&caller.locks);
        world.network.take_down(node);
        sleep(OUTAGE).await;
        let told = the_one(&log.warnings()).clone();
        assert_eq!(
            (told.field("address"), told.field("locks")),
            ("n2:6379", &*there),
            "{told:?}"
        );
        node.go_down(false);
        sleep(10 * SECOND).await;
        assert_eq!(the_one(&log.lines(Level::INFO)).field("address"), "n2:6379");
        assert_eq!(log.warnings().len(), 1, "{:#?}", log.warnings());
        let debug = log.lines(Level::DEBUG);
        assert!(debug.len() <= 20, "{} lines: {debug:#?}", debug.len());
    });
}

/// It is not known yet which nodes there are.
#[test]
fn a_cluster_of_which_no_node_answers_is_told_once() {
    play_in_a_cluster(|world, cluster| async move {
        let caller = world.process(0);
        let (log, _logging) = Log::collect(&caller.locks);
        for node in cluster.nodes() {
            world.network.take_down(node);
        }
        let call = caller.spawn(caller.locks.lock("stock").wait(2 * OUTAGE).run(async {}));
        sleep(OUTAGE).await;
        let told = the_one(&log.warnings()).clone();
        assert!(told.field("address").contains("n1"), "{told:?}");
        for node in cluster.nodes() {
            node.go_down(false);
        }
        call.await.unwrap().unwrap();
        let infos = log.lines(Level::INFO);
        assert!(duration(the_one(&infos), "lasted") >= OUTAGE - SECOND, "{infos:?}");
        let debug = log.lines(Level::DEBUG);
        assert!(debug.len() <= 20, "{} lines: {debug:#?}", debug.len());
    });
}

/// The master stays, so nothing fails yet.
#[test]
fn sentinels_of_which_most_are_away_for_half_a_minute_are_told_once() {
    play_behind_sentinels(|world, group| async move {
        let caller = world.process(0);
        drop(caller.spawn(caller.locks.lock("stock").lease(LONG).run(pending::<()>())));
        sleep(SECOND).await;
        let (log, _logging) = Log::collect(&caller.locks);
        for away in [0, 1] {
            world.network.take_down(group.sentinel(away));
        }
        sleep(29 * SECOND).await;
        assert!(log.warnings().is_empty(), "{:#?}", log.warnings());
        sleep(4 * SECOND).await;
        let told = the_one(&log.warnings()).clone();
        assert_eq!(
            (told.field("answering"), told.field("sentinels")),
            ("1", "3"),
            "{told:?}"
        );
        assert!(told.field("said").contains(":26379: "), "{told:?}");
        sleep(OUTAGE).await;
        assert_eq!(log.warnings().len(), 1, "{:#?}", log.warnings());
        assert!(log.lines(Level::INFO).is_empty(), "{:#?}", log.lines(Level::INFO));
        let debug = log.lines(Level::DEBUG);
        assert!(debug.len() <= 10, "{} lines: {debug:#?}", debug.len());
        group.sentinel(0).go_down(false);
        sleep(4 * SECOND).await;
        let infos = log.lines(Level::INFO);
        let lasted = duration(the_one(&infos), "lasted");
        assert!(
            lasted >= OUTAGE + 30 * SECOND && lasted <= OUTAGE + 40 * SECOND,
            "{lasted:?}"
        );
    });
}

/// Less than half a minute.
#[test]
fn sentinels_that_are_soon_back_are_not_told() {
    play_behind_sentinels(|world, group| async move {
        let caller = world.process(0);
        drop(caller.spawn(caller.locks.lock("stock").lease(LONG).run(pending::<()>())));
        sleep(SECOND).await;
        let (log, _logging) = Log::collect(&caller.locks);
        for _ in 0..3 {
            for sentinel in 0..3 {
                world.network.take_down(group.sentinel(sentinel));
            }
            sleep(25 * SECOND).await;
            for sentinel in 0..3 {
                group.sentinel(sentinel).go_down(false);
            }
            sleep(15 * SECOND).await;
        }
        assert!(log.warnings().is_empty(), "{:#?}", log.warnings());
    });
}
