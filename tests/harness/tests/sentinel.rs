//! Sentinels name the master, and another one after each failover.

use std::collections::HashMap;
use std::time::Duration;

use lock_tests::{SentinelGroup, eventually};

#[tokio::test]
async fn a_group_starts_whole_and_outlives_a_failover() {
    let group = SentinelGroup::start_steady().await;
    let first = group.master().await;
    whole(&group, first);
    let [a, b, c] = group.sentinel_ports();
    assert_eq!(
        group.url(),
        format!("redis+sentinel://127.0.0.1:{a},127.0.0.1:{b},127.0.0.1:{c}/mymaster")
    );
    if let Ok(name) = std::env::var("LOCK_TEST_SERVER") {
        assert!(group.node_ports().iter().all(|&port| group.server(port).name() == name));
    }

    group.failover().await;
    let (second, _) = group.wait_for_master_other_than(first).await;
    assert_ne!(second, first);
    group.settled().await;
    assert_eq!(group.master().await, second);
    whole(&group, second);
}

#[tokio::test]
async fn a_killed_master_is_replaced_and_follows_when_it_is_started_again() {
    let group = SentinelGroup::start().await;
    let killed = group.kill_master().await;
    assert!(!group.server(killed).is_running());
    group.master().await;
    group.hold_still();
    group.restart(killed).await;
    assert_eq!(group.server(killed).info("role"), "slave");
    group.settled().await;
    let second = group.master().await;
    assert_ne!(second, killed);
    assert_eq!(group.server(killed).info("master_port"), second.to_string());
    whole(&group, second);
}

#[tokio::test]
async fn a_paused_master_is_replaced_and_follows_when_it_goes_on() {
    let group = SentinelGroup::start().await;
    let first = group.master().await;
    group.pause(first);
    // The first one cannot be it.
    group.master().await;
    group.hold_still();
    group.resume(first);
    group.settled().await;
    assert_ne!(group.master().await, first);
    assert_eq!(group.server(first).info("role"), "slave");
}

/// Sentinels that stood still only watch for a while. When they judge again, the replicas must not have been without their master for so
/// long that none is fit to be promoted. Redis 6.2 cannot be told to watch for a shorter time.
#[tokio::test]
async fn a_master_is_replaced_that_is_killed_after_the_machine_has_stood_still() {
    let group = SentinelGroup::start().await;
    if !group.server(group.sentinel_ports()[0]).version().is_7() {
        return;
    }
    for port in group.sentinel_ports() {
        group.pause(port);
    }
    tokio::time::sleep(Duration::from_millis(2500)).await;
    for port in group.sentinel_ports() {
        group.resume(port);
    }
    let killed = group.kill_master().await;
    assert_ne!(group.master().await, killed);
}

#[tokio::test]
async fn a_killed_master_that_returns_as_it_was_takes_itself_for_the_master_at_first() {
    let group = SentinelGroup::start().await;
    let first = group.kill_master().await;
    // The first one cannot be it.
    group.master().await;
    group.hold_still();
    group.restart_as_left(first);
    group.server(first).cmd(&["SET", "k", "v"]);
    assert_ne!(group.master().await, first);
    group.settled().await;
    assert_eq!(group.server(first).info("role"), "slave");
}

#[tokio::test]
async fn a_sentinel_that_was_killed_returns_with_what_it_knew() {
    let group = SentinelGroup::start_steady().await;
    let [port, ..] = group.sentinel_ports();
    let id = || group.server(port).ask::<String>(&["SENTINEL", "MYID"]);
    let before = id();
    group.server(port).kill();
    let first = group.master().await;
    let leader = group.failover().await;
    assert_ne!(leader, port);
    let (second, _) = group.wait_for_master_other_than(first).await;
    group.wait_for_master_at(second).await;
    group.restart(port).await;
    assert_eq!(id(), before);
    group.settled().await;
    whole(&group, second);
}

#[tokio::test]
async fn a_dropped_group_leaves_no_process() {
    let group = SentinelGroup::start().await;
    let ports = group.node_ports().into_iter().chain(group.sentinel_ports());
    let pids: Vec<u32> = ports.map(|port| group.server(port).pid()).collect();
    assert_eq!(pids.len(), 6);
    drop(group);
    eventually("all processes to be gone", || async {
        pids.iter().all(|pid| !std::fs::exists(format!("/proc/{pid}")).unwrap())
    })
    .await;
}

/// The figures of a group that is settled.
fn whole(group: &SentinelGroup, master: u16) {
    assert!(group.node_ports().contains(&master));
    let node = group.server(master);
    assert_eq!(
        (node.info("role").as_str(), node.info("connected_slaves").as_str()),
        ("master", "2")
    );
    for replica in [node.info("slave0"), node.info("slave1")] {
        assert!(replica.contains("state=online"), "{replica}");
    }
    for port in group.sentinel_ports() {
        let sentinel = group.server(port);
        let seen: HashMap<String, String> = sentinel.ask(&["SENTINEL", "MASTER", "mymaster"]);
        let fields = ["flags", "port", "num-slaves", "num-other-sentinels", "quorum"].map(|name| seen[name].as_str());
        assert_eq!(fields, ["master", &master.to_string(), "2", "2", "2"]);
        let (ip, named): (String, u16) = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
        assert_eq!((ip.as_str(), named), ("127.0.0.1", master));
    }
}
