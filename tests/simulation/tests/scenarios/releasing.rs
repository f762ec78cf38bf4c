//! Releases, and who gets the lock next.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{HandoverLimits, LockError, LockManagerBuilder, LockRequest};
use lock_simulation::server::resp::Reply;
use tokio::time::{Instant, sleep};

use crate::world::{TRIP, World, ms, play, queue_up};

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
        let held = callers[0].locks.lock("stock").fair(true).acquire().await.unwrap();
        let (calls, order) = queue_up(&callers, 30, Duration::ZERO).await;
        let released = world.now();
        held.release().await.unwrap();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let took = world.now() - released;
        assert_eq!(*order.lock().unwrap(), (0..30).collect::<Vec<_>>());
        assert!(took <= 30 * (6 * TRIP + ms(2)), "{took:?}");
    });
}

/// The lock is never free between two of the queue: three callers that try again and again, without a wait, get nothing.
#[test]
fn a_call_that_is_not_fair_does_not_get_between_when_the_lock_is_handed_over() {
    play(|world| async move {
        let callers = [0, 1].map(|number| world.process(number));
        let held = callers[0].locks.lock("stock").acquire().await.unwrap();
        let (mut calls, order) = queue_up(&callers, 40, ms(3)).await;
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
        sleep(ms(100)).await;
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
        assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
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
            locks.lock("stock").pipelined(true).run(async {}).await.unwrap();
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

/// Counts how often a client of another kind, which tries every 10 ms, and our calls have the lock in 20 s. These processes make `calls` calls in all, and
/// each call asks again at once.
async fn fight(
    world: &World,
    processes: u32,
    calls: usize,
    build: impl Fn(LockManagerBuilder) -> LockManagerBuilder,
    ask: impl Fn(LockRequest) -> LockRequest + Copy + Send + 'static,
) -> (usize, usize) {
    let callers: Vec<_> = (0..processes)
        .map(|number| world.process_with(number, &build))
        .collect();
    let (over, ours) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for caller in callers.iter().cycle().take(calls) {
        let (locks, over, ours) = (caller.locks.clone(), Arc::clone(&over), Arc::clone(&ours));
        tasks.push(caller.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let request = ask(locks.lock("stock").wait(Duration::from_secs(60)));
                let guard = request.acquire().await.unwrap();
                ours.fetch_add(1, Ordering::Relaxed);
                sleep(ms(2)).await;
                guard.release().await.unwrap();
            }
        }));
    }
    let mut poller = 0;
    let taken = |words: &[&str]| matches!(world.server.command(words), Reply::Status(_));
    while world.now() < Duration::from_secs(20) {
        if taken(&["SET", "dist_lock:stock", "a poller", "NX", "PX", "120000"]) {
            poller += 1;
            sleep(ms(2)).await;
            world.server.command(&["DEL", "dist_lock:stock"]);
        }
        sleep(ms(10)).await;
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    (poller, ours.load(Ordering::Relaxed))
}

/// By default the lock is left free for 12 ms when it has not been for 900 ms. The poller tries every 10 to 12 ms, so that it misses some of these
/// times: by its phase it has 16 to 27 turns beside the line of one process.
fn has_about_a_turn_a_second(
    processes: u32,
    calls: usize,
    ask: impl Fn(LockRequest) -> LockRequest + Copy + Send + 'static,
) {
    play(move |world| async move {
        let (poller, ours) = fight(&world, processes, calls, |builder| builder, ask).await;
        assert!(
            (15..=40).contains(&poller),
            "{poller} turns of the poller beside {ours} of ours"
        );
        assert!(ours >= 2_000, "{ours} turns of ours beside {poller} of the poller");
    });
}

#[test]
fn a_poller_gets_a_turn_about_once_a_second_beside_calls_in_the_queue_of_the_store() {
    has_about_a_turn_a_second(2, 8, |request| request.fair(true));
}

#[test]
fn a_poller_gets_a_turn_about_once_a_second_beside_the_line_of_one_process() {
    has_about_a_turn_a_second(1, 8, |request| request);
}

#[test]
fn a_poller_gets_a_turn_about_once_a_second_beside_the_lines_of_two_processes() {
    has_about_a_turn_a_second(2, 16, |request| request);
}

/// Nobody stands behind the call that releases the lock, which asks for it again at once.
#[test]
fn a_poller_gets_a_turn_about_once_a_second_beside_one_call_of_each_process() {
    has_about_a_turn_a_second(2, 2, |request| request);
}

#[test]
fn a_poller_gets_a_fair_share_of_a_lock_that_is_left_free_after_each_release() {
    play(|world| async move {
        let left_free =
            |builder: LockManagerBuilder| builder.handover(HandoverLimits::OFF).leave_free(ms(15), Duration::ZERO);
        let (poller, ours) = fight(&world, 2, 8, left_free, |request| request).await;
        assert!(
            poller >= 100 && 3 * poller >= ours,
            "{poller} turns of the poller beside {ours} of ours"
        );
        assert!(3 * ours >= poller, "{poller} turns of the poller beside {ours} of ours");
    });
}

/// In the queue its turn would come too late: after the moment in which the lock is left free.
#[test]
fn a_call_takes_what_was_left_free_if_it_cannot_wait_until_that_is_over() {
    play(|world| async move {
        let pause = ms(500);
        let caller = world.process_with(0, |builder| {
            builder.handover(HandoverLimits::OFF).leave_free(pause, Duration::ZERO)
        });
        let ask = |wait| caller.spawn(caller.locks.lock("stock").wait(wait).acquire());
        let queue = "dist_lock:%lock-queue:{dist_lock:stock}";
        let free_until = || world.server.command(&["ZSCORE", queue, "free"]);
        let mut held = ask(ms(480)).await.unwrap().unwrap();
        // The last call has the time to wait.
        for wait in [480, 480, 480, 480, 480, 520].map(ms) {
            // The lock is left free again only when that of the release before is over.
            sleep(pause).await;
            let before = free_until();
            let asked = Instant::now();
            let next = ask(wait);
            sleep(ms(1)).await;
            caller.spawn(held.release()).await.unwrap().unwrap();
            assert_ne!(free_until(), before, "the lock was not left free");
            held = next.await.unwrap().expect("it waits for what is free");
            let took = asked.elapsed();
            let least = if wait < pause { Duration::ZERO } else { pause };
            assert!(took >= least && took <= least + 10 * TRIP, "{wait:?}: {took:?}");
        }
        caller.spawn(held.release()).await.unwrap().unwrap();
    });
}

/// A body outlasts the grace period, which is 2 s. Beside it, the server is gone, or a call that waits in line is not polled any more, as one
/// beside another branch of a `select!`: the shutdown waits for one response time-out more, and not for the 30 s of the lease.
#[test]
fn a_shutdown_ends_one_response_time_out_after_the_grace_period_though_a_body_outlasts_it() {
    for is_dark in [true, false] {
        play(move |world| async move {
            let grace = Duration::from_secs(2);
            let caller = world.process_with(0, |builder| builder.shutdown_grace(grace));
            let lock = |key: &str| caller.locks.lock(key).lease(Duration::from_secs(30));
            let body = caller.spawn(lock("stock").run(pending::<()>()));
            world.at(ms(500)).await;
            if is_dark {
                world.network.darken(&world.server);
            }
            let (locks, waiting) = (caller.locks.clone(), lock("stock").acquire());
            let down = caller.spawn(async move {
                let mut waiting = pin!(waiting);
                if !is_dark {
                    tokio::select! {
                        _ = &mut waiting => unreachable!("the body goes on"),
                        () = sleep(ms(50)) => {}
                    }
                }
                let began = Instant::now();
                locks.shutdown().await;
                began.elapsed()
            });
            let took = down.await.unwrap();
            assert!(took <= grace + ms(1_200), "{took:?}, is_dark: {is_dark}");
            assert!(matches!(body.await.unwrap(), Err(LockError::Closed { .. })));
        });
    }
}
