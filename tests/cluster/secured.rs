//! A cluster that serves TLS only, and the permissions of the user.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder};
use lock_tests::certificates::Certificate;
use lock_tests::{ClusterGroup, PATIENCE, chain, eventually, permissions};

use crate::moving::slot_of;

fn builder(url: &str) -> LockManagerBuilder {
    LockManager::builder(url)
        .default_lease(PATIENCE * 2)
        .default_wait(PATIENCE)
        .connect_timeout(Duration::from_secs(5))
        .response_timeout(Duration::from_secs(10))
}

#[tokio::test]
async fn a_cluster_that_serves_tls_only_is_followed_with_a_client_certificate() {
    let cluster = ClusterGroup::start_with_tls().await;
    assert!(cluster.url().starts_with("rediss+cluster://"));
    let read = |file| fs::read(file).unwrap();
    let files = Certificate::Valid.files();
    let trusting = || builder(&cluster.url()).root_certificate(read(&files.authority));
    let locks = trusting().client_certificate(read(&files.certificate), read(&files.key));
    let locks = locks.build().unwrap();
    for number in 0..10 {
        let held = locks.lock(format!("k{number}")).acquire().await.unwrap();
        let owner = cluster.owner(slot_of(&cluster, &format!("k{number}"))).await;
        assert!(cluster.server(owner).exists(&format!("dist_lock:k{number}")));
        held.release().await.unwrap();
    }
    for refused in [
        trusting(),
        builder(&cluster.url()),
        builder(&cluster.url().replace("rediss", "redis")),
    ] {
        let error = refused.build().unwrap().check_connection().await.unwrap_err();
        let said = chain(&error);
        assert!(said.contains("127.0.0.1:"), "{said}");
    }
}

/// What the documents list for a user of a cluster, in addition to what a single server's needs.
pub(crate) const OF_CLUSTERS: [&str; 4] = ["+cluster|slots", "+cluster|nodes", "+cluster|info", "+asking"];

/// What they list for messages within a shard, of which Redis 6.2 knows nothing.
pub(crate) const SHARDED: [&str; 2] = ["+ssubscribe", "+spublish"];

/// The rules of the table of permissions.
fn of_all() -> Vec<&'static str> {
    let page = include_str!("../../docs/operations.md");
    assert!(
        page.contains(&format!("`{}`", OF_CLUSTERS.join(" "))),
        "the permissions are documented"
    );
    permissions::all()
}

pub(crate) fn allow(cluster: &ClusterGroup, of_cluster: &[&str]) {
    let mut user = vec!["ACL", "SETUSER", "app", "reset", "on", ">secret"];
    user.extend(of_all());
    user.extend(of_cluster);
    for port in cluster.ports() {
        cluster.server(port).cmd(&user);
    }
}

#[tokio::test]
async fn the_permissions_that_the_documents_list_are_enough_and_each_is_needed() {
    let cluster = ClusterGroup::start_steady().await;
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://app:secret@");
    let mut of_clusters = OF_CLUSTERS.to_vec();
    if cluster.server(cluster.ports()[0]).name() != "redis-6.2" {
        of_clusters.extend(SHARDED);
    }
    allow(&cluster, &of_clusters);
    let locks = builder(&url).build().unwrap();
    locks.check_connection().await.unwrap();
    let other = builder(&url).build().unwrap();
    for (key, request) in [
        ("plain", locks.lock("plain")),
        ("fair", locks.lock("fair").fair(true).fencing(true)),
        ("read", locks.lock("read").read()),
        ("permit", locks.lock("permit").semaphore(2)),
        ("several", locks.lock_all(["several", "and", "others"]).fencing(true)),
    ] {
        let held = request
            .acquire()
            .await
            .unwrap_or_else(|error| panic!("{key}: {}", chain(&error)));
        let waiting = {
            let other = other.clone();
            tokio::spawn(async move { other.lock(key).write().run(async {}).await })
        };
        // A slot on its way is asked for behind `ASKING`.
        let slot = slot_of(&cluster, key);
        let from = cluster.owner(slot).await;
        let to = cluster.other_master(from);
        cluster.open_move(slot, from, to);
        cluster.move_keys(slot, from, to);
        held.handle()
            .verify()
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"));
        cluster.close_move(slot, from, to).await;
        held.release().await.unwrap_or_else(|error| panic!("{key}: {error}"));
        drop(waiting.await.unwrap());
    }
    for port in cluster.ports() {
        let log: Vec<HashMap<String, String>> = cluster.server(port).ask(&["ACL", "LOG"]);
        assert!(log.is_empty(), "{log:?}");
        // One that is just being made is named by the next command.
        eventually("every connection to have a name", || async {
            let all: String = cluster.server(port).ask(&["CLIENT", "LIST"]);
            let mut clients = all.lines().filter(|client| client.contains(" user=app "));
            clients.all(|client| client.contains(" name=lock-runtime:"))
        })
        .await;
    }

    for missing in ["+cluster|slots", "+cluster|nodes", "+cluster|info"] {
        allow(
            &cluster,
            &OF_CLUSTERS.map(|rule| if rule == missing { "-ping" } else { rule }),
        );
        let said = chain(&builder(&url).build().unwrap().check_connection().await.unwrap_err());
        assert!(
            said.contains("+cluster|slots +cluster|nodes +cluster|info +asking"),
            "{said}"
        );
    }
    allow(&cluster, &["+cluster|slots", "+cluster|nodes", "+cluster|info"]);
    let locks = builder(&url).build().unwrap();
    let held = locks.lock("plain").acquire().await.unwrap();
    let slot = slot_of(&cluster, "plain");
    let from = cluster.owner(slot).await;
    let to = cluster.other_master(from);
    cluster.open_move(slot, from, to);
    cluster.move_keys(slot, from, to);
    assert!(held.handle().verify().await.is_err());
    cluster.close_move(slot, from, to).await;
    eventually("the holder to be found at the target", || async {
        held.handle().verify().await.is_ok()
    })
    .await;
    held.release().await.unwrap();
}
