//! A slot that is on its way to another node, and locks that are still at the one that it leaves.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::{ClusterGroup, PATIENCE};

use crate::moving::{patient, slot_of};

/// The release deletes the key, and a script that asks for a key that is not there fails at that node.
#[tokio::test]
async fn the_last_holder_of_every_shared_mode_releases_its_lock() {
    let cluster = ClusterGroup::start_steady().await;
    let (locks, others) = (patient(&cluster).await, patient(&cluster).await);
    let requests = |locks: &LockManager| {
        [
            ("read", locks.lock("read").read()),
            ("write", locks.lock("write").write()),
            ("permit", locks.lock("permit").semaphore(1)),
            ("owned", locks.lock("owned").owner("a")),
            ("kept", locks.lock("kept").read().at_least(Duration::from_millis(300))),
        ]
    };
    for ((key, request), (_, next)) in requests(&locks).into_iter().zip(requests(&others)) {
        let held = request.acquire().await.unwrap();
        let slot = slot_of(&cluster, key);
        let from = cluster.owner(slot).await;
        let to = cluster.other_master(from);
        cluster.open_move(slot, from, to);
        assert!(cluster.server(from).holds(&format!("dist_lock:{key}")), "{key}");
        held.release().await.unwrap_or_else(|error| panic!("{key}: {error}"));
        cluster.move_keys(slot, from, to);
        cluster.close_move(slot, from, to).await;
        let held = next.wait(PATIENCE).acquire().await;
        held.unwrap_or_else(|error| panic!("{key}: {error}"))
            .release()
            .await
            .unwrap();
    }
}

/// One script renews the shared lock, another one the exclusive one, and only the first is sent on to the other node.
#[tokio::test]
async fn an_exclusive_lock_is_renewed_there_beside_a_shared_one_that_has_left() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = patient(&cluster).await;
    for (stays, leaves) in [("{shop}:exclusive", "{shop}:read"), ("{shop}:read", "{shop}:exclusive")] {
        // Five seconds of it to spare at each renewal.
        let lease = Duration::from_secs(15);
        let exclusive = locks.lock("{shop}:exclusive").lease(lease).acquire().await.unwrap();
        let shared = locks.lock("{shop}:read").read().lease(lease).acquire().await.unwrap();
        let slot = slot_of(&cluster, stays);
        let from = cluster.owner(slot).await;
        let to = cluster.other_master(from);
        cluster.open_move(slot, from, to);
        cluster.move_key(&format!("dist_lock:{leaves}"), from, to);
        let both = async {
            while exclusive.handle().renewals() == 0 || shared.handle().renewals() == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, both).await.unwrap();
        exclusive.handle().verify().await.unwrap();
        shared.handle().verify().await.unwrap();
        cluster.move_keys(slot, from, to);
        cluster.close_move(slot, from, to).await;
        exclusive.release().await.unwrap();
        shared.release().await.unwrap();
    }
}
