//! Messages to waiting calls on the sharded channels of a cluster, whose subscriptions end when slots move.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::LockGuard;
use lock_simulation::cluster::Cluster;
use lock_simulation::server::membership::slot_of;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::world::{Caller, TRIP, World, ms, play_in_a_cluster};

const WAIT: Duration = Duration::from_secs(60);
/// The most that a message takes, from the release to the call that goes on. A look without one comes within 250 ms.
const TOLD: Duration = Duration::from_micros(2_000).saturating_add(TRIP.saturating_mul(6));
/// The same if the release is first sent to the node of before.
const TOLD_AFTER_A_MOVE: Duration = TOLD.saturating_add(TRIP.saturating_mul(2));

fn slot(key: &str) -> u16 {
    slot_of(format!("dist_lock:{key}").as_bytes())
}

/// Moves a slot, and the others know at once.
fn moves(cluster: &Cluster, slot: u16, to: usize) {
    cluster.opens(slot, to);
    while cluster.moves_one(slot, 0) != lock_simulation::cluster::KeyMove::NoneLeft {}
    cluster.closes(slot, Duration::ZERO, || ms(1));
}

/// A process that leaves no lock free for others.
fn process(world: &World, number: u32) -> Caller {
    world.process_with(number, |builder| builder.leave_free(Duration::ZERO, Duration::ZERO))
}

/// Has processes connect to all nodes.
async fn connected(callers: [&Caller; 2]) {
    for caller in callers {
        for number in 0..30 {
            let guard = held(caller, &number.to_string()).await;
            caller.spawn(guard.release()).await.unwrap().unwrap();
        }
    }
}

async fn held(caller: &Caller, key: &str) -> LockGuard {
    let request = caller.locks.lock(key).fair(true).wait(WAIT);
    caller.spawn(request.acquire()).await.unwrap().unwrap()
}

/// Releases a lock that a call of another process waits for, and asserts that it is told.
async fn told(
    world: &World,
    callers: [&Caller; 2],
    held: LockGuard,
    waiting: JoinHandle<LockGuard>,
    most: Duration,
    what: &str,
) {
    let released = world.now();
    callers[0].spawn(held.release()).await.unwrap().unwrap();
    let next = waiting.await.unwrap();
    let took = world.now() - released;
    assert!(took <= most, "{what}: {took:?}");
    callers[1].spawn(next.release()).await.unwrap().unwrap();
}

fn waits(caller: &Caller, key: &'static str) -> JoinHandle<LockGuard> {
    let request = caller.locks.lock(key).fair(true).wait(WAIT);
    caller.spawn(async move { request.acquire().await.unwrap() })
}

#[test]
fn a_call_is_told_by_a_message_before_and_after_its_slot_has_moved_there_and_back() {
    play_in_a_cluster(|world, cluster| async move {
        let [one, other] = [0, 1].map(|number| process(&world, number));
        connected([&one, &other]).await;
        let home = cluster.owner(slot("stock"));
        let away = cluster.masters().into_iter().find(|master| *master != home).unwrap();
        for moved in [vec![], vec![away], vec![home, away, home]] {
            // The looks come at other times.
            for offset in [0, 60, 120, 180].map(ms) {
                let held = held(&one, "stock").await;
                let waiting = waits(&other, "stock");
                sleep(ms(503) + offset).await;
                for to in &moved {
                    if cluster.owner(slot("stock")) != *to {
                        moves(&cluster, slot("stock"), *to);
                    }
                    sleep(ms(1_003)).await;
                }
                let most = if moved.is_empty() { TOLD } else { TOLD_AFTER_A_MOVE };
                told(
                    &world,
                    [&one, &other],
                    held,
                    waiting,
                    most,
                    &format!("{moved:?}, {offset:?}"),
                )
                .await;
            }
        }
    });
}

/// The push that tells the end of one subscription comes before the answer to the request for another one, which `redis` takes it for: such a
/// connection is replaced.
#[test]
fn a_call_is_told_though_another_subscription_has_ended_while_its_own_was_asked_for() {
    let replaced = Arc::new(AtomicUsize::new(0));
    for eighth in 0..64 {
        let replaced = Arc::clone(&replaced);
        play_in_a_cluster(move |world, cluster| async move {
            let [one, other] = [0, 1].map(|number| process(&world, number));
            let home = cluster.owner(slot("{t}:a"));
            let away = cluster.masters().into_iter().find(|master| *master != home).unwrap();
            let a = held(&one, "{t}:a").await;
            let b = held(&one, "{t}:b").await;
            let waits_a = waits(&other, "{t}:a");
            sleep(ms(300)).await;
            let listeners = || cluster.node(home).read(|engine| engine.shard_listeners());
            let before = listeners();
            assert_eq!(before.len(), 1);
            let waits_b = waits(&other, "{t}:b");
            sleep(eighth * TRIP / 8).await;
            moves(&cluster, slot("{t}:a"), away);
            sleep(ms(703)).await;
            moves(&cluster, slot("{t}:a"), home);
            sleep(ms(1_003)).await;
            replaced.fetch_add(usize::from(listeners() != before), Ordering::Relaxed);
            told(&world, [&one, &other], b, waits_b, TOLD, &format!("b, {eighth}")).await;
            told(&world, [&one, &other], a, waits_a, TOLD, &format!("a, {eighth}")).await;
        });
    }
    let replaced = replaced.load(Ordering::Relaxed);
    assert!(
        (1..32).contains(&replaced),
        "{replaced} of 64 connections were replaced"
    );
}

/// Nobody unsubscribes, so a connection has a channel for each lock that was ever waited for.
#[test]
fn a_connection_with_many_channels_that_nobody_waits_on_is_replaced() {
    play_in_a_cluster(|world, cluster| async move {
        let [one, other] = [0, 1].map(|number| process(&world, number));
        connected([&one, &other]).await;
        let home = cluster.node(cluster.owner(slot("{t}")));
        let mut most = 0;
        for number in 0..1_500 {
            let key: &'static str = format!("{{t}}:{number}").leak();
            let held = held(&one, key).await;
            let waiting = waits(&other, key);
            sleep(ms(50)).await;
            told(&world, [&one, &other], held, waiting, TOLD, key).await;
            most = most.max(home.read(|engine| engine.shard_channels()));
        }
        let left = home.read(|engine| engine.shard_channels());
        assert!(
            (900..=1_010).contains(&most) && left < 600,
            "{most} channels, and {left} at the end"
        );
    });
}
