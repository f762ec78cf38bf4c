//! Releases, and who gets the lock next.

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
