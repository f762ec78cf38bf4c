//! Locks and places that calls have left behind.

use std::time::Duration;

use lock_simulation::server::resp::Reply;
use tokio::time::{Instant, sleep};

use crate::world::{World, ms, play};

fn number(world: &World, words: &[&str]) -> i64 {
    match world.server.command(words) {
        Reply::Int(number) => number,
        other => panic!("{other:?}"),
    }
}

/// The lock thread has a silent connection, with two thousand places that were given up, and gets no other one; a connection carries about a
/// thousand commands. The lock is released by the connection of its runtime.
#[test]
fn a_dropped_lock_does_not_wait_behind_thousands_of_places_on_a_silent_connection() {
    const PLACES: i64 = 2_000;
    play(|world| async move {
        let places = || number(&world, &["ZCARD", "dist_lock:%lock-queue:{dist_lock:stock}"]);
        let long = Duration::from_secs(120);
        let other = world.process(0);
        let caller = world.process_with(1, |builder| builder.default_lease(long).default_wait(long));
        let _held = other.locks.lock("stock").lease(long).acquire().await.unwrap();
        let locks = caller.locks.clone();
        let connected = caller.spawn(async move { locks.check_connection().await });
        connected.await.unwrap().unwrap();
        let request = || caller.locks.lock("stock").fair(true);
        let calls: Vec<_> = (0..PLACES).map(|_| caller.spawn(request().run(async {}))).collect();
        while places() < PLACES {
            sleep(ms(10)).await;
        }
        let dropped = caller.spawn(caller.locks.lock("dropped").acquire());
        let dropped = dropped.await.unwrap().unwrap();
        world.network.cut_off(1, true);
        for call in calls {
            call.abort();
        }
        while places() > 0 {
            sleep(ms(10)).await;
        }
        let began = Instant::now();
        caller.spawn(async move { drop(dropped) }).await.unwrap();
        while number(&world, &["EXISTS", "dist_lock:dropped"]) == 1 {
            sleep(ms(1)).await;
        }
        let took = began.elapsed();
        assert!(took <= ms(500), "the lock was free after {took:?}");
    });
}
