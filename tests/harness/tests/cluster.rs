//! A cluster of real processes: slots move with their keys, and replicas take over.

use lock_tests::{ClusterGroup, eventually};
use redis::Value;

#[tokio::test]
async fn a_cluster_starts_whole_moves_slots_and_outlives_failovers() {
    let cluster = ClusterGroup::start().await;
    let [first, second, _, replica, ..] = cluster.ports();
    assert!(
        cluster
            .url()
            .starts_with(&format!("redis+cluster://127.0.0.1:{first},"))
    );

    // The slot of `{b}`, by which all nodes know it.
    let slot = 3300;
    assert_eq!(
        cluster.server(first).cmd(&["CLUSTER", "KEYSLOT", "{b}:1"]),
        Value::Int(3300)
    );
    assert_eq!(cluster.owner(slot).await, first);
    for key in ["{b}:1", "{b}:2"] {
        cluster.server(first).cmd(&["SET", key, "v"]);
    }
    cluster.move_slot(slot, second).await;
    assert_eq!(cluster.owner(slot).await, second);
    assert_eq!(cluster.server(second).value("{b}:2").as_deref(), Some("v"));
    let moved = cluster.server(first).try_cmd(&["GET", "{b}:1"]).unwrap_err();
    assert!(
        moved.to_string().contains("MOVED") || moved.code() == Some("MOVED"),
        "{moved}"
    );
    cluster.move_slot(slot, first).await;
    assert_eq!(cluster.owner(slot).await, first);

    cluster.failover(replica).await;
    cluster.settled().await;
    assert_eq!(cluster.owner(slot).await, replica);
    assert_eq!(cluster.server(replica).value("{b}:1").as_deref(), Some("v"));

    cluster.server(replica).kill();
    assert_eq!(cluster.owner(slot).await, first, "the former master takes over again");
    cluster.server(replica).start_again();
    eventually("the killed node to follow", || async {
        cluster.server(replica).info("role") == "slave"
    })
    .await;
    cluster.settled().await;
}
