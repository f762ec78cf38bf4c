//! Slots of a cluster that move under each step of a call, clocks of its nodes that differ, and nodes that know less than others.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{LockError, LockGuard, LockManager, LockRequest};
use lock_simulation::cluster::{Cluster, KeyMove};
use lock_simulation::server::membership::slot_of;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::Level;

use crate::log::Log;
use crate::world::{Caller, TRIP, World, ms, play_in_a_cluster, queue_up};

const KEY: &str = "stock";
const LOCK: &str = "dist_lock:stock";
const SECOND: Duration = Duration::from_secs(1);
/// Longer than anything takes.
const WAIT: Duration = Duration::from_secs(60);
/// A call that has no message looks this often.
const LOOK: Duration = ms(250);

/// A lock of each mode, and one that it excludes.
fn modes(locks: &LockManager, others: &LockManager) -> [(&'static str, LockRequest, LockRequest); 6] {
    let (lock, other) = (|| locks.lock(KEY), || others.lock(KEY).wait(WAIT));
    [
        ("exclusive", lock(), other()),
        ("fair", lock().fair(true), other().fair(true)),
        ("read", lock().read(), other().write()),
        ("write", lock().write(), other().read()),
        ("semaphore", lock().semaphore(1), other().semaphore(1)),
        ("owner", lock().owner("one"), other().owner("other")),
    ]
}

/// The requests of one mode.
fn of_mode(mode: &str, locks: &LockManager, others: &LockManager) -> (LockRequest, LockRequest) {
    let mut all = modes(locks, others).into_iter();
    all.find_map(|(of, lock, other)| (of == mode).then_some((lock, other)))
        .unwrap()
}

/// What the nodes answer about the lock's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// It is on its way, and all keys that it had are still at the source.
    AtSource,
    /// It is on its way, and all keys that it had are at the target: `ASK`.
    AtTarget,
    /// It is on its way, and the lock alone is at the target: `TRYAGAIN` for whoever names its queue as well.
    Split,
    /// It has moved, and the processes do not know yet: `MOVED`.
    Moved,
}

const SLOTS: [Slot; 4] = [Slot::AtSource, Slot::AtTarget, Slot::Split, Slot::Moved];

/// The move of the lock's slot from its master to the next one.
struct Move {
    cluster: Cluster,
    slot: u16,
}

impl Move {
    fn of(cluster: &Cluster) -> Self {
        let slot = slot_of(LOCK.as_bytes());
        let cluster = cluster.clone();
        Self { cluster, slot }
    }

    /// Begins.
    fn to(&self, state: Slot) {
        let masters = self.cluster.masters();
        let from = self.cluster.owner(self.slot);
        let to = masters.into_iter().find(|master| *master != from).unwrap();
        self.cluster.opens(self.slot, to);
        match state {
            Slot::AtSource => {}
            Slot::AtTarget => self.moves_all(),
            Slot::Split => self.moves_lock(),
            Slot::Moved => self.ends(),
        }
    }

    fn moves_all(&self) {
        while self.cluster.moves_one(self.slot, 0) != KeyMove::NoneLeft {}
    }

    /// Moves the lock to the target, if there is one.
    fn moves_lock(&self) {
        let source = self.cluster.node(self.cluster.owner(self.slot));
        let place = source.read(|engine| {
            let mut keys = engine.data.keys().filter(|key| slot_of(key) == self.slot);
            keys.position(|key| key == LOCK.as_bytes())
        });
        if let Some(place) = place {
            assert_eq!(self.cluster.moves_one(self.slot, place), KeyMove::Done);
        }
    }

    /// Ends, if it has begun: the target has all, and the nodes know.
    fn ends(&self) {
        self.moves_all();
        self.cluster.closes(self.slot, Duration::ZERO, || ms(1));
    }
}

/// Plays a scene with each kind of slot, after both processes have learned where the slots are.
fn with_each_slot<F>(scene: impl Fn(World, [Caller; 2], Move, Slot) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()>,
{
    for state in SLOTS {
        let scene = scene.clone();
        play_in_a_cluster(move |world, cluster| async move {
            let callers = [0, 1].map(|number| world.process(number));
            for caller in &callers {
                caller.locks.check_connection().await.unwrap();
            }
            scene(world, callers, Move::of(&cluster), state).await;
        });
    }
}

/// Ends a move if it goes on.
fn ends(way: &Move, state: Slot) {
    if state != Slot::Moved {
        way.ends();
    }
}

/// Waits until a call has its lock, and ends the move a second later if it goes on. Returns the time that it took, and whether it had
/// to wait for the end.
async fn gets_in(
    world: &World,
    call: JoinHandle<Result<LockGuard, LockError>>,
    (way, state): (&Move, Slot),
    what: &str,
) -> (Duration, bool) {
    let began = world.now();
    while !call.is_finished() && world.now() < began + SECOND {
        sleep(ms(1)).await;
    }
    let waits = !call.is_finished();
    ends(way, state);
    let held = call
        .await
        .unwrap()
        .unwrap_or_else(|error| panic!("{what}, {state:?}: {error}"));
    let took = world.now() - began;
    held.release()
        .await
        .unwrap_or_else(|error| panic!("{what}, {state:?}: {error}"));
    (took, waits)
}

/// A free lock has no key, so the target is asked, which has none of the keys that a script names: only a lock that needs no script is taken.
#[test]
fn a_call_takes_the_lock_wherever_its_slot_is() {
    with_each_slot(|world, [one, _], way, state| async move {
        for (mode, request, _) in modes(&one.locks, &one.locks) {
            way.to(state);
            let call = one.spawn(request.wait(WAIT).acquire());
            let (took, waits) = gets_in(&world, call, (&way, state), mode).await;
            assert_eq!(waits, state != Slot::Moved && mode != "exclusive", "{mode}, {state:?}");
            // To the source, and to the target, if the connection there is made: with `HELLO` and what follows.
            let most = if waits {
                SECOND + ms(50) + 10 * TRIP
            } else {
                20 * TRIP + ms(2)
            };
            assert!(took <= most, "{mode}, {state:?}: {took:?}");
        }
    });
}

#[test]
fn a_lock_is_renewed_wherever_its_slot_is() {
    with_each_slot(|world, [one, other], way, state| async move {
        for (mode, request, excluded) in modes(&one.locks, &other.locks) {
            let held = request.lease(3 * SECOND).acquire().await.unwrap();
            // The one who waits has a place in the queue, without which there is nothing to be split.
            let waiting = other.spawn(excluded.run(async {}));
            sleep(ms(500)).await;
            way.to(state);
            for _ in 0..4 {
                let renewals = held.handle().renewals();
                sleep(2 * SECOND + ms(500)).await;
                assert!(
                    held.handle().renewals() > renewals,
                    "{mode}, {state:?}, {:?}",
                    world.now()
                );
            }
            held.handle()
                .verify()
                .await
                .unwrap_or_else(|error| panic!("{mode}, {state:?}: {error}"));
            held.release().await.unwrap();
            ends(&way, state);
            waiting
                .await
                .unwrap()
                .unwrap_or_else(|error| panic!("{mode}, {state:?}: {error}"));
        }
    });
}

/// The script at the source may not touch a key again that it has emptied or deleted, and each of these releases leaves keys empty.
#[test]
fn a_release_hands_the_lock_over_wherever_its_slot_is() {
    with_each_slot(|world, [one, other], way, state| async move {
        for (mode, request, excluded) in modes(&one.locks, &other.locks) {
            let held = request.acquire().await.unwrap();
            let waiting = other.spawn(async move { excluded.acquire().await });
            sleep(SECOND).await;
            way.to(state);
            held.release()
                .await
                .unwrap_or_else(|error| panic!("{mode}, {state:?}: {error}"));
            let (took, waits) = gets_in(&world, waiting, (&way, state), mode).await;
            // By a look, where the message has not come.
            let most = if waits { SECOND + LOOK + ms(50) } else { 2 * LOOK };
            assert!(took <= most, "{mode}, {state:?}: {took:?}");
        }
    });
}

/// The first of two who wait is dead, and nobody has noticed.
#[test]
fn a_release_passes_over_a_dead_waiter_while_the_slot_is_on_its_way() {
    with_each_slot(|world, [one, next], way, state| async move {
        for (nth, (mode, request, excluded)) in (10..).zip(modes(&one.locks, &next.locks)) {
            let killed = world.process(nth);
            let held = request.acquire().await.unwrap();
            let (_, first) = of_mode(mode, &one.locks, &killed.locks);
            let _never = killed.spawn(first.run(async {}));
            sleep(SECOND).await;
            let waiting = next.spawn(async move { excluded.acquire().await });
            sleep(SECOND).await;
            killed.process.kill();
            world.network.hang_up(killed.process.number());
            way.to(state);
            held.release()
                .await
                .unwrap_or_else(|error| panic!("{mode}, {state:?}: {error}"));
            let (took, _) = gets_in(&world, waiting, (&way, state), mode).await;
            // One claim at most, after the slot has settled.
            assert!(took <= SECOND + ms(1_500) + 2 * LOOK, "{mode}, {state:?}: {took:?}");
        }
    });
}

/// Longer than a queue lives that is not refreshed, with all keys at the source: what is there is served there.
#[test]
fn fair_calls_keep_their_places_while_their_slot_is_on_its_way_for_long() {
    play_in_a_cluster(|world, cluster| async move {
        let callers = [0, 1, 2].map(|number| world.process(number));
        let way = Move::of(&cluster);
        let held = callers[0].locks.lock(KEY).fair(true).acquire().await.unwrap();
        let (calls, order) = queue_up(&callers, 10, ms(5)).await;
        way.to(Slot::AtSource);
        sleep(20 * SECOND).await;
        let released = world.now();
        held.release().await.unwrap();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let took = world.now() - released;
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
        // By messages, one after another.
        assert!(took <= 10 * (ms(5) + 6 * TRIP + ms(2)), "{took:?}");
        way.ends();
    });
}

/// Nobody who waits listens at the next node yet, and the signs of life there are those that have moved along.
#[test]
fn fair_calls_keep_their_order_while_their_slot_moves_from_node_to_node() {
    play_in_a_cluster(|world, cluster| async move {
        let callers = [0, 1, 2].map(|number| world.process(number));
        let way = Move::of(&cluster);
        let held = callers[0].locks.lock(KEY).fair(true).acquire().await.unwrap();
        let (calls, order) = queue_up(&callers, 20, ms(100)).await;
        held.release().await.unwrap();
        let mut moves = 0;
        while calls.iter().any(|call| !call.is_finished()) {
            way.to(Slot::Moved);
            moves += 1;
            sleep(ms(330)).await;
        }
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
        assert!(moves >= 6, "{moves} moves");
    });
}

/// The caller goes away while the command is under way, or when it has just been sent on to the other node.
#[test]
fn a_call_that_is_dropped_on_its_way_leaves_no_lock_wherever_its_slot_is() {
    with_each_slot(|world, [one, other], way, state| async move {
        for trips in 0..8_u32 {
            for (mode, request, excluded) in modes(&one.locks, &other.locks) {
                way.to(state);
                let call = request.acquire();
                drop(tokio::time::timeout(trips * TRIP + TRIP / 2, call).await);
                let next = other.spawn(excluded.acquire());
                let (took, waits) = gets_in(&world, next, (&way, state), mode).await;
                let most = if waits { SECOND + LOOK + ms(50) } else { 2 * LOOK };
                assert!(took <= most, "{mode}, {state:?}, dropped after {trips} trips: {took:?}");
            }
        }
    });
}

#[test]
fn a_minimum_hold_is_kept_and_over_in_time_while_the_slot_is_on_its_way() {
    with_each_slot(|world, [one, other], way, state| async move {
        for (mode, request, excluded) in modes(&one.locks, &other.locks) {
            let began = world.now();
            let held = request.at_least(2 * SECOND).acquire().await.unwrap();
            way.to(state);
            held.release()
                .await
                .unwrap_or_else(|error| panic!("{mode}, {state:?}: {error}"));
            let next = other.spawn(excluded.acquire());
            let released = world.now();
            let (took, _) = gets_in(&world, next, (&way, state), mode).await;
            let after = released + took - began;
            assert!(
                after >= 2 * SECOND && after <= 2 * SECOND + 2 * LOOK,
                "{mode}, {state:?}: {after:?}"
            );
        }
    });
}

/// The times at which a lock was inside, of the first holder, and of the second one.
type Inside = Arc<Mutex<Vec<(Duration, Duration)>>>;

fn enter(caller: &Caller, request: LockRequest, world: &Arc<World>, inside: &Inside) -> JoinHandle<()> {
    struct Leave(Arc<World>, Inside, Duration);
    impl Drop for Leave {
        fn drop(&mut self) {
            self.1.lock().unwrap().push((self.2, self.0.now()));
        }
    }
    let (world, inside) = (Arc::clone(world), Arc::clone(inside));
    caller.spawn(async move {
        let body = async {
            let _leaves = Leave(Arc::clone(&world), inside, world.now());
            pending::<()>().await;
        };
        drop(request.run(body).await);
    })
}

/// A holder that cannot renew, whose lock moves to a node that takes its lease for over two seconds early.
#[test]
fn a_clock_that_is_ahead_makes_no_two_holders_if_the_skew_allows_for_it() {
    for (skew, meet) in [
        (None, vec!["read", "semaphore", "owner", "write"]),
        (Some(2 * SECOND + ms(100)), vec![]),
    ] {
        play_in_a_cluster(move |world, cluster| async move {
            let way = Move::of(&cluster);
            let masters = cluster.masters();
            let world = Arc::new(world);
            let manager = |number| {
                world.process_with(number, |builder| match skew {
                    Some(skew) => builder.skew(skew),
                    None => builder,
                })
            };
            let other = manager(100);
            let mut met = Vec::new();
            for (nth, mode) in (0..).zip(["exclusive", "fair", "read", "write", "semaphore", "owner"]) {
                let one = manager(nth);
                let (request, excluded) = of_mode(mode, &one.locks, &other.locks);
                let inside = Inside::default();
                let held = enter(&one, request.lease(6 * SECOND).renew(false), &world, &inside);
                sleep(ms(500)).await;
                let waiting = enter(&other, excluded, &world, &inside);
                sleep(SECOND).await;
                world.network.cut_off(one.process.number(), true);
                // The clock of the one that has the slot next is ahead.
                let from = cluster.owner(slot_of(LOCK.as_bytes()));
                let to = masters.iter().copied().find(|master| *master != from).unwrap();
                cluster.node(to).step_forward(2 * SECOND);
                way.to(Slot::Moved);
                sleep(9 * SECOND).await;
                drop(held);
                waiting.abort();
                sleep(SECOND).await;
                cluster.node(to).step_back(2 * SECOND);
                other.locks.force_release(KEY).await.unwrap();
                let inside = inside.lock().unwrap().clone();
                let [(_, left), (entered, _)] = inside[..] else {
                    panic!("{mode}: {inside:?}")
                };
                if entered < left {
                    met.push(mode);
                }
            }
            met.sort_unstable();
            let mut meet = meet;
            meet.sort_unstable();
            assert_eq!(met, meet, "{skew:?}");
        });
    }
}

#[test]
fn a_clock_that_is_ahead_is_told_once_with_both_names() {
    play_in_a_cluster(|world, cluster| async move {
        let caller = world.process(0);
        caller.locks.check_connection().await.unwrap();
        let (log, _logging) = Log::collect(&caller.locks);
        cluster.node(1).step_forward(2 * SECOND);
        sleep(120 * SECOND).await;
        let told = log.warnings();
        let [told] = &told[..] else { panic!("{told:#?}") };
        assert_eq!(told.field("ahead"), "n2:6379");
        assert!(told.field("behind").starts_with('n'), "{told:?}");
        let advice = caller.locks.check_setup().await.unwrap();
        assert!(
            advice
                .iter()
                .any(|advice| advice.contains("the clock of n2:6379 is 1.99")),
            "{advice:?}"
        );
        let allowed = world.process_with(1, |builder| builder.skew(2 * SECOND));
        log.clear();
        allowed.locks.check_connection().await.unwrap();
        sleep(120 * SECOND).await;
        assert!(log.lines(Level::WARN).is_empty(), "{:#?}", log.warnings());
    });
}

/// It is a master in its own eyes, and the others do not answer.
#[test]
fn a_former_master_that_is_apart_from_the_others_gives_nobody_a_lock() {
    play_in_a_cluster(|world, cluster| async move {
        let caller = world.process(0);
        drop(caller.locks.lock(KEY).acquire().await.unwrap());
        sleep(SECOND).await;
        let former = cluster.owner(slot_of(LOCK.as_bytes()));
        let next = cluster.replica_of(former).unwrap();
        cluster.is_apart(Some(former));
        world.network.darken(cluster.node(former));
        cluster.promotes(next, || ms(10));
        sleep(5 * SECOND).await;
        drop(caller.locks.lock(KEY).wait(WAIT).acquire().await.unwrap());
        sleep(SECOND).await;
        for (number, node) in cluster.nodes().iter().enumerate() {
            if number == former {
                node.go_dark(false);
            } else {
                world.network.darken(node);
            }
        }
        for _ in 0..20 {
            let refused = caller.locks.lock(KEY).wait(SECOND).acquire().await;
            assert!(refused.is_err(), "{refused:?}");
        }
    });
}

/// It has an acquire in its socket, of a call that has been told of its successor meanwhile, and carries that out when it goes on.
#[test]
fn a_former_master_that_goes_on_gives_no_call_a_body_by_what_it_answers() {
    play_in_a_cluster(|world, cluster| async move {
        let world = Arc::new(world);
        let [one, other] = [0, 1].map(|number| world.process(number));
        let before = one.locks.lock(KEY).fencing(true).acquire().await.unwrap();
        let token = before.handle().fencing_token().await.unwrap();
        before.release().await.unwrap();
        other.locks.check_connection().await.unwrap();
        let former = cluster.owner(slot_of(LOCK.as_bytes()));
        let next = cluster.replica_of(former).unwrap();
        cluster.node(former).freeze(true);
        let inside = Inside::default();
        let request = || one.locks.lock(KEY).wait(WAIT);
        let waiting: Vec<_> = (0..3).map(|_| enter(&one, request(), &world, &inside)).collect();
        sleep(ms(100)).await;
        // It hears of the successor later than the other process does.
        world.network.change(0, |way| way.latency = (ms(400), ms(400)));
        // The successor does not know the counter.
        cluster.is_apart(Some(former));
        cluster.promotes(next, || ms(10));
        let held = other.locks.lock(KEY).fencing(true).wait(WAIT).acquire().await.unwrap();
        assert!(held.handle().fencing_token().await.unwrap() > token);
        sleep(2 * SECOND).await;
        cluster.node(former).freeze(false);
        let mut has_granted = false;
        for _ in 0..2_000 {
            sleep(ms(1)).await;
            has_granted |= cluster
                .node(former)
                .read(|engine| engine.data.get(LOCK.as_bytes()).is_some());
        }
        assert!(has_granted, "the former master has carried out nothing");
        held.handle().verify().await.unwrap();
        waiting.iter().for_each(JoinHandle::abort);
        sleep(SECOND).await;
        assert!(inside.lock().unwrap().is_empty(), "{:?}", inside.lock().unwrap());
        held.release().await.unwrap();
    });
}
