//! Leases, and servers that do not answer in time.

use std::future::pending;
use std::time::Duration;

use lock_runtime::{LockError, LostReason};
use tokio::time::{Instant, sleep};

use crate::world::{TRIP, ms, play};

const LEASE: Duration = Duration::from_secs(30);
/// What a lease of 30 s is relied on for: without the drift of 1 % and 2 ms.
const VALID: Duration = ms(30_000 - 300 - 2);

/// The lock is renewed after 20 s, at a server that stands still from 19 s on, with its data. The question that is sent when it goes on is
/// answered before the deadline.
#[test]
fn a_server_that_goes_on_just_before_the_deadline_renews_the_lock() {
    play(|world| async move {
        let caller = world.process(0);
        let held = caller.locks.lock("stock").lease(LEASE).acquire().await.unwrap();
        world.at(ms(19_000)).await;
        world.server.freeze(true);
        world.at(ms(29_180)).await;
        world.server.freeze(false);
        world.at(ms(29_600)).await;
        assert_eq!(held.handle().renewals(), 1);
        world.at(ms(45_000)).await;
        assert!(held.handle().is_held());
        held.release().await.unwrap();
    });
}

/// The same server goes on after the deadline: the body has ended at the deadline, although the server still has the key.
#[test]
fn a_body_ends_at_its_deadline_where_no_renewal_is_answered() {
    play(|world| async move {
        let caller = world.process(0);
        // Connects the runtime.
        let locks = caller.locks.clone();
        let first = async move { locks.lock("other").run(async {}).await };
        caller.spawn(first).await.unwrap().unwrap();
        let asked = Instant::now();
        let call = caller.spawn(caller.locks.lock("stock").lease(LEASE).run(pending::<()>()));
        world.at(ms(19_000)).await;
        world.server.freeze(true);
        let ended = call.await.unwrap();
        let took = asked.elapsed();
        assert!(matches!(ended, Err(LockError::Lost { .. })), "{ended:?}");
        assert!(took >= VALID && took <= VALID + ms(1), "{took:?}");
    });
}

/// A connection that is cut before each answer: the renewal is tried again at once, on a connection of its own.
#[test]
fn a_lost_answer_to_a_renewal_costs_one_more_round_trip() {
    play(|world| async move {
        let caller = world.process(0);
        let held = caller.locks.lock("stock").lease(LEASE).acquire().await.unwrap();
        world.at(ms(19_900)).await;
        for link in world.network.links(0) {
            world.network.lose_reply(link);
        }
        world.at(ms(20_500)).await;
        assert_eq!(held.handle().renewals(), 1);
        held.handle().verify().await.unwrap();
        held.release().await.unwrap();
    });
}

/// The server tells of each key that changes: a lock that an operator deletes is lost within two round trips.
#[test]
fn a_deleted_key_ends_the_body_within_two_round_trips() {
    play(|world| async move {
        let caller = world.process(0);
        let call = caller.spawn(caller.locks.lock("stock").lease(LEASE).run(pending::<()>()));
        world.at(ms(5_000)).await;
        drop(world.server.command(&["DEL", "dist_lock:stock"]));
        let ended = call.await.unwrap();
        assert!(world.now() <= ms(5_000) + 4 * TRIP + ms(2), "{:?}", world.now());
        assert!(
            matches!(
                ended,
                Err(LockError::Lost {
                    reason: LostReason::Deleted,
                    ..
                })
            ),
            "{ended:?}"
        );
    });
}

/// An answer takes 260 ms, and each manager checks its lock every 400 ms. A connection that is made beside one that owes an answer would not be
/// ready before that answer arrives.
#[test]
fn a_line_that_is_slow_gets_no_connections_that_cannot_win() {
    play(|world| async move {
        let mut guards = Vec::new();
        for number in 0..3 {
            // The first connection of a process takes a dozen round trips, longer than the default allows.
            let caller = world.process_with(number, |builder| builder.connect_timeout(Duration::from_secs(10)));
            world.network.change(number, |way| way.latency = (ms(130), ms(130)));
            let request = caller.locks.lock(format!("slow:{number}")).lease(LEASE);
            guards.push((caller.spawn(request.acquire()).await.unwrap().unwrap(), caller));
        }
        // Until the last of them has the connection on which it checks.
        sleep(ms(3_000)).await;
        let (_, before) = world.network.counts();
        drop(world.trace.take());
        sleep(ms(6_000)).await;
        let (_, now) = world.network.counts();
        let (_, commands) = world.trace.take();
        let checks = commands.iter().filter(|line| line.contains(": EVALSHA ")).count();
        assert!(checks >= 40, "{checks} checks");
        assert_eq!(now - before, 0, "more connections over a slow line");
        for (guard, caller) in guards {
            caller.spawn(guard.release()).await.unwrap().unwrap();
        }
    });
}

/// An answer takes 300 ms. When the renewal of the shorter lease is due, 436 ms are left until its deadline, which is no time for two attempts;
/// when that of the longer one is due, a check was sent 13 ms before.
#[test]
fn a_lease_of_a_few_round_trips_is_renewed_in_time() {
    for lease in [ms(1_350), ms(1_700)] {
        play(move |world| async move {
            let caller = world.process_with(0, |builder| builder.connect_timeout(Duration::from_secs(10)));
            world.network.change(0, |way| way.latency = (ms(150), ms(150)));
            let first = caller.locks.lock("other").lease(LEASE).acquire();
            let first = caller.spawn(first).await.unwrap().unwrap();
            // Until the connection that renews is made.
            sleep(ms(3_000)).await;
            caller.spawn(first.release()).await.unwrap().unwrap();
            let call = caller.locks.lock("stock").lease(lease).run(sleep(10 * lease));
            let ended = caller.spawn(call).await.unwrap();
            assert!(ended.is_ok(), "{lease:?}: {ended:?}");
        });
    }
}
