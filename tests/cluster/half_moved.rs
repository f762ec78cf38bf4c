//! A slot that is on its way to another node for a long time, so that a lock and its queue may be on different ones.

use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockRequest};
use lock_tests::{ClusterGroup, chain, eventually};
use redis::Value;

use crate::moving::{connected, patient, slot_of};

/// Opens the move of a key's slot, and moves what is in it if told to. Returns the ports of the source and the target.
async fn open(cluster: &ClusterGroup, key: &str, with_keys: bool) -> (u16, u16) {
    let slot = slot_of(cluster, key);
    let from = cluster.owner(slot).await;
    let to = cluster.other_master(from);
    cluster.open_move(slot, from, to);
    if with_keys {
        cluster.move_keys(slot, from, to);
    }
    (from, to)
}

/// Requests that can be carried out while the lock and its queue are apart.
fn simple(locks: &LockManager) -> [(&'static str, LockRequest); 2] {
    [
        ("exclusive", locks.lock("exclusive")),
        ("passing", locks.lock("passing").wait(Duration::from_secs(10))),
    ]
}

#[tokio::test]
async fn an_exclusive_lock_is_taken_kept_and_released_on_either_side() {
    let cluster = ClusterGroup::start_steady().await;
    let (locks, others) = (patient(&cluster).await, patient(&cluster).await);
    for with_keys in [false, true] {
        for (key, request) in simple(&locks) {
            let held = locks.lock(key).acquire().await.unwrap();
            let (from, to) = open(&cluster, key, with_keys).await;
            let refused = others.lock(key).wait(Duration::ZERO).acquire().await;
            assert!(matches!(refused, Err(LockError::Busy { .. })), "{refused:?}");
            held.handle().verify().await.unwrap();
            held.release().await.unwrap();
            // It is free now, so whoever takes it does so at the target.
            let held = request.acquire().await.unwrap();
            let whole = format!("dist_lock:{key}");
            assert!(cluster.server(to).holds(&whole), "{key}");
            let refused = others.lock(key).wait(Duration::ZERO).acquire().await;
            assert!(matches!(refused, Err(LockError::Busy { .. })), "{refused:?}");
            held.handle().verify().await.unwrap();
            cluster.close_move(slot_of(&cluster, key), from, to).await;
            held.handle().verify().await.unwrap();
            held.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn locks_of_every_mode_are_kept_and_released_while_their_slots_are_half_moved() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = patient(&cluster).await;
    let requests = || {
        [
            ("fenced", locks.lock("fenced").fencing(true)),
            ("fair", locks.lock("fair").fair(true)),
            ("read", locks.lock("read").read()),
            ("write", locks.lock("write").write()),
            ("permit", locks.lock("permit").semaphore(1)),
            ("owned", locks.lock("owned").owner("a")),
            ("kept", locks.lock("kept").at_least(Duration::from_millis(300))),
        ]
    };
    let mut all = Vec::new();
    for (key, request) in requests() {
        // Five seconds of it to spare at each renewal.
        let held = request.lease(Duration::from_secs(15)).acquire().await.unwrap();
        let (from, to) = open(&cluster, key, true).await;
        let renewals = held.handle().renewals();
        all.push((key, held, renewals, from, to));
    }
    for (key, held, before, from, to) in all {
        let (what, renewals) = (format!("a renewal of `{key}`"), held.handle().clone());
        eventually(&what, || async { renewals.renewals() > before }).await;
        held.handle()
            .verify()
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"));
        held.release().await.unwrap_or_else(|error| panic!("{key}: {error}"));
        cluster.close_move(slot_of(&cluster, key), from, to).await;
    }
    for (key, request) in requests() {
        request
            .acquire()
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"))
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn whoever_waits_goes_on_waiting_at_the_node_that_has_got_the_slot() {
    let cluster = ClusterGroup::start_steady().await;
    let (locks, others) = (patient(&cluster).await, connected(&cluster).await);
    let held = locks.lock("stock").acquire().await.unwrap();
    let (whole, queue) = ("dist_lock:stock", "dist_lock:%lock-queue:{dist_lock:stock}");
    let source = cluster.owner(slot_of(&cluster, "stock")).await;
    let mut waiting = Vec::new();
    for nth in 0..3 {
        waiting.push(tokio::spawn(others.lock("stock").fair(true).run(async {})));
        eventually("a place in the queue", || async {
            cluster.server(source).ask::<usize>(&["ZCOUNT", queue, "1", "+inf"]) == nth + 1
        })
        .await;
    }
    let target = cluster.other_master(source);
    cluster.move_slot(slot_of(&cluster, "stock"), target).await;
    assert!(cluster.server(target).holds(whole));
    eventually("the queue at the target", || async {
        cluster.server(target).holds(queue)
    })
    .await;
    assert!(waiting.iter().all(|call| !call.is_finished()));
    held.release().await.unwrap();
    for call in waiting {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_call_whose_place_has_moved_to_a_node_without_free_memory_leaves_no_second_one() {
    let cluster = ClusterGroup::start_steady().await;
    let (locks, others) = (patient(&cluster).await, connected(&cluster).await);
    let held = locks.lock("stock").acquire().await.unwrap();
    let queue = "dist_lock:%lock-queue:{dist_lock:stock}";
    let slot = slot_of(&cluster, "stock");
    let from = cluster.owner(slot).await;
    let places = |node: u16| {
        let places = cluster.server(node).try_cmd(&["ZRANGEBYSCORE", queue, "1", "+inf"]);
        places.map_or_else(
            |_| Vec::new(),
            |places| redis::from_redis_value::<Vec<String>>(places).unwrap(),
        )
    };
    let waiting = tokio::spawn(others.lock("stock").fair(true).run(async {}));
    eventually("a place in the queue", || async { places(from).len() == 1 }).await;
    let to = cluster.other_master(from);
    cluster.open_move(slot, from, to);
    cluster.move_keys(slot, from, to);
    let target = cluster.server(to);
    // What keeps a place up, and gives it back, is still allowed.
    target.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    cluster.close_move(slot, from, to).await;
    eventually("the call to ask for its place there, in vain", || async {
        target.ask::<String>(&["INFO", "errorstats"]).contains("OOM")
    })
    .await;
    let before = places(to);
    target.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("one place, and another one than before", || async {
        let present = places(to);
        present.len() == 1 && present != before
    })
    .await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap();
}

/// A place that stays behind is offered the lock for a claim, while others wait.
#[tokio::test]
async fn a_call_that_gives_up_while_its_lock_and_its_queue_are_apart_leaves_no_place() {
    let cluster = ClusterGroup::start_steady().await;
    let (locks, others) = (patient(&cluster).await, connected(&cluster).await);
    // Until then the slot is on its way, and the call has heard of it.
    let wait = Duration::from_secs(10);
    let leaves_none = async |key, queue, held: LockRequest, waiting: LockRequest| {
        let held = held.acquire().await.unwrap();
        let whole = format!("dist_lock:{key}");
        let queue = format!("dist_lock:%lock-{queue}:{{{whole}}}");
        let waiting = tokio::spawn(waiting.wait(wait).run(async {}));
        let (from, to) = {
            let from = cluster.owner(slot_of(&cluster, key)).await;
            let places = || cluster.server(from).ask::<usize>(&["ZCOUNT", &queue, "1", "+inf"]);
            eventually("a place in the queue", || async { places() == 1 }).await;
            open(&cluster, key, false).await
        };
        let source = cluster.server(from);
        source.cmd(&["MIGRATE", "127.0.0.1", &to.to_string(), &whole, "0", "5000"]);
        // It does not go by itself. An empty queue is gone, and looked for at the target.
        let _ = source.try_cmd(&["PERSIST", &queue]);
        let refused = chain(&waiting.await.unwrap().unwrap_err());
        assert!(refused.contains("on its way to another node"), "{refused}");
        let _ = source.try_cmd(&["PERSIST", &queue]);
        eventually("the place to be given back", || async {
            let places = source.try_cmd(&["ZCOUNT", &queue, "1", "+inf"]);
            places.map_or(true, |places| places == Value::Int(0))
        })
        .await;
        cluster.close_move(slot_of(&cluster, key), from, to).await;
        held.release().await.unwrap();
    };
    let (write, read) = (locks.lock("shared").write(), others.lock("shared").read());
    tokio::join!(
        leaves_none("alone", "queue", locks.lock("alone"), others.lock("alone").fair(true)),
        leaves_none("shared", "shared", write, read),
    );
}

/// Keys that are nowhere yet make the target ask to try again, if a command has several of them.
#[tokio::test]
async fn a_call_for_several_keys_tells_which_slot_it_has_waited_for() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = patient(&cluster).await;
    let keys = ["stock", "orders", "users"];
    for key in keys {
        let (from, to) = open(&cluster, key, false).await;
        // Long enough for an answer.
        let several = locks.lock_all(keys).wait(Duration::from_secs(8));
        let refused = chain(&several.acquire().await.unwrap_err());
        let slot = slot_of(&cluster, key);
        let told = format!("slot {slot} of the cluster is on its way to another node");
        assert!(refused.contains(&told), "{refused}");
        cluster.close_move(slot, from, to).await;
        locks.lock_all(keys).acquire().await.unwrap().release().await.unwrap();
    }
}
