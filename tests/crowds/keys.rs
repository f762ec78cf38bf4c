//! Thousands of keys.

use std::time::Duration;

use lock_runtime::{LockManager, MAX_KEYS};
use lock_tests::{Flow, PATIENCE, Proxy, Server, eventually, patient};

use crate::ALONE;

/// As many as a call may have.
#[tokio::test]
async fn a_thousand_keys_of_one_call_are_renewed() {
    let _alone = ALONE.lock().await;
    let server = Server::start();
    let locks = patient(LockManager::builder(&server.url())).await;
    let keys = (0..MAX_KEYS).map(|number| format!("key:{number}"));
    let request = locks.lock_all(keys).lease(Duration::from_secs(12)).wait(PATIENCE);
    let guard = request.acquire().await.unwrap();
    eventually("a renewal of all keys", || async { guard.handle().renewals() > 0 }).await;
    guard.release().await.unwrap();
}

/// The server is 20 ms away: all keys cannot be looked at in one period one batch after the other.
#[tokio::test]
async fn waiters_for_many_keys_are_all_kept_in_their_queues() {
    const KEYS: usize = 1500;
    let _alone = ALONE.lock().await;
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = patient(LockManager::builder(&proxy.url())).await;
    for key in 0..KEYS {
        server.cmd(&[
            "SET",
            &format!("dist_lock:k{key}"),
            "another kind of holder",
            "PX",
            "600000",
        ]);
    }
    proxy.both(Flow::Delay(Duration::from_millis(10)));
    let calls: Vec<_> = (0..KEYS)
        .map(|key| {
            let request = locks.lock(format!("k{key}")).wait(Duration::from_secs(120));
            tokio::spawn(async move { request.acquire().await.map(drop) })
        })
        .collect();
    let queues = || server.ask::<Vec<String>>(&["KEYS", "*%lock-queue*"]).len();
    eventually("all to stand in their queues", || async { queues() == KEYS }).await;
    // Longer than an unattended queue is kept.
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(queues(), KEYS);
    for key in 0..KEYS {
        server.cmd(&["DEL", &format!("dist_lock:k{key}")]);
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
}
