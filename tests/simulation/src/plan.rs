//! What one seed does: its processes, their calls, and the faults, all drawn before anything runs. Parts of a plan can be left out, so that
//! a failing one can be shrunk.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use lock_runtime::LockMode;

use lock_simulation::cluster::{MASTERS, NODES};
use lock_simulation::group::{SENTINELS, SERVERS};
use lock_simulation::server::membership::slot_of;
use lock_simulation::server::version::Version;

/// The number of keys, one for each use.
pub const KEYS: usize = 6;

/// The name of a key.
pub fn name_of(key: usize) -> String {
    format!("key:{key}")
}

/// The name that a key has in the store.
pub fn stored_name(key: usize) -> String {
    format!("dist_lock:{}", name_of(key))
}

/// How much goes on in a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Everything is drawn.
    #[default]
    Drawn,
    /// Three processes with eight tasks each want the same two locks all the time. The rest is drawn.
    Crowd,
    /// Many faults of few kinds strike few processes, which want one or two locks all the time, some of them for very short bodies.
    Dense,
    /// A group of servers, which sentinels watch. The rest is drawn, in a part of the seeds as for `Dense`.
    Sentinel,
    /// A cluster, whose slots move. The rest is drawn, in a part of the seeds as for `Dense`.
    Cluster,
}

impl Shape {
    /// Returns the argument that asks for it.
    pub fn argument(self) -> Option<&'static str> {
        match self {
            Self::Drawn => None,
            Self::Crowd => Some("--crowd"),
            Self::Dense => Some("--dense"),
            Self::Sentinel => Some("--sentinel"),
            Self::Cluster => Some("--cluster"),
        }
    }

    /// Returns the faults that strike in a world of this kind only, if there are several servers.
    pub fn own_faults(self) -> &'static [Fault] {
        match self {
            Self::Sentinel => &Fault::OF_GROUPS,
            Self::Cluster => &Fault::OF_CLUSTERS,
            Self::Drawn | Self::Crowd | Self::Dense => &[],
        }
    }

    /// Returns `true` if there are several servers.
    pub fn has_several(self) -> bool {
        matches!(self, Self::Sentinel | Self::Cluster)
    }
}

/// How long calls begin and faults strike.
pub const LENGTH: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub version: Version,
    pub processes: Vec<ProcessPlan>,
    /// The keys that faults strike.
    pub struck: Vec<usize>,
    pub faults: Vec<FaultPlan>,
    pub shape: Shape,
    /// The servers, if there are several.
    pub several: Option<SeveralPlan>,
}

#[derive(Debug)]
pub struct SeveralPlan {
    /// How far each server's clock is ahead.
    pub ahead: Vec<Duration>,
    /// How old the data of replicas are while nothing is wrong.
    pub lag: Duration,
    /// The slots of the keys, and the masters of a cluster that have them at first.
    pub given: Vec<(u16, usize)>,
    /// How many sentinels or nodes each process is told of.
    pub named: Vec<usize>,
}

impl SeveralPlan {
    /// Draws by a chance of its own.
    fn draw(seed: u64, shape: Shape, processes: usize) -> Option<Self> {
        let (servers, told_of) = match shape {
            Shape::Sentinel => (SERVERS, SENTINELS),
            Shape::Cluster => (NODES, NODES),
            Shape::Drawn | Shape::Crowd | Shape::Dense => return None,
        };
        let mut draw = Draw(fastrand::Rng::with_seed(seed.rotate_left(8)));
        let most = if draw.one_in(2) { 0 } else { 45 };
        let ahead = (0..servers).map(|_| Duration::from_millis(draw.0.u64(..=most)));
        let ahead = ahead.collect();
        let lag = draw.of(&[0, 0, 2, 20].map(Duration::from_millis));
        let keys = if shape == Shape::Cluster { KEYS } else { 0 };
        let given = (0..keys).map(|key| (slot_of(stored_name(key).as_bytes()), draw.0.usize(..MASTERS)));
        Some(Self {
            ahead,
            lag,
            given: given.collect(),
            named: (0..processes).map(|_| draw.0.usize(1..=told_of)).collect(),
        })
    }
}

#[derive(Debug)]
pub struct ProcessPlan {
    /// How much its clock gains in a million.
    pub drift: f64,
    pub runtimes: u32,
    /// The most passes inside the process, and the longest time for them.
    pub handover: (u32, Duration),
    pub response_timeout: Duration,
    pub tasks: Vec<TaskPlan>,
}

#[derive(Debug)]
pub struct TaskPlan {
    pub runtime: u32,
    pub calls: Vec<CallPlan>,
}

#[derive(Clone, Debug)]
pub struct CallPlan {
    /// The time since the call before.
    pub pause: Duration,
    /// The keys, by number. Several are one call for all of them.
    pub keys: Vec<usize>,
    pub mode: LockMode,
    pub lease: Duration,
    pub wait: Duration,
    pub renew: bool,
    pub max_renewals: Option<u32>,
    pub fair: bool,
    pub pipelined: bool,
    pub reentrant: bool,
    pub fencing: bool,
    pub signal: bool,
    pub coalesce: bool,
    /// It takes a guard, instead of running a body.
    pub guard: bool,
    /// Its body runs a part of its work in a task of the lock.
    pub tasks: bool,
    /// Its body drives a task of somebody else.
    pub drives: bool,
    pub at_least: Duration,
    pub lock_delay: Duration,
    /// So many replicas must have its lock before its body begins.
    pub min_replicas: u32,
    pub body: BodyPlan,
    /// The call is polled so often, and then not for this long.
    pub freeze: Option<(u32, Duration)>,
    /// The call is polled so often, and then dropped.
    pub drop_after: Option<u32>,
    /// After the call has ended, its runtime stands still for this long.
    pub blocks: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub struct BodyPlan {
    /// It awaits so often, in all for this long.
    pub awaits: u32,
    pub span: Duration,
    pub end: BodyEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    Value,
    Error,
    Panic,
}

#[derive(Clone, Debug)]
pub struct FaultPlan {
    pub at: Duration,
    pub lasts: Duration,
    /// The process that it strikes, by number. Faults of the server strike all.
    pub process: usize,
    pub kind: Fault,
}

/// The ways in which something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    Cut,
    CutAll,
    SilentBoth,
    SilentUp,
    SilentDown,
    LoseReply,
    Trickle,
    RefuseDials,
    DialsDie,
    DialsHang,
    Slow,
    ClientKill,
    ScriptFlush,
    Delete,
    Overwrite,
    Flush,
    Restart,
    RestartEmpty,
    RestartRewound,
    ServerFreeze,
    SilentLoss,
    ClockForward,
    ClockBack,
    Loading,
    OutOfMemory,
    ReadOnly,
    Suspend,
    Kill,
    BlockRuntime,
    EndRuntime,
    Forge,
    ForgeQueue,
    ForeignPoller,
    ShutDown,
    /// Of one call: its caller does not poll it for a while.
    NotPolled,
    /// Of one call: its caller drops it.
    Dropped,
    /// Of one call: its body panics.
    Panic,
    /// Of one call: after its end the runtime of its caller stands still, as in a program that waits for something else.
    Blocked,
    /// A process's user may not subscribe.
    Deaf,
    /// Nothing arrives on the connections of a process's lock thread, and no new one is made for it.
    SilentBackground,
    /// The connections of a process are cut when they subscribe.
    CutListeners,
    /// Another library's client takes a lock in a rhythm of its own, again and again.
    SteadyPoller,
    /// Sentinels are asked to let a replica take over. The former master takes writes for some seconds more.
    Failover,
    /// One failover right after another.
    TwoFailovers,
    /// The master ends, with its connections, and a replica takes over.
    MasterDies,
    /// The master's machine loses its power: nothing answers, and nothing ends.
    MasterDark,
    /// What the replicas have grows old.
    Lag,
    /// A sentinel hears nothing of the others, and names the master that it knows.
    SentinelApart,
    /// Sentinels stand still.
    SentinelsSilent,
    /// Sentinels are not there.
    SentinelsRefuse,
    /// A sentinel ends and begins again.
    SentinelRestart,
    /// Sentinels are set up anew, and count failovers from the beginning.
    EpochsReset,
    /// A slot moves to another node, key by key.
    SlotMoves,
    /// A slot moves to another node, in one step for clients.
    SlotJumps,
    /// A node stands still until its replica has taken over, and then goes on as a master for a moment.
    MasterStands,
    /// A node is cut off from the other ones, but not from clients.
    BusSplit,
}

impl Fault {
    /// Those of a group of servers.
    pub const OF_GROUPS: [Self; 10] = [
        Self::Failover,
        Self::TwoFailovers,
        Self::MasterDies,
        Self::MasterDark,
        Self::Lag,
        Self::SentinelApart,
        Self::SentinelsSilent,
        Self::SentinelsRefuse,
        Self::SentinelRestart,
        Self::EpochsReset,
    ];

    /// Those of a cluster.
    pub const OF_CLUSTERS: [Self; 8] = [
        Self::SlotMoves,
        Self::SlotJumps,
        Self::Failover,
        Self::MasterDies,
        Self::MasterDark,
        Self::MasterStands,
        Self::BusSplit,
        Self::Lag,
    ];

    /// Those by which another server takes over.
    pub const FAILOVERS: [Self; 6] = [
        Self::Failover,
        Self::TwoFailovers,
        Self::MasterDies,
        Self::MasterDark,
        Self::MasterStands,
        Self::BusSplit,
    ];

    /// Those that strike beside them.
    const BESIDE_GROUPS: [Self; 23] = [
        Self::Cut,
        Self::CutAll,
        Self::SilentBoth,
        Self::SilentUp,
        Self::SilentDown,
        Self::LoseReply,
        Self::Trickle,
        Self::RefuseDials,
        Self::DialsDie,
        Self::DialsHang,
        Self::Slow,
        Self::ClientKill,
        Self::ScriptFlush,
        Self::Delete,
        Self::Suspend,
        Self::Kill,
        Self::BlockRuntime,
        Self::EndRuntime,
        Self::ShutDown,
        Self::Flush,
        Self::ServerFreeze,
        Self::Loading,
        Self::OutOfMemory,
    ];

    /// Those that strike processes and servers.
    pub const DRAWN: [Self; 34] = [
        Self::Cut,
        Self::CutAll,
        Self::SilentBoth,
        Self::SilentUp,
        Self::SilentDown,
        Self::LoseReply,
        Self::Trickle,
        Self::RefuseDials,
        Self::DialsDie,
        Self::DialsHang,
        Self::Slow,
        Self::ClientKill,
        Self::ScriptFlush,
        Self::Delete,
        Self::Overwrite,
        Self::Flush,
        Self::Restart,
        Self::RestartEmpty,
        Self::RestartRewound,
        Self::ServerFreeze,
        Self::SilentLoss,
        Self::ClockForward,
        Self::ClockBack,
        Self::Loading,
        Self::OutOfMemory,
        Self::ReadOnly,
        Self::Suspend,
        Self::Kill,
        Self::BlockRuntime,
        Self::EndRuntime,
        Self::Forge,
        Self::ForgeQueue,
        Self::ForeignPoller,
        Self::ShutDown,
    ];
}

impl Fault {
    /// Those that last for most of a seed.
    pub const LASTING: [Self; 4] = [
        Self::Deaf,
        Self::SilentBackground,
        Self::CutListeners,
        Self::SteadyPoller,
    ];

    /// Draws what strikes a group: one failover or more, something about replicas or sentinels, and something else.
    fn of_a_group(draw: &mut Draw) -> Vec<Self> {
        if draw.one_in(12) {
            return vec![draw.of(&Self::OF_GROUPS)];
        }
        let mut kinds = vec![draw.of(&Self::FAILOVERS)];
        kinds.extend((0..draw.0.usize(..=2)).map(|_| draw.of(&Self::OF_GROUPS)));
        kinds.extend((0..draw.0.usize(..=2)).map(|_| draw.of(&Self::BESIDE_GROUPS)));
        kinds
    }

    /// Draws what strikes a cluster: slots that move, nodes that are replaced, and something else.
    fn of_a_cluster(draw: &mut Draw) -> Vec<Self> {
        let moves = draw.of(&[Self::SlotMoves, Self::SlotMoves, Self::SlotJumps]);
        match draw.0.u32(..6) {
            0 => vec![moves],
            1 => vec![Self::SlotMoves, Self::SlotJumps],
            2 => vec![draw.of(&Self::OF_CLUSTERS)],
            _ => {
                let mut kinds = vec![moves];
                kinds.extend((0..draw.0.usize(..=2)).map(|_| draw.of(&Self::OF_CLUSTERS)));
                kinds.extend((0..draw.0.usize(..=2)).map(|_| draw.of(&Self::BESIDE_GROUPS)));
                kinds
            }
        }
    }

    /// What the seeds have whose bodies drive tasks.
    const BESIDE_DRIVES: [Option<Self>; 8] = [
        None,
        None,
        None,
        Some(Self::Deaf),
        Some(Self::SilentBackground),
        Some(Self::CutListeners),
        Some(Self::SteadyPoller),
        Some(Self::Blocked),
    ];

    /// Those after which a renewal is due at once.
    const OUTAGES: [Self; 5] = [
        Self::Loading,
        Self::ReadOnly,
        Self::ServerFreeze,
        Self::SilentBoth,
        Self::Restart,
    ];

    /// Returns all that strike in a world of this kind, with those that strike one call.
    pub fn all(shape: Shape) -> impl Iterator<Item = Self> {
        let of_calls = [Self::NotPolled, Self::Dropped, Self::Panic];
        let has_several = shape.has_several();
        let of_several = of_calls
            .into_iter()
            .chain(shape.own_faults().iter().copied())
            .chain(Self::BESIDE_GROUPS);
        let others = Self::DRAWN.into_iter().chain(Self::LASTING).chain(of_calls);
        let others = others.chain([Self::Blocked]);
        of_several
            .filter(move |_| has_several)
            .chain(others.filter(move |_| !has_several))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What a part of the seeds have in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    /// A fault that lasts for most of the seed.
    Lasting(Fault),
    /// Calls after whose end their runtime stands still.
    Blocks,
    /// Bodies that drive tasks of somebody else, and for some a fault that lasts, or runtimes that stand still.
    Drives(Option<Fault>),
    /// A crowd of calls that may be inside together.
    Readers,
    /// Bodies that are longer than their leases, and faults that are as long.
    Long,
    /// Bodies that are longer than their leases, of this length, and a fault from before the renewal of the first ones until just before the
    /// lease is over.
    LeaseEnd(Duration, Fault),
    /// A process that is killed, and a server whose clock is set back then.
    SetBack,
}

impl Extra {
    /// Draws by a chance of its own, so that everything else that a seed draws stays what it is.
    fn draw(seed: u64) -> Option<Self> {
        let mut draw = Draw(fastrand::Rng::with_seed(seed.rotate_left(24)));
        if !draw.one_in(3) {
            return None;
        }
        Some(match draw.0.u32(..9) {
            0..4 => Self::Lasting(draw.of(&Fault::LASTING)),
            4 => Self::Blocks,
            5 => Self::Drives(draw.of(&Fault::BESIDE_DRIVES)),
            6 => Self::Readers,
            7 if draw.one_in(2) => Self::Long,
            7 => {
                let lease = Duration::from_secs(draw.of(&[3, 15, 30, 30]));
                Self::LeaseEnd(lease, draw.of(&Fault::OUTAGES))
            }
            _ => Self::SetBack,
        })
    }

    /// Returns the faults that belong to it.
    fn faults(self, seed: u64, processes: usize) -> Vec<FaultPlan> {
        let mut draw = Draw(fastrand::Rng::with_seed(seed.rotate_left(40)));
        match self {
            Self::Blocks | Self::Drives(None | Some(Fault::Blocked)) | Self::Readers | Self::Long => Vec::new(),
            Self::Lasting(kind) | Self::Drives(Some(kind)) => vec![FaultPlan {
                at: draw.ms(1, 3_000),
                lasts: draw.ms(10_000, 18_000),
                process: draw.0.usize(..processes),
                kind,
            }],
            Self::LeaseEnd(lease, kind) => {
                let renewal = lease * 2 / 3;
                let at = renewal - lease.mul_f64(draw.0.f64() / 10.0);
                // A renewal is tried again within a tenth of the lease.
                let ends = lease - Duration::from_millis(500) - lease.mul_f64(draw.0.f64() / 8.0);
                vec![FaultPlan {
                    at,
                    lasts: ends.saturating_sub(at),
                    process: draw.0.usize(..processes),
                    kind,
                }]
            }
            // Processes that were killed have left signs of life that are in the future then.
            Self::SetBack => (0..4)
                .flat_map(|round| {
                    let at = Duration::from_millis(2_000 + 4_000 * round + draw.0.u64(..2_000));
                    let process = draw.0.usize(..processes);
                    let kill = FaultPlan {
                        at,
                        lasts: draw.ms(50, 1_000),
                        process,
                        kind: Fault::Kill,
                    };
                    let set_back = FaultPlan {
                        at: at + draw.ms(1, 300),
                        lasts: draw.ms(500, 20_000),
                        process,
                        kind: Fault::ClockBack,
                    };
                    [kill, set_back]
                })
                .collect(),
        }
    }
}

/// The parts of a plan that are left out: `x` what it has in addition, `p1` a process, `t1.2` a task, `c1.2.3` a call, `f4` a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Without(pub BTreeSet<String>);

impl Without {
    pub fn parse(text: &str) -> Self {
        Self(
            text.split(',')
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    pub fn has(&self, part: &str) -> bool {
        self.0.contains(part)
    }
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<&str> = self.0.iter().map(String::as_str).collect();
        f.write_str(&parts.join(","))
    }
}

/// Draws with a chance.
struct Draw(fastrand::Rng);

impl Draw {
    fn one_in(&mut self, many: u32) -> bool {
        self.0.u32(..many) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.0.usize(..all.len())].clone()
    }

    /// Short spans are as likely as long ones.
    fn span(&mut self, least: Duration, most: Duration) -> Duration {
        let (least, most) = (least.as_secs_f64().max(1e-6).ln(), most.as_secs_f64().ln());
        Duration::from_secs_f64((least + (most - least) * self.0.f64()).exp())
    }

    fn ms(&mut self, least: u64, most: u64) -> Duration {
        self.span(Duration::from_millis(least), Duration::from_millis(most))
    }
}

/// What a seed may do at all. A seed that does a few things often finds more than one that does everything now and then.
struct Swarm {
    keys: Vec<usize>,
    leases: Vec<Duration>,
    waits: Vec<Duration>,
    body: (Duration, Duration),
    busy: u64,
    /// All processes have so many tasks.
    tasks: Option<usize>,
    /// The least and the largest number of calls of a task.
    calls: (usize, usize),
    fair: bool,
    pipelined: bool,
    reentrant: bool,
    fencing: bool,
    signal: bool,
    coalesce: bool,
    guard: bool,
    tasks_of_bodies: bool,
    at_least: bool,
    lock_delay: bool,
    no_renewal: bool,
    freezes: bool,
    drops: bool,
    odd_ends: bool,
    mixed: bool,
    many: bool,
    blocks: bool,
    drives: bool,
    /// Nearly all only read.
    reads: bool,
}

const DAY: Duration = Duration::from_secs(86_400);

impl Plan {
    /// Draws the plan of a seed.
    pub fn draw(seed: u64, shape: Shape, without: &Without) -> Self {
        let mut draw = Draw(fastrand::Rng::with_seed(seed));
        let version = draw.of(&Version::ALL);
        let mut swarm = Swarm::draw(&mut draw);
        let mut count = draw.0.usize(1..=4);
        match shape {
            Shape::Drawn => {}
            Shape::Sentinel | Shape::Cluster => {
                // Some servers' clocks are ahead, which takes a part of each lease: the shortest ones would have too little left. And failovers
                // take their time.
                for lease in &mut swarm.leases {
                    *lease = (*lease).max(Duration::from_millis(300));
                }
                swarm.leases.push(Duration::from_secs(15));
                swarm.waits.push(Duration::from_secs(10));
                if draw.one_in(3) {
                    swarm.condense(&mut draw);
                }
                count = draw.0.usize(1..=3);
            }
            Shape::Crowd => {
                swarm.crowd(&mut draw);
                count = 3;
            }
            Shape::Dense => {
                swarm.condense(&mut draw);
                count = draw.0.usize(2..=3);
            }
        }
        let is_dense = shape == Shape::Dense;
        let extra = Extra::draw(seed).filter(|_| !without.has("x") && !shape.has_several());
        swarm.add(extra);
        let mut wanted = Wanted::draw(seed, shape);
        let processes = (0..count)
            .map(|process| {
                if is_dense && !matches!(extra, Some(Extra::Long | Extra::LeaseEnd(..) | Extra::Readers)) {
                    swarm.hurry(&mut draw);
                }
                ProcessPlan::draw(&mut draw, &swarm, process, without, wanted.as_mut())
            })
            .collect::<Vec<_>>();
        let count_of = processes.len();
        let kinds = draw.0.usize(1..=if is_dense { 2 } else { 5 });
        let kinds: Vec<Fault> = match shape {
            Shape::Sentinel => Fault::of_a_group(&mut draw),
            Shape::Cluster => Fault::of_a_cluster(&mut draw),
            _ => (0..kinds).map(|_| draw.of(&Fault::DRAWN)).collect(),
        };
        let count = match shape {
            Shape::Dense => draw.0.usize(5..=40),
            Shape::Cluster => draw.0.usize(1..=20),
            _ if draw.one_in(5) => 0,
            _ => draw.0.usize(1..=8),
        };
        // What is slow to show itself needs time without anything else.
        let count = match extra {
            None | Some(Extra::Long) => count,
            Some(Extra::Drives(_)) if !is_dense => count,
            Some(Extra::LeaseEnd(..)) => 0,
            Some(_) => count / if is_dense { 8 } else { 3 },
        };
        let struck = if is_dense {
            swarm.keys.clone()
        } else {
            (0..KEYS).collect()
        };
        let longest = match extra {
            Some(Extra::Long) => 15_000,
            _ if is_dense => 1_500,
            _ => 6_000,
        };
        let mut faults = Vec::new();
        for number in 0..count {
            let fault = FaultPlan {
                at: Duration::from_millis(draw.0.u64(500..18_000)),
                lasts: draw.ms(5, longest),
                process: draw.0.usize(..processes.len()),
                kind: draw.of(&kinds),
            };
            if !without.has(&format!("f{number}")) {
                faults.push(fault);
            }
        }
        faults.extend(extra.iter().flat_map(|extra| extra.faults(seed, processes.len())));
        faults.sort_by_key(|fault| fault.at);
        Self {
            seed,
            version,
            processes,
            struck,
            faults,
            shape,
            several: SeveralPlan::draw(seed, shape, count_of),
        }
    }

    /// Returns how far the servers' clocks differ, in microseconds.
    pub fn differ(&self) -> u64 {
        let ahead = self.several.as_ref().map_or(&[][..], |several| &several.ahead);
        let (first, last) = (ahead.iter().min(), ahead.iter().max());
        let differ = last.zip(first).map(|(last, first)| last.saturating_sub(*first));
        differ.map_or(0, |differ| u64::try_from(differ.as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns how old the data of replicas are while nothing is wrong.
    pub fn lag(&self) -> Duration {
        self.several.as_ref().map_or(Duration::ZERO, |several| several.lag)
    }

    /// Returns `true` if calls wait for replicas.
    pub fn wants_replicas(&self) -> bool {
        let tasks = self.processes.iter().flat_map(|process| &process.tasks);
        tasks.flat_map(|task| &task.calls).any(|call| call.min_replicas > 0)
    }

    /// Returns the names of the parts that can be left out, large ones first.
    pub fn parts(seed: u64, shape: Shape, without: &Without) -> Vec<String> {
        let whole = Self::draw(seed, shape, &Without::default());
        let mut parts = vec!["x".to_owned()];
        parts.extend((0..whole.processes.len()).map(|process| format!("p{process}")));
        let extra = Extra::draw(seed)
            .filter(|_| !shape.has_several())
            .map_or(0, |extra| extra.faults(seed, whole.processes.len()).len());
        let faults = whole.faults.len().saturating_sub(extra);
        parts.extend((0..faults).map(|fault| format!("f{fault}")));
        for (process, plan) in whole.processes.iter().enumerate() {
            parts.extend((0..plan.tasks.len()).map(|task| format!("t{process}.{task}")));
        }
        for (process, plan) in whole.processes.iter().enumerate() {
            for (task, plan) in plan.tasks.iter().enumerate() {
                parts.extend((0..plan.calls.len()).map(|call| format!("c{process}.{task}.{call}")));
            }
        }
        parts.retain(|part| {
            let inner = part.trim_start_matches(['c', 't']);
            let mut outer = inner.split('.');
            let process = outer.next().unwrap_or_default();
            let task = outer.next().unwrap_or_default();
            let is_inside_another = (part.starts_with(['c', 't']) && without.has(&format!("p{process}")))
                || (part.starts_with('c') && without.has(&format!("t{process}.{task}")));
            !without.has(part) && !is_inside_another
        });
        parts
    }
}

impl Swarm {
    fn draw(draw: &mut Draw) -> Self {
        let all: Vec<usize> = (0..KEYS).collect();
        let mut keys: Vec<usize> = all.iter().copied().filter(|_| draw.one_in(2)).collect();
        if keys.is_empty() {
            keys.push(draw.0.usize(..KEYS));
        }
        let some = |draw: &mut Draw, all: &[Duration]| -> Vec<Duration> {
            let mut some: Vec<Duration> = all.iter().copied().filter(|_| draw.one_in(3)).collect();
            if some.is_empty() {
                some.push(draw.of(all));
            }
            some
        };
        let leases = [100, 300, 1_000, 3_000, 15_000, 30_000, 120_000].map(Duration::from_millis);
        let mut leases = some(draw, &leases);
        if draw.one_in(4) {
            leases.push(DAY);
        }
        let waits = [0, 1, 20, 300, 2_000, 5_000, 10_000].map(Duration::from_millis);
        Self {
            keys,
            leases,
            waits: some(draw, &waits),
            body: (
                Duration::from_millis(1),
                draw.of(&[5, 50, 400, 4_000].map(Duration::from_millis)),
            ),
            busy: draw.of(&[5, 50, 500]),
            tasks: None,
            calls: (3, 60),
            fair: draw.one_in(3),
            pipelined: draw.one_in(3),
            reentrant: draw.one_in(4),
            fencing: draw.one_in(3),
            signal: draw.one_in(4),
            coalesce: draw.one_in(3),
            guard: draw.one_in(3),
            tasks_of_bodies: draw.one_in(4),
            at_least: draw.one_in(5),
            lock_delay: draw.one_in(6),
            no_renewal: draw.one_in(4),
            freezes: draw.one_in(3),
            drops: draw.one_in(3),
            odd_ends: draw.one_in(4),
            mixed: draw.one_in(4),
            many: draw.one_in(3),
            blocks: false,
            drives: false,
            reads: false,
        }
    }

    /// Adds what a part of the seeds have.
    fn add(&mut self, extra: Option<Extra>) {
        match extra {
            Some(Extra::Blocks) => (self.blocks, self.pipelined) = (true, true),
            Some(Extra::Drives(beside)) => {
                self.drives = true;
                self.blocks = beside == Some(Fault::Blocked);
            }
            Some(Extra::Readers) => {
                self.keys = vec![2, 3];
                self.tasks = Some(100);
                self.calls = (2, 4);
                self.busy = 500;
                self.reads = true;
                self.body = (Duration::from_millis(1), Duration::from_millis(400));
                self.waits = vec![Duration::from_secs(10)];
                (self.many, self.freezes, self.drops) = (false, false, false);
            }
            Some(Extra::Long) => {
                self.body = (Duration::from_secs(2), Duration::from_secs(45));
                self.calls = (2, 5);
                self.leases = [3, 15, 30].map(Duration::from_secs).to_vec();
            }
            Some(Extra::LeaseEnd(lease, _)) => {
                self.body = (lease * 5 / 4, lease * 5 / 2);
                self.calls = (1, 3);
                self.leases = vec![lease];
                self.busy = 5;
                (self.no_renewal, self.freezes, self.drops) = (false, false, false);
            }
            Some(Extra::SetBack) => {
                self.fair = true;
                self.waits = [5_000, 10_000].map(Duration::from_millis).to_vec();
            }
            Some(Extra::Lasting(_)) | None => {}
        }
    }

    /// Makes all calls want the same.
    fn crowd(&mut self, draw: &mut Draw) {
        let one = draw.of(&[0, 1, 5]);
        self.keys = vec![one, draw.0.usize(..KEYS)];
        self.waits = [2_000, 5_000, 10_000].map(Duration::from_millis).to_vec();
        self.body = (Duration::from_millis(20), Duration::from_millis(80));
        self.busy = 50;
        self.tasks = Some(8);
    }

    /// Makes the calls of all processes want one or two locks, most of them with patience.
    fn condense(&mut self, draw: &mut Draw) {
        let one = draw.of(&[0, 0, 1, 2, 3, 5]);
        self.keys = vec![one];
        if draw.one_in(3) {
            self.keys.push(draw.0.usize(..KEYS));
        }
        self.leases = vec![draw.of(&[300, 1_000, 15_000, 30_000, 120_000].map(Duration::from_millis))];
        self.waits = [300, 2_000, 2_000, 10_000].map(Duration::from_millis).to_vec();
        self.many = false;
    }

    /// Draws how long the bodies of a process are. Short ones are many, one right after the other.
    fn hurry(&mut self, draw: &mut Draw) {
        let (most, calls) = draw.of(&[(3, 300), (3, 300), (20, 120), (80, 60), (2_000, 20)]);
        self.body = (Duration::from_millis(1), Duration::from_millis(most));
        self.busy = 3;
        self.tasks = Some(draw.0.usize(2..=8));
        self.calls = (calls / 2, calls);
    }
}

/// How many replicas the calls of a seed want. Has a chance of its own, so that everything else that a seed draws stays what it is.
struct Wanted {
    draw: Draw,
    of: &'static [u32],
}

impl Wanted {
    fn draw(seed: u64, shape: Shape) -> Option<Self> {
        let all: &[&'static [u32]] = match shape {
            Shape::Sentinel => &[&[0], &[0, 0, 0, 0, 1], &[0, 0, 0, 1, 2], &[0, 1], &[0, 1, 1, 2]],
            // Each master has one replica.
            Shape::Cluster => &[&[0], &[0], &[0, 0, 0, 0, 1], &[0, 1]],
            Shape::Drawn | Shape::Crowd | Shape::Dense => return None,
        };
        let mut draw = Draw(fastrand::Rng::with_seed(seed.rotate_left(16)));
        let of = draw.of(all);
        Some(Self { draw, of })
    }
}

impl ProcessPlan {
    fn draw(
        draw: &mut Draw,
        swarm: &Swarm,
        process: usize,
        without: &Without,
        mut wanted: Option<&mut Wanted>,
    ) -> Self {
        let runtimes = if draw.one_in(3) { 2 } else { 1 };
        let count = draw.0.usize(1..=8);
        let tasks = (0..swarm.tasks.unwrap_or(count))
            .map(|task| {
                let runtime = draw.0.u32(..runtimes);
                let (least, most) = swarm.calls;
                let count = draw.0.usize(least..most);
                let mut calls = (0..count).map(|_| CallPlan::draw(draw, swarm)).collect::<Vec<_>>();
                if let Some(wanted) = &mut wanted {
                    for call in &mut calls {
                        call.min_replicas = wanted.draw.of(wanted.of);
                    }
                }
                (task, TaskPlan { runtime, calls })
            })
            .collect::<Vec<_>>();
        let is_left = |part: String| !without.has(&part);
        let tasks = tasks
            .into_iter()
            .map(|(task, mut plan)| {
                let mut number = 0;
                plan.calls.retain(|_| {
                    number += 1;
                    is_left(format!("c{process}.{task}.{}", number - 1))
                });
                if !is_left(format!("t{process}.{task}")) || !is_left(format!("p{process}")) {
                    plan.calls.clear();
                }
                plan
            })
            .collect();
        Self {
            drift: if draw.one_in(3) {
                0.0
            } else {
                (draw.0.f64() - 0.5) * 600.0
            },
            runtimes,
            handover: draw.of(&[
                (128, Duration::from_millis(50)),
                (128, Duration::from_millis(50)),
                (0, Duration::ZERO),
                (3, Duration::from_millis(5)),
                (100_000, Duration::from_secs(5)),
            ]),
            response_timeout: draw.of(&[500, 2_000, 2_000].map(Duration::from_millis)),
            tasks,
        }
    }
}

/// Returns the mode of a semaphore.
fn semaphore(permits: u32) -> LockMode {
    NonZeroU32::new(permits).map_or(LockMode::Exclusive, LockMode::Semaphore)
}

impl CallPlan {
    fn draw(draw: &mut Draw, swarm: &Swarm) -> Self {
        let key = draw.of(&swarm.keys);
        let mut keys = vec![key];
        let mode = match key {
            2..=4 if swarm.mixed && draw.one_in(6) => draw.of(&[LockMode::Write, LockMode::Read, semaphore(2)]),
            2 if swarm.reads && !draw.one_in(50) => LockMode::Read,
            2 => draw.of(&[LockMode::Read, LockMode::Read, LockMode::Write]),
            3 => semaphore(3),
            4 => LockMode::owner(draw.of(&["red", "blue"])),
            _ => LockMode::Exclusive,
        };
        if swarm.many && mode == LockMode::Exclusive && draw.one_in(4) {
            keys.extend([0, 1, 5].into_iter().filter(|other| *other != key));
            keys.truncate(draw.0.usize(2..=3));
        }
        let is_plain = keys.len() == 1 && mode == LockMode::Exclusive;
        let lease = draw.of(&swarm.leases);
        let some = |draw: &mut Draw, is_on: bool, in_many: u32| is_on && draw.one_in(in_many);
        let coalesce = is_plain && some(draw, swarm.coalesce, 3);
        if coalesce {
            return Self {
                coalesce,
                wait: draw.of(&swarm.waits),
                freeze: Self::freeze(draw, swarm),
                drop_after: Self::drop_after(draw, swarm),
                blocks: some(draw, swarm.blocks, 12).then(|| draw.ms(50, 8_000)),
                ..Self::plain(draw, swarm, keys, lease)
            };
        }
        Self {
            guard: some(draw, swarm.guard, 3),
            fair: keys.len() == 1 && some(draw, swarm.fair, 2),
            pipelined: some(draw, swarm.pipelined, 2),
            reentrant: is_plain && some(draw, swarm.reentrant, 4),
            fencing: matches!(mode, LockMode::Exclusive | LockMode::Write)
                && keys.len() == 1
                && some(draw, swarm.fencing, 2),
            signal: some(draw, swarm.signal, 3),
            at_least: if some(draw, swarm.at_least, 6) {
                draw.ms(1, 300)
            } else {
                Duration::ZERO
            },
            lock_delay: if some(draw, swarm.lock_delay, 6) {
                draw.ms(1, 500)
            } else {
                Duration::ZERO
            },
            renew: !some(draw, swarm.no_renewal, 3),
            max_renewals: some(draw, true, 20).then(|| draw.0.u32(0..4)),
            wait: draw.of(&swarm.waits),
            freeze: Self::freeze(draw, swarm),
            drop_after: Self::drop_after(draw, swarm),
            tasks: some(draw, swarm.tasks_of_bodies, 3),
            drives: is_plain && some(draw, swarm.drives, 2),
            blocks: some(draw, swarm.blocks, 12).then(|| draw.ms(50, 8_000)),
            mode,
            ..Self::plain(draw, swarm, keys, lease)
        }
    }

    fn freeze(draw: &mut Draw, swarm: &Swarm) -> Option<(u32, Duration)> {
        (swarm.freezes && draw.one_in(8)).then(|| (draw.0.u32(1..12), draw.ms(2, 5_000)))
    }

    fn drop_after(draw: &mut Draw, swarm: &Swarm) -> Option<u32> {
        (swarm.drops && draw.one_in(10)).then(|| draw.0.u32(1..12))
    }

    fn plain(draw: &mut Draw, swarm: &Swarm, keys: Vec<usize>, lease: Duration) -> Self {
        Self {
            pause: draw.ms(1, swarm.busy * 4),
            body: BodyPlan {
                awaits: draw.of(&[0, 1, 1, 2, 5]),
                span: draw.span(swarm.body.0, swarm.body.1),
                end: if swarm.odd_ends && draw.one_in(6) {
                    draw.of(&[BodyEnd::Error, BodyEnd::Panic])
                } else {
                    BodyEnd::Value
                },
            },
            keys,
            lease,
            mode: LockMode::Exclusive,
            wait: Duration::ZERO,
            renew: true,
            max_renewals: None,
            fair: false,
            pipelined: false,
            reentrant: false,
            fencing: false,
            signal: false,
            coalesce: false,
            guard: false,
            tasks: false,
            at_least: Duration::ZERO,
            lock_delay: Duration::ZERO,
            min_replicas: 0,
            freeze: None,
            drop_after: None,
            drives: false,
            blocks: None,
        }
    }

    /// Returns the plan of another library's client that has a lock.
    pub fn foreign(key: usize) -> Self {
        let mut draw = Draw(fastrand::Rng::with_seed(0));
        let swarm = Swarm::draw(&mut draw);
        let lease = Duration::from_millis(500);
        Self::plain(&mut draw, &swarm, vec![key], lease)
    }

    /// Returns the plan of somebody else's call for the same lock, which is made in the middle of this one.
    pub fn of_another(&self) -> Self {
        Self {
            wait: Duration::ZERO,
            drives: false,
            min_replicas: 0,
            ..self.clone()
        }
    }

    /// Returns the names of what the call uses.
    pub fn features(&self) -> Vec<&'static str> {
        let mode = match self.mode {
            LockMode::Read => "read",
            LockMode::Write => "write",
            LockMode::Semaphore(_) => "semaphore",
            LockMode::Owner(_) => "owner",
            _ if self.keys.len() > 1 => "keys",
            _ => "exclusive",
        };
        let mut features = vec![mode];
        for (is_on, name) in [
            (self.fair, "fair"),
            (self.pipelined, "pipelined"),
            (self.reentrant, "reentrant"),
            (self.fencing, "fencing"),
            (self.signal, "signal"),
            (self.coalesce, "coalesce"),
            (!self.at_least.is_zero(), "at_least"),
            (!self.lock_delay.is_zero(), "lock_delay"),
            (!self.renew, "no_renewal"),
            (self.guard, "guard"),
            (self.tasks, "tasks"),
            (self.drives, "drives"),
            (self.min_replicas > 0, "min_replicas"),
        ] {
            features.extend(is_on.then_some(name));
        }
        features
    }
}

impl fmt::Display for CallPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} of keys {:?}, lease {:?}, wait {:?}",
            self.mode, self.keys, self.lease, self.wait
        )?;
        for feature in self.features().iter().skip(1) {
            write!(f, ", {feature}")?;
        }
        if self.min_replicas > 0 {
            write!(f, " {}", self.min_replicas)?;
        }
        for (name, span) in [("at_least", self.at_least), ("lock_delay", self.lock_delay)] {
            if !span.is_zero() {
                write!(f, ", {name} {span:?}")?;
            }
        }
        if let Some(most) = self.max_renewals {
            write!(f, ", max_renewals {most}")?;
        }
        if let Some((after, span)) = self.freeze {
            write!(f, ", not polled for {span:?} after {after} polls")?;
        }
        if let Some(after) = self.drop_after {
            write!(f, ", dropped after {after} polls")?;
        }
        if let Some(span) = self.blocks {
            write!(f, ", then its runtime stands still for {span:?}")?;
        }
        let BodyPlan { awaits, span, end } = self.body;
        write!(f, "; {awaits} awaits in {span:?}, ends with {end:?}")
    }
}
