//! What goes wrong in a group of servers, and how another server takes over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use lock_simulation::group::{Group, SENTINELS};
use lock_simulation::sentinel::{KNOWN, SWITCHED};
use lock_simulation::server::Server;

use crate::drive::Stage;
use crate::judge::Scope;
use crate::plan::{Fault, FaultPlan};

/// The time from the first write that a new master takes until the sentinel that made it one knows so, and until that one ends the
/// failover, as measured on real servers.
const KNOWN_AFTER: Duration = Duration::from_millis(800);
const SWITCHED_AFTER: Duration = Duration::from_millis(1_100);
/// Other sentinels hear of it within this time, which is that between two messages of a sentinel.
const HEARD_WITHIN: u64 = 1_000;
/// A former master takes writes for this long after a failover that an operator asked for.
const DEMOTED_AFTER: Duration = Duration::from_secs(10);
/// A store that no message reaches asks by itself within this time: every ten seconds, with the time for an answer.
const ASKS_WITHIN: Duration = Duration::from_secs(11);
/// Where the epoch is no higher than before, sentinels are believed once most have named the new master twice within this time.
const BELIEVED_WITHIN: Duration = Duration::from_secs(4);
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// A fault of a group strikes.
pub async fn strike(stage: &Arc<Stage>, group: &Group, fault: &FaultPlan, chance: &mut fastrand::Rng) {
    match fault.kind {
        Fault::Failover => {
            let _turn = stage.turns[0].lock().await;
            if stage.is_on() {
                fail_over(stage, group, fault.kind, None, chance).await;
            }
        }
        Fault::TwoFailovers => {
            let _turn = stage.turns[0].lock().await;
            if !stage.is_on() {
                return;
            }
            fail_over(stage, group, fault.kind, None, chance).await;
            sleep(ms(chance, 0, 1_500)).await;
            fail_over(stage, group, fault.kind, None, chance).await;
        }
        Fault::MasterDies | Fault::MasterDark => {
            let _turn = stage.turns[0].lock().await;
            if !stage.is_on() {
                return;
            }
            let end = if fault.kind == Fault::MasterDies {
                End::Process
            } else {
                End::Power
            };
            if chance.bool() {
                let lag = ms(chance, 10, 3_000);
                group.lags(lag);
                sleep(lag).await;
            }
            fail_over(stage, group, fault.kind, Some(end), chance).await;
            group.lags(stage.plan.lag());
        }
        Fault::SentinelApart => {
            let _turn = stage.turns[1].lock().await;
            stage.judge.strikes_only(fault.kind);
            let apart = chance.usize(..SENTINELS);
            group.is_apart(apart, true);
            let (began, epoch) = (Instant::now(), group.epoch().0);
            while began.elapsed() < fault.lasts * 2 && group.epoch().0 == epoch {
                sleep(LOOKS_EVERY).await;
            }
            // Those that know better are gone for a while, once they have told it. A process that begins then finds the former master, as the
            // one sentinel that answers names it, so none does.
            let begins = |fault: &FaultPlan| fault.kind == Fault::Kill;
            if group.epoch().0 > epoch && !stage.plan.faults.iter().any(begins) {
                sleep(ms(chance, 2_500, 4_000)).await;
                let better = (0..SENTINELS).filter(|sentinel| *sentinel != apart);
                let better: Vec<&Server> = better.map(|sentinel| group.sentinel(sentinel)).collect();
                let trouble = stage.judge.strikes(fault.kind, Scope::Everybody);
                for sentinel in &better {
                    stage.network.take_down(sentinel);
                }
                sleep(fault.lasts).await;
                better.iter().for_each(|sentinel| sentinel.go_down(false));
                stage.judge.is_over(trouble);
            }
            group.is_apart(apart, false);
        }
        Fault::SentinelsSilent | Fault::SentinelsRefuse | Fault::SentinelRestart => {
            let _turn = stage.turns[1].lock().await;
            let restarts = fault.kind == Fault::SentinelRestart;
            let first = chance.usize(..SENTINELS);
            let count = if restarts { 1 } else { chance.usize(1..=SENTINELS) };
            let struck: Vec<&Server> = (0..count).map(|at| group.sentinel((first + at) % SENTINELS)).collect();
            // Those who have not found the master yet wait for all, and find none where all are gone.
            let trouble = stage.judge.strikes(fault.kind, Scope::Everybody);
            for sentinel in &struck {
                if fault.kind == Fault::SentinelsSilent {
                    sentinel.freeze(true);
                } else {
                    stage.network.take_down(sentinel);
                }
            }
            let lasts = if restarts {
                fault.lasts.min(Duration::from_secs(1))
            } else {
                fault.lasts
            };
            sleep(lasts).await;
            for sentinel in &struck {
                sentinel.freeze(false);
                sentinel.go_down(false);
            }
            stage.judge.is_over(trouble);
        }
        Fault::EpochsReset => {
            let _turn = stage.turns[0].lock().await;
            stage.judge.strikes_only(fault.kind);
            group.resets_epochs();
        }
        _ => {}
    }
}

/// Draws a time of so many milliseconds.
pub fn ms(chance: &mut fastrand::Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(chance.u64(least..=most))
}

/// How a master ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Process,
    Power,
}

/// The troubles of processes that do not know of a new master.
struct Untold<'a> {
    stage: &'a Stage,
    /// By process.
    troubles: Vec<Option<usize>>,
    /// No message is believed.
    is_low: bool,
}

impl Untold<'_> {
    /// A sentinel tells something.
    fn tell(&mut self, sentinel: &Server, channel: &str) {
        for process in 0..self.troubles.len() {
            let number = u32::try_from(process).unwrap_or_default();
            if !self.is_low && self.stage.network.is_heard_by(number, sentinel, channel) {
                self.is_told(process);
            }
        }
    }

    fn is_told(&mut self, process: usize) {
        if let Some(trouble) = self.troubles[process].take() {
            self.stage.judge.is_told(process, trouble);
        }
    }

    fn all(&mut self) {
        (0..self.troubles.len()).for_each(|process| self.is_told(process));
    }
}

/// Lets a replica take over, after the master has ended or in spite of it.
async fn fail_over(stage: &Arc<Stage>, group: &Group, kind: Fault, end: Option<End>, chance: &mut fastrand::Rng) {
    let (judge, network) = (&stage.judge, &stage.network);
    // An operator asks one sentinel, and the death of a master is agreed on by most of them.
    let needed = if end.is_some() { 2 } else { 1 };
    while group.candidates().is_empty() {
        sleep(LOOKS_EVERY).await;
    }
    let processes = 0..stage.plan.processes.len();
    let troubles = processes.map(|process| Some(judge.strikes(kind, Scope::Process(process))));
    let mut untold = Untold {
        stage,
        troubles: troubles.collect(),
        is_low: false,
    };
    let former = group.master();
    match end {
        None => sleep(ms(chance, 50, 500)).await,
        Some(end) => {
            let server = group.server(former);
            match end {
                End::Process => network.take_down(server),
                End::Power => network.darken(server),
            }
            // Until it counts as down, and one sentinel is chosen.
            sleep(ms(chance, 1_000, 5_000) + ms(chance, 100, 700)).await;
        }
    }
    let able = loop {
        let able = group.able();
        if able.len() >= needed && !group.candidates().is_empty() {
            break able;
        }
        sleep(LOOKS_EVERY).await;
    };
    let candidates = group.candidates();
    let leader = able[chance.usize(..able.len())];
    let next = candidates[chance.usize(..candidates.len())];
    network.cut_all(group.server(next));
    group.promote(next);
    stage
        .trace
        .note(|| format!("db{} takes over from db{}", next + 1, former + 1));
    judge.is_replaced(group.server(former), group.server(next));
    let accepts_since = Instant::now();
    let (epoch, is_higher) = group.epoch();
    untold.is_low = !is_higher;
    // What follows goes on beside the next failover.
    let returns = match end {
        None => DEMOTED_AFTER.mul_f64(0.9 + chance.f64() / 5.0),
        Some(_) => ms(chance, 1_000, 9_000),
    };
    let as_master_for = match end {
        Some(_) if chance.bool() => ms(chance, 10, 4_000),
        _ => Duration::ZERO,
    };
    let demoted = tokio::spawn(demote(
        Arc::clone(stage),
        group.clone(),
        former,
        end,
        (returns, as_master_for),
    ));
    let others: Vec<usize> = candidates.into_iter().filter(|other| *other != next).collect();
    sleep(KNOWN_AFTER.mul_f64(0.75 + chance.f64() / 2.0)).await;
    if is_able(group, leader) {
        group.knows(leader);
        untold.tell(group.sentinel(leader), KNOWN);
    }
    for other in others {
        group.follows(other, group.master());
        network.cut_all(group.server(other));
    }
    let mut news: Vec<(Duration, usize)> = (0..SENTINELS)
        .map(|sentinel| {
            let after = if sentinel == leader {
                SWITCHED_AFTER.mul_f64(0.75 + chance.f64() / 2.0)
            } else {
                ms(chance, 1, HEARD_WITHIN)
            };
            (after, sentinel)
        })
        .collect();
    let known = Instant::now();
    while !news.is_empty() {
        sleep(LOOKS_EVERY).await;
        let is_due = |(after, sentinel): &(Duration, usize)| known.elapsed() >= *after && is_able(group, *sentinel);
        let (due, rest): (Vec<_>, Vec<_>) = news.into_iter().partition(is_due);
        for (_, sentinel) in due {
            group.switches(sentinel);
            untold.tell(group.sentinel(sentinel), SWITCHED);
        }
        news = rest;
        // Those that hear nothing learn of it later, beside whatever comes next.
        if known.elapsed() > Duration::from_secs(3) {
            break;
        }
    }
    for (_, sentinel) in news {
        let group = group.clone();
        let pause = ms(chance, 1, HEARD_WITHIN);
        drop(tokio::spawn(async move {
            while !is_able(&group, sentinel) {
                sleep(LOOKS_EVERY).await;
            }
            sleep(pause).await;
            if group.epoch().0 == epoch {
                group.switches(sentinel);
            }
        }));
    }
    // A store that has heard nothing asks by itself.
    if untold.is_low {
        drop(demoted.await);
        sleep(ASKS_WITHIN + BELIEVED_WITHIN).await;
    } else if untold.troubles.iter().any(Option::is_some) {
        sleep((ASKS_WITHIN + KNOWN_AFTER).saturating_sub(accepts_since.elapsed())).await;
    }
    group.is_settled();
    untold.all();
}

fn is_able(group: &Group, sentinel: usize) -> bool {
    group.able().contains(&sentinel)
}

/// The former master comes back, if it was gone, and is made a replica.
async fn demote(
    stage: Arc<Stage>,
    group: Group,
    former: usize,
    end: Option<End>,
    (returns, as_master_for): (Duration, Duration),
) {
    sleep(returns).await;
    let server = group.server(former);
    if end.is_some() {
        stage.network.cut_all(server);
        server.restart(lock_simulation::server::log::Kept::All);
        server.go_down(false);
        server.go_dark(false);
        // With its old data, until somebody tells it who the master is.
        sleep(as_master_for).await;
    }
    // Nobody follows a server that is not there.
    loop {
        let master = group.master();
        if group.server(master).is_there() {
            stage
                .trace
                .note(|| format!("db{} follows db{}", former + 1, master + 1));
            group.follows(former, master);
            break;
        }
        sleep(LOOKS_EVERY).await;
    }
    stage.network.cut_all(server);
}
