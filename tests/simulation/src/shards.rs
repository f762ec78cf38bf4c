//! What goes wrong in a cluster: slots that move, and masters whose replicas take over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use lock_simulation::cluster::{Cluster, KeyMove};
use lock_simulation::server::log::Kept;
use lock_simulation::server::membership::slot_of;

use crate::drive::Stage;
use crate::failovers::ms;
use crate::judge::Scope;
use crate::plan::{Fault, FaultPlan, KEYS, stored_name};

/// A node that hears nothing of another one takes it for dead after this time, and one that reaches too few others stops to serve.
const NODE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Nodes hear of what has changed within so many milliseconds.
const HEARD_WITHIN: u64 = 300;
/// A process asks again where the slots are while something is in doubt, and finds the answer within this time after all nodes know.
const FOUND_WITHIN: Duration = Duration::from_millis(1_500);
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// A fault of a cluster strikes, at the node that has a key.
pub async fn strike(
    stage: &Arc<Stage>,
    cluster: &Cluster,
    (fault, key): (&FaultPlan, usize),
    chance: &mut fastrand::Rng,
) {
    match fault.kind {
        Fault::SlotMoves | Fault::SlotJumps => {
            let _turn = stage.turns[0].lock().await;
            if stage.is_on() {
                move_slot(stage, cluster, (fault, key), chance).await;
            }
        }
        _ => {
            let _turn = stage.turns[0].lock().await;
            if stage.is_on() {
                fail_over(stage, cluster, (fault, key), chance).await;
            }
        }
    }
}

fn slot(key: usize) -> u16 {
    slot_of(stored_name(key).as_bytes())
}

/// The keys that a node has.
fn keys_of(cluster: &Cluster, node: usize) -> Vec<usize> {
    (0..KEYS).filter(|key| cluster.owner(slot(*key)) == node).collect()
}

/// Moves the slot of a key to another master. Nobody may notice anything but a delay.
async fn move_slot(
    stage: &Arc<Stage>,
    cluster: &Cluster,
    (fault, key): (&FaultPlan, usize),
    chance: &mut fastrand::Rng,
) {
    let slot = slot(key);
    let from = cluster.owner(slot);
    let others: Vec<usize> = cluster.masters().into_iter().filter(|master| *master != from).collect();
    let to = others[chance.usize(..others.len())];
    let are_there = || {
        [from, to]
            .iter()
            .all(|node| cluster.node(*node).is_there() && !cluster.node(*node).is_frozen())
    };
    stage.judge.strikes_only(fault.kind);
    stage
        .trace
        .note(|| format!("slot {slot} of key {key} moves from n{} to n{}", from + 1, to + 1));
    while !are_there() {
        sleep(LOOKS_EVERY).await;
    }
    // Those that share the slot's way: the counter of its tokens, and its queues.
    stage.judge.moves(key);
    cluster.opens(slot, to);
    let is_slow = fault.kind == Fault::SlotMoves;
    // Somebody who moves many slots opens all first.
    if is_slow {
        sleep(ms(chance, 0, 200)).await;
    }
    loop {
        stage.judge.moves(key);
        let moved = are_there().then(|| cluster.moves_one(slot, chance.usize(..8)));
        if moved == Some(KeyMove::NoneLeft) {
            break;
        }
        match chance.u32(..4) {
            _ if !is_slow && moved == Some(KeyMove::Done) => {}
            0 => sleep(ms(chance, 1, 300)).await,
            _ => sleep(Duration::from_micros(chance.u64(100..3_000))).await,
        }
    }
    if is_slow {
        sleep(ms(chance, 0, 30)).await;
        // What came meanwhile.
        loop {
            match cluster.moves_one(slot, 0) {
                KeyMove::Done => {}
                KeyMove::Refused => sleep(LOOKS_EVERY).await,
                KeyMove::NoneLeft => break,
            }
        }
    }
    let gap = if is_slow { ms(chance, 0, 20) } else { Duration::ZERO };
    cluster.closes(slot, gap, || ms(chance, 0, HEARD_WITHIN));
    stage.judge.moves(key);
    while !cluster.is_known() {
        sleep(LOOKS_EVERY).await;
    }
    stage.judge.moves(key);
}

/// Lets the replica of the node that has a key take over.
async fn fail_over(
    stage: &Arc<Stage>,
    cluster: &Cluster,
    (fault, key): (&FaultPlan, usize),
    chance: &mut fastrand::Rng,
) {
    let (judge, network) = (&stage.judge, &stage.network);
    let former = cluster.owner(slot(key));
    let Some(next) = cluster.replica_of(former) else { return };
    let node = cluster.node(former);
    // Another fault has it.
    if !node.is_there() || node.is_frozen() {
        return;
    }
    let processes = 0..stage.plan.processes.len();
    let troubles: Vec<(usize, usize)> = processes
        .map(|process| (process, judge.strikes(fault.kind, Scope::Process(process))))
        .collect();
    let is_planned = fault.kind == Fault::Failover;
    if !is_planned && chance.bool() {
        let lag = ms(chance, 10, 1_500);
        cluster.lags(lag);
        sleep(lag).await;
    }
    match fault.kind {
        Fault::MasterDies => network.take_down(node),
        Fault::MasterDark => network.darken(node),
        Fault::MasterStands => node.freeze(true),
        Fault::BusSplit => cluster.is_apart(Some(former)),
        _ => cluster.catches_up(next),
    }
    if !is_planned {
        sleep(NODE_TIMEOUT.mul_f64(0.9 + chance.f64() / 5.0)).await;
        if fault.kind == Fault::BusSplit {
            cluster.is_down(former);
        }
        // Until a replica is elected.
        sleep(ms(chance, 50, 1_500)).await;
    }
    let keys = keys_of(cluster, former);
    cluster.promotes(next, || ms(chance, 0, HEARD_WITHIN));
    stage
        .trace
        .note(|| format!("n{} takes over from n{}", next + 1, former + 1));
    judge.is_replaced_for(node, cluster.node(next), &keys);
    cluster.lags(stage.plan.lag());
    if is_planned {
        cluster.demotes(former);
    }
    // A process may only hear of it from the former one, which comes back as what it was, until it hears of its successor.
    let returns = match fault.kind {
        Fault::MasterDies => ms(chance, 500, 6_000),
        Fault::MasterDark | Fault::BusSplit => ms(chance, 100, 4_000),
        _ => ms(chance, 0, 1_000),
    };
    let known = async {
        while !cluster.is_known() {
            sleep(LOOKS_EVERY).await;
        }
        sleep(FOUND_WITHIN).await;
        for (process, trouble) in troubles {
            judge.is_told(process, trouble);
        }
    };
    let back = async {
        sleep(returns).await;
        match fault.kind {
            Fault::MasterDies => {
                network.cut_all(node);
                node.restart(Kept::All);
                // It serves nothing before it has heard of the others.
                cluster.is_down(former);
                node.go_down(false);
                sleep(ms(chance, 10, 1_000)).await;
            }
            Fault::MasterDark => {
                cluster.is_down(former);
                network.cut_all(node);
                node.go_dark(false);
                sleep(ms(chance, 1, 100)).await;
            }
            Fault::MasterStands => {
                node.freeze(false);
                sleep(ms(chance, 0, 50)).await;
            }
            Fault::BusSplit => cluster.is_apart(None),
            _ => return,
        }
        cluster.demotes(former);
    };
    tokio::join!(known, back);
}
