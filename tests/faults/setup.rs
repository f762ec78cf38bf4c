//! Servers whose settings endanger locks.

use lock_runtime::{LockManager, LockManagerBuilder};
use lock_tests::{PATIENCE, Server};

use crate::stage::connected;

async fn advice(builder: LockManagerBuilder) -> Vec<String> {
    let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
    builder.build().unwrap().check_setup().await.unwrap()
}

#[tokio::test]
async fn an_eviction_policy_that_may_drop_locks_is_told() {
    let server = Server::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "volatile-lru")
        .start();
    let locks = || LockManager::builder(&server.url());
    let said = advice(locks()).await;
    assert!(
        said.len() == 1 && said[0].contains("set `maxmemory-policy noeviction`"),
        "{said:?}"
    );
    server.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(advice(locks()).await, Vec::<String>::new());
}

#[tokio::test]
async fn it_is_told_beside_services_with_the_lock_of_old_as_well() {
    let server = Server::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "allkeys-lru")
        .start();
    let said = advice(LockManager::builder(&server.url()).legacy_setnx()).await;
    assert!(
        said.len() == 1 && said[0].contains("set `maxmemory-policy noeviction`"),
        "{said:?}"
    );
    server.kill();
    let locks = LockManager::builder(&server.url()).legacy_setnx().build().unwrap();
    locks.check_setup().await.unwrap_err();
}

#[tokio::test]
async fn a_server_without_the_replicas_that_are_asked_for_is_told() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url()).min_replicas(2);
    let said = advice(locks).await;
    assert!(
        said.len() == 1 && said[0].contains("2 replicas must have a lock and the server has 0"),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_the_settings_gets_no_advice() {
    let server = Server::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "allkeys-lru")
        .start();
    server.cmd(&["ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all", "-info"]);
    let locks = connected(&format!("redis://app:s3cret@{}", server.addr())).await;
    assert_eq!(locks.check_setup().await.unwrap(), Vec::<String>::new());
    let nobody = LockManager::builder(&format!("redis://app:wr0ng@{}", server.addr()))
        .build()
        .unwrap();
    nobody.check_setup().await.unwrap_err();
}
