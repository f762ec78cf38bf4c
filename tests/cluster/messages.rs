//! The messages by which a node of a cluster tells a waiting call that it has got the lock.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::{ClusterGroup, PATIENCE, eventually};
use tokio::task::JoinHandle;

use crate::moving::slot_of;
use crate::secured::{OF_CLUSTERS, SHARDED, allow};

/// The key of the queue of the lock `k`.
const QUEUE: &str = "dist_lock:%lock-queue:{dist_lock:k}";
/// The beginning of the names of its channels.
const CHANNELS: &str = "dist_lock:%lock-queue:{dist_lock:k}:";

fn connected(url: &str) -> LockManager {
    LockManager::builder(url)
        .response_timeout(PATIENCE)
        .default_lease(Duration::from_secs(120))
        .default_wait(PATIENCE)
        .build()
        .unwrap()
}

fn waiting(locks: &LockManager) -> JoinHandle<()> {
    let call = locks.lock("k").run(async {});
    tokio::spawn(async move { call.await.unwrap() })
}

/// The channels of this kind that somebody listens to at the node that has the lock.
async fn channels(cluster: &ClusterGroup, kind: &str) -> Vec<String> {
    let owner = cluster.owner(slot_of(cluster, "k")).await;
    cluster.server(owner).ask(&["PUBSUB", kind, "dist_lock:%lock-*"])
}

async fn has_channel(cluster: &ClusterGroup, kind: &str, begin: &str) -> bool {
    let channels = channels(cluster, kind).await;
    channels.iter().any(|channel| channel.starts_with(begin))
}

/// Whether the lock's queue says that a waiter's process listens to a channel of the shard. The process writes that once the server
/// has confirmed its subscription.
async fn queue_tells_of_a_sharded_channel(cluster: &ClusterGroup) -> bool {
    let owner = cluster.owner(slot_of(cluster, "k")).await;
    let of_processes = ["ZRANGEBYSCORE", QUEUE, "-inf", "-1", "WITHSCORES"];
    let signs: Vec<String> = cluster.server(owner).ask(&of_processes);
    // The negative time, and an eighth.
    signs.iter().any(|sign| sign.ends_with(".875"))
}

/// Returns the number of messages of this kind that the nodes have sent to each other.
fn sent(cluster: &ClusterGroup, kind: &str) -> u64 {
    let field = format!("cluster_stats_messages_{kind}_sent:");
    let told = cluster
        .ports()
        .map(|port| cluster.server(port).ask::<String>(&["CLUSTER", "INFO"]));
    let counts = told
        .iter()
        .filter_map(|told| told.lines().find_map(|line| line.strip_prefix(&field)));
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

/// Returns the number of messages that the node that has the lock has sent on channels of a shard.
async fn published(cluster: &ClusterGroup) -> u64 {
    let owner = cluster.owner(slot_of(cluster, "k")).await;
    let told: String = cluster.server(owner).ask(&["INFO", "commandstats"]);
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_spublish:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_call_is_told_on_a_channel_of_the_shard_and_the_other_masters_hear_nothing() {
    let cluster = ClusterGroup::start_steady().await;
    let [one, other] = [0, 1].map(|_| connected(&cluster.url()));
    let held = one.lock("k").acquire().await.unwrap();
    let call = waiting(&other);
    if cluster.server(cluster.ports()[0]).name() == "redis-6.2" {
        eventually("a plain channel", || {
            has_channel(&cluster, "CHANNELS", "dist_lock:%lock-wake:")
        })
        .await;
        held.release().await.unwrap();
        call.await.unwrap();
        return;
    }
    eventually("a channel of the queue", || {
        has_channel(&cluster, "SHARDCHANNELS", CHANNELS)
    })
    .await;
    // Until then, a release sends on the plain channel.
    eventually("the queue to tell of the channel", || {
        queue_tells_of_a_sharded_channel(&cluster)
    })
    .await;
    assert!(channels(&cluster, "CHANNELS").await.is_empty());
    let (before, of_checks) = (sent(&cluster, "publish"), published(&cluster).await);
    held.release().await.unwrap();
    call.await.unwrap();
    assert_eq!(sent(&cluster, "publish"), before);
    assert!(published(&cluster).await > of_checks, "it was told by a message");

    // After two moves the node of before has it again, whose subscription has ended.
    let held = one.lock("k").acquire().await.unwrap();
    let call = waiting(&other);
    eventually("a channel of the queue", || {
        has_channel(&cluster, "SHARDCHANNELS", CHANNELS)
    })
    .await;
    let slot = slot_of(&cluster, "k");
    let from = cluster.owner(slot).await;
    let to = cluster.other_master(from);
    for to in [to, from] {
        cluster.move_slot(slot, to).await;
        eventually("the channel at the next node", || {
            has_channel(&cluster, "SHARDCHANNELS", CHANNELS)
        })
        .await;
    }
    held.release().await.unwrap();
    call.await.unwrap();
}

/// Both are needed for channels of a shard, and a user who lacks one listens to the plain one, beside others in the same queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_use_channels_of_a_shard_is_told_on_a_plain_one() {
    let cluster = ClusterGroup::start_steady().await;
    if cluster.server(cluster.ports()[0]).name() == "redis-6.2" {
        println!("redis-6.2 has no channels of a shard");
        return;
    }
    let holder = connected(&cluster.url());
    for missing in SHARDED {
        let mut of_cluster = OF_CLUSTERS.to_vec();
        of_cluster.extend(SHARDED.into_iter().filter(|rule| *rule != missing));
        allow(&cluster, &of_cluster);
        let restricted = connected(&cluster.url().replace("redis+cluster://", "redis+cluster://app:secret@"));
        let held = holder.lock("k").acquire().await.unwrap();
        let calls = [
            waiting(&restricted),
            waiting(&holder),
            waiting(&connected(&cluster.url())),
        ];
        for (kind, begin) in [("CHANNELS", "dist_lock:%lock-wake:"), ("SHARDCHANNELS", CHANNELS)] {
            eventually(&format!("{kind}, without {missing}"), || {
                has_channel(&cluster, kind, begin)
            })
            .await;
        }
        held.release().await.unwrap();
        for call in calls {
            call.await.unwrap();
        }
    }
}
