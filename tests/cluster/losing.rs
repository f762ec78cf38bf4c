//! Masters that are replaced, killed, or stand still.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, LostReason};
use lock_tests::{ClusterGroup, PATIENCE, chain, eventually};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::moving::{BODIES, Storm, connected, patient, slot_of};

const KEY: &str = "stock:7";
const WHOLE_KEY: &str = "dist_lock:stock:7";

/// Begins a body that lasts until it is cancelled or `end` is notified, and returns once the lock is held.
async fn held(locks: &LockManager, key: &str, end: &Arc<Notify>) -> JoinHandle<Result<(), LockError>> {
    let begun = Arc::new(Notify::new());
    let (request, end) = (locks.lock(key), Arc::clone(end));
    let body = {
        let begun = Arc::clone(&begun);
        async move {
            begun.notify_one();
            end.notified().await;
        }
    };
    let body = tokio::spawn(request.run(body));
    begun.notified().await;
    body
}

/// Returns once a replica has all that its master has. A client cannot read a key there.
async fn replicated(cluster: &ClusterGroup, master: u16, replica: u16) {
    let offset = |port: u16, field: &str| cluster.server(port).info(field).parse::<u64>().unwrap();
    let written = offset(master, "master_repl_offset");
    eventually("the replica to have all", || async {
        offset(replica, "slave_repl_offset") >= written
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_the_next_master_knows_stays_held_and_goes_to_whoever_waits() {
    let cluster = ClusterGroup::start().await;
    let (holder, waiter) = (connected(&cluster).await, connected(&cluster).await);
    for is_planned in [true, false] {
        let end = Arc::default();
        let body = held(&holder, KEY, &end).await;
        let former = cluster.owner(slot_of(&cluster, KEY)).await;
        let replica = cluster.replica_of(former).unwrap();
        replicated(&cluster, former, replica).await;
        let waiting = tokio::spawn(waiter.lock(KEY).run(async {}));
        if is_planned {
            cluster.failover(replica).await;
        } else {
            cluster.server(former).kill();
        }
        let queue = format!("dist_lock:%lock-queue:{{{WHOLE_KEY}}}");
        eventually("the waiting call to stand in the queue of the next master", || async {
            let next = cluster.server(replica);
            next.info("role") == "master" && next.exists(&queue)
        })
        .await;
        assert!(!body.is_finished() && !waiting.is_finished());
        end.notify_one();
        body.await.unwrap().unwrap();
        waiting.await.unwrap().unwrap();
        eventually("the release at the next master", || async {
            !cluster.server(replica).exists(WHOLE_KEY)
        })
        .await;
    }
}

/// Has a replica hear nothing of its master from now on.
fn cut_off(cluster: &ClusterGroup, master: u16, replica: u16) {
    cluster.server(replica).pause();
    cluster.server(master).cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// Has a replica take over that has heard nothing for a while.
async fn promote(cluster: &ClusterGroup, master: u16, replica: u16) {
    cluster.server(master).kill();
    cluster.server(replica).resume();
    eventually("the replica to be promoted", || async {
        cluster.server(replica).info("role") == "master"
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_the_next_master_does_not_know_is_lost_and_its_body_cancelled() {
    let cluster = ClusterGroup::start().await;
    let locks = connected(&cluster).await;
    let master = cluster.owner(slot_of(&cluster, KEY)).await;
    let replica = cluster.replica_of(master).unwrap();
    cut_off(&cluster, master, replica);
    let body = held(&locks, KEY, &Arc::default()).await;
    promote(&cluster, master, replica).await;
    let lost = body.await.unwrap().unwrap_err();
    assert!(
        matches!(
            lost,
            LockError::Lost {
                reason: LostReason::Deleted,
                completed: false,
                ..
            }
        ),
        "{lost:?}"
    );
    locks.lock(KEY).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_that_the_next_master_does_not_know_is_repeated_there() {
    for is_importing in [false, true] {
        let cluster = ClusterGroup::start().await;
        let locks = connected(&cluster).await;
        let master = cluster.owner(slot_of(&cluster, KEY)).await;
        let replica = cluster.replica_of(master).unwrap();
        if is_importing {
            ask_for_a_slot_on_its_way(&cluster, &locks, master).await;
        }
        let guard = locks.lock(KEY).acquire().await.unwrap();
        replicated(&cluster, master, replica).await;
        cut_off(&cluster, master, replica);
        guard.release().await.unwrap();
        promote(&cluster, master, replica).await;
        eventually("the release at the next master", || async {
            !cluster.server(replica).exists(WHOLE_KEY)
        })
        .await;
    }
}

/// Has a node asked about a slot that is on its way there, which its owner sends to it.
async fn ask_for_a_slot_on_its_way(cluster: &ClusterGroup, locks: &LockManager, to: u16) {
    let mut keys = (0..).map(|number| format!("stock:{number}"));
    let (slot, from, key) = loop {
        let key = keys.next().unwrap();
        let slot = slot_of(cluster, &key);
        let from = cluster.owner(slot).await;
        if from != to {
            break (slot, from, key);
        }
    };
    cluster.open_move(slot, from, to);
    let held = locks.lock(&key).acquire().await.unwrap();
    assert!(cluster.server(to).holds(&format!("dist_lock:{key}")));
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_node_that_stands_still_holds_up_the_calls_for_its_own_keys_only() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = LockManager::builder(&cluster.url())
        .default_wait(PATIENCE)
        .default_lease(Duration::from_secs(60))
        // For the nodes that answer. It decides how soon the silent one is told, too.
        .response_timeout(Duration::from_secs(4))
        .build()
        .unwrap();
    let mut keys = Vec::new();
    for master in cluster.masters() {
        let mut all = (0..).map(|number| format!("stock:{number}"));
        let its = loop {
            let key = all.next().unwrap();
            if cluster.owner(slot_of(&cluster, &key)).await == master.port() {
                break key;
            }
        };
        locks.lock(&its).acquire().await.unwrap().release().await.unwrap();
        keys.push(its);
    }
    let held = locks.lock_all(keys.clone()).acquire().await.unwrap();
    held.release().await.unwrap();
    let [silent, others @ ..] = cluster.masters() else {
        panic!("no masters");
    };
    silent.pause();
    let short = locks.lock(&keys[0]).wait(Duration::from_millis(500));
    let refused = short.acquire().await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    // Many more than one connection's worth, while calls for the silent node are under way.
    let stuck: Vec<_> = (0..100)
        .map(|_| tokio::spawn(locks.lock(&keys[0]).wait(PATIENCE * 4).run(async {})))
        .collect();
    for _ in 0..50 {
        for key in &keys[1..] {
            locks.lock(key).acquire().await.unwrap().release().await.unwrap();
        }
    }
    assert!(stuck.iter().all(|call| !call.is_finished()));
    let health = locks.health();
    eventually("the silent node to be told", || async { !locks.health().is_ready() }).await;
    assert_eq!(health.servers.len(), 1 + others.len());
    silent.resume();
    for call in stuck {
        call.await.unwrap().unwrap();
    }
    eventually("all nodes to work", || async { locks.health().is_ready() }).await;
}

#[tokio::test]
async fn nobody_meets_anybody_inside_while_masters_change_by_plan() {
    let cluster = ClusterGroup::start().await;
    let storm = Storm::begin(&cluster, Duration::from_secs(2)).await;
    let until = Instant::now() + Duration::from_secs(8);
    let mut failovers = 0;
    while storm.goes_on(until) || failovers < 2 && Instant::now() < until + PATIENCE {
        let ports = cluster.ports();
        let replicas: Vec<u16> = ports
            .into_iter()
            .filter(|port| cluster.server(*port).info("role") == "slave")
            .collect();
        cluster.failover(*fastrand::choice(&replicas).unwrap()).await;
        cluster.settled().await;
        failovers += 1;
    }
    let entries = storm.entries();
    let [bodies, busy, errors] = storm.end().await;
    eprintln!("{failovers} failovers, {entries} entries, {bodies} bodies, {busy} busy, {errors} errors");
    assert!(failovers > 1 && bodies >= BODIES);
    assert_eq!(busy, 0);
}

#[tokio::test]
async fn a_call_for_a_dead_node_names_it_until_another_one_takes_over() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = patient(&cluster).await;
    locks.lock("stock").run(async {}).await.unwrap();
    let owner = cluster.owner(slot_of(&cluster, "stock")).await;
    cluster.server(owner).kill();
    let address = cluster.server(owner).addr().to_string();
    // The first one may find out by the connection that it had.
    eventually("the node to be named", || async {
        let refused = locks.lock("stock").wait(Duration::from_millis(300)).acquire().await;
        let said = chain(&refused.unwrap_err());
        said.contains(&format!("`{address}`: Connection refused")) && said.contains("`cluster-announce-ip`")
    })
    .await;
}
