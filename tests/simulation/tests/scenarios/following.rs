//! Which master a process follows.

use std::future::pending;
use std::time::Duration;

use lock_runtime::LockManager;
use lock_simulation::group::{Group, server_address};
use lock_simulation::sentinel::{Address, SWITCHED};
use tokio::time::sleep;

use crate::world::{ms, play_behind_sentinels};

/// Returns the host of the server that a manager uses.
fn used(locks: &LockManager) -> String {
    let health = locks.health();
    health.servers[0].address.split(':').next().unwrap().to_owned()
}

/// Another server is made the master, and all sentinels hear of it.
fn fail_over(group: &Group, to: usize) {
    group.promote(to);
    for sentinel in 0..3 {
        group.switches(sentinel);
    }
}

#[test]
fn a_sentinel_of_another_group_moves_nothing() {
    play_behind_sentinels(|world, group| async move {
        let caller = world.process(0);
        let body = caller.spawn(caller.locks.lock("stock").run(pending::<()>()));
        sleep(ms(100)).await;
        let stranger = group.sentinel(2);
        stranger.learns(|knowledge| {
            (knowledge.master, knowledge.shown) = (server_address(1), server_address(1));
            knowledge.epoch = 2;
            let others = ["t1", "t2"].map(str::to_owned);
            knowledge.others = others.map(|host| Address { host, port: 26379 }).into();
        });
        stranger.tells(SWITCHED, "");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(used(&caller.locks), "db1");
        assert!(!body.is_finished());
    });
}

/// The sentinels count from the beginning, so the failover has the epoch of the one before.
#[test]
fn sentinels_that_were_set_up_anew_are_followed_within_four_seconds() {
    play_behind_sentinels(|world, group| async move {
        let caller = world.process(0);
        drop(
            caller
                .spawn(caller.locks.lock("stock").acquire())
                .await
                .unwrap()
                .unwrap(),
        );
        fail_over(&group, 1);
        sleep(ms(100)).await;
        assert_eq!(used(&caller.locks), "db2");
        sleep(Duration::from_secs(60)).await;
        group.resets_epochs();
        fail_over(&group, 2);
        assert_eq!(group.epoch().0, 1, "as before");
        sleep(ms(2900)).await;
        assert_eq!(used(&caller.locks), "db2", "asked once");
        sleep(ms(1100)).await;
        assert_eq!(used(&caller.locks), "db3");
    });
}

/// The first sentinel has not heard of the failover, and the others answer a little later.
#[test]
fn a_process_that_begins_believes_most_sentinels_and_not_the_first_that_answers() {
    play_behind_sentinels(|world, group| async move {
        group.promote(1);
        for informed in [1, 2] {
            group.switches(informed);
            group.sentinel(informed).freeze(true);
        }
        let caller = world.process(0);
        let call = caller.spawn(caller.locks.lock("stock").wait(Duration::from_secs(5)).acquire());
        sleep(ms(300)).await;
        assert!(!call.is_finished(), "one sentinel was believed");
        for informed in [1, 2] {
            group.sentinel(informed).freeze(false);
        }
        let held = call.await.unwrap().unwrap();
        assert_eq!(used(&caller.locks), "db2");
        assert!(world.now() <= ms(500), "{:?}", world.now());
        held.release().await.unwrap();
    });
}
