//! Crowds for the modes that several may hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockManager, LockRequest};
use lock_tests::{PATIENCE, Server, patient};
use tokio::task::JoinSet;

use crate::ALONE;

/// How many want a lock at once, unless `LOCK_CROWD` says otherwise: 20,000 are for a machine that does nothing else.
const CROWD: usize = 2_000;

fn crowd() -> usize {
    std::env::var("LOCK_CROWD").map_or(CROWD, |crowd| crowd.parse().unwrap())
}

/// Where they wait.
const QUEUE: &str = "dist_lock:%lock-shared:{dist_lock:crowd}";

/// How long the server has computed so far.
fn processor_time(server: &Server) -> Duration {
    let seconds = ["used_cpu_user", "used_cpu_sys"].map(|field| server.info(field).parse::<f64>().unwrap());
    Duration::from_secs_f64(seconds.iter().sum())
}

/// Lets a crowd of one process wait for a writer, and then in, and tells how much that is for the server.
async fn crowd_gets_in(ask: impl Fn(&LockManager) -> LockRequest) {
    let server = Server::builder().arg("slowlog-log-slower-than", "10000").start();
    let time = PATIENCE * u32::try_from(1 + crowd() / 2_000).unwrap();
    let locks = patient(LockManager::builder(&server.url())).await;
    let writer = locks.lock("crowd").write().acquire().await.unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..crowd() {
        let (request, inside) = (ask(&locks).wait(time), Arc::clone(&inside));
        calls.spawn(async move {
            request
                .run(async move {
                    inside.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                })
                .await
        });
    }
    while server.ask::<usize>(&["ZCOUNT", QUEUE, "1", "+inf"]) < crowd() {
        assert!(began.elapsed() < time, "the crowd does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stood = began.elapsed();
    server.cmd(&["CONFIG", "RESETSTAT"]);
    let before = processor_time(&server);
    writer.release().await.unwrap();
    let mut errors = Vec::new();
    while let Some(ended) = calls.join_next().await {
        errors.extend(ended.unwrap().err());
    }
    let scripts: String = server.ask(&["INFO", "commandstats"]);
    let scripts = scripts
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha"))
        .unwrap_or_default();
    let slow: Vec<redis::Value> = server.ask(&["SLOWLOG", "GET", "-1"]);
    let micros = |entry: &redis::Value| match entry {
        redis::Value::Array(parts) => match parts[..] {
            [_, _, redis::Value::Int(micros), ..] => micros,
            _ => 0,
        },
        _ => 0,
    };
    let slowest = slow.iter().map(micros).max();
    println!(
        "{} in the queue after {stood:?}, all over after {:?}, {:?} of the server's processor; {} scripts above 10 ms, the longest {slowest:?} us; {scripts}",
        crowd(),
        began.elapsed(),
        processor_time(&server).saturating_sub(before),
        slow.len()
    );
    assert!(errors.is_empty(), "{} errors, the first: {}", errors.len(), errors[0]);
    assert_eq!(inside.load(Ordering::SeqCst), crowd());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_readers_gets_in() {
    let _alone = ALONE.lock().await;
    crowd_gets_in(|locks| locks.lock("crowd").read()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_for_permits_gets_in() {
    let _alone = ALONE.lock().await;
    crowd_gets_in(|locks| locks.lock("crowd").semaphore(500)).await;
}
