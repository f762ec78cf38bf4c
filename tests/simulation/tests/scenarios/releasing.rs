//! Releases, and who gets the lock next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::world::{TRIP, ms, play};

/// A release tells the first call that waits in another process: it need not look. Without the message it would look after 250 ms at the
/// latest.
#[test]
fn a_release_lets_a_call_of_another_process_in_within_three_round_trips() {
    play(|world| async move {
        let (one, other) = (world.process(0), world.process(1));
        let held = one.locks.lock("stock").acquire().await.unwrap();
        let waiting = other.spawn(other.locks.lock("stock").acquire());
        world.at(ms(1_003)).await;
        held.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert!(world.now() <= ms(1_003) + 6 * TRIP + ms(2), "{:?}", world.now());
        next.release().await.unwrap();
    });
}

/// Thirty calls of three processes that stand in the store's queue: each is let in by a message, in the order in which they came.
#[test]
fn fair_calls_of_several_processes_are_let_in_one_after_another_by_messages() {
    play(|world| async move {
        let callers = [0, 1, 2].map(|number| world.process(number));
        let held = callers[0].locks.lock("stock").fair().acquire().await.unwrap();
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        let mut calls = Vec::new();
        for nth in 0..30_usize {
            let caller = &callers[nth % 3];
            let (locks, order) = (caller.locks.clone(), order.clone());
            calls.push(caller.spawn(async move {
                let body = async { order.send(nth).unwrap() };
                locks.lock("stock").fair().wait(Duration::from_secs(60)).run(body).await
            }));
            // Each process connects first.
            tokio::time::sleep(ms(100)).await;
        }
        let released = world.now();
        held.release().await.unwrap();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        drop(order);
        let took = world.now() - released;
        let mut order = Vec::new();
        while let Some(nth) = came.recv().await {
            order.push(nth);
        }
        assert_eq!(order, (0..30).collect::<Vec<_>>());
        assert!(took <= 30 * (6 * TRIP + ms(2)), "{took:?}");
    });
}

/// The lock is never free between two of the queue: three callers that try again and again, without a wait, get nothing.
#[test]
fn a_call_that_is_not_fair_does_not_get_between_when_the_lock_is_handed_over() {
    play(|world| async move {
        let callers = [0, 1].map(|number| world.process(number));
        let held = callers[0].locks.lock("stock").acquire().await.unwrap();
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        let mut calls = Vec::new();
        for nth in 0..40_usize {
            let caller = &callers[nth % 2];
            let (locks, order) = (caller.locks.clone(), order.clone());
            calls.push(caller.spawn(async move {
                let request = locks.lock("stock").fair().wait(Duration::from_secs(60));
                let body = async {
                    order.send(nth).unwrap();
                    tokio::time::sleep(ms(3)).await;
                };
                request.run(body).await
            }));
            tokio::time::sleep(ms(100)).await;
        }
        let over = Arc::new(AtomicBool::new(false));
        let mut thieves = Vec::new();
        for number in 2..5 {
            let thief = world.process(number);
            let (locks, over) = (thief.locks.clone(), Arc::clone(&over));
            thieves.push(thief.spawn(async move {
                let mut tries = 0;
                while !over.load(Ordering::Relaxed) {
                    let stolen = locks.lock("stock").wait(Duration::ZERO).run(async {}).await;
                    assert!(stolen.is_err_and(|error| error.is_busy()));
                    tries += 1;
                }
                tries
            }));
        }
        tokio::time::sleep(ms(100)).await;
        held.release().await.unwrap();
        // The lock is free after the last one.
        for call in calls.drain(..39) {
            call.await.unwrap().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        for thief in thieves {
            assert!(thief.await.unwrap() > 40);
        }
        calls.remove(0).await.unwrap().unwrap();
        drop(order);
        let mut order = Vec::new();
        while let Some(nth) = came.recv().await {
            order.push(nth);
        }
        assert_eq!(order, (0..40).collect::<Vec<_>>());
    });
}

/// A release that is not waited for is sent by the lock thread if the caller's runtime stands still right after the call: 100 ms.
#[test]
fn a_pipelined_release_reaches_the_server_within_100_ms_though_the_runtime_stands_still() {
    play(|world| async move {
        let (one, other) = (world.process(0), world.process(1));
        other.locks.check_connection().await.unwrap();
        let process = one.process.clone();
        let locks = one.locks.clone();
        let call = one.spawn(async move {
            locks.lock("stock").pipelined().run(async {}).await.unwrap();
            // Before the connection's task has run.
            process.block(0);
        });
        call.await.unwrap();
        let stood = world.now();
        let next = other
            .locks
            .lock("stock")
            .wait(Duration::from_secs(20))
            .acquire()
            .await
            .unwrap();
        assert!(
            world.now() - stood <= ms(100) + 6 * TRIP + ms(2),
            "{:?}",
            world.now() - stood
        );
        next.release().await.unwrap();
        one.process.unblock(0);
    });
}

/// The process at the front of the queue is killed. Its claim is not waited for, since nobody hears the message.
#[test]
fn a_killed_process_at_the_front_of_the_queue_costs_nothing_once_its_connections_are_gone() {
    play(|world| async move {
        let [one, dead, next] = [0, 1, 2].map(|number| world.process(number));
        let held = one.locks.lock("stock").acquire().await.unwrap();
        let _never = dead.spawn(dead.locks.lock("stock").acquire());
        world.at(ms(200)).await;
        let waiting = next.spawn(next.locks.lock("stock").acquire());
        world.at(ms(1_003)).await;
        dead.process.kill();
        world.network.hang_up(1);
        world.at(ms(1_010)).await;
        held.release().await.unwrap();
        let held = waiting.await.unwrap().unwrap();
        assert!(world.now() <= ms(1_010) + 6 * TRIP + ms(2), "{:?}", world.now());
        held.release().await.unwrap();
    });
}
