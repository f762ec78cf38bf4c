//! A master that stands still: its connections stay open, and nothing comes.

use std::time::Duration;

use lock_runtime::{LockManager, LockManagerBuilder};
use lock_tests::{PATIENCE, Stamp, eventually};

use crate::stage::{Five, LONG, LONGEST, connected, queue_of, store_error, stored};

/// The time for which a call waits for a master's answer: half of the response time-out. Long enough that no
/// call takes it that does not wait for that.
const LIMIT: Duration = Duration::from_millis(1500);

fn hurried(five: &Five) -> LockManagerBuilder {
    LockManager::builder(&five.url())
        .longest_lease(LONGEST)
        .default_wait(PATIENCE)
        .default_lease(LONG)
        .connect_timeout(LIMIT * 2)
        .response_timeout(LIMIT * 2)
}

#[tokio::test]
async fn a_silent_master_delays_one_call_and_votes_again_afterwards() {
    let (stands_still, writes_hang) = (false, true);
    for (silent, writes_hang) in [(0, stands_still), (3, stands_still), (0, writes_hang)] {
        let five = Five::start();
        let locks = connected(hurried(&five)).await;
        let held = locks
            .lock("held")
            .lease(LIMIT * 10)
            .max_renewals(u32::MAX)
            .acquire()
            .await
            .unwrap();
        five.has_votes("held", 5).await;
        if writes_hang {
            // It still answers reads.
            five[silent].cmd(&["CLIENT", "PAUSE", "600000", "WRITE"]);
        } else {
            five[silent].pause();
        }
        let mut delayed = Vec::new();
        for number in 0..20 {
            let asked = Stamp::now();
            let guard = locks.lock(format!("k:{number}")).acquire().await.unwrap();
            let taken = Stamp::now();
            guard.handle().fencing_token().await.unwrap();
            let fenced = Stamp::now();
            guard.release().await.unwrap();
            let released = Stamp::now();
            delayed.extend(
                [
                    ("acquire", taken.calm_since(asked)),
                    ("fence", fenced.calm_since(taken)),
                    ("release", released.calm_since(fenced)),
                ]
                .into_iter()
                .filter(|(_, took)| *took >= LIMIT * 9 / 10)
                .map(|(what, took)| (number, what, took)),
            );
        }
        // Two more of them for a machine that stands still.
        assert!(delayed.len() <= 3, "master {silent} is silent: {delayed:?}");
        // It is renewed by the others.
        let before = held.handle().renewals();
        eventually("a renewal", || async { held.handle().renewals() > before }).await;
        held.handle().verify().await.unwrap();

        if writes_hang {
            five[silent].cmd(&["CLIENT", "UNPAUSE"]);
        } else {
            five[silent].resume();
        }
        eventually("a vote of the master that goes on", || async {
            let guard = locks.lock("k").acquire().await.unwrap();
            let votes = five[silent].exists(&stored("k"));
            guard.release().await.unwrap();
            votes
        })
        .await;
        held.release().await.unwrap();
        // What it received while it stood still it has carried out by now: nothing of that stays.
        five.nothing_is_left().await;
    }
}

#[tokio::test]
async fn calls_that_wait_at_a_master_that_falls_silent_go_on_at_the_next() {
    let five = Five::start();
    let (holder, waiter) = (connected(hurried(&five)).await, connected(hurried(&five)).await);
    let guard = holder.lock("k").acquire().await.unwrap();
    five.has_votes("k", 5).await;
    let waiting = tokio::spawn(waiter.lock("k").acquire());
    eventually("the call to stand in the queue", || async {
        five[0].exists(&queue_of("k"))
    })
    .await;
    five[0].pause();
    eventually("the call to stand in the second queue", || async {
        five[1].exists(&queue_of("k"))
    })
    .await;
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    next.handle().verify().await.unwrap();
    five[0].resume();
    next.handle().verify().await.unwrap();
    next.release().await.unwrap();
    five.nothing_is_left().await;
}

/// Nothing tells of the silence but the time.
#[tokio::test]
async fn with_three_silent_masters_a_call_ends_with_its_wait_and_names_them() {
    let five = Five::start();
    // A call that waited for their answers would do so for longer than the test.
    let builder = five.builder().default_lease(LONG * 4).response_timeout(LONG * 4);
    let locks = connected(builder).await;
    let guard = locks.lock("held").acquire().await.unwrap();
    five.has_votes("held", 5).await;
    for nth in [0, 2, 3] {
        five[nth].pause();
    }
    // Long enough for an answer of the two others.
    let call = locks.lock("k").wait(Duration::from_secs(5)).acquire();
    let ended = tokio::time::timeout(PATIENCE, call).await.expect("within its wait");
    let said = store_error(ended);
    for (nth, master) in five.iter().enumerate() {
        let address = master.addr().to_string();
        assert_eq!(said.contains(&address), master.is_paused(), "{nth}: {said}");
    }
    for nth in [0, 2, 3] {
        five[nth].resume();
    }
    // What the call has asked for is given back where it arrives late.
    let again = locks.lock("k").acquire().await.unwrap();
    again.release().await.unwrap();
    guard.release().await.unwrap();
    five.nothing_is_left().await;
}
