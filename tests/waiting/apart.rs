//! Queues, keys and users that must not affect each other: order, starvation, errors that spread,
//! and leftovers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{LockError, LockManager};
use lock_tests::{Action, PATIENCE, Proxy, Server, eventually, patient};

use crate::queue::{CLAIM, queue, stand, stored};

async fn connected(url: &str) -> LockManager {
    patient(LockManager::builder(url).default_wait(PATIENCE)).await
}

/// More calls of one process than are asked about at once, with leases no longer than what a hand-over is good for.
#[tokio::test]
async fn many_fair_calls_with_short_leases_keep_their_order() {
    let server = Server::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let held = one.lock("k").acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut calls = Vec::new();
    for number in 0..16 {
        let request = other.lock("k").lease(CLAIM);
        let order = Arc::clone(&order);
        calls.push(tokio::spawn(async move {
            let guard = request.fair(true).acquire().await.unwrap();
            order.lock().unwrap().push(number);
            // It may be lost on a machine that stands still, after so short a time. This is about the order.
            let released = guard.release().await;
            assert!(released.as_ref().err().is_none_or(LockError::is_lost), "{released:?}");
        }));
        stand(&server, "k", number + 1).await;
    }
    // By then nobody's place was confirmed within a lease, but for the first few.
    tokio::time::sleep(CLAIM + Duration::from_millis(200)).await;
    held.release().await.unwrap();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..16).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_counter_that_fails_stops_nobody_s_release_but_the_call_that_wants_a_token() {
    let server = Server::start();
    let (one, other) = (connected(&server.url()).await, connected(&server.url()).await);
    let mut held = Vec::new();
    for number in 0..20 {
        held.push(one.lock(format!("free:{number}")).acquire().await.unwrap());
    }
    held.insert(10, one.lock("k").acquire().await.unwrap());
    let waiting = other.lock("k").fencing(true);
    let waiting = tokio::spawn(async move { waiting.acquire().await.map(drop) });
    stand(&server, "k", 1).await;
    server.cmd(&["SET", "dist_lock:%lock-fence", "no number"]);
    let releases: Vec<_> = held.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    for release in releases {
        release.await.unwrap().unwrap();
    }
    let error = waiting.await.unwrap().unwrap_err();
    assert!(lock_tests::chain(&error).contains("not an integer"), "{error}");
    eventually("the key to be gone", || async { !server.exists(&stored("k")) }).await;
}

/// A user who may not use sorted sets polls, and what it leaves to be cleaned up is done at once.
#[tokio::test]
async fn a_user_without_sorted_sets_waits_and_shuts_down() {
    let server = Server::start();
    server.cmd(&["ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all", "-@sortedset"]);
    let locks = connected(&server.url().replace("redis://", "redis://bob:pw@")).await;
    let owner = connected(&server.url()).await;
    let held = owner.lock("k").acquire().await.unwrap();
    // Long enough for an answer.
    let busy = locks.lock("k").wait(Duration::from_secs(8)).acquire().await;
    assert!(busy.is_err_and(|error| error.is_busy()));
    // Nothing is repeated in the background: shutdown waits for all of that, and for a lease of 30 s at the longest.
    let began = lock_tests::Stamp::now();
    locks.shutdown().await;
    let took = lock_tests::Stamp::now().calm_since(began);
    assert!(took < Duration::from_secs(20), "{took:?}");
    held.release().await.unwrap();
}

/// Who is passed over on the primary, because nobody listens there, must not hear of it on a replica, where it may still listen.
#[tokio::test]
async fn a_hand_over_that_was_passed_over_is_not_heard_on_a_replica() {
    let primary = Server::builder().arg("repl-diskless-sync-delay", "0").start();
    let replica = Server::start();
    replica.cmd(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    eventually("the replica to be in step", || async {
        replica.info("master_link_status") == "up"
    })
    .await;
    let locks = connected(&primary.url()).await;
    let held = locks.lock("k").acquire().await.unwrap();
    // A waiter whose process was heard of just now.
    let process = "00112233aabbccdd";
    let member = format!("1500:0:{process}:somebody");
    let now = primary.ask::<Vec<i64>>(&["TIME"])[0] * 1000;
    primary.cmd(&["ZADD", &queue("k"), "1", &member, &(-now).to_string(), process]);
    held.release().await.unwrap();
    assert!(!primary.exists(&queue("k")), "it was not passed over");
    let _rival = locks.lock("k").acquire().await.unwrap();
    // What was published would have been replicated before this.
    primary.cmd(&["SET", "after", "1"]);
    eventually("the replica to have all", || async { replica.exists("after") }).await;
    let carried_out: String = replica.ask(&["INFO", "commandstats"]);
    assert!(!carried_out.contains("cmdstat_publish"), "{carried_out}");
}

#[tokio::test]
async fn managers_leave_no_task_behind_in_the_runtime() {
    let server = Server::start();
    let runtime = tokio::runtime::Handle::current().metrics();
    let before = runtime.num_alive_tasks();
    for _ in 0..20 {
        let locks = connected(&server.url()).await;
        locks.lock("k").run(async {}).await.unwrap();
        locks.shutdown().await;
    }
    eventually("the tasks to end", || {
        let alive = runtime.num_alive_tasks();
        async move { alive <= before + 2 }
    })
    .await;
}

#[tokio::test]
async fn a_call_that_ends_while_it_begins_to_listen_leaves_no_channel() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (one, other) = (connected(&server.url()).await, connected(&proxy.url()).await);
    let _held = one.lock("k").acquire().await.unwrap();
    let busy = other.lock("k");
    let hit = proxy.on_next(|command| command.is("SUBSCRIBE"), Action::Hold);
    let waiting = tokio::spawn(async move { busy.acquire().await.map(drop) });
    hit.done().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    proxy.heal();
    proxy.release();
    // It is carried out, and then taken back.
    eventually("the channel to be left", || {
        let channels = server.channels();
        async move { channels.is_empty() }
    })
    .await;
}
