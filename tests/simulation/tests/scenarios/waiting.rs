//! How long calls wait.

use std::time::Duration;

use lock_runtime::{Backoff, HandoverLimits, LockError};
use lock_simulation::network::Silence;
use tokio::time::{Instant, sleep};

use crate::world::{TRIP, ms, play};

/// A call for a lock that stays held ends when its `wait` is over, and says who holds it.
#[test]
fn a_call_for_a_held_lock_ends_when_its_wait_is_over() {
    play(|world| async move {
        let (one, other) = (world.process(0), world.process(1));
        let held = one.locks.lock("stock").acquire().await.unwrap();
        for wait in [ms(100), ms(1_000), ms(10_000)] {
            let asked = Instant::now();
            let call = other.spawn(other.locks.lock("stock").wait(wait).acquire());
            let ended = call.await.unwrap();
            let took = asked.elapsed();
            assert!(
                matches!(&ended, Err(LockError::Busy { holder: Some(_), .. })),
                "{wait:?}: {ended:?}"
            );
            assert!(took >= wait && took <= wait + 4 * TRIP + ms(2), "{wait:?}: {took:?}");
        }
        held.release().await.unwrap();
    });
}

/// A call that passes on to the next of its process asks nobody, so the wait of the next is not its business: it keeps its own.
#[test]
fn a_line_inside_a_process_passes_the_lock_on_without_the_server() {
    play(|world| async move {
        let caller = world.process(0);
        caller.locks.lock("stock").run(async {}).await.unwrap();
        let mut calls = Vec::new();
        let began = world.now();
        for _ in 0..10 {
            let locks = caller.locks.clone();
            calls.push(caller.spawn(async move { locks.lock("stock").run(tokio::time::sleep(ms(1))).await }));
        }
        for call in calls {
            call.await.unwrap().unwrap();
        }
        // A round trip to take it, ten bodies, and a round trip to release it; timers have a resolution of a millisecond.
        let took = world.now() - began;
        assert!(took <= 4 * TRIP + 10 * ms(2) + ms(4), "{took:?}");
        assert_eq!(caller.locks.stats().passed, 9);
    });
}

/// The check of a lock has no answer when the lock is passed on. The next call waits for that answer, up to 250 ms, but not beyond its own
/// `wait`.
#[test]
fn a_call_that_waits_for_the_check_of_a_passed_lock_keeps_its_wait() {
    play(|world| async move {
        let always = HandoverLimits::new(100_000, Duration::from_secs(100));
        let caller = world.process_with(0, |builder| builder.handover(always));
        // A lock that was passed on is checked 20 ms later.
        let first = caller.locks.lock("stock").acquire().await.unwrap();
        let second = caller.spawn(caller.locks.lock("stock").acquire());
        sleep(ms(1)).await;
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        world.server.freeze(true);
        sleep(ms(60)).await;
        let asked = Instant::now();
        let wait = ms(30);
        let third = caller.spawn(caller.locks.lock("stock").wait(wait).acquire());
        sleep(ms(1)).await;
        second.release().await.unwrap();
        let ended = third.await.unwrap();
        let took = asked.elapsed();
        assert!(matches!(ended, Err(LockError::Busy { .. })), "{ended:?}");
        assert!(took >= wait && took <= wait + ms(2), "{took:?}");
        world.server.freeze(false);
    });
}

/// Nobody is told of a lock whose holder was killed: those who wait look when its lease is over.
#[test]
fn the_lock_of_a_killed_process_is_taken_when_its_lease_is_over() {
    play(|world| async move {
        let (dead, next) = (world.process(0), world.process(1));
        let lease = Duration::from_secs(6);
        let locks = dead.locks.clone();
        let call = dead.spawn(async move {
            let held = locks.lock("stock").lease(lease).acquire().await.unwrap();
            std::mem::forget(held);
        });
        call.await.unwrap();
        let taken = world.now();
        world.at(ms(100)).await;
        dead.process.kill();
        world.network.hang_up(0);
        let held = next
            .locks
            .lock("stock")
            .wait(Duration::from_secs(20))
            .acquire()
            .await
            .unwrap();
        let after = world.now() - taken;
        assert!(after >= lease - 2 * TRIP && after <= lease + ms(60), "{after:?}");
        held.release().await.unwrap();
    });
}

/// The connection on which the process listens has fallen silent before it does. It is noticed once, not once by each who waits.
#[test]
fn a_silent_connection_delays_those_who_wait_for_many_keys_once() {
    play(|world| async move {
        // The default of the response time-out.
        let silence = ms(1_000);
        // A call that waits never gets a lock by trying again.
        let never = Duration::from_secs(1_000);
        let holder = world.process(0);
        let waiter = world.process_with(1, |builder| builder.backoff(Backoff::new(never, never)));
        let mut held = Vec::new();
        for key in 0..40 {
            let request = holder.locks.lock(format!("{key}"));
            held.push(holder.spawn(request.acquire()).await.unwrap().unwrap());
        }
        let locks = waiter.locks.clone();
        let connected = waiter.spawn(async move { locks.check_connection().await });
        connected.await.unwrap().unwrap();
        let [listener] = world.network.background_links(1)[..] else {
            panic!("{:?}", world.network.background_links(1));
        };
        let up = Silence { up: true, down: false };
        world.network.silence(listener, up);
        let (asked, (_, before)) = (world.now(), world.network.counts());
        let mut calls = Vec::new();
        for key in 0..40 {
            let request = waiter.locks.lock(format!("{key}")).wait(Duration::from_secs(60));
            calls.push(waiter.spawn(request.run(async {})));
        }
        // All of them wait by then, and the silence is not over.
        sleep(ms(200)).await;
        for guard in held {
            holder.spawn(guard.release()).await.unwrap().unwrap();
        }
        assert!(world.now() - asked < silence);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let (took, (_, now)) = (world.now() - asked, world.network.counts());
        assert!(
            took >= silence && took <= silence + ms(60),
            "40 calls got their free keys after {took:?}"
        );
        // The connection that takes the place of the silent one.
        assert_eq!(now - before, 1, "more connections");
    });
}
