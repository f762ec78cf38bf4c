//! Who gets the lock of calls that ask at the same time, and in which order masters are asked and released.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::scripted::{Asked, Fate, MS, Op, PROMPT};
use super::{Judge, Masters, of_op};
use crate::store::{FencingToken, HolderValue, LockStore};

const LEASE: Duration = Duration::from_secs(10);
/// The value of a holder in another process.
const OTHER: &str = "other:h:1:x";

/// An attempt costs one round trip, and its release another one.
#[tokio::test(start_paused = true)]
async fn an_uncontended_lock_costs_one_round_trip_to_all_masters() {
    let masters = Masters::new(5);
    let client = masters.client(0);
    let began = Instant::now();
    let guard = client.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    assert!(began.elapsed() <= 3 * MS, "{:?}", began.elapsed());
    sleep(5 * MS).await;
    guard.release().await.unwrap();
    sleep(5 * MS).await;
    let events = masters.events();
    assert_eq!(of_op(&events, Op::Acquire).len(), 5, "{events:?}");
    assert_eq!(of_op(&events, Op::Release).len(), 5, "{events:?}");
    assert_eq!(masters.left("k"), [""; 0]);
}

/// Every combination of who is first at which of three masters, for two and for three clients.
#[tokio::test(start_paused = true)]
async fn split_votes_give_one_call_the_lock_and_leave_no_other_votes() {
    for clients in [2, 3_usize] {
        for split in 0..clients.pow(3) {
            fastrand::seed(split as u64);
            let masters = Masters::new(3);
            for (at, server) in masters.servers.iter().enumerate() {
                let winner = split / clients.pow(u32::try_from(at).unwrap()) % clients;
                let mut begun = 0;
                server.script(move |asked: &Asked| {
                    if asked.op != Op::Acquire || begun >= clients {
                        return PROMPT;
                    }
                    begun += 1;
                    let late = (asked.client + clients - winner) % clients;
                    Fate::Trip(MS * u32::try_from(1 + late).unwrap(), MS)
                });
            }
            let judge = Arc::new(Judge::default());
            let mut calls = JoinSet::new();
            let began = Instant::now();
            for number in 0..clients {
                let (client, judge) = (masters.client(number), Arc::clone(&judge));
                calls.spawn(async move {
                    let body = judge.section(number, 5 * MS);
                    client.locks.lock("k").lease(LEASE).wait(LEASE).run(body).await
                });
            }
            while let Some(ended) = calls.join_next().await {
                ended
                    .unwrap()
                    .unwrap_or_else(|error| panic!("{clients} clients, split {split}: {error}"));
            }
            let took = began.elapsed();
            assert!(took < 300 * MS, "{clients} clients, split {split}: {took:?}");
            assert_eq!(
                *judge.overlaps.lock().unwrap(),
                [""; 0],
                "{clients} clients, split {split}"
            );
            sleep(Duration::from_secs(1)).await;
            assert_eq!(masters.left("k"), [""; 0], "{clients} clients, split {split}");
        }
    }
}

/// The next call, which is handed the lock at the first master, finds the others free.
#[tokio::test(start_paused = true)]
async fn the_first_master_is_released_last() {
    let masters = Masters::new(3);
    let (one, other) = (masters.client(0), masters.client(1));
    let guard = one.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    let waits = tokio::spawn(async move { other.locks.lock("k").lease(LEASE).wait(LEASE).acquire().await });
    sleep(50 * MS).await;
    guard.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    let events = masters.events();
    let released: Vec<_> = of_op(&events, Op::Release)
        .iter()
        .take(3)
        .map(|event| event.master)
        .collect();
    assert_eq!(released.last(), Some(&0), "{events:?}");
    let refused = events
        .iter()
        .filter(|event| event.asked.op == Op::Acquire && event.answer.contains("Busy"));
    let refused: Vec<_> = refused.filter(|event| event.at > 30).collect();
    assert!(
        refused.is_empty(),
        "the successor found votes of its predecessor: {refused:?}"
    );
}

/// Two of five masters grant their votes to a call, and three are busy. The release of one vote arrives late, when
/// the call has asked again.
async fn late_release(masters: &Masters) -> (tokio::task::JoinHandle<crate::LockGuard>, Arc<Notify>) {
    let held = Arc::new(Notify::new());
    let (go, mut releases) = (Arc::clone(&held), 0);
    masters.servers[1].script(move |asked: &Asked| {
        if asked.op == Op::Release {
            releases += 1;
            if releases == 1 {
                return Fate::Held(Arc::clone(&go));
            }
        }
        PROMPT
    });
    for server in &masters.servers[2..] {
        server.put("k", OTHER, 60 * LEASE);
    }
    let client = masters.client(0);
    let request = client.locks.lock("k").lease(LEASE).wait(LEASE);
    let call = tokio::spawn(async move { request.acquire().await.unwrap() });
    sleep(4 * MS).await;
    (call, held)
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_late_takes_no_vote_of_a_later_round() {
    let masters = Masters::new(5);
    let (call, held) = late_release(&masters).await;
    // Now the votes of masters 0, 1 and 2 are a majority.
    masters.servers[2].remove("k", OTHER);
    sleep(40 * MS).await;
    assert!(!call.is_finished(), "a vote counts that is being given back");
    held.notify_one();
    let guard = call.await.unwrap();
    sleep(50 * MS).await;
    assert!(guard.handle().is_held());
    assert_eq!(masters.votes("k", OTHER), [0, 1, 2], "{:?}", masters.events());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_late_takes_no_vote_that_was_won_back() {
    let masters = Masters::new(5);
    let (call, held) = late_release(&masters).await;
    masters.servers[2].remove("k", OTHER);
    masters.servers[3].remove("k", OTHER);
    let guard = call.await.unwrap();
    masters.servers[1].flush();
    // The next renewal wins its vote back.
    sleep(LEASE).await;
    assert_eq!(masters.votes("k", OTHER), [0, 1, 2, 3], "{:?}", masters.events());
    held.notify_one();
    sleep(50 * MS).await;
    assert_eq!(masters.votes("k", OTHER), [0, 1, 2, 3], "{:?}", masters.events());
    drop(guard);
}

/// Returns how often each of four clients got the lock in 20 s, and the longest wait.
async fn rate(masters: &Masters, cut: usize) -> (Vec<u32>, Duration) {
    fastrand::seed(7);
    let judge = Arc::new(Judge::default());
    let mut calls = JoinSet::new();
    for number in 0..4 {
        let (client, judge) = (masters.client(number), Arc::clone(&judge));
        if number < cut {
            client.links[0].cut();
        }
        calls.spawn(async move {
            let (began, mut got, mut longest) = (Instant::now(), 0, Duration::ZERO);
            while began.elapsed() < Duration::from_secs(20) {
                let asked = Instant::now();
                let body = judge.section(number, 5 * MS);
                let request = client.locks.lock("k").lease(LEASE).wait(LEASE);
                request.run(body).await.unwrap();
                longest = longest.max(asked.elapsed());
                got += 1;
            }
            (got, longest)
        });
    }
    let ended = calls.join_all().await;
    assert_eq!(*judge.overlaps.lock().unwrap(), [""; 0]);
    let longest = ended.iter().map(|(_, longest)| *longest).max();
    (ended.iter().map(|(got, _)| *got).collect(), longest.unwrap())
}

/// Half of the processes do not reach the first master, and another one is down.
#[tokio::test(start_paused = true)]
async fn both_halves_go_on_where_one_does_not_reach_the_first_master() {
    let (undisturbed, _) = rate(&Masters::new(5), 0).await;
    let masters = Masters::new(5);
    masters.servers[4].kill();
    let (disturbed, longest) = rate(&masters, 2).await;
    let all: u32 = undisturbed.iter().sum();
    assert!(
        disturbed.iter().sum::<u32>() * 10 >= all * 9,
        "{disturbed:?}, undisturbed {undisturbed:?}"
    );
    // None of the four gets less than half of its part.
    assert!(
        disturbed.iter().all(|got| got * 8 >= all),
        "{disturbed:?}, undisturbed {undisturbed:?}"
    );
    assert!(longest < Duration::from_secs(2), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sees_one_master_says_at_once_that_there_is_no_majority() {
    let masters = Masters::new(3);
    let (holder, client) = (masters.client(0), masters.client(1));
    for link in &client.links[1..] {
        link.cut();
    }
    for is_held in [false, true] {
        let guard = if is_held {
            Some(holder.locks.lock("k").lease(LEASE).acquire().await.unwrap())
        } else {
            None
        };
        let began = Instant::now();
        let error = client
            .locks
            .lock("k")
            .lease(LEASE)
            .wait(Duration::from_secs(1))
            .acquire()
            .await
            .unwrap_err();
        assert!(began.elapsed() <= Duration::from_millis(1010), "{:?}", began.elapsed());
        let said = error.to_string();
        assert!(said.contains("1 of 3 masters can vote, and 2 are needed"), "{said}");
        drop(guard);
        sleep(MS * 20).await;
        assert_eq!(masters.left("k"), [""; 0]);
        let queued = of_op(&masters.events(), Op::Queue);
        assert!(queued.is_empty(), "it waits where it cannot get a majority: {queued:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_closed_masters_is_advised_to_wait_or_open_them() {
    let waits = "wait until those open that may have forgotten locks, or, if no process holds a lock, run `lockctl open-quorum --force`, then \
                 try again";
    let others = "check that the other masters are up and reachable; wait";
    for (down, expected) in [(0, "; wait"), (1, others)] {
        let masters = Masters::new(3);
        let client = masters.client(0);
        for server in &masters.servers {
            server.script(|_| Fate::Closed(28 * LEASE));
        }
        for link in &client.links[..down] {
            link.cut();
        }
        let request = client.locks.lock("k").lease(LEASE).wait(Duration::from_secs(1));
        let said = request.acquire().await.unwrap_err().to_string();
        assert!(said.contains(expected) && said.ends_with(waits), "{said}");
        assert_eq!(said.contains(others), down > 0, "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_though_a_master_dies_between_the_votes_and_the_second_phase() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    let mut last = 0;
    for round in 0..6 {
        let dies = round % 3;
        let server = Arc::clone(&masters.servers[dies]);
        masters.servers[dies].script(move |asked: &Asked| {
            if asked.op == Op::Raise && asked.client == 0 {
                server.kill_soon();
            }
            PROMPT
        });
        let request = client.locks.lock("k").lease(LEASE).wait(LEASE).fencing(true);
        let guard = request.acquire().await.unwrap();
        let token = guard.handle().fencing_token().await.unwrap().get();
        assert!(token > last, "{token} after {last}");
        last = token;
        guard.release().await.unwrap();
        masters.servers[dies].script(|_| PROMPT);
        masters.servers[dies].start();
        sleep(Duration::from_secs(2)).await;
    }
    sleep(Duration::from_secs(8)).await;
    assert_eq!(masters.left("k"), [""; 0]);
}

/// The masters' counters are apart, as after a step of a clock, and the one that is ahead dies.
#[tokio::test(start_paused = true)]
async fn tokens_grow_though_the_master_dies_that_gave_the_last_one() {
    for ahead in 0..3 {
        let masters = Masters::new(3);
        let client = masters.client(0);
        masters.servers[ahead].put("other", OTHER, LEASE);
        let far = FencingToken::new(u64::MAX / 2);
        let store = masters.servers[ahead].store();
        store.raise_fence("other", &HolderValue::of(OTHER), far).await.unwrap();
        let mut last = 0;
        for round in 0..2 {
            // A majority that has the master that is ahead in it, and then one without it.
            let dead = if round == 0 { (ahead + 1) % 3 } else { ahead };
            masters.servers[dead].kill();
            let request = client.locks.lock("k").lease(LEASE).wait(LEASE).fencing(true);
            let guard = request.acquire().await.unwrap();
            let token = guard.handle().fencing_token().await.unwrap().get();
            assert!(token > last, "{token} after {last}");
            last = token;
            guard.release().await.unwrap();
            if round == 0 {
                masters.servers[dead].start();
                sleep(Duration::from_secs(3)).await;
            }
        }
    }
}

/// Waits at the second master, where the lock was busy, and is handed it while the first one is busy by now: it
/// does not keep the later vote while it waits for the earlier one.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_handed_a_later_master_leaves_it_to_who_has_an_earlier_one() {
    let masters = Masters::new(3);
    let (client, other) = (masters.client(0), masters.client(1));
    // A holder whose first master was out of reach.
    masters.servers[1].put("k", OTHER, 60 * LEASE);
    masters.servers[2].put("k", OTHER, 60 * LEASE);
    let request = client.locks.lock("k").lease(LEASE).wait(LEASE);
    let waits = tokio::spawn(async move { request.acquire().await });
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        masters.servers[1].held("k").1,
        1,
        "it waits at the second master: {:?}",
        masters.left("k")
    );
    // Another one got the first master meanwhile, and the third is down.
    masters.servers[2].kill();
    masters.servers[0].put("k", "first:h:1:x", 60 * LEASE);
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    masters.servers[1].remove("k", OTHER);
    sleep(30 * MS).await;
    let guard = other.locks.lock("j").lease(LEASE).acquire().await.unwrap();
    assert_eq!(
        masters.servers[1].held("k").0,
        [""; 0],
        "{:?} after {:?}",
        masters.left("k"),
        began.elapsed()
    );
    drop(guard);
    masters.servers[0].remove("k", "first:h:1:x");
    let guard = waits.await.unwrap().unwrap();
    assert!(guard.handle().is_held());
}

/// Otherwise clients that see one master only would hand the lock to each other there for ever.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_leaves_the_queue_when_it_sees_no_majority_any_more() {
    let masters = Masters::new(3);
    let (holder, client) = (masters.client(0), masters.client(1));
    let guard = holder.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    let request = client.locks.lock("k").lease(LEASE).wait(LEASE);
    let call = tokio::spawn(async move { request.acquire().await });
    sleep(50 * MS).await;
    assert_eq!(masters.servers[0].held("k").1, 1);
    client.links[1].cut();
    client.links[2].cut();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(masters.servers[0].held("k").1, 0, "it waits: {:?}", masters.events());
    drop(guard);
    let error = call.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("1 of 3 masters can vote"), "{error}");
    assert_eq!(masters.left("k"), [""; 0]);
}
