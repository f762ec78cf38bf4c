//! Random schedules, judged by who believes to hold the lock at the same time.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::scripted::{Asked, Fate, MS, Op};
use super::{Judge, Masters};

const LEASE: Duration = Duration::from_millis(1500);
const LASTS: Duration = Duration::from_secs(7);

fn trip() -> Duration {
    MS * fastrand::u32(1..=4)
}

/// Some requests and answers are lost, and some are late.
fn fate(asked: &Asked, disturbed: bool) -> Fate {
    if !disturbed {
        return Fate::Trip(trip(), trip());
    }
    match fastrand::u32(0..100) {
        0..2 if asked.op != Op::Connect => Fate::Lost,
        2..4 => Fate::AnswerLost,
        4..8 => Fate::Trip(MS * fastrand::u32(1..=800), trip()),
        8..10 => Fate::Trip(trip(), MS * fastrand::u32(1..=800)),
        10 => Fate::Refused,
        _ => Fate::Trip(trip(), trip()),
    }
}

async fn schedule(seed: u64) -> usize {
    fastrand::seed(seed);
    let masters = Masters::new(if seed.is_multiple_of(2) { 3 } else { 5 });
    let clients = fastrand::usize(2..=4);
    for server in &masters.servers {
        server.script(|asked| fate(asked, true));
    }
    let judge = Arc::new(Judge::default());
    let mut calls = JoinSet::new();
    let began = Instant::now();
    for number in 0..clients {
        let (client, judge) = (masters.client(number), Arc::clone(&judge));
        calls.spawn(async move {
            while began.elapsed() < LASTS {
                let span = if fastrand::u32(0..8) == 0 {
                    2 * LEASE
                } else {
                    MS * fastrand::u32(1..30)
                };
                let body = judge.section(number, span);
                let request = client.locks.lock("k").lease(LEASE).wait(Duration::from_secs(2));
                // Some calls are dropped.
                if fastrand::u32(0..10) == 0 {
                    drop(timeout(MS * fastrand::u32(1..200), request.run(body)).await);
                } else {
                    drop(request.run(body).await);
                }
                if fastrand::u32(0..20) == 0 {
                    client.links[fastrand::usize(..client.links.len())].reconnect();
                }
            }
        });
    }
    let disturbing = async {
        while began.elapsed() < LASTS {
            sleep(MS * fastrand::u32(100..2000)).await;
            let server = &masters.servers[fastrand::usize(..masters.servers.len())];
            match fastrand::u32(0..3) {
                0 => {
                    server.kill();
                    sleep(MS * fastrand::u32(1..1000)).await;
                    server.start();
                }
                1 => {
                    server.set_silent(true);
                    sleep(MS * fastrand::u32(1..2000)).await;
                    server.set_silent(false);
                }
                _ => {}
            }
        }
    };
    disturbing.await;
    while let Some(ended) = calls.join_next().await {
        ended.unwrap();
    }
    let overlaps = judge.overlaps.lock().unwrap().clone();
    assert_eq!(overlaps, [""; 0], "seed {seed}: two majorities");
    // Undisturbed again, the lock is had at once.
    for server in &masters.servers {
        server.script(|asked| fate(asked, false));
    }
    sleep(Duration::from_secs(10)).await;
    assert_eq!(masters.left("k"), [""; 0], "seed {seed}");
    let client = masters.client(clients);
    let asked = Instant::now();
    drop(client.locks.lock("k").lease(LEASE).acquire().await.unwrap());
    assert!(asked.elapsed() < 50 * MS, "seed {seed}: {:?}", asked.elapsed());
    judge.entered.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn two_calls_never_hold_the_lock_at_the_same_time() {
    let seeds = std::env::var("LOCK_QUORUM_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok());
    let mut entered = 0;
    // `./tests/explore` takes more.
    for seed in 0..seeds.unwrap_or(50) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
        entered += runtime.block_on(schedule(seed));
    }
    assert!(entered > 250, "{entered} sections");
}
