//! Readers that never pause do not keep a writer out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::LockManager;
use lock_tests::{PATIENCE, Server, eventually};
use tokio::task::JoinSet;

const READERS: usize = 32;
const WRITERS: usize = 20;
const HOLD: Duration = Duration::from_millis(10);
const QUEUE: &str = "dist_lock:%lock-shared:{dist_lock:report}";

/// From when a writer stands in the queue, only readers begin that had the lock by then: each of them at most once.
#[tokio::test]
async fn a_writer_waits_for_those_who_read_and_for_no_later_ones() {
    let server = Server::start();
    let connect = || {
        LockManager::builder(&server.url())
            .default_wait(PATIENCE)
            .connect_timeout(PATIENCE)
            .response_timeout(PATIENCE)
            .build()
            .unwrap()
    };
    // As if in several processes: each manager stands in the queue for itself.
    let managers: Vec<_> = (0..4).map(|_| connect()).collect();
    let (begun, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut readers = JoinSet::new();
    for number in 0..READERS {
        let (locks, begun, over) = (managers[number % managers.len()].clone(), begun.clone(), over.clone());
        readers.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let read = async {
                    begun.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(HOLD).await;
                };
                locks.lock("report").read().run(read).await.unwrap();
            }
        });
    }
    eventually("readers", || async { begun.load(Ordering::SeqCst) > READERS }).await;
    let locks = connect();
    let mut waits = Vec::new();
    for _ in 0..WRITERS {
        let asked = Instant::now();
        let write = {
            let (locks, begun) = (locks.clone(), Arc::clone(&begun));
            let body = async move { (begun.load(Ordering::SeqCst), Instant::now()) };
            tokio::spawn(async move { locks.lock("report").write().run(body).await })
        };
        // Among those in the queue, by the class of its value.
        let stands = || async {
            let waiting: Vec<String> = server.ask(&["ZRANGEBYSCORE", QUEUE, "1", "+inf"]);
            write.is_finished() || waiting.iter().any(|member| member.contains(":w:"))
        };
        eventually("the writer to stand in the queue", stands).await;
        let before = begun.load(Ordering::SeqCst);
        let (at, entered) = write.await.unwrap().unwrap();
        let later = at.saturating_sub(before);
        assert!(
            later <= READERS,
            "{later} readers began before the writer that stood in the queue"
        );
        waits.push(entered - asked);
    }
    over.store(true, Ordering::SeqCst);
    while let Some(reader) = readers.join_next().await {
        reader.unwrap();
    }
    waits.sort_unstable();
    eprintln!(
        "writers waited {:?} at the median and {:?} at most",
        waits[WRITERS / 2],
        waits[WRITERS - 1]
    );
}
