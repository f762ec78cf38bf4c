//! Thousands of waiters for one lock are a handful of clients for the server, and leave nothing
//! behind.

use std::time::{Duration, Instant};

use lock_tests::{Proxy, Server, eventually};

use crate::queue::{Other, all_stand, nothing_is_left, places, queue, stand, stored, subscribers, waiting};

const PROCESSES: usize = 4;
const EACH: usize = 1250;
/// So many places are few beside those of all calls. Where a call in front is not polled for a while, the next one takes a place as well.
const FEW: usize = 100;

#[tokio::test]
async fn a_crowd_is_one_contender_per_process_and_all_but_one_can_leave() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("crowd").acquire().await.unwrap();
    let mut others: Vec<_> = (0..PROCESSES).map(|_| Other::on(&proxy.url())).collect();
    for other in &mut others {
        other.0.say(&format!("crowd {EACH} crowd"));
    }
    for other in &mut others {
        other.0.line("asked").await;
    }
    all_stand(&server, "crowd", PROCESSES).await;
    eventually("all processes to listen", || async {
        subscribers(&server).len() == PROCESSES
    })
    .await;
    // Not to order anything: for so long the commands are counted, and the queue is looked at.
    let (mark, watched) = (proxy.mark(), Instant::now());
    while watched.elapsed() < Duration::from_secs(2) {
        let there = places(&server, &queue("crowd"));
        // All of them would be 1,250 a process.
        assert!(there <= FEW, "{there} in the queue");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let commands = proxy.commands().split_off(mark);
    let beats = PROCESSES * usize::try_from(watched.elapsed().as_millis().div_ceil(250) + 2).unwrap();
    assert!(
        commands.len() <= 10 * beats,
        "{} commands in two seconds: {}",
        commands.len(),
        commands[0]
    );

    for other in &mut others[1..] {
        other.0.say("leave 0");
    }
    others[0].0.say("leave 1");
    for other in &mut others {
        other.0.line("left").await;
    }
    stand(&server, "crowd", 1).await;
    let listeners = || subscribers(&server).len();
    eventually("the others to listen no longer", || async { listeners() == 1 }).await;
    assert!(!others[0].has("0"));
    holder.release().await.unwrap();
    others[0].got("0").await;
    assert!(!server.exists(&queue("crowd")));
    assert_eq!(server.keys(), [stored("crowd")]);
    others[0].free("0");
    assert_eq!(others[0].ended("0").await.0, "ok");
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn everyone_of_a_crowd_gets_in_once_and_alone() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("crowd").acquire().await.unwrap();
    let mut others: Vec<_> = (0..PROCESSES).map(|_| Other::on(&proxy.url())).collect();
    let count = EACH / 5;
    for other in &mut others {
        other.0.say(&format!("crowd {count} crowd"));
        other.0.line("asked").await;
        // The body ends at once.
        (0..count).for_each(|name| other.free(&name.to_string()));
    }
    all_stand(&server, "crowd", PROCESSES).await;
    let mark = proxy.mark();
    holder.release().await.unwrap();
    let mut bodies = Vec::new();
    for other in &others {
        for name in 0..count {
            let name = name.to_string();
            let (outcome, left) = other.ended(&name).await;
            assert_eq!(outcome, "ok");
            bodies.push((other.got(&name).await.at, left));
        }
    }
    bodies.sort_unstable();
    for pair in bodies.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two inside: {pair:?}");
    }
    assert_eq!(bodies.len(), PROCESSES * count);
    let commands = proxy.mark() - mark;
    // Most locks pass inside the processes. Four a body would be the store's part if none did.
    assert!(
        commands < 4 * bodies.len(),
        "{commands} commands for {} bodies",
        bodies.len()
    );
    nothing_is_left(&server).await;
}
