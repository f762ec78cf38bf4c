//! What a manager on a cluster says that cannot work.

use std::time::Duration;

use lock_runtime::{ConfigError, KeyProblem, LockError, LockManager, ServerRole, ServerState};
use lock_tests::{ClusterGroup, Server, chain, eventually};

use crate::moving::patient;

fn builder(url: &str) -> lock_runtime::LockManagerBuilder {
    let answer = Duration::from_secs(10);
    LockManager::builder(url)
        .connect_timeout(answer)
        .response_timeout(answer)
}

async fn connect(url: &str) -> Result<LockManager, ConfigError> {
    let locks = builder(url).build()?;
    locks.check_connection().await?;
    Ok(locks)
}

#[tokio::test]
async fn a_single_server_in_the_place_of_a_cluster_is_told_and_the_reverse() {
    let server = Server::start();
    let url = server.url().replace("redis://", "redis+cluster://");
    let said = chain(&connect(&url).await.unwrap_err());
    assert!(
        said.contains("cluster support disabled") && said.contains("give the URL of a single server"),
        "{said}"
    );

    let cluster = ClusterGroup::start_steady().await;
    let url = format!("redis://127.0.0.1:{}", cluster.ports()[0]);
    let said = chain(&connect(&url).await.unwrap_err());
    assert!(
        said.contains("is a node of a cluster") && said.contains("redis+cluster://"),
        "{said}"
    );
}

#[tokio::test]
async fn one_node_that_answers_is_enough_and_none_is_told() {
    let cluster = ClusterGroup::start_steady().await;
    let [.., replica] = cluster.ports();
    // Nothing listens at the first one.
    let url = format!("redis+cluster://127.0.0.1:1,127.0.0.1:{replica}");
    let locks = connect(&url).await.unwrap();
    for number in 0..20 {
        locks
            .lock(format!("stock:{number}"))
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }

    let locks = builder("redis+cluster://127.0.0.1:1,127.0.0.1:2").build().unwrap();
    let [row] = &locks.health().servers[..] else {
        panic!("one row until the nodes are known");
    };
    assert_eq!((row.role, row.state), (ServerRole::Cluster, ServerState::Unused));
    let refused = locks
        .lock("stock")
        .wait(Duration::from_secs(3))
        .acquire()
        .await
        .unwrap_err();
    assert!(refused.is_retryable());
    let said = chain(&refused);
    assert!(
        said.contains("127.0.0.1:1: ") || said.contains("127.0.0.1:2: "),
        "{said}"
    );
    let [row] = &locks.health().servers[..] else {
        panic!("one row until the nodes are known");
    };
    assert_eq!((row.role, row.state), (ServerRole::Cluster, ServerState::Down));
    assert!(row.last_error.is_some() && !locks.health().is_ready());
}

#[tokio::test]
async fn a_key_whose_queue_would_be_elsewhere_is_refused() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = patient(&cluster).await;
    for key in ["a}b", "x{}y", "}"] {
        let refused = locks.lock(key).acquire().await.unwrap_err();
        assert!(
            matches!(
                refused,
                LockError::InvalidKey {
                    problem: KeyProblem::NoTag,
                    ..
                }
            ),
            "{key}: {refused:?}"
        );
        let refused = locks.lock_all(["fine", key]).acquire().await.unwrap_err();
        assert!(matches!(refused, LockError::InvalidKey { .. }), "{key}: {refused:?}");
    }
    for key in ["{a}", "a{b}c", "a{", "{{a}}"] {
        locks
            .lock(key)
            .fair(true)
            .fencing(true)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        locks
            .lock(key)
            .write()
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn masters_that_write_alone_and_slots_that_no_node_has_are_told_and_the_others_work() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = patient(&cluster).await;
    let advice = locks.check_setup().await.unwrap();
    assert!(
        advice.len() == 3
            && advice
                .iter()
                .all(|advice| advice.contains("set `min-replicas-to-write 1`")),
        "{advice:?}"
    );
    for port in cluster.ports() {
        cluster
            .server(port)
            .cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    }
    assert_eq!(locks.check_setup().await.unwrap(), [""; 0]);
    // That of `dist_lock:{b}`.
    let slot = "3300";
    for port in cluster.ports() {
        if cluster.server(port).info("role") == "master" {
            cluster.server(port).cmd(&["CLUSTER", "DELSLOTS", slot]);
        }
    }
    let call_within = |wait| locks.lock("{b}").wait(wait).acquire();
    let call = || call_within(Duration::from_millis(200));
    eventually("the call to fail", || async { call().await.is_err() }).await;
    // Nodes hear of it one after the other, and each call that fails has some of them asked again.
    eventually("the slot to be told", || async {
        let _ = call().await;
        let advice = locks.check_setup().await.unwrap();
        advice.iter().any(|advice| advice.contains("no node has them: 3300;"))
    })
    .await;
    // Long enough for an answer.
    let said = chain(&call_within(Duration::from_secs(5)).await.unwrap_err());
    assert!(said.contains("slot 3300") || said.contains("CLUSTERDOWN"), "{said}");
    locks.lock("foo").acquire().await.unwrap().release().await.unwrap();

    // A call for both leaves neither.
    let spread = locks
        .lock_all(["foo", "{b}"])
        .wait(Duration::from_secs(5))
        .acquire()
        .await;
    let said = chain(&spread.unwrap_err());
    assert!(said.contains("slot 3300") || said.contains("CLUSTERDOWN"), "{said}");
    let again = locks.lock("foo").wait(Duration::from_secs(20)).acquire().await;
    again.unwrap().release().await.unwrap();
}
