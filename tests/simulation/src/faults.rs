//! What goes wrong, and how it ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use lock_simulation::network::{DialFault, Silence};
use lock_simulation::process::Process;
use lock_simulation::server::Server;
use lock_simulation::server::data::Value;
use lock_simulation::server::engine::Engine;
use lock_simulation::server::log::Kept;
use lock_simulation::server::resp::Reply;
use lock_simulation::servers::Servers;

use crate::drive::{Host, Stage};
use crate::failovers;
use crate::judge::{Asked, STRANGER, Scope};
use crate::plan::{Fault, FaultPlan, KEYS, stored_name};
use crate::shards;

/// The present incarnation of a process.
pub struct Slot(Mutex<Arc<Host>>);

impl Slot {
    pub fn new(host: Arc<Host>) -> Self {
        Self(Mutex::new(host))
    }

    pub fn get(&self) -> Arc<Host> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, host: Arc<Host>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = host;
    }
}

/// Lets every fault of the plan strike at its time. Returns when all are over.
pub async fn strike_all(stage: &Arc<Stage>, hosts: &[Arc<Slot>]) {
    let began = tokio::time::Instant::now();
    let mut all = JoinSet::new();
    for (number, fault) in stage.plan.faults.iter().cloned().enumerate() {
        let (stage, slot) = (Arc::clone(stage), Arc::clone(&hosts[fault.process]));
        let chance = fastrand::Rng::with_seed(stage.plan.seed ^ (u64::try_from(number).unwrap_or_default() << 20));
        all.spawn(async move {
            sleep_until(began + fault.at).await;
            strike(&stage, &slot, &fault, chance).await;
        });
    }
    while all.join_next().await.is_some() {}
}

async fn strike(stage: &Arc<Stage>, slot: &Slot, fault: &FaultPlan, mut chance: fastrand::Rng) {
    let host = slot.get();
    if host.process.is_killed() {
        return;
    }
    let (network, judge) = (&stage.network, &stage.judge);
    let number = u32::try_from(host.number).unwrap_or_default();
    let mine = Scope::Process(host.number);
    let links = network.links(number);
    let link = (!links.is_empty()).then(|| links[chance.usize(..links.len())]);
    let struck = &stage.plan.struck;
    let key = struck[chance.usize(..struck.len())];
    let name = stored_name(key);
    let server = &stage.server_of(key);
    match fault.kind {
        Fault::Cut | Fault::ClientKill => {
            let trouble = judge.strikes(fault.kind, mine);
            if let Some(link) = link {
                network.cut(link);
            }
            judge.is_over(trouble);
        }
        Fault::CutAll => {
            let trouble = judge.strikes(fault.kind, mine);
            network.hang_up(number);
            judge.is_over(trouble);
        }
        Fault::LoseReply => {
            let trouble = judge.strikes(fault.kind, mine);
            if let Some(link) = link {
                network.lose_reply(link);
            }
            sleep(fault.lasts).await;
            judge.is_over(trouble);
        }
        Fault::SilentBoth | Fault::SilentUp | Fault::SilentDown => {
            let silence = Silence {
                up: fault.kind != Fault::SilentDown,
                down: fault.kind != Fault::SilentUp,
            };
            let trouble = judge.strikes(fault.kind, mine);
            // One connection, or the whole way.
            let struck = if chance.bool() {
                link.into_iter().collect()
            } else {
                links.clone()
            };
            if struck.len() == links.len() {
                network.change(number, |way| way.silence = silence);
            }
            struck.iter().for_each(|link| network.silence(*link, silence));
            sleep(fault.lasts).await;
            network.change(number, |way| way.silence = Silence::default());
            struck
                .iter()
                .for_each(|link| network.silence(*link, Silence::default()));
            judge.is_over(trouble);
        }
        Fault::Trickle => {
            let trouble = judge.strikes(fault.kind, mine);
            network.change(number, |way| {
                way.trickles = true;
                way.latency = (Duration::ZERO, Duration::from_micros(20));
            });
            sleep(fault.lasts).await;
            network.change(number, |way| *way = Default::default());
            judge.is_over(trouble);
        }
        Fault::RefuseDials | Fault::DialsDie | Fault::DialsHang => {
            let trouble = judge.strikes(fault.kind, mine);
            let dial = match fault.kind {
                Fault::RefuseDials => DialFault::Refused,
                Fault::DialsHang => DialFault::Hangs,
                _ => DialFault::Dies(chance.u32(..8)),
            };
            network.change(number, |way| way.dial = dial);
            if chance.bool() {
                network.hang_up(number);
            } else if let Some(link) = link {
                network.cut(link);
            }
            sleep(fault.lasts).await;
            network.change(number, |way| way.dial = DialFault::None);
            judge.is_over(trouble);
        }
        Fault::Slow => {
            let trouble = judge.strikes(fault.kind, mine);
            let least = Duration::from_millis(chance.u64(1..200));
            network.change(number, |way| way.latency = (least, least * 2));
            sleep(fault.lasts).await;
            network.change(number, |way| *way = Default::default());
            judge.is_over(trouble);
        }
        Fault::ScriptFlush => {
            judge.strikes_only(fault.kind);
            drop(server.command(&["SCRIPT", "FLUSH"]));
        }
        Fault::Delete | Fault::Overwrite | Fault::Flush => {
            judge.strikes_only(fault.kind);
            let lasts = fault.lasts.as_millis().to_string();
            let (lost, words) = match fault.kind {
                Fault::Delete => (Some(key), vec!["DEL", &name]),
                Fault::Overwrite => (Some(key), vec!["SET", &name, "an operator was here", "PX", &lasts]),
                _ => (None, vec!["FLUSHALL"]),
            };
            // A server that follows another one, say, refuses it.
            if !matches!(server.command(&words), Reply::Error(_)) {
                match fault.kind {
                    Fault::Overwrite => judge.overwrites(key, fault.lasts),
                    Fault::Flush if matches!(stage.servers, Servers::Cluster(_)) => {
                        let its = (0..KEYS).filter(|key| stage.server_of(*key).is(server));
                        its.for_each(|key| judge.loses(Some(key), true));
                    }
                    _ => judge.loses(lost, true),
                }
            }
        }
        Fault::Restart | Fault::RestartEmpty | Fault::RestartRewound => {
            let trouble = judge.strikes(fault.kind, Scope::Everybody);
            let kept = match fault.kind {
                Fault::Restart => Kept::All,
                Fault::RestartEmpty => Kept::Nothing,
                _ => Kept::Until(
                    server
                        .change(|engine| engine.offset())
                        .saturating_sub(chance.usize(..50)),
                ),
            };
            if fault.kind != Fault::Restart {
                judge.loses(None, false);
            }
            if fault.kind == Fault::RestartRewound {
                judge.is_rewound();
            }
            network.take_down(server);
            sleep(fault.lasts).await;
            server.restart(kept);
            server.go_down(false);
            if fault.kind != Fault::Restart {
                judge.loses(None, fault.kind == Fault::RestartEmpty);
            }
            // Without what was renewed since.
            if fault.kind == Fault::RestartRewound {
                judge.shortens();
            }
            judge.is_over(trouble);
        }
        Fault::ServerFreeze => {
            let trouble = judge.strikes(fault.kind, Scope::Everybody);
            server.freeze(true);
            sleep(fault.lasts).await;
            server.freeze(false);
            judge.is_over(trouble);
        }
        // Behind a proxy another server takes over, which has none of the data: no connection notices.
        Fault::SilentLoss => {
            let trouble = judge.strikes(fault.kind, Scope::Everybody);
            server.freeze(true);
            judge.loses_unheard(false);
            sleep(fault.lasts).await;
            server.change(Engine::is_replaced_by_an_empty_one);
            judge.loses_unheard(true);
            server.freeze(false);
            judge.is_over(trouble);
        }
        Fault::ClockForward => {
            let trouble = judge.strikes(fault.kind, Scope::Everybody);
            judge.shortens();
            server.step_forward(fault.lasts * 10);
            judge.is_over(trouble);
        }
        Fault::ClockBack => {
            let trouble = judge.strikes(fault.kind, Scope::Everybody);
            judge.is_set_back(fault.lasts);
            server.step_back(fault.lasts);
            judge.is_over(trouble);
        }
        Fault::Loading | Fault::OutOfMemory | Fault::ReadOnly => {
            let trouble = judge.strikes(fault.kind, Scope::Everybody);
            let set = |is_on: bool| {
                server.change(|engine| match fault.kind {
                    Fault::Loading => engine.state.is_loading = is_on,
                    Fault::OutOfMemory => engine.state.is_full = is_on,
                    _ => engine.state.follows = is_on.then_some(true),
                });
            };
            set(true);
            sleep(fault.lasts).await;
            set(false);
            judge.is_over(trouble);
        }
        Fault::Suspend => {
            let trouble = judge.strikes(fault.kind, mine);
            host.process.suspend();
            sleep(fault.lasts).await;
            host.process.resume();
            judge.is_over(trouble);
        }
        Fault::BlockRuntime => {
            let trouble = judge.strikes(fault.kind, mine);
            let runtime = host.present_runtime(chance.u32(..2));
            host.process.block(runtime);
            sleep(fault.lasts).await;
            host.process.unblock(runtime);
            judge.is_over(trouble);
        }
        Fault::EndRuntime => {
            let trouble = judge.strikes(fault.kind, mine);
            host.replace_runtime(chance.u32(..2));
            sleep(fault.lasts).await;
            judge.is_over(trouble);
        }
        Fault::Kill => {
            let trouble = judge.strikes(fault.kind, mine);
            host.process.kill();
            network.hang_up(number);
            judge.is_killed(host.number, host.incarnation);
            sleep(fault.lasts).await;
            slot.set(host.restart());
            host.forget_tasks();
            judge.is_over(trouble);
        }
        Fault::ShutDown => {
            let trouble = judge.strikes(fault.kind, mine);
            host.is_shut_down();
            let locks = host.locks.clone();
            let is_done = host.process.spawn(40, async move { locks.shutdown().await });
            // A process that is killed meanwhile never gets there.
            while !is_done.is_finished() && !host.process.is_killed() {
                sleep(Duration::from_millis(1)).await;
            }
            sleep(fault.lasts).await;
            judge.is_over(trouble);
        }
        Fault::Forge => {
            judge.strikes_only(fault.kind);
            forge(server, fault.lasts, &mut chance).await;
        }
        Fault::ForgeQueue => {
            let trouble = judge.strikes(fault.kind, Scope::Everybody);
            forge_queues(server, fault.lasts, &mut chance).await;
            judge.is_over(trouble);
        }
        Fault::ForeignPoller => {
            judge.strikes_only(fault.kind);
            poll(stage, key, fault.lasts, None, &mut chance).await;
        }
        Fault::Deaf => {
            let trouble = judge.strikes(fault.kind, mine);
            judge.is_deaf(host.number);
            network.may_not_listen(number);
            judge.is_over(trouble);
        }
        Fault::SilentBackground | Fault::CutListeners => {
            let trouble = judge.strikes(fault.kind, mine);
            let change = |is_on| match fault.kind {
                Fault::SilentBackground => network.cut_off(number, is_on),
                _ => network.deafen(number, is_on),
            };
            change(true);
            // Those that listen already are cut as well.
            if fault.kind == Fault::CutListeners {
                network.hang_up(number);
            }
            sleep(fault.lasts).await;
            change(false);
            judge.is_over(trouble);
        }
        Fault::SteadyPoller => {
            judge.strikes_only(fault.kind);
            let rhythm = Duration::from_millis([1, 5, 10][chance.usize(..3)]);
            poll(stage, key, fault.lasts, Some(rhythm), &mut chance).await;
        }
        Fault::NotPolled | Fault::Dropped | Fault::Panic | Fault::Blocked => {}
        Fault::Lag => {
            judge.strikes_only(fault.kind);
            stage.servers.lag(fault.lasts);
            sleep(fault.lasts * 2).await;
            stage.servers.lag(stage.plan.lag());
        }
        Fault::Failover
        | Fault::TwoFailovers
        | Fault::MasterDies
        | Fault::MasterDark
        | Fault::SentinelApart
        | Fault::SentinelsSilent
        | Fault::SentinelsRefuse
        | Fault::SentinelRestart
        | Fault::EpochsReset
        | Fault::SlotMoves
        | Fault::SlotJumps
        | Fault::MasterStands
        | Fault::BusSplit => match &stage.servers {
            Servers::One(_) => {}
            Servers::Group(group) => failovers::strike(stage, group, fault, &mut chance).await,
            Servers::Cluster(cluster) => shards::strike(stage, cluster, (fault, key), &mut chance).await,
        },
    }
}

/// Publishes messages in the name of the server: what waits in the queues, with the largest token.
async fn forge(server: &Server, lasts: Duration, chance: &mut fastrand::Rng) {
    let began = tokio::time::Instant::now();
    while began.elapsed() < lasts {
        let (channels, values) = server.change(|engine| {
            let channels: Vec<Vec<u8>> = engine
                .sessions
                .values()
                .flat_map(|one| one.channels.iter().cloned())
                .collect();
            let queues: Vec<Vec<u8>> = engine
                .data
                .keys()
                .filter(|key| key.starts_with(b"dist_lock:%lock-"))
                .cloned()
                .collect();
            let mut values: Vec<Vec<u8>> = Vec::new();
            for queue in queues {
                if let Some(Value::Sorted(members)) = engine.data.get(&queue) {
                    values.extend(members.in_order().map(|(member, _)| member.clone()));
                }
            }
            (channels, values)
        });
        for channel in &channels {
            for member in &values {
                let member = String::from_utf8_lossy(member);
                let value = member.splitn(4, ':').nth(3).unwrap_or(&member).to_owned();
                let token = if chance.bool() { "18446744073709551615" } else { "" };
                let channel = String::from_utf8_lossy(channel);
                drop(server.command(&["PUBLISH", &channel, &format!("{token}:{value}")]));
            }
        }
        sleep(Duration::from_millis(chance.u64(1..50))).await;
    }
}

/// What an adversary's values contain.
pub const FORGER: &str = ":forger:";

/// Puts members in front of the queues, in the name of processes that wait there, which ask for the lock for ever.
async fn forge_queues(server: &Server, lasts: Duration, chance: &mut fastrand::Rng) {
    let began = tokio::time::Instant::now();
    while began.elapsed() < lasts {
        let queues: Vec<(String, String)> = server.change(|engine| {
            let keys = engine.data.keys().filter(|key| key.starts_with(b"dist_lock:%lock-"));
            let queues = keys.filter_map(|key| match engine.data.get(key) {
                Some(Value::Sorted(members)) => {
                    let members = members
                        .in_order()
                        .map(|(member, _)| String::from_utf8_lossy(member).into_owned());
                    let mut members = members.filter(|member| !member.contains(FORGER));
                    let process = members.find_map(|member| Some(member.split(':').nth(2)?.to_owned()))?;
                    Some((String::from_utf8_lossy(key).into_owned(), process))
                }
                _ => None,
            });
            queues.collect()
        });
        for (queue, process) in queues {
            let claim = ["1000000000000", "99999999999999999999", "1500", "0"][chance.usize(..4)];
            let class = if queue.contains("shared") {
                ["w:", "r:", "x:", "snan:"][chance.usize(..4)]
            } else {
                ""
            };
            let value = format!("{class}{:032x}{FORGER}0:", chance.u128(..));
            let member = format!("{claim}:0:{process}:{value}");
            drop(server.command(&["ZADD", &queue, "1", &member]));
        }
        sleep(Duration::from_millis(chance.u64(200..2_000))).await;
    }
}

/// Another library's client, which polls for a lock and holds it for a short time, in a rhythm or at random.
async fn poll(stage: &Arc<Stage>, key: usize, lasts: Duration, rhythm: Option<Duration>, chance: &mut fastrand::Rng) {
    let began = tokio::time::Instant::now();
    // Keys of other modes are no business of such a client.
    let key = [0, 1, 5][key % 3];
    let name = stored_name(key);
    let home = Process::new(u32::try_from(STRANGER).unwrap_or_default(), 0, 0.0, chance.fork());
    let plan = crate::plan::CallPlan::foreign(key);
    stage.judge.begins_polling(key, rhythm.is_some());
    while began.elapsed() < lasts {
        let value = format!("foreign-{}", chance.u64(..));
        if stage.server_of(key).command(&["SET", &name, &value, "NX", "PX", "500"]) == Reply::ok() {
            let id = stage.judge.asks(&Asked {
                process: STRANGER,
                incarnation: 0,
                task: 0,
                runtime: 0,
                home: &home,
                passed_for: Duration::ZERO,
                response_timeout: Duration::ZERO,
                plan: &plan,
            });
            stage.judge.begins(id, None);
            let longest = if rhythm.is_some() { 40 } else { 100 };
            sleep(Duration::from_millis(chance.u64(1..longest))).await;
            stage.judge.leaves(id, true);
            stage.judge.ends(id, None);
            if stage.server_of(key).command(&["GET", &name]) == Reply::text(&value) {
                drop(stage.server_of(key).command(&["DEL", &name]));
            }
        }
        let pause = rhythm.unwrap_or_else(|| Duration::from_millis(chance.u64(1..30)));
        sleep(pause).await;
    }
    stage.judge.ends_polling(key);
}
