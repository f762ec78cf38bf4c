//! Held locks: renewals and checks by a majority, and the end of the validity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::scripted::{Asked, Fate, MS, Op, PROMPT};
use super::{Masters, of_op};
use crate::host::{Clock, TokioClock};
use crate::store::{
    ContentionSlot, HolderValue, LockStore, Ownership, QueueRequest, Queued, Receipt, ReleaseRequest, RenewRequest,
    StoreError,
};

const LEASE: Duration = Duration::from_secs(10);
const OTHER: &str = "other:h:1:x";

/// The end of a lease of 10 s, which drift makes 102 ms earlier.
const VALID: Duration = Duration::from_millis(9898);

#[tokio::test(start_paused = true)]
async fn a_renewal_that_a_minority_answers_leaves_the_deadline() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    let began = Instant::now();
    let guard = client.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    sleep(10 * MS).await;
    for server in &masters.servers[1..] {
        server.script(|asked: &Asked| if asked.op == Op::Renew { Fate::Lost } else { PROMPT });
    }
    let end = guard.handle().lost().await;
    assert!(end.is_lost(), "{end:?}");
    let took = began.elapsed();
    assert!(took.abs_diff(VALID) <= 5 * MS, "ended after {took:?}");
    let renewed = of_op(&masters.events(), Op::Renew);
    assert!(
        renewed.iter().any(|event| event.answer.contains("Owned")),
        "{renewed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_a_majority_answers_moves_the_deadline() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    let guard = client.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    sleep(10 * MS).await;
    masters.servers[0].script(|asked: &Asked| if asked.op == Op::Renew { Fate::Lost } else { PROMPT });
    sleep(5 * LEASE).await;
    assert!(guard.handle().is_held(), "{:?}", masters.events());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_vote_that_a_minority_has_lost_does_not_end_the_lock_and_is_won_back() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    let guard = client.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    sleep(10 * MS).await;
    for lost in 0..3 {
        masters.servers[lost].flush();
        sleep(LEASE).await;
        assert!(guard.handle().is_held(), "{:?}", masters.events());
        assert_eq!(masters.votes("k", OTHER), [0, 1, 2]);
    }
    for server in &masters.servers[..2] {
        server.flush();
    }
    let began = Instant::now();
    assert!(guard.handle().lost().await.is_lost());
    assert!(began.elapsed() <= LEASE, "{:?}", began.elapsed());
    drop(guard);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(masters.left("k"), [""; 0]);
}

/// The votes that make the majority arrive when the lease is over, less the drift.
#[tokio::test(start_paused = true)]
async fn no_body_begins_when_the_majority_is_reached_as_the_validity_ends() {
    let lease = Duration::from_secs(2);
    let valid = Duration::from_millis(1978);
    for (late, begins) in [(Duration::from_millis(1974), true), (valid + MS, false)] {
        let masters = Masters::new(3);
        let client = masters.client(0);
        masters.servers[0].put("k", OTHER, 10 * lease);
        // The vote of the second master is given at once, and the two make the majority.
        masters.servers[2].kill();
        let has_begun = Arc::new(AtomicBool::new(false));
        let body = {
            let has_begun = Arc::clone(&has_begun);
            async move { has_begun.store(true, Ordering::Relaxed) }
        };
        // The grant is told so late.
        masters.servers[0].script(move |asked: &Asked| match asked.op {
            Op::Queue => Fate::Trip(MS, late),
            _ => PROMPT,
        });
        let request = client.locks.lock("k").lease(lease).wait(LEASE).renew(false);
        let call = tokio::spawn(request.run(body));
        sleep(50 * MS).await;
        masters.servers[0].remove("k", OTHER);
        sleep(late + 4 * MS).await;
        let events = masters.events();
        assert_eq!(has_begun.load(Ordering::Relaxed), begins, "{late:?}: {events:#?}");
        drop(call);
    }
}

/// A master forgets everything between the place in its queue and the grant.
#[tokio::test(start_paused = true)]
async fn a_call_whose_queue_is_flushed_goes_on() {
    let masters = Masters::new(3);
    let (holder, client) = (masters.client(0), masters.client(1));
    let guard = holder.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    let request = client.locks.lock("k").lease(LEASE).wait(LEASE);
    let call = tokio::spawn(async move { request.acquire().await });
    sleep(50 * MS).await;
    masters.servers[0].flush();
    sleep(50 * MS).await;
    assert!(!call.is_finished(), "two calls hold the lock");
    assert!(guard.handle().is_held());
    guard.release().await.unwrap();
    let began = Instant::now();
    let guard = call.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    guard.release().await.unwrap();
    sleep(Duration::from_secs(8)).await;
    assert_eq!(masters.left("k"), [""; 0]);
}

/// The first master dies when it has handed the lock over, and its answer is lost with it.
#[tokio::test(start_paused = true)]
async fn a_call_goes_on_when_its_master_dies_between_two_steps() {
    // Between the place and the hand-over, and between that and the votes of the others.
    for dies_after in [Op::Queue, Op::Acquire] {
        let masters = Masters::new(3);
        let (holder, client) = (masters.client(0), masters.client(1));
        let guard = holder.locks.lock("k").lease(LEASE).acquire().await.unwrap();
        let request = client.locks.lock("k").lease(LEASE).wait(LEASE);
        let call = tokio::spawn(async move { request.acquire().await });
        sleep(50 * MS).await;
        if dies_after == Op::Queue {
            masters.servers[0].kill();
        } else {
            let first = Arc::clone(&masters.servers[0]);
            masters.servers[1].script(move |asked: &Asked| {
                if asked.op == Op::Acquire && asked.client == 1 {
                    first.kill_soon();
                }
                PROMPT
            });
        }
        let began = Instant::now();
        guard.release().await.unwrap();
        let guard = call.await.unwrap().unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{dies_after:?}: {:?}",
            began.elapsed()
        );
        guard.release().await.unwrap();
        masters.servers[0].start();
        sleep(Duration::from_secs(12)).await;
        assert_eq!(masters.left("k"), [""; 0], "{dies_after:?}");
    }
}

/// A silent master delays one call, and not each.
#[tokio::test(start_paused = true)]
async fn a_silent_master_delays_calls_once() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    masters.servers[0].set_silent(true);
    let mut took = Vec::new();
    for _ in 0..10 {
        let began = Instant::now();
        let guard = client.locks.lock("k").lease(LEASE).wait(LEASE).acquire().await.unwrap();
        took.push(began.elapsed());
        guard.release().await.unwrap();
    }
    let delayed = took.iter().filter(|took| **took > 20 * MS).count();
    assert!(delayed <= 1, "{took:?}");
}

/// A request that was not answered before the lock was released is dropped with it.
#[tokio::test(start_paused = true)]
async fn a_released_lock_is_forgotten_though_a_master_never_answered() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    masters.servers[2].script(|asked: &Asked| if asked.op == Op::Acquire { Fate::Lost } else { PROMPT });
    let guard = client.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    let value = masters.servers[0].held("k").0.remove(0);
    let ballot = Arc::downgrade(&client.store.0.ballots.get("k", &value).unwrap());
    client
        .store
        .0
        .has_failed(2, &StoreError::transient("connection refused"));
    guard.release().await.unwrap();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(ballot.strong_count(), 0, "its votes are remembered for ever");
}

/// A call for several keys that was handed one of them, and finds another one busy by then, while a master does not
/// take its request.
#[tokio::test(start_paused = true)]
async fn a_key_that_was_handed_over_is_given_back_at_every_master() {
    for refuses in 0..3 {
        let masters = Masters::new(3);
        let client = masters.client(0);
        for server in &masters.servers {
            server.put("k", OTHER, 60 * LEASE);
        }
        let request = client.locks.lock_all(["j", "k"]).lease(60 * LEASE).wait(60 * LEASE);
        let call = tokio::spawn(async move { request.acquire().await });
        sleep(50 * MS).await;
        // From its second request for both on.
        let mut asked_for_one = false;
        masters.servers[refuses].script(move |asked: &Asked| {
            let refuses = asked.op == Op::AcquireAll && (asked_for_one || refuses == 0);
            asked_for_one |= asked.op == Op::Acquire;
            if refuses { Fate::Refused } else { PROMPT }
        });
        for server in masters.servers.iter().rev() {
            server.put("j", OTHER, 60 * LEASE);
            server.remove("k", OTHER);
        }
        sleep(Duration::from_secs(3)).await;
        assert_eq!(masters.left("k"), [""; 0], "{refuses}: {:#?}", masters.events());
        drop(call);
    }
}

/// The first answer to a check or a renewal says that the vote is gone, and the others come later.
#[tokio::test(start_paused = true)]
async fn a_master_that_has_lost_its_vote_does_not_end_the_lock_by_answering_first() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    let guard = client.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    sleep(10 * MS).await;
    masters.servers[0].flush();
    for server in &masters.servers[1..] {
        server.script(|_| Fate::Trip(MS, 100 * MS));
    }
    let value = HolderValue::of(masters.servers[1].held("k").0.remove(0));
    let check = RenewRequest {
        key: "k".into(),
        value,
        extend: None,
    };
    let answers = client.store.renew_each(&[check]).await.unwrap();
    assert_eq!(answers, [Some(Ownership::Owned)]);
    sleep(LEASE).await;
    assert!(guard.handle().is_held(), "{:?}", masters.events());
    drop(guard);
}

/// The third master refuses at first, since another holder has it for a moment, and that answer is late.
#[tokio::test(start_paused = true)]
async fn a_vote_that_was_won_back_is_released_though_the_first_answer_was_late() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    masters.servers[2].put("k", OTHER, LEASE);
    masters.servers[2].script(|asked: &Asked| match asked.op {
        Op::Acquire => Fate::Trip(MS, 100 * MS),
        _ => PROMPT,
    });
    let guard = client.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    sleep(5 * MS).await;
    masters.servers[2].remove("k", OTHER);
    sleep(LEASE).await;
    assert_eq!(masters.votes("k", OTHER), [0, 1, 2], "{:?}", masters.events());
    guard.release().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(masters.left("k"), [""; 0], "{:?}", masters.events());
}

/// The first call of a process opens the connections, and has the lock before the last one is open.
#[tokio::test(start_paused = true)]
async fn a_vote_that_waits_for_a_connection_is_taken_once_it_is_open() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    client.links[2].opens_after(50 * MS);
    let guard = client.locks.lock("k").lease(LEASE).acquire().await.unwrap();
    assert_eq!(masters.votes("k", OTHER), [0, 1]);
    sleep(60 * MS).await;
    assert_eq!(masters.votes("k", OTHER), [0, 1, 2], "{:?}", masters.events());
    masters.servers[0].kill();
    sleep(2 * LEASE).await;
    assert!(guard.handle().is_held(), "{:?}", masters.events());
    guard.release().await.unwrap();
    assert_eq!(masters.left("k"), [""; 0], "{:?}", masters.events());
}

/// The release overtakes the request to the third master, whose connection is opened after the grant.
#[tokio::test(start_paused = true)]
async fn a_vote_that_waits_for_a_connection_is_not_left_behind() {
    for pause in [0, 20, 49, 51] {
        let masters = Masters::new(3);
        let client = masters.client(0);
        client.links[2].opens_after(50 * MS);
        let guard = client.locks.lock("k").lease(60 * LEASE).acquire().await.unwrap();
        sleep(pause * MS).await;
        guard.release().await.unwrap();
        sleep(2 * LEASE).await;
        assert_eq!(masters.left("k"), [""; 0], "{pause} ms: {:?}", masters.events());
    }
}

/// Calls that wait for a thousand locks at the first master, which dies.
#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_move_to_the_next_master_without_a_storm() {
    const KEYS: usize = 1000;
    let masters = Masters::new(3);
    let client = masters.client(0);
    let keys: Vec<_> = (0..KEYS).map(|key| key.to_string()).collect();
    let mut calls = JoinSet::new();
    for key in &keys {
        for server in &masters.servers {
            server.put(key, OTHER, 60 * LEASE);
        }
        let request = client.locks.lock(key).lease(LEASE).wait(LEASE);
        calls.spawn(async move { request.acquire().await.unwrap() });
    }
    sleep(50 * MS).await;
    masters.servers[0].kill();
    sleep(Duration::from_secs(1)).await;
    let asked = masters.events();
    for server in masters.servers.iter().rev() {
        for key in &keys {
            server.remove(key, OTHER);
        }
    }
    let began = Instant::now();
    let guards = calls.join_all().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let connects = of_op(&asked, Op::Connect).len();
    assert!(connects <= 20, "{connects} connects");
    // A place at each of two masters, and an attempt at each of three.
    assert!(asked.len() <= 10 * KEYS, "{} requests", asked.len());
    drop(guards);
}

/// The master in whose queue a call waits comes back empty, and gives no votes until it may.
#[tokio::test(start_paused = true)]
async fn a_call_leaves_the_queue_of_a_master_that_gives_no_votes() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    for server in &masters.servers {
        server.put("k", OTHER, 60 * LEASE);
    }
    let request = client.locks.lock("k").lease(LEASE).wait(LEASE);
    let call = tokio::spawn(async move { request.acquire().await.unwrap() });
    sleep(50 * MS).await;
    assert_eq!(masters.servers[0].held("k").1, 1);
    masters.servers[0].script(|asked: &Asked| match asked.op {
        Op::Release => PROMPT,
        _ => Fate::Closed(60 * LEASE),
    });
    sleep(Duration::from_secs(1)).await;
    let waiters: Vec<_> = masters.servers.iter().map(|server| server.held("k").1).collect();
    assert_eq!(waiters, [0, 1, 0], "{:?}", masters.events());
    masters.servers[2].remove("k", OTHER);
    masters.servers[1].remove("k", OTHER);
    call.await.unwrap().release().await.unwrap();
}

/// The release takes the value out of the queue once the master answers again.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_released_while_its_master_is_silent_is_given_up_there() {
    let masters = Masters::new(3);
    let client = masters.client(0);
    masters.servers[0].put("k", OTHER, 60 * LEASE);
    let value = HolderValue::of("waits:h:1:x");
    let receipt = Receipt::default();
    let request = QueueRequest {
        key: &"k".into(),
        value: &value,
        ttl: LEASE,
        fence: false,
        clock: &(Arc::new(TokioClock) as Arc<dyn Clock>),
        receipt: &receipt,
        contention: &ContentionSlot::default(),
    };
    let waits = timeout(50 * MS, client.store.queue(&request)).await;
    assert!(waits.is_err(), "{waits:?}");
    assert_eq!(masters.servers[0].held("k").1, 1);
    masters.servers[0].set_silent(true);
    let release = ReleaseRequest {
        key: &"k".into(),
        value: &value,
        keep: None,
        unanswered_on: None,
        elsewhere: false,
        queued: Some(Queued {
            ttl: LEASE,
            fence: false,
        }),
        leave_free: None,
        receipt: &Receipt::default(),
    };
    drop(client.store.release(&release).await);
    masters.servers[0].kill();
    masters.servers[0].set_silent(false);
    masters.servers[0].start();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(masters.servers[0].held("k").1, 0, "{:?}", masters.events());
}
