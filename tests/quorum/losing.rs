//! Masters that die, come back, or lose their data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LostReason, ServerState, current};
use lock_tests::clock::ticking;
use lock_tests::{PATIENCE, Server, Stamp, StoreJudge, eventually, eventually_some};
use tokio::task::JoinSet;

use crate::stage::{Five, LEASE, LONG, queue_of, store_error, stored};

/// Takes and releases one lock until told to stop, each body at the judge.
async fn storm(locks: LockManager, name: String, judge: Arc<StoreJudge>, calm: Arc<AtomicBool>) {
    while !calm.load(Ordering::SeqCst) {
        let request = locks.lock("stormy").lease(LONG).fencing(true);
        let body = async {
            let token = current().unwrap().fencing_token().await.unwrap().get();
            let _inside = judge.enter(&name, Some(token));
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        request.run(body).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_are_killed_and_everything_goes_on() {
    const MANAGERS: usize = 3;
    const TASKS: usize = 2;
    let (five, bench) = (Five::start(), Server::start());
    let judge = Arc::new(StoreJudge::on(&bench));
    let calm = Arc::new(AtomicBool::new(false));
    let mut raging = JoinSet::new();
    let mut all = Vec::new();
    for number in 0..MANAGERS {
        let locks = five.connected().await;
        for task in 0..TASKS {
            let name = format!("m{number}-{task}");
            raging.spawn(storm(locks.clone(), name, Arc::clone(&judge), Arc::clone(&calm)));
        }
        all.push(locks);
    }
    // A lock that is renewed all the time, and one that has no need to be.
    let (renewed, long) = (
        all[0].lock("renewed").lease(LEASE).acquire().await.unwrap(),
        all[1].lock("long").lease(LONG).acquire().await.unwrap(),
    );
    let enter = async |more: usize| {
        let wanted = judge.entries() + more;
        eventually("more bodies", || async { judge.entries() >= wanted }).await;
    };
    enter(20).await;
    // The first in order, where calls wait, and another one.
    for killed in [0, 3] {
        five[killed].kill();
        enter(30).await;
    }
    let before = renewed.handle().renewals();
    eventually("a renewal by three masters", || async {
        renewed.handle().renewals() > before
    })
    .await;
    calm.store(true, Ordering::SeqCst);
    while let Some(ended) = raging.join_next().await {
        ended.unwrap();
    }
    judge.assert_clean(80);
    for guard in [renewed, long] {
        guard.handle().verify().await.unwrap();
        guard.release().await.unwrap();
    }
    five.nothing_is_left().await;
}

#[tokio::test]
async fn a_call_that_waits_goes_on_at_the_next_master_when_that_of_its_queue_is_killed() {
    let five = Five::start();
    let (holder, waiter) = (five.connected().await, five.connected().await);
    let guard = holder.lock("k").lease(LONG).acquire().await.unwrap();
    five.has_votes("k", 5).await;
    let waiting = tokio::spawn(waiter.lock("k").acquire());
    for killed in 0..2 {
        eventually("the call to stand in the queue", || async {
            five[killed].exists(&queue_of("k"))
        })
        .await;
        five[killed].kill();
    }
    eventually("the call to stand in the third queue", || async {
        five[2].exists(&queue_of("k"))
    })
    .await;
    assert!(!waiting.is_finished());
    guard.handle().verify().await.unwrap();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(five.votes("k"), 3);
    next.release().await.unwrap();
    five.nothing_is_left().await;
}

/// Another holder keeps the lock: what the call tells at its end is that, and not that two masters are gone.
#[tokio::test]
async fn with_two_of_five_killed_a_busy_lock_is_told_to_be_busy() {
    let five = Five::start();
    let (holder, other) = (five.connected().await, five.connected().await);
    let guard = holder.lock("k").lease(LONG).acquire().await.unwrap();
    five[0].kill();
    five[1].kill();
    // Long enough for an answer.
    for wait in [Duration::ZERO, Duration::from_secs(5)] {
        let ended = tokio::time::timeout(PATIENCE, other.lock("k").wait(wait).acquire()).await;
        let ended = ended.expect("within its wait");
        assert!(ended.as_ref().is_err_and(LockError::is_busy), "{ended:?}");
    }
    guard.release().await.unwrap();
    // The place of the last call in the queue may have got the lock, and is given up soon after the call.
    let guard = eventually_some("the lock to be free", async || {
        other.lock("k").wait(Duration::ZERO).acquire().await.ok()
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn without_a_majority_calls_fail_in_time_and_bodies_end_at_their_deadline() {
    let five = Five::start_durable();
    let locks = five.connected().await;
    let (last_poll, deadline) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let body = {
        let (last_poll, deadline) = (Arc::clone(&last_poll), Arc::clone(&deadline));
        // The renewal after six seconds may be three seconds late: the lock is lost for want of an answer, and not because nobody asked.
        let request = locks.lock("held").lease(Duration::from_secs(9));
        let work = async move {
            loop {
                // Until the moment of the loss it may still be renewed.
                let until = tokio::time::sleep(Duration::from_millis(5));
                tokio::select! {
                    () = ticking(&last_poll) => {}
                    () = until => deadline.store(current().unwrap().deadline().as_nanos(), Ordering::SeqCst),
                }
            }
        };
        tokio::spawn(request.run(work))
    };
    five.has_votes("held", 5).await;
    let waiter = five.connected().await;
    let waiting = tokio::spawn(waiter.lock("held").wait(PATIENCE * 3).acquire());
    eventually("the call to stand in the queue", || async {
        five[0].exists(&queue_of("held"))
    })
    .await;
    let killed = [0, 1, 3];
    for nth in killed {
        five[nth].kill();
    }

    // Free or held, no call gets an answer of a majority.
    for key in ["free", "held"] {
        for wait in [Duration::ZERO, Duration::from_secs(5)] {
            let call = locks.lock(key).wait(wait).acquire();
            // A call of this process for the same key stands behind the body, and does not ask at once.
            let ended = tokio::time::timeout(PATIENCE, call).await.expect("within its wait");
            if key == "held" && ended.as_ref().is_err_and(LockError::is_busy) {
                continue;
            }
            let said = store_error(ended);
            assert!(said.contains("2 of 5 masters can vote, and 3 are needed"), "{said}");
            assert!(said.contains("check that the masters are up and reachable"), "{said}");
            for (nth, master) in five.iter().enumerate() {
                let address = master.addr().to_string();
                assert_eq!(said.contains(&address), killed.contains(&nth), "{address}: {said}");
            }
        }
    }

    let ended = tokio::time::timeout(PATIENCE, body)
        .await
        .expect("at its deadline")
        .unwrap();
    let known = Stamp::now();
    assert!(
        matches!(
            ended,
            Err(LockError::Lost {
                reason: LostReason::Unreachable,
                completed: false,
                ..
            })
        ),
        "{ended:?}"
    );
    let stamp = |nanos: &AtomicU64| Stamp::from_nanos(nanos.load(Ordering::SeqCst));
    let (last_poll, deadline) = (stamp(&last_poll), stamp(&deadline));
    let late = last_poll.since(deadline);
    assert!(
        late.is_zero() || locks.stats().overruns > 0,
        "polled {late:?} after the deadline"
    );
    assert!(known >= deadline, "lost {:?} too soon", deadline.since(known));

    for nth in killed {
        five[nth].start_again();
    }
    eventually("the call to go on", || async {
        let _ = waiter.open_quorum().await;
        waiting.is_finished()
    })
    .await;
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let guard = locks.lock("free").acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_master_that_comes_back_votes_again() {
    let five = Five::start_durable();
    let locks = five.connected().await;
    for nth in [0, 4] {
        five[nth].kill();
        let guard = locks.lock("k").acquire().await.unwrap();
        assert!(five.votes("k") >= 3);
        five[nth].start_again();
        guard.release().await.unwrap();
        eventually("a lock at the master that is back", || async {
            let _ = locks.open_quorum().await;
            let guard = locks.lock("k").lease(LONG).acquire().await.unwrap();
            let is_there = five[nth].exists(&stored("k"));
            guard.release().await.unwrap();
            is_there
        })
        .await;
    }
    five.nothing_is_left().await;
}

/// How a master loses a vote.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Flushed,
    Deleted,
    /// It has its data afterwards, and so the vote.
    Restarted,
}

/// The lock stays, and has all votes again after the next renewal.
async fn is_won_back_after(loss: Loss) {
    let five = Five::start_durable();
    let locks = five.connected().await;
    let body = tokio::spawn({
        let request = locks.lock("k").lease(LEASE).max_renewals(u32::MAX);
        request.run(std::future::pending::<()>())
    });
    five.has_votes("k", 5).await;
    for nth in [0, 2] {
        let master = &five[nth];
        match loss {
            Loss::Flushed => drop(master.cmd(&["FLUSHALL"])),
            Loss::Deleted => drop(master.cmd(&["DEL", &stored("k")])),
            Loss::Restarted => master.restart(),
        }
        five.opens_and_has_votes(&locks, "k", 5).await;
        assert!(!body.is_finished(), "{loss:?}");
    }
    // All have the same value, and the vote that was won back is renewed and released like the others.
    let values = five.each_ref().map(|master| master.value(&stored("k")));
    assert!(
        values.iter().all(|value| value.is_some() && *value == values[0]),
        "{values:?}"
    );
    body.abort();
    five.nothing_is_left().await;
}

#[tokio::test]
async fn a_vote_that_one_master_loses_is_won_back_while_the_lock_stays() {
    is_won_back_after(Loss::Deleted).await;
}

#[tokio::test]
async fn a_vote_that_a_flush_loses_is_won_back_while_the_lock_stays() {
    is_won_back_after(Loss::Flushed).await;
}

#[tokio::test]
async fn a_vote_stays_over_a_restart_with_the_data() {
    is_won_back_after(Loss::Restarted).await;
}

#[tokio::test]
async fn a_master_that_was_down_at_the_grant_gives_its_vote_at_a_renewal() {
    let five = Five::start();
    five[0].kill();
    let locks = five.connected().await;
    let guard = locks.lock("k").lease(LEASE).acquire().await.unwrap();
    five.has_votes("k", 4).await;
    five[0].start_again();
    five.opens_and_has_votes(&locks, "k", 5).await;
    guard.handle().verify().await.unwrap();
    guard.release().await.unwrap();
    five.nothing_is_left().await;
}

#[tokio::test]
async fn a_lock_that_three_of_five_lose_is_lost_at_once() {
    let five = Five::start();
    let locks = five.connected().await;
    let body = tokio::spawn(locks.lock("k").lease(LONG).run(std::future::pending::<()>()));
    five.has_votes("k", 5).await;
    for nth in [1, 2] {
        five[nth].cmd(&["DEL", &stored("k")]);
    }
    // A lock of this process that is taken after that: the losses have been reported by then.
    for _ in 0..5 {
        locks.lock("other").acquire().await.unwrap().release().await.unwrap();
    }
    assert!(!body.is_finished());
    five[4].cmd(&["DEL", &stored("k")]);
    let ended = tokio::time::timeout(PATIENCE, body)
        .await
        .expect("long before the end of a long lease")
        .unwrap();
    assert!(
        matches!(
            ended,
            Err(LockError::Lost {
                reason: LostReason::Deleted,
                completed: false,
                ..
            })
        ),
        "{ended:?}"
    );
    // Nothing of it stays at the two others.
    five.nothing_is_left().await;
}

#[tokio::test]
async fn a_manager_is_ready_while_a_majority_is_there() {
    let five = Five::start();
    let locks = five.connected().await;
    let mut changes = locks.health_changes();
    let down = |nth: usize| {
        let (health, address) = (locks.health(), five[nth].addr().to_string());
        let mut servers = health.servers.iter();
        servers.any(|server| *server.address == *address && server.state == ServerState::Down)
    };
    assert!(locks.health().is_ready(), "{:?}", locks.health());
    for nth in [0, 1] {
        five[nth].kill();
        eventually("the manager to notice", || async { down(nth) }).await;
        assert!(locks.health().is_ready(), "{:?}", locks.health());
    }
    five[2].kill();
    eventually("the manager to notice", || async { down(2) }).await;
    assert!(!locks.health().is_ready(), "{:?}", locks.health());
    let told = async { while changes.next().await.is_some_and(|health| health.is_ready()) {} };
    tokio::time::timeout(PATIENCE, told).await.expect("the change is told");
    five[0].start_again();
    eventually("the manager to be ready again", || async { locks.health().is_ready() }).await;
}
