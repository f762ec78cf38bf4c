//! Nodes that leave a cluster, and come back.

use std::time::Duration;

use lock_tests::{ClusterGroup, Server, eventually};

use crate::moving::{connected, patient, slot_of};

/// The slots of the node that leaves.
const SLOTS: u16 = 16;

/// The connections to a node, but those of its replica.
fn connections(node: &Server) -> usize {
    let clients: String = node.ask(&["CLIENT", "LIST"]);
    clients.lines().filter(|line| !line.contains("flags=S")).count()
}

#[tokio::test]
async fn a_node_whose_slots_are_all_given_away_is_left_and_used_again_when_it_has_some() {
    if Server::start().name() == "redis-6.2" {
        // There, a master that gives its last slot away becomes a replica.
        return;
    }
    let cluster = ClusterGroup::start_uneven(SLOTS).await;
    let [leaving, staying, ..] = cluster.masters() else {
        panic!("no masters");
    };
    let of_the_test = connections(leaving);
    let locks = patient(&cluster).await;
    let keys = (0..).map(|number| format!("stock:{number}"));
    let mut keyed = keys.map(|key| (slot_of(&cluster, &key), key));
    let (slot, key) = keyed.find(|(slot, _)| *slot < SLOTS).unwrap();
    let held = locks.lock(&key).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock(&key).run(async {}));
    assert_eq!(locks.health().servers.len(), 3);
    assert!(connections(leaving) > of_the_test);

    cluster.move_slots(0..=SLOTS - 1, staying.port()).await;
    eventually("the node to be left", || async {
        locks.health().servers.len() == 2 && connections(leaving) == of_the_test
    })
    .await;
    held.handle().verify().await.unwrap();
    assert!(!waiting.is_finished());
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap();

    cluster.move_slot(slot, leaving.port()).await;
    let held = locks.lock(&key).acquire().await.unwrap();
    assert!(leaving.holds(&format!("dist_lock:{key}")));
    held.release().await.unwrap();
    eventually("the node to be used again", || async {
        locks.health().is_ready() && locks.health().servers.len() == 3
    })
    .await;
}

/// The number of times that a node was asked about the cluster.
fn questions(node: &Server) -> u64 {
    let commands: String = node.ask(&["INFO", "commandstats"]);
    let of_cluster = commands.lines().filter(|line| {
        ["cmdstat_cluster:", "cmdstat_cluster|slots:"]
            .iter()
            .any(|name| line.starts_with(name))
    });
    of_cluster
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok())
        .sum()
}

/// It answers that there are no slots, in the epoch of the cluster that it was in.
#[tokio::test]
async fn a_node_that_was_reset_does_not_speak_for_the_cluster_while_no_other_one_answers() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = connected(&cluster).await;
    let held = locks.lock("stock").acquire().await.unwrap();
    let [.., left] = cluster.ports();
    let left = cluster.server(left);
    let id: String = left.ask(&["CLUSTER", "MYID"]);
    left.cmd(&["CLUSTER", "RESET", "SOFT"]);
    let others = cluster.ports().map(|port| cluster.server(port));
    let others = || others.iter().filter(|node| node.port() != left.port());
    for other in others() {
        other.cmd(&["CLUSTER", "FORGET", &id]);
    }

    others().for_each(|other| other.pause());
    let failed = locks
        .lock("orders")
        .wait(Duration::from_millis(500))
        .acquire()
        .await
        .unwrap_err();
    assert!(failed.is_retryable(), "{failed:?}");
    eventually("a node to be down", || async { !locks.health().is_ready() }).await;
    let before = questions(left);
    eventually("the node to be asked several times", || async {
        questions(left) >= before + 3
    })
    .await;
    let health = locks.health();
    assert_eq!(health.servers.len(), 3, "{health:?}");
    assert!(!health.is_ready(), "{health:?}");
    others().for_each(|other| other.resume());
    eventually("the lock to be found", || async {
        held.handle().verify().await.is_ok()
    })
    .await;
    held.release().await.unwrap();
}
