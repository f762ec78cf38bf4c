//! What a manager tells of its servers while they fail and come back (`docs/operations.md`, "Health").

use std::time::Duration;

use lock_runtime::{Health, HealthChanges, LockManager, ServerRole, ServerState};
use lock_tests::{PATIENCE, Server, eventually};

use crate::stage::{answered_within, builder};

/// A server is asked when nothing was heard of it for three quarters of the response time-out.
async fn connected(server: &Server) -> LockManager {
    answered_within(&server.url(), Duration::from_secs(5)).await
}

async fn until(changes: &mut HealthChanges, state: ServerState) -> Health {
    let told = async {
        loop {
            let health = changes.next().await.expect("the manager is there");
            if health.servers[0].state == state {
                return health;
            }
        }
    };
    tokio::time::timeout(PATIENCE, told)
        .await
        .unwrap_or_else(|_| panic!("the server is never {state}"))
}

/// Nobody calls meanwhile.
#[tokio::test]
async fn the_loss_of_a_server_and_its_return_are_told_without_any_call() {
    let server = Server::start();
    let locks = connected(&server).await;
    let mut changes = locks.health_changes();
    let health = until(&mut changes, ServerState::Connected).await;
    assert!(health.is_ready() && locks.health().is_ready());
    let row = &health.servers[0];
    assert_eq!(*row.address, *server.addr().to_string());
    assert_eq!(row.role, ServerRole::Master);
    let since = row.since;

    server.kill();
    let health = until(&mut changes, ServerState::Down).await;
    assert!(!health.is_ready() && health.servers[0].since > since);
    // The reason is known once a new connection has failed.
    eventually("the reason", || async {
        locks.health().servers[0].last_error.is_some()
    })
    .await;

    server.start_again();
    let health = until(&mut changes, ServerState::Connected).await;
    assert!(health.is_ready() && health.servers[0].last_error.is_some());
    eventually("the round trip", || async {
        locks.health().servers[0].round_trip.is_some()
    })
    .await;

    drop(locks);
    assert!(changes.next().await.is_none(), "nobody tells any more");
}

/// It was a master when the manager connected, and another server is one now.
#[tokio::test]
async fn a_server_that_has_become_a_replica_is_not_ready() {
    let (server, master) = (Server::start(), Server::start());
    let locks = connected(&server).await;
    let mut changes = locks.health_changes();
    assert!(until(&mut changes, ServerState::Connected).await.is_ready());
    server.cmd(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("it to be known as a replica", || async {
        let row = &locks.health().servers[0];
        row.role == ServerRole::Replica && row.state == ServerState::Connected
    })
    .await;
    assert!(!locks.health().is_ready(), "it takes no locks");

    // It stays connected, whichever way it changes, and nobody calls.
    server.cmd(&["REPLICAOF", "NO", "ONE"]);
    eventually("it to be ready", || async { locks.health().is_ready() }).await;
    server.cmd(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("it to be a replica again", || async { !locks.health().is_ready() }).await;
}

/// As under `block_on` in a program that is not asynchronous: between its calls, nobody drives the runtime.
#[tokio::test]
async fn a_runtime_that_nobody_drives_does_not_hide_the_state_of_the_server() {
    let server = Server::start();
    let locks = connected(&server).await;
    let other = {
        let locks = locks.clone();
        let call = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(locks.lock("there").run(async {})).unwrap();
            runtime
        };
        tokio::task::spawn_blocking(call).await.unwrap()
    };
    server.kill();
    eventually("the loss to be told", || async { !locks.health().is_ready() }).await;
    server.start_again();
    eventually("the return to be told", || async {
        locks.health().servers[0].state == ServerState::Connected
    })
    .await;
    other.shutdown_background();
}

#[tokio::test]
async fn a_server_that_was_never_asked_is_not_ready_and_memory_is() {
    let server = Server::start();
    let locks = builder(&server.url()).build().unwrap();
    assert_eq!(locks.health().servers[0].state, ServerState::Unused);
    assert!(!locks.health().is_ready());
    locks.check_connection().await.unwrap();
    assert!(locks.health().is_ready());
    let memory = LockManager::connect("memory://").await.unwrap();
    assert!(memory.health().is_ready() && memory.health().servers.is_empty());
    assert!(memory.health_changes().next().await.is_none());
    // Neither takes a lock any more.
    locks.shutdown().await;
    memory.shutdown().await;
    assert!(!locks.health().is_ready() && !memory.health().is_ready());
    assert!(!locks.health_changes().next().await.unwrap().is_ready());
}
