//! What a failover does to held locks, to waiting calls, and to what is under way.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockRequest, LostReason, ServerRole, ServerState};
use lock_tests::clock::ticking;
use lock_tests::sentinel::{MASTER_NAME, SentinelGroup};
use lock_tests::{PATIENCE, Server, Stamp, eventually};
use redis::Value;
use tokio::task::JoinSet;

pub(crate) const KEY: &str = "dist_lock:stock:7";

async fn connected(group: &SentinelGroup) -> LockManager {
    let locks = LockManager::builder(&group.url())
        .default_wait(PATIENCE)
        // Not renewed while a failover lasts.
        .default_lease(PATIENCE * 4)
        .build()
        .unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    locks
}

/// Begins a body that lasts until it is cancelled or `end` is notified, and returns once the lock is held.
async fn held(
    locks: &LockManager,
    group: &SentinelGroup,
    end: &Arc<tokio::sync::Notify>,
) -> tokio::task::JoinHandle<Result<(), LockError>> {
    let request = locks.lock("stock:7");
    let end = Arc::clone(end);
    let body = tokio::spawn(request.run(async move { end.notified().await }));
    let master = group.server(group.master().await);
    eventually("the lock to be held", || async { master.exists(KEY) }).await;
    body
}

pub(crate) async fn replicated(group: &SentinelGroup) {
    for port in group.node_ports() {
        eventually("the lock on every server", || async { group.server(port).exists(KEY) }).await;
    }
}

#[tokio::test]
async fn a_lock_that_the_new_master_knows_stays_held_and_is_released_there() {
    let group = SentinelGroup::start().await;
    for is_manual in [true, false] {
        let (holder, waiter) = (connected(&group).await, connected(&group).await);
        let end = Arc::default();
        let body = held(&holder, &group, &end).await;
        replicated(&group).await;
        // For longer than a failover takes.
        let waiting = tokio::spawn(waiter.lock("stock:7").wait(PATIENCE * 3).run(async {}));
        let former = group.master().await;
        if is_manual {
            group.failover().await;
        } else {
            group.kill_master().await;
        }
        let (present, _) = group.wait_for_master_other_than(former).await;
        // The waiting call has a place on the new master, and the lock has not ended.
        let queue = format!("dist_lock:%lock-queue:{{{KEY}}}");
        eventually("the waiting call to stand in the new master's queue", || async {
            group.server(present).exists(&queue) && group.master().await == present
        })
        .await;
        assert!(!body.is_finished(), "{:?}", body.await);
        assert!(!waiting.is_finished());
        end.notify_one();
        body.await.unwrap().unwrap();
        waiting.await.unwrap().unwrap();
        eventually("the release on the new master", || async {
            !group.server(present).exists(KEY)
        })
        .await;
        if !is_manual {
            group.restart(former).await;
        }
        group.settled().await;
    }
}

#[tokio::test]
async fn a_lock_whose_last_renewal_the_new_master_does_not_know_lasts_as_long_as_promised() {
    let group = SentinelGroup::start_steady().await;
    let locks = connected(&group).await;
    let guard = locks.lock("stock:7").acquire().await.unwrap();
    replicated(&group).await;
    let former = group.master().await;
    for replica in group.node_ports().into_iter().filter(|port| *port != former) {
        let replica = group.server(replica);
        replica.cmd(&["CONFIG", "SET", "replica-read-only", "no"]);
        replica.cmd(&["PEXPIRE", KEY, "30000"]);
        replica.cmd(&["CONFIG", "SET", "replica-read-only", "yes"]);
    }
    group.failover().await;
    let (present, _) = group.wait_for_master_other_than(former).await;
    eventually("the expiry that the lock was given", || async {
        matches!(group.server(present).cmd(&["PTTL", KEY]), Value::Int(left) if left > 30_000)
    })
    .await;
    assert_eq!(
        guard.handle().renewals(),
        0,
        "a lock was renewed before it was due: {guard:?}"
    );
    assert!(guard.handle().remaining() > Duration::from_secs(20));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_the_new_master_does_not_know_is_lost_and_its_body_cancelled() {
    let group = SentinelGroup::start().await;
    let locks = connected(&group).await;
    let former = group.master().await;
    let replicas: Vec<u16> = group.node_ports().into_iter().filter(|port| *port != former).collect();
    // What the master grants from here on reaches no replica.
    for replica in &replicas {
        group.pause(*replica);
    }
    let master = group.server(former);
    master.cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
    let last = Arc::new(AtomicU64::new(0));
    let body = {
        let (request, last) = (locks.lock("stock:7"), Arc::clone(&last));
        tokio::spawn(async move { request.run(ticking(&last)).await })
    };
    eventually("the lock to be held", || async { master.exists(KEY) }).await;
    master.kill();
    for replica in &replicas {
        group.resume(*replica);
    }
    let (present, _) = group.wait_for_master_other_than(former).await;
    let ended = tokio::time::timeout(PATIENCE, body).await.unwrap().unwrap();
    let is_lost = |error: &LockError| {
        matches!(
            error,
            LockError::Lost {
                reason: LostReason::Deleted,
                completed: false,
                ..
            }
        )
    };
    assert!(ended.as_ref().is_err_and(is_lost), "{ended:?}");
    assert!(!group.server(present).exists(KEY));
}

#[tokio::test]
async fn a_call_that_asks_during_the_failover_gets_its_lock_soon_after_it() {
    let group = SentinelGroup::start().await;
    let locks = connected(&group).await;
    let former = group.kill_master().await;
    let asking = tokio::spawn({
        let request = locks.lock("stock:7");
        async move {
            let guard = request.acquire().await;
            (Stamp::now(), guard)
        }
    });
    let (present, writable) = group.wait_for_master_other_than(former).await;
    let (taken, guard) = asking.await.unwrap();
    let guard = guard.unwrap();
    assert!(group.server(present).exists(KEY));
    println!("a lock {:?} after the first write", taken.calm_since(writable));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn nothing_goes_to_the_former_master_though_it_accepts_writes() {
    let group = SentinelGroup::start_steady().await;
    let locks = connected(&group).await;
    let former = group.master().await;
    group.failover().await;
    let (present, _) = group.wait_for_master_other_than(former).await;
    eventually("a lock on the new master", || async {
        let guard = locks.lock("x").acquire().await.unwrap();
        let is_there = group.server(present).exists("dist_lock:x");
        guard.release().await.is_ok() && is_there
    })
    .await;
    for number in 0..20 {
        let guard = locks.lock(format!("y:{number}")).acquire().await.unwrap();
        let key = format!("dist_lock:y:{number}");
        assert!(group.server(present).exists(&key));
        guard.release().await.unwrap();
    }
}

/// More than a runtime sends by themselves: the others go in batches.
#[tokio::test]
async fn calls_that_a_silent_master_owes_an_answer_go_on_at_the_next_one() {
    let group = SentinelGroup::start().await;
    let locks = LockManager::builder(&group.url())
        .default_wait(PATIENCE * 2)
        .response_timeout(PATIENCE * 2)
        .build()
        .unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    let former = group.master().await;
    group.pause(former);
    let requests = (0..40).map(|number| locks.lock(format!("stock:{number}")));
    let asking: JoinSet<_> = requests.map(LockRequest::acquire).collect();
    let (present, _) = group.wait_for_master_other_than(former).await;
    let taken = tokio::time::timeout(PATIENCE, asking.join_all()).await.unwrap();
    // The former master carries the requests out after all.
    group.resume(former);
    for guard in taken {
        let guard = guard.unwrap();
        guard.handle().verify().await.unwrap();
        assert!(
            group
                .server(present)
                .exists(&format!("dist_lock:{}", guard.handle().key()))
        );
        guard.release().await.unwrap();
    }
}

/// In a manual failover the former master accepts releases, too, until the sentinels name the new one.
#[tokio::test]
async fn a_lock_that_the_former_master_released_after_the_promotion_is_released_at_the_new_one() {
    let group = SentinelGroup::start_steady().await;
    let locks = connected(&group).await;
    let guard = locks.lock("stock:7").acquire().await.unwrap();
    replicated(&group).await;
    let former = group.master().await;
    group.failover().await;
    let (present, _) = group.wait_for_master_other_than(former).await;
    guard.release().await.unwrap();
    eventually("the release on the new master", || async {
        !group.server(present).exists(KEY)
    })
    .await;
}

#[tokio::test]
async fn a_pipelined_release_that_the_former_master_answers_too_late_is_sent_to_the_new_one() {
    let group = SentinelGroup::start().await;
    let locks = LockManager::builder(&group.url())
        .default_lease(PATIENCE * 4)
        .response_timeout(PATIENCE * 2)
        .build()
        .unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    let guard = locks.lock("stock:7").pipelined(true).acquire().await.unwrap();
    replicated(&group).await;
    let former = group.master().await;
    group.pause(former);
    guard.release().await.unwrap();
    let (present, _) = group.wait_for_master_other_than(former).await;
    group.resume(former);
    eventually("the release on the new master", || async {
        !group.server(present).exists(KEY)
    })
    .await;
}

/// Its key has a lock of another kind at the new master, as after the mode of an annotation was changed.
#[tokio::test]
async fn a_release_that_the_new_master_refuses_keeps_no_other_from_being_repeated() {
    const LOCKS: usize = 250;
    let group = SentinelGroup::start().await;
    let locks = connected(&group).await;
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(locks.lock(format!("stock:{number}")).acquire().await.unwrap());
    }
    let key = |number: usize| format!("dist_lock:stock:{number}");
    let former = group.master().await;
    let replicas: Vec<u16> = group.node_ports().into_iter().filter(|port| *port != former).collect();
    for replica in &replicas {
        let replica = group.server(*replica);
        eventually("the locks on every server", || async {
            (0..LOCKS).all(|number| replica.exists(&key(number)))
        })
        .await;
        replica.cmd(&["CONFIG", "SET", "replica-read-only", "no"]);
        for refused in [0, LOCKS - 1] {
            replica.cmd(&["DEL", &key(refused)]);
            replica.cmd(&["ZADD", &key(refused), "9e12", "another"]);
        }
        replica.cmd(&["CONFIG", "SET", "replica-read-only", "yes"]);
        // What the master does from here on reaches no replica.
        replica.pause();
    }
    group.server(former).cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
    for guard in guards {
        guard.release().await.unwrap();
    }
    group.server(former).kill();
    for replica in &replicas {
        group.resume(*replica);
    }
    let (present, _) = group.wait_for_master_other_than(former).await;
    eventually("all others to be released at the new master", || async {
        (1..LOCKS - 1).all(|number| !group.server(present).exists(&key(number)))
    })
    .await;
}

/// The new master has the queue as it was before all calls got the lock.
#[tokio::test]
async fn the_new_master_does_not_offer_the_lock_to_calls_that_have_had_it() {
    const CALLS: usize = 40;
    let group = SentinelGroup::start().await;
    let locks = connected(&group).await;
    // Its release is not known to the manager.
    let foreign = group.server(group.master().await);
    foreign.cmd(&["SET", KEY, "foreign", "PX", "600000"]);
    let calls: Vec<_> = (0..CALLS)
        .map(|_| tokio::spawn(locks.lock("stock:7").fair(true).run(async {})))
        .collect();
    let queue = format!("dist_lock:%lock-queue:{{{KEY}}}");
    let in_queue = |port| {
        let Value::Array(members) = group.server(port).cmd(&["ZRANGEBYSCORE", &queue, "1", "+inf"]) else {
            return Vec::new();
        };
        members
    };
    for port in group.node_ports() {
        eventually("all calls in the queue on every server", || async {
            in_queue(port).len() == CALLS
        })
        .await;
    }
    let former = group.master().await;
    let replicas: Vec<u16> = group.node_ports().into_iter().filter(|port| *port != former).collect();
    let earlier = in_queue(former);
    // What the master does from here on reaches no replica.
    for replica in &replicas {
        group.pause(*replica);
    }
    group.server(former).cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
    group.server(former).cmd(&["DEL", KEY]);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    group.server(former).kill();
    for replica in &replicas {
        group.resume(*replica);
    }
    let (present, _) = group.wait_for_master_other_than(former).await;
    let next = tokio::spawn(locks.lock("stock:7").wait(Duration::from_secs(20)).run(async {}));
    eventually("the next call in the queue", || async {
        in_queue(present).iter().any(|member| !earlier.contains(member))
    })
    .await;
    // Each of the places would keep the lock for 1.5 s.
    group.server(present).cmd(&["DEL", KEY]);
    next.await.unwrap().unwrap();
}

/// The former master answers and accepts writes, so nothing but the sentinel tells of the failover.
#[tokio::test]
async fn a_failover_soon_after_the_only_sentinel_is_back_is_heard_of() {
    let former = Server::start();
    let following = format!("127.0.0.1 {}", former.port());
    let present = Server::builder().arg("replicaof", &following).start();
    let watched = |setting: &str| format!("sentinel {setting} {MASTER_NAME}");
    let sentinel = Server::builder()
        .sentinel()
        .arg(&watched("monitor"), &format!("{following} 1"))
        .arg(&watched("down-after-milliseconds"), "3600000")
        .start();
    let locks = LockManager::builder(&format!("redis+sentinel://127.0.0.1:{}/{MASTER_NAME}", sentinel.port()))
        .default_wait(PATIENCE)
        .build()
        .unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;

    sentinel.kill();
    eventually("the manager to notice", || async {
        let health = locks.health();
        let mut sentinels = health
            .servers
            .iter()
            .filter(|server| server.role == ServerRole::Sentinel);
        sentinels.all(|sentinel| sentinel.state == ServerState::Down)
    })
    .await;
    sentinel.start_again();
    // It is refused until the sentinel has found the replica.
    eventually("a failover to begin", || async {
        sentinel.try_cmd(&["SENTINEL", "FAILOVER", MASTER_NAME]).is_ok()
    })
    .await;
    eventually("the sentinel to name the new master", || async {
        let (_, port): (String, u16) = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME]);
        port == present.port()
    })
    .await;
    // How soon, `tests/simulation` shows.
    eventually("a lock on the new master", || async {
        let guard = locks.lock("stock:7").acquire().await.unwrap();
        let is_there = present.exists(KEY);
        guard.release().await.is_ok() && is_there
    })
    .await;
}

/// Their epochs begin anew, so nothing but their number speaks for them.
#[tokio::test]
async fn sentinels_that_are_told_of_another_master_are_followed_though_the_former_one_answers() {
    let (former, present) = (Server::start(), Server::start());
    let watched = |server: &Server| format!("127.0.0.1 {} 2", server.port());
    let sentinels = [(); 3].map(|()| {
        let monitor = format!("sentinel monitor {MASTER_NAME}");
        Server::builder().sentinel().arg(&monitor, &watched(&former)).start()
    });
    let hosts = sentinels
        .each_ref()
        .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()));
    let url = format!("redis+sentinel://{}/{MASTER_NAME}", hosts.join(","));
    let builder = LockManager::builder(&url)
        .default_wait(PATIENCE)
        .default_lease(PATIENCE * 4);
    let locks = builder.build().unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    let body = tokio::spawn(locks.lock("stock:7").run(std::future::pending::<()>()));
    eventually("the lock to be held", || async { former.exists(KEY) }).await;

    for sentinel in &sentinels {
        sentinel.cmd(&["SENTINEL", "REMOVE", MASTER_NAME]);
        let port = present.port().to_string();
        sentinel.cmd(&["SENTINEL", "MONITOR", MASTER_NAME, "127.0.0.1", &port, "2"]);
    }
    let ended = tokio::time::timeout(PATIENCE, body)
        .await
        .expect("the lock is lost")
        .unwrap();
    assert!(ended.as_ref().is_err_and(LockError::is_lost), "{ended:?}");
    let guard = locks.lock("stock:7").acquire().await.unwrap();
    assert!(present.exists(KEY));
    guard.release().await.unwrap();
}
