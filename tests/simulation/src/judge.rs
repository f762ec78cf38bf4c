//! The judge: it sees every poll of every body and every end of every call, and knows which faults struck whom and when. What the catalogue
//! in `docs/faults.md` allows no fault to do is a violation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_runtime::{HeldLock, LockError, LockMode, LostReason};
use tokio::time::Instant;

use lock_simulation::group::SERVERS;
use lock_simulation::process::Process;
use lock_simulation::server::Server;
use lock_simulation::server::data::{Sorted, Value};
use lock_simulation::server::engine::Engine;
use lock_simulation::servers::Servers;
use lock_simulation::trace::Trace;

use crate::coverage::Coverage;
use crate::plan::{CallPlan, Fault, Plan, stored_name};

/// After an outage or a loss of data, the bodies that have lost their locks end within this time.
const FOUND_WITHIN: Duration = Duration::from_secs(1);
/// After a process, a runtime or a call stood still, it is told of its end within this time.
const WAKES_WITHIN: Duration = Duration::from_millis(2);
/// A `wait` is kept within this time, for the round trips that have begun.
const WAIT_SLACK: Duration = Duration::from_millis(100);
/// A call without a `wait` tries once: a response time-out for a connection, and one for the answer.
const ONE_TRY: Duration = Duration::from_secs(4);
/// A call in front that is not polled delays those behind it in its process by this much at most.
const FROZEN_IN_FRONT: Duration = Duration::from_millis(700);
/// A `wait` in which the first answer comes, also where a connection has to be made first.
const TIME_TO_ASK: Duration = Duration::from_millis(50);
/// A lock is never free for longer than this while a call waits for it.
const FREE_FOR: Duration = Duration::from_millis(3_500);
/// A lock that a process has taken is not kept for longer than this while none of its calls is inside and another call waits, and for each
/// call that is not polled on its way to the lock.
const UNUSED_FOR: Duration = Duration::from_millis(1_000);
const UNUSED_FOR_A_CALL: Duration = Duration::from_millis(1_600);
/// The most commands of a process in a second, and for each call that began or waited in it.
const COMMANDS_A_SECOND: u64 = 100;
const COMMANDS_A_CALL: u64 = 16;
/// The same while something is wrong with the server or a process: connections are made anew about 14 times a second each, calls try again on
/// each, and so does the release of what each try may have taken, as long as it may have an effect.
const COMMANDS_IN_TROUBLE: u64 = 200;
const COMMANDS_OF_A_TRIAL: u64 = 100;
const COMMANDS_OF_A_RELEASE: u64 = 4;
const RELEASED_WITHIN: Duration = Duration::from_secs(30);
/// After a failover releases are repeated within this time, so many for each call of the whole run, as one may be for several keys, and under
/// an earlier value as well.
const REPEATED_WITHIN: Duration = Duration::from_secs(10);
const RELEASED_OF_A_CALL: u64 = 3;
/// What a disturbance does to calls may be seen for this long after its end.
const AFTERMATH: Duration = Duration::from_secs(4);
/// The bodies that may begin inside a process under a lock that it has lost.
const BODIES_AFTER_LOSS: u32 = 5;
/// A `fair` call that asked so much later than another one never comes first.
const CLEARLY_LATER: Duration = Duration::from_millis(500);

/// A client of another kind that polls has a turn within this time, and what locks may be passed on for inside processes, if others have so
/// many, none of them longer than this.
const TURN_OF_A_STRANGER: Duration = Duration::from_secs(3);
const TURNS_OF_OTHERS: u32 = 30;
/// It may win so many races in a row for a lock that it takes again at once.
const RACES: u32 = 100;
/// Such a client may lose the race for a lock that has become free so often.
const TURNS_OFFERED: u32 = 3;
const CHANGES_HANDS: Duration = Duration::from_millis(500);
/// The process of such clients.
pub const STRANGER: usize = 900;
/// A call that has waited for this long has its turn before so many have it that asked later.
const STARVES_AFTER: Duration = Duration::from_secs(6);
const STARVES_BEHIND: u32 = 150;
/// The most commands in one script.
const COMMANDS_OF_A_SCRIPT: u32 = 900;
/// A lock is renewed in time if the store has carried out commands for this long.
const RENEWED_WITHIN: Duration = Duration::from_millis(700);

/// Behind sentinels leases are relied on for so much less.
const SKEW: Duration = Duration::from_millis(50);
/// A place in a queue is offered a lock for so long.
const CLAIM: Duration = Duration::from_millis(1_500);
/// After all know of a new master, a call has its lock within this time if nobody else has it.
const AT_WORK_WITHIN: Duration = Duration::from_secs(2);

/// Replicas that lack nothing older than three quarters of a response time-out, less this, are counted by a server that is asked.
const COUNTED_WITHIN: Duration = Duration::from_millis(60);
/// What replicas have had is remembered for so long.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The most replicas that a call wants.
const MOST_REPLICAS: usize = SERVERS - 1;

/// The rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    Alone,
    FewAfterLoss,
    TokensGrow,
    NoOkAfterLoss,
    NotLostWithoutDanger,
    NoPollAfterDeadline,
    WaitIsKept,
    Replicated,
    Progress,
    Fair,
    HarmsNobodyElse,
    Fresh,
    NoTraces,
    NoStorm,
    Healthy,
}

/// What breaks a rule.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub at: Duration,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:.6}: {}", self.rule, self.at.as_secs_f64(), self.what)
    }
}

/// The judge of one run. Clones are one judge.
#[derive(Clone)]
pub struct Judge(Arc<Mutex<Inner>>);

struct Inner {
    began: Instant,
    servers: Servers,
    /// The last time at which the slot of each key moved or was on its way.
    moved: Vec<Option<Instant>>,
    /// What replicas have had of the locks of each process, by key.
    reached: BTreeMap<(usize, Holder), Vec<Reached>>,
    /// For each response time-out, the last time at which fewer than so many replicas kept up with the master.
    few: BTreeMap<Duration, [Option<Instant>; MOST_REPLICAS + 1]>,
    trace: Trace,
    calls: BTreeMap<u64, Call>,
    next: u64,
    /// The pairs of bodies that are inside and must not be, since when.
    pairs: BTreeMap<(u64, u64), Instant>,
    troubles: Vec<Trouble>,
    losses: Vec<Loss>,
    /// The last time at which each key was not free.
    taken: Vec<Instant>,
    /// The last time at which each key was free, or a call was inside, or what holds it was none of the processes.
    used: Vec<Instant>,
    /// The turns of a client of another kind since that of another one, by key.
    in_a_row: Vec<u32>,
    /// The processes that were killed, with their incarnations.
    killed: BTreeSet<(usize, u32)>,
    /// The runtimes that stand still, and since when.
    standing: BTreeMap<(usize, u32, u32), Instant>,
    /// When one of them went on last.
    stood_until: Option<Instant>,
    /// Fair calls that others came before, with their names, and when.
    overtaken: Vec<(u64, String, Instant)>,
    /// The largest token of the calls that have ended, by key.
    tokens: Vec<u64>,
    /// The number of writes to what each key protects.
    written: Vec<u64>,
    violations: Vec<Violation>,
    /// The beginning of the present second, and the number of commands, of calls, and of calls under way by then.
    second: (Instant, u64, u64, u64),
    processes: u64,
    /// When calls ended that may have taken something without an answer, which is given back in the background.
    doubtful: VecDeque<Instant>,
    /// The number of them, from the beginning on.
    doubted: usize,
    /// Other clients change locks or publish, which the processes look at.
    has_strangers: bool,
    /// The server has begun again with old data, so locks and places of calls that have ended were back.
    was_rewound: bool,
    /// The server's clock was set back.
    was_set_back: bool,
    /// The server has lost its data after that, so tokens begin again at its clock.
    begins_again: bool,
    /// The number of bodies that have begun.
    pub sections: u64,
    /// How many of them began while another call waited.
    contended: u64,
    coverage: Coverage,
    /// The processes whose user may not subscribe.
    deaf: BTreeSet<usize>,
    /// The locks that a client of another kind polls for, by key.
    polled: Vec<Option<Polled>>,
    /// How long a lock may be passed on inside some process.
    passed_for: Duration,
    response_timeouts: Vec<Duration>,
    /// The most commands of one script.
    longest_script: u32,
    /// How far the clocks of servers that replace one another differ, in microseconds, and the time that leases are relied on for less.
    differ: u64,
    skew: Duration,
    /// The last time at which all processes knew of a new master.
    all_know: Option<Instant>,
}

/// A process with its incarnation, or `None` for a stranger.
type Holder = Option<(usize, u32)>;

/// A value of a lock.
struct Reached {
    value: Vec<u8>,
    /// The last time at which some server had it.
    last: Instant,
    /// The most replicas that had it at a time.
    most: usize,
}

/// Who is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Process(usize),
    Everybody,
}

impl Scope {
    /// Returns `true` if a fault of this scope strikes a process.
    fn has(self, process: usize) -> bool {
        self == Self::Everybody || self == Self::Process(process)
    }
}

/// A fault that strikes processes, as long as it lasts.
struct Trouble {
    fault: Fault,
    scope: Scope,
    since: Instant,
    until: Option<Instant>,
}

/// Data that the server has lost: a lock may be held by somebody who does not know of it.
struct Loss {
    /// All keys, or one.
    key: Option<usize>,
    at: Instant,
    /// Locks that were taken before it may be lost at any time from then on: their leases are shorter than their holders believe.
    lingers: bool,
    /// The time for which another program's data stands in the lock's place.
    overwritten_for: Duration,
    /// The processes are told of it, or their connections end. Otherwise they find out by their next question.
    is_heard: bool,
    /// The bodies that began since inside a process that has lost the lock.
    begun: BTreeMap<(usize, u32), u32>,
    /// Another server has taken over, which knows the locks of these calls, until they run out there.
    survivors: Option<BTreeMap<u64, Instant>>,
}

impl Loss {
    fn new(key: Option<usize>) -> Self {
        Self {
            key,
            at: Instant::now(),
            lingers: false,
            overwritten_for: Duration::ZERO,
            is_heard: true,
            begun: BTreeMap::new(),
            survivors: None,
        }
    }

    /// Returns `true` unless the lock of a call has certainly survived until now.
    fn concerns(&self, id: u64) -> bool {
        let survivor = self.survivors.as_ref().and_then(|survivors| survivors.get(&id));
        survivor.is_none_or(|until| *until < Instant::now())
    }
}

struct Call {
    who: String,
    process: usize,
    incarnation: u32,
    home: Process,
    runtime: u32,
    passed_for: Duration,
    response_timeout: Duration,
    plan: CallPlan,
    asked: Instant,
    /// It is not polled by its caller, and since when.
    frozen: Option<Instant>,
    /// Its runtime is kept by another call that does not await.
    is_blocked: bool,
    thawed: Option<Instant>,
    inside: Option<Inside>,
    has_begun: bool,
    /// It did not run for a while between its beginning and its end.
    stood_still: bool,
    /// The largest token of the calls that had ended when it asked.
    floor: u64,
    token: Option<u64>,
    /// Its lock was lost to the server while its body ran.
    lost_at: Option<Instant>,
    /// A call has begun since then that excludes it.
    is_replaced: bool,
    /// The lock was its process's again when its body was over: the server that took over has offered it to the place that the call had in its
    /// queue.
    has_regained: bool,
    /// Its body was over.
    left: Option<Instant>,
    /// The number of writes when it asked.
    written: u64,
    /// The number of calls that asked later and got in before it.
    passed_by: u32,
}

/// A lock that a client of another kind polls for.
struct Polled {
    /// Its last turn, or its beginning, or the last time at which the lock did not change hands all the time.
    since: Instant,
    /// The bodies of others since then.
    others: u32,
    /// How often the lock had become free by then.
    was_free: u32,
}

impl Polled {
    fn from_now_on(was_free: u32) -> Self {
        Self {
            since: Instant::now(),
            others: 0,
            was_free,
        }
    }
}

struct Inside {
    since: Instant,
    held: Option<HeldLock>,
}

impl Call {
    /// Returns `true` if it is polled, and has been for this long.
    fn has_run(&self, lately: Duration) -> bool {
        self.frozen.is_none()
            && !self.is_blocked
            && self.thawed.is_none_or(|at| at.elapsed() >= lately)
            && self.home.has_run(self.runtime, lately)
    }

    /// Returns the time within which it is in or has failed.
    fn limit(&self) -> Duration {
        let wait = if self.plan.wait.is_zero() {
            ONE_TRY
        } else {
            self.plan.wait
        };
        wait + WAIT_SLACK
    }

    /// Returns the time for which it may wait for replicas, beyond its `wait`.
    fn for_replicas(&self) -> Duration {
        self.response_timeout * if self.plan.min_replicas > 0 { 2 } else { 0 }
    }

    /// Returns `true` if it may have its lock and wait for replicas.
    fn may_wait_for_replicas(&self) -> bool {
        self.plan.min_replicas > 0 && !self.has_begun
    }

    /// Returns `true` if its body runs, or may go on at any moment.
    fn is_inside(&self) -> bool {
        let Some(inside) = &self.inside else { return false };
        // A body that wants to go on without its lock is outside as soon as it could know.
        let went_on = (self.plan.signal || self.plan.guard) && inside.held.as_ref().is_some_and(|held| !held.is_held());
        !went_on && self.has_run(WAKES_WITHIN)
    }
}

fn may_be_together(one: &CallPlan, other: &CallPlan) -> bool {
    match (&one.mode, &other.mode) {
        (LockMode::Read, LockMode::Read) | (LockMode::Semaphore(_), LockMode::Semaphore(_)) => true,
        (LockMode::Owner(one), LockMode::Owner(other)) => one == other,
        _ => false,
    }
}

fn shares_a_key(one: &Call, other: &Call) -> bool {
    one.plan.keys.iter().any(|key| other.plan.keys.contains(key))
}

/// What has begun to be judged as a call.
pub struct Asked<'a> {
    pub process: usize,
    pub incarnation: u32,
    pub task: usize,
    pub runtime: u32,
    pub home: &'a Process,
    /// How long a lock may have been passed on inside the process.
    pub passed_for: Duration,
    pub response_timeout: Duration,
    pub plan: &'a CallPlan,
}

impl Judge {
    pub fn new(servers: Servers, trace: Trace, keys: usize, plan: &Plan) -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(Inner {
            began: now,
            servers,
            moved: vec![None; keys],
            reached: BTreeMap::new(),
            few: plan
                .processes
                .iter()
                .map(|process| (process.response_timeout, [None; MOST_REPLICAS + 1]))
                .collect(),
            trace,
            calls: BTreeMap::new(),
            next: 1,
            pairs: BTreeMap::new(),
            troubles: Vec::new(),
            losses: Vec::new(),
            taken: vec![now; keys],
            used: vec![now; keys],
            in_a_row: vec![0; keys],
            killed: BTreeSet::new(),
            standing: BTreeMap::new(),
            stood_until: None,
            overtaken: Vec::new(),
            tokens: vec![0; keys],
            written: vec![0; keys],
            violations: Vec::new(),
            second: (now, 0, 0, 0),
            processes: u64::try_from(plan.processes.len()).unwrap_or_default(),
            doubtful: VecDeque::new(),
            doubted: 0,
            has_strangers: plan.faults.iter().any(|fault| {
                matches!(
                    fault.kind,
                    Fault::Forge | Fault::ForgeQueue | Fault::ForeignPoller | Fault::SteadyPoller | Fault::Overwrite
                )
            }),
            was_set_back: false,
            was_rewound: false,
            begins_again: false,
            sections: 0,
            contended: 0,
            coverage: Coverage::default(),
            deaf: BTreeSet::new(),
            polled: (0..keys).map(|_| None).collect(),
            passed_for: plan
                .processes
                .iter()
                .map(|process| process.handover.1)
                .max()
                .unwrap_or_default(),
            longest_script: 0,
            differ: plan.differ(),
            skew: plan.several.as_ref().map_or(Duration::ZERO, |_| SKEW),
            all_know: None,
            response_timeouts: plan.processes.iter().map(|process| process.response_timeout).collect(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins. Returns its number.
    pub fn asks(&self, asked: &Asked<'_>) -> u64 {
        let mut inner = self.inner();
        let id = inner.next;
        inner.next += 1;
        let plan = asked.plan.clone();
        let who = format!("call {id} of {}.{}", asked.process, asked.task);
        inner.trace.note(|| format!("{who} asks: {plan}"));
        let call = Call {
            who,
            process: asked.process,
            incarnation: asked.incarnation,
            home: asked.home.clone(),
            runtime: asked.runtime,
            passed_for: asked.passed_for,
            response_timeout: asked.response_timeout,
            asked: Instant::now(),
            frozen: None,
            is_blocked: false,
            thawed: None,
            inside: None,
            has_begun: false,
            stood_still: false,
            floor: plan.keys.iter().map(|key| inner.tokens[*key]).max().unwrap_or_default(),
            token: None,
            lost_at: None,
            is_replaced: false,
            has_regained: false,
            left: None,
            written: inner.written[plan.keys[0]],
            passed_by: 0,
            plan,
        };
        let lasting = |fault: Fault| match fault {
            Fault::Deaf => inner.deaf.contains(&call.process),
            Fault::SteadyPoller => call.plan.keys.iter().any(|key| inner.polled[*key].is_some()),
            fault => inner.troubles.iter().any(|trouble| {
                trouble.fault == fault && trouble.until.is_none() && trouble.scope == Scope::Process(call.process)
            }),
        };
        let lasting: Vec<Fault> = Fault::LASTING.into_iter().filter(|fault| lasting(*fault)).collect();
        for fault in lasting {
            for feature in call.plan.features() {
                inner.coverage.hit(feature, fault);
            }
        }
        inner.calls.insert(id, call);
        id
    }

    /// The body of a call is polled for the first time.
    pub fn begins(&self, id: u64, held: Option<HeldLock>) {
        let mut inner = self.inner();
        let Some(call) = inner.calls.get_mut(&id) else { return };
        let since = Instant::now();
        call.inside = Some(Inside { since, held });
        call.has_begun = true;
        let (keys, mode) = (call.plan.keys.clone(), call.plan.mode.clone());
        let excludes = |call: &Call| {
            let is_shared = mode == call.plan.mode && !matches!(mode, LockMode::Exclusive | LockMode::Write);
            !is_shared && keys.iter().any(|key| call.plan.keys.contains(key))
        };
        for (other, call) in &mut inner.calls {
            call.is_replaced |= *other != id && call.lost_at.is_some() && excludes(call);
        }
        inner.sections += 1;
        inner.begins(id);
    }

    /// The body of a call is polled again.
    pub fn polls(&self, id: u64) {
        let mut inner = self.inner();
        let Some(call) = inner.calls.get_mut(&id) else { return };
        let Some(inside) = &call.inside else { return };
        let deadline = inside.held.as_ref().map(HeldLock::deadline);
        if let Some(deadline) = deadline.filter(|_| !call.plan.signal && !call.plan.guard) {
            let is_after = call.home.now() > deadline;
            if is_after {
                let what = format!("the body of {} is polled after its deadline", call.who);
                inner.violates(Rule::NoPollAfterDeadline, what);
            }
        }
        inner.look();
    }

    /// A task of the body of a call is polled.
    pub fn polls_part(&self, id: u64) {
        if self.inner().calls.contains_key(&id) {
            self.polls(id);
        } else {
            self.violates(
                Rule::Alone,
                format!("a task of the call {id} is polled after the call has ended"),
            );
        }
    }

    /// The body of a call is over or dropped.
    pub fn leaves(&self, id: u64, is_done: bool) {
        let mut inner = self.inner();
        inner.look();
        let servers = inner.servers.clone();
        let Some(call) = inner.calls.get_mut(&id) else { return };
        if call.inside.take().is_none() {
            return;
        }
        call.left = Some(Instant::now());
        let mine = Some((call.process, call.incarnation));
        call.has_regained = call.plan.keys.iter().all(|key| holders(&servers, *key).contains(&mine));
        let (keys, who) = (call.plan.keys.clone(), call.who.clone());
        let writes = is_done && matches!(call.plan.mode, LockMode::Exclusive | LockMode::Write);
        for key in keys {
            inner.taken[key] = Instant::now();
            inner.written[key] += u64::from(writes);
        }
        inner.trace.note(|| format!("{who} leaves, done: {is_done}"));
        inner.look();
    }

    /// Returns the number of writes to what the key of a call protects.
    pub fn reads(&self, key: usize) -> u64 {
        self.inner().written[key]
    }

    /// The body of a call has a token.
    pub fn has_token(&self, id: u64, token: u64) {
        let mut inner = self.inner();
        let begins_again = inner.begins_again;
        let Some(call) = inner.calls.get_mut(&id) else { return };
        call.token = Some(token);
        let (floor, who) = (call.floor, call.who.clone());
        // A server whose clock was set back and which then loses the counter begins again at its clock.
        // Another server's tokens are those of its own clock.
        let differ = if inner.losses.iter().any(|loss| loss.survivors.is_some()) {
            inner.differ
        } else {
            0
        };
        if token + differ <= floor && !begins_again {
            let what = format!("{who} has the token {token}, and an earlier call had {floor}");
            inner.violates(Rule::TokensGrow, what);
        }
    }

    /// The caller does not poll a call any more, or does so again.
    pub fn freezes(&self, id: u64, is_frozen: bool) {
        let mut inner = self.inner();
        let Some(call) = inner.calls.get_mut(&id) else { return };
        call.stood_still = true;
        if is_frozen {
            call.frozen = Some(Instant::now());
        } else {
            call.frozen = None;
            call.thawed = Some(Instant::now());
        }
        let who = call.who.clone();
        inner.trace.note(|| format!("{who} is polled: {}", !is_frozen));
        inner.strike_one(id, Fault::NotPolled);
    }

    /// A call has ended, or was dropped.
    pub fn ends(&self, id: u64, outcome: Option<&Result<u64, LockError>>) {
        let mut inner = self.inner();
        let Some(call) = inner.calls.remove(&id) else { return };
        inner.trace.note(|| match outcome {
            Some(outcome) => format!("{} ends: {outcome:?}", call.who),
            None => format!("{} is dropped", call.who),
        });
        inner.pairs.retain(|(one, other), _| *one != id && *other != id);
        // The lock may have been kept for it until now.
        let has_given_back = call.may_wait_for_replicas() && !matches!(outcome, Some(Err(LockError::Busy { .. })));
        if call.stood_still || has_given_back {
            call.plan.keys.iter().for_each(|key| inner.used[*key] = Instant::now());
        }
        if let Some(token) = call.token {
            let key = call.plan.keys[0];
            inner.tokens[key] = inner.tokens[key].max(token);
        }
        let may_have_taken = matches!(
            outcome,
            None | Some(Err(LockError::Store { .. } | LockError::Lost { .. }))
        );
        if may_have_taken || inner.was_disturbed(call.process, call.asked) {
            inner.doubtful.extend(call.plan.keys.iter().map(|_| Instant::now()));
            inner.doubted += call.plan.keys.len();
        }
        if let Some(outcome) = outcome {
            inner.judge(id, &call, outcome);
        }
    }

    /// A fault strikes one call.
    pub fn strikes_call(&self, id: u64, fault: Fault) {
        self.inner().strike_one(id, fault);
    }

    /// A fault strikes: whom, and whether it lasts until [`is_over`](Self::is_over).
    pub fn strikes(&self, fault: Fault, scope: Scope) -> usize {
        let mut inner = self.inner();
        inner.trace.note(|| format!("fault: {fault} strikes {scope:?}"));
        inner.strike(fault, |call| scope.has(call.process));
        inner.troubles.push(Trouble {
            fault,
            scope,
            since: Instant::now(),
            until: None,
        });
        inner.troubles.len() - 1
    }

    /// From now on the user of a process may not subscribe.
    pub fn is_deaf(&self, process: usize) {
        self.inner().deaf.insert(process);
    }

    /// The runtime of a process stands still from now on, or goes on.
    pub fn blocks(&self, (process, incarnation, runtime): (usize, u32, u32), is_blocked: bool) {
        let mut inner = self.inner();
        inner
            .trace
            .note(|| format!("the runtime {runtime} of process {process} stands still: {is_blocked}"));
        if is_blocked {
            inner.standing.insert((process, incarnation, runtime), Instant::now());
        } else if let Some(since) = inner.standing.remove(&(process, incarnation, runtime)) {
            inner.is_new_to(process, since);
            inner.stood_until = Some(Instant::now());
        }
        let is_in_it =
            |call: &&mut Call| (call.process, call.incarnation, call.runtime) == (process, incarnation, runtime);
        for call in inner.calls.values_mut().filter(is_in_it) {
            call.stood_still = true;
            call.is_blocked = is_blocked;
            if !is_blocked {
                call.thawed = Some(Instant::now());
            }
        }
    }

    /// A client of another kind polls for a lock from now on.
    pub fn begins_polling(&self, key: usize, is_steady: bool) {
        if is_steady {
            let mut inner = self.inner();
            inner.polled[key] = Some(Polled::from_now_on(inner.was_free(key)));
        }
    }

    pub fn ends_polling(&self, key: usize) {
        self.inner().polled[key] = None;
    }

    /// A fault strikes that disturbs nobody, or only the data.
    pub fn strikes_only(&self, fault: Fault) {
        let mut inner = self.inner();
        inner.trace.note(|| format!("fault: {fault} strikes"));
        inner.strike(fault, |_| true);
    }

    /// A fault is over.
    pub fn is_over(&self, trouble: usize) {
        let mut inner = self.inner();
        inner.trace.note(|| "fault: one is over".to_owned());
        if let Some(trouble) = inner.troubles.get_mut(trouble) {
            trouble.until = Some(Instant::now());
        }
    }

    /// The server has lost everything, or may have, and tells nobody.
    pub fn loses_unheard(&self, is_certain: bool) {
        self.loses(None, is_certain);
        if let Some(loss) = self.inner().losses.last_mut() {
            loss.is_heard = false;
        }
    }

    /// Another program's data stands in a lock's place for a while.
    pub fn overwrites(&self, key: usize, lasts: Duration) {
        self.loses(Some(key), true);
        if let Some(loss) = self.inner().losses.last_mut() {
            loss.overwritten_for = lasts;
        }
    }

    /// The server may have lost what it knew of a key, or of all; or it has done so for certain.
    pub fn loses(&self, key: Option<usize>, is_certain: bool) {
        let mut inner = self.inner();
        inner.trace.note(|| format!("the server loses {key:?}"));
        let now = Instant::now();
        inner.begins_again |= key.is_none() && inner.was_set_back;
        inner.losses.push(Loss::new(key));
        for call in inner
            .calls
            .values_mut()
            .filter(|call| is_certain && call.inside.is_some())
        {
            if key.is_none_or(|key| call.plan.keys.contains(&key)) {
                call.lost_at.get_or_insert(now);
            }
        }
    }

    /// Another server takes over all keys.
    pub fn is_replaced(&self, former: &Server, next: &Server) {
        self.inner().is_replaced(former, next, None);
    }

    /// A node takes over these keys.
    pub fn is_replaced_for(&self, former: &Server, next: &Server, keys: &[usize]) {
        let mut inner = self.inner();
        for key in keys {
            inner.is_replaced(former, next, Some(*key));
        }
    }

    /// The slot of a key moves, or is on its way.
    pub fn moves(&self, key: usize) {
        self.inner().moved[key] = Some(Instant::now());
    }

    /// A process learns which server has taken over, after a trouble.
    pub fn is_told(&self, process: usize, trouble: usize) {
        self.is_over(trouble);
        let mut inner = self.inner();
        let inner = &mut *inner;
        inner
            .trace
            .note(|| format!("process {process} has been told of the new master"));
        inner.all_know = Some(Instant::now());
        for call in inner.calls.values_mut() {
            let mine = Some((call.process, call.incarnation));
            let is_lost = |key: &usize| !holders(&inner.servers, *key).contains(&mine);
            if call.process == process && call.inside.is_some() && call.plan.keys.iter().any(is_lost) {
                call.lost_at.get_or_insert_with(Instant::now);
            }
        }
    }

    /// The server begins again with data of before: locks and places of calls that have ended.
    pub fn is_rewound(&self) {
        self.inner().was_rewound = true;
    }

    /// The server's clock was set back.
    pub fn is_set_back(&self, by: Duration) {
        let mut inner = self.inner();
        inner.was_set_back = true;
        // A minimum hold is over so much later.
        for used in &mut inner.used {
            *used = Instant::now() + by;
        }
    }

    /// The server's leases have become shorter than their holders believe.
    pub fn shortens(&self) {
        let mut inner = self.inner();
        inner.trace.note(|| "leases end early".to_owned());
        inner.losses.push(Loss {
            lingers: true,
            ..Loss::new(None)
        });
    }

    /// All calls of a process are over: it was killed.
    pub fn is_killed(&self, process: usize, incarnation: u32) {
        let mut inner = self.inner();
        inner.killed.insert((process, incarnation));
        inner
            .calls
            .retain(|_, call| (call.process, call.incarnation) != (process, incarnation));
        let inner = &mut *inner;
        let calls = &inner.calls;
        inner
            .pairs
            .retain(|(one, other), _| calls.contains_key(one) && calls.contains_key(other));
    }

    /// Returns what is called after each step of the replicas.
    pub fn looker(&self) -> impl Fn() + Send + Sync + 'static {
        // The group that calls it is the judge's.
        let judge = Arc::downgrade(&self.0);
        move || {
            let Some(judge) = judge.upgrade().map(Self) else { return };
            let mut inner = judge.inner();
            if inner.calls.values().any(Call::may_wait_for_replicas) {
                inner.look_at_replicas();
            }
        }
    }

    /// Looks at what no event shows: those who are inside together, and those who wait for a free lock.
    pub fn look(&self) {
        let mut inner = self.inner();
        inner.look();
        inner.look_at_waiting();
        inner.look_at_commands();
    }

    /// Returns for how long something has been wrong, its aftermath included.
    pub fn disturbed_for(&self) -> Duration {
        let inner = self.inner();
        let mut spans: Vec<(Instant, Instant)> = inner
            .troubles
            .iter()
            .map(|trouble| (trouble.since, trouble.until.unwrap_or_else(Instant::now) + AFTERMATH))
            .collect();
        spans.sort();
        let (mut sum, mut end) = (Duration::ZERO, inner.began);
        for (since, until) in spans {
            sum += until.saturating_duration_since(since.max(end));
            end = end.max(until);
        }
        sum
    }

    /// Returns the number of keys that calls may have taken without an answer.
    pub fn doubted(&self) -> u64 {
        u64::try_from(self.inner().doubted).unwrap_or_default()
    }

    /// Returns `true` if strangers have changed locks or published.
    pub fn has_strangers(&self) -> bool {
        self.inner().has_strangers
    }

    /// Returns the number of calls that have begun.
    pub fn asked(&self) -> u64 {
        self.inner().next
    }

    pub fn violates(&self, rule: Rule, what: String) {
        self.inner().violates(rule, what);
    }

    /// Returns what was found.
    pub fn verdict(&self) -> Verdict {
        let mut inner = self.inner();
        Verdict {
            violations: std::mem::take(&mut inner.violations),
            sections: inner.sections,
            contended: inner.contended,
            longest_script: inner.longest_script,
            coverage: std::mem::take(&mut inner.coverage),
        }
    }
}

/// What a run was like.
pub struct Verdict {
    pub violations: Vec<Violation>,
    pub sections: u64,
    pub contended: u64,
    pub longest_script: u32,
    pub coverage: Coverage,
}

impl Inner {
    fn violates(&mut self, rule: Rule, what: String) {
        let violation = Violation {
            rule,
            at: self.began.elapsed(),
            what,
        };
        self.trace.note(|| format!("VIOLATION: {violation}"));
        self.violations.push(violation);
    }

    /// Another server takes over all keys, or one. The locks survive that it knows as the one before does.
    fn is_replaced(&mut self, former: &Server, next: &Server, only: Option<usize>) {
        let concerns = |key: &&usize| only.is_none_or(|only| only == **key);
        let now = Instant::now();
        let clock = next.now();
        let mut survivors = BTreeMap::new();
        let mut lost = Vec::new();
        let is_struck = |call: &Call| call.inside.is_some() && call.plan.keys.iter().any(|key| concerns(&key));
        for (id, call) in self.calls.iter().filter(|(_, call)| is_struck(call)) {
            let kept = call
                .plan
                .keys
                .iter()
                .filter(concerns)
                .map(|key| kept(*key, former, next));
            let kept: Option<Duration> = kept.reduce(|one, other| Some(one?.min(other?))).flatten();
            if let Some(until) = kept {
                survivors.insert(*id, now + until.saturating_sub(clock));
            }
            let holds = |key: &usize| holders_on(next, *key).contains(&Some((call.process, call.incarnation)));
            if !call.plan.keys.iter().filter(concerns).all(holds) {
                lost.push(*id);
            }
        }
        self.trace.note(|| {
            let names = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            let ids: Vec<u64> = survivors.keys().copied().collect();
            format!(
                "the locks of the calls {} survive, those of {} are lost",
                names(&ids),
                names(&lost)
            )
        });
        for id in lost {
            if let Some(call) = self.calls.get_mut(&id) {
                call.lost_at.get_or_insert(now);
            }
        }
        self.losses.push(Loss {
            survivors: Some(survivors),
            // Nobody is told of it before the sentinels know.
            is_heard: false,
            ..Loss::new(only)
        });
    }

    fn strike(&mut self, fault: Fault, is_struck: impl Fn(&Call) -> bool) {
        for call in self.calls.values_mut().filter(|call| is_struck(call)) {
            if matches!(fault, Fault::Suspend | Fault::BlockRuntime | Fault::EndRuntime) {
                call.stood_still = true;
            }
            for feature in call.plan.features() {
                self.coverage.hit(feature, fault);
            }
        }
    }

    fn strike_one(&mut self, id: u64, fault: Fault) {
        if let Some(call) = self.calls.get(&id) {
            for feature in call.plan.features() {
                self.coverage.hit(feature, fault);
            }
        }
    }

    /// Returns `true` if a fault struck this process between then and now, or its effects may be seen then.
    fn was_disturbed(&self, process: usize, since: Instant) -> bool {
        self.was_disturbed_by(process, since, |_| true)
    }

    /// What has struck a process while a runtime of it stood still is news to that runtime.
    fn is_new_to(&mut self, process: usize, stood_since: Instant) {
        for trouble in &mut self.troubles {
            let concerns = trouble.scope.has(process);
            if concerns && trouble.until.is_some_and(|until| until >= stood_since) {
                trouble.until = Some(Instant::now());
            }
        }
    }

    /// As [`was_disturbed`](Self::was_disturbed), by faults that count.
    fn was_disturbed_by(&self, process: usize, since: Instant, counts: fn(Fault) -> bool) -> bool {
        self.troubles.iter().any(|trouble| {
            let concerns = trouble.scope.has(process);
            concerns && counts(trouble.fault) && trouble.until.is_none_or(|until| until + AFTERMATH >= since)
        })
    }

    /// As [`was_disturbed`](Self::was_disturbed), but a call looks by itself where its lock thread cannot.
    fn was_kept_from_looking(&self, process: usize, since: Instant) -> bool {
        self.was_disturbed_by(process, since, |fault| {
            !matches!(fault, Fault::SilentBackground | Fault::CutListeners)
        })
    }

    /// As [`was_disturbed`](Self::was_disturbed), but the order of those who wait does not depend on the server's clock.
    fn was_put_out_of_order(&self, process: usize, since: Instant) -> bool {
        self.was_disturbed_by(process, since, |fault| fault != Fault::ClockBack)
    }

    fn was_anybody_disturbed(&self, since: Instant) -> bool {
        let is_recent = |trouble: &Trouble| trouble.until.is_none_or(|until| until + AFTERMATH >= since);
        self.troubles.iter().any(is_recent)
    }

    /// Returns `true` if a body may be inside beside another one: the server has lost its lock a short time ago. They are together since then.
    fn may_overlap(
        &self,
        key: usize,
        (one_id, one): (u64, &Call),
        (id, other): (u64, &Call),
        together: Instant,
    ) -> bool {
        let concerns = |trouble: &&Trouble| trouble.scope.has(one.process) || trouble.scope.has(other.process);
        let was_inside = |loss: &Loss| {
            let mut bodies = [one, other].into_iter();
            bodies.any(|call| {
                call.inside
                    .as_ref()
                    .is_some_and(|inside| inside.since <= loss.at + call.passed_for)
            })
        };
        let losses = self.losses.iter().filter(|loss| loss.key.is_none_or(|of| of == key));
        // Where one of them has a lock that survived, both servers keep the other one out.
        let losses = losses.filter(|loss| loss.concerns(one_id) && loss.concerns(id));
        losses.into_iter().any(|loss| {
            let mut until = if loss.lingers && was_inside(loss) {
                together
            } else {
                loss.at
            };
            for trouble in self.troubles.iter().filter(concerns) {
                match trouble.until {
                    // What strikes after all know of the new server is none of its effects.
                    _ if loss.survivors.is_some() && trouble.since > until + FOUND_WITHIN => {}
                    None => return true,
                    Some(end) if end + FOUND_WITHIN >= loss.at => until = until.max(end),
                    Some(_) => {}
                }
            }
            until + FOUND_WITHIN >= Instant::now()
        })
    }

    fn begins(&mut self, id: u64) {
        let call = &self.calls[&id];
        let keys = call.plan.keys.clone();
        let (who, process, incarnation) = (call.who.clone(), call.process, call.incarnation);
        self.trace.note(|| format!("{who} begins"));
        let waits = |other: &&Call| !other.has_begun && other.plan.keys.iter().any(|key| keys.contains(key));
        if self.calls.values().filter(waits).count() > 0 {
            self.contended += 1;
        }
        // A call that asked clearly later must not come first.
        if call.plan.fair {
            let overtaken = self.calls.iter().find(|(_, other)| {
                other.plan.fair
                    && !other.has_begun
                    && other.plan.keys == call.plan.keys
                    && other.plan.mode == call.plan.mode
                    // Of those that may be inside together each waits for replicas by itself, and a lock that is not renewed for as long
                    // as it takes may end meanwhile.
                    && (other.plan.min_replicas == 0
                        || (other.plan.mode == LockMode::Exclusive
                            && other.plan.renew
                            && other.plan.max_renewals.is_none()))
                    && other.asked + CLEARLY_LATER < call.asked
                    && !other.stood_still
                    && !self.was_put_out_of_order(other.process, other.asked)
                    && !self.losses.iter().any(|loss| loss.at >= other.asked)
                    // A slot that moves takes its queue along, but those who wait there find it again one by one.
                    && !other.plan.keys.iter().any(|key| self.moved[*key].is_some_and(|at| at + AFTERMATH >= other.asked))
            });
            // Those who may be inside together begin in any order.
            if let Some((overtaken, _)) = overtaken {
                self.overtaken.push((*overtaken, who.clone(), Instant::now()));
            }
        }
        let is_plain = |plan: &CallPlan| plan.keys.len() == 1 && plan.mode == LockMode::Exclusive;
        let call = &self.calls[&id];
        // A client of another kind that takes a lock again at once wins a race, and overtakes nobody, as long as it does not win each one.
        let in_a_row = keys.iter().map(|key| self.in_a_row[*key]).max().unwrap_or_default();
        let overtakes = match in_a_row {
            1..RACES if process == STRANGER => 0,
            RACES if process == STRANGER => RACES,
            _ => 1,
        };
        let (begins_plain, asked) = (is_plain(&call.plan), call.asked);
        for other in self
            .calls
            .values_mut()
            .filter(|other| !other.has_begun && is_plain(&other.plan))
        {
            if begins_plain && other.plan.keys == keys && other.asked < asked {
                other.passed_by += overtakes;
            }
        }
        for key in &keys {
            if process == STRANGER {
                self.polled_anew(*key);
            } else if let Some(polled) = &mut self.polled[*key] {
                polled.others += 1;
            }
        }
        self.wait_is_kept(id);
        self.is_replicated(id);
        for key in &keys {
            self.taken[*key] = Instant::now();
            self.used[*key] = Instant::now();
            self.in_a_row[*key] = if process == STRANGER {
                self.in_a_row[*key] + 1
            } else {
                0
            };
        }
        self.look();
        // Under a lock that was lost, few bodies begin in the process that had it, beside the holder that the server knows.
        let together = self.pairs.keys().any(|(one, other)| *one == id || *other == id);
        let is_ours = process != STRANGER;
        let lost = keys
            .iter()
            .filter(|key| together && is_ours && !self.holds(process, incarnation, **key));
        let lost: Vec<usize> = lost.copied().collect();
        let mut losses = self.losses.iter_mut().rev();
        let latest = losses.find(|loss| lost.iter().any(|key| loss.key.is_none_or(|of| of == *key)));
        if let Some(loss) = latest.filter(|loss| loss.is_heard) {
            *loss.begun.entry((process, incarnation)).or_default() += 1;
        }
        let most = self.losses.iter().flat_map(|loss| loss.begun.values()).max().copied();
        if most.is_some_and(|most| most > BODIES_AFTER_LOSS) {
            let what = format!("{who} is one of {most:?} bodies that began under a lost lock");
            self.violates(Rule::FewAfterLoss, what);
        }
    }

    /// Notes what replicas have of the locks of calls that wait for them, and whether they keep up.
    fn look_at_replicas(&mut self) {
        let servers = self.servers.all();
        let now = Instant::now();
        for key in 0..self.taken.len() {
            let mut replicas: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
            for server in &servers {
                let (is_replica, values) = server.read(|engine| (engine.state.follows.is_some(), values(engine, key)));
                for value in values {
                    *replicas.entry(value).or_default() += usize::from(is_replica);
                }
            }
            for (value, replicas) in replicas {
                let known = self.reached.entry((key, holder(&value))).or_default();
                match known.iter_mut().rev().find(|known| known.value == value) {
                    Some(known) => (known.last, known.most) = (now, known.most.max(replicas)),
                    None => {
                        known.retain(|known| known.last.elapsed() < REMEMBERED);
                        known.push(Reached {
                            value,
                            last: now,
                            most: replicas,
                        });
                    }
                }
            }
        }
        for (response_timeout, few) in &mut self.few {
            let counted = (*response_timeout * 3 / 4).saturating_sub(COUNTED_WITHIN);
            let fresh = self.servers.fresh_replicas(counted);
            few.iter_mut().skip(fresh + 1).for_each(|few| *few = Some(now));
        }
    }

    /// As many replicas as a call wants have had its lock before its body begins.
    fn is_replicated(&mut self, id: u64) {
        if self.calls[&id].plan.min_replicas == 0 {
            return;
        }
        self.look_at_replicas();
        let call = &self.calls[&id];
        let wanted = usize::try_from(call.plan.min_replicas).unwrap_or(usize::MAX);
        let mine = Some((call.process, call.incarnation));
        let mut broken = None;
        for key in &call.plan.keys {
            // A replica may have lost the lock before it was looked at.
            let is_lost = |loss: &Loss| loss.at >= call.asked && loss.key.is_none_or(|of| of == *key);
            if self.losses.iter().any(is_lost) {
                continue;
            }
            // Where its lease may have run out, or several of a process may hold it, it may be any of those of the process.
            let is_any = call.plan.mode != LockMode::Exclusive
                || call.stood_still
                || call.plan.signal
                || self.failed_over(call.process, call.asked);
            let present = server_of(&self.servers, *key).read(|engine| values(engine, *key));
            let known = self.reached.get(&(*key, mine)).map_or(&[][..], Vec::as_slice);
            let known = known.iter().filter(|known| known.last >= call.asked);
            let most = known
                .filter(|known| is_any || present.contains(&known.value))
                .map(|known| known.most)
                .max();
            if most.is_none_or(|most| most < wanted) {
                broken = Some(format!(
                    "{} begins, and of {wanted} replicas {} have had its lock",
                    call.who,
                    most.unwrap_or_default()
                ));
            }
        }
        if let Some(what) = broken {
            self.violates(Rule::Replicated, what);
        }
    }

    /// Returns `true` if another server has taken over and this process did not know it at some time since then, or shortly before.
    fn failed_over(&self, process: usize, since: Instant) -> bool {
        self.was_disturbed_by(process, since, |fault| Fault::FAILOVERS.contains(&fault))
    }

    /// Returns `true` if the slot of a key has been on its way since then.
    fn has_moved_since(&self, key: usize, since: Instant) -> bool {
        self.moved[key].is_some_and(|at| at >= since)
    }

    /// Returns `true` if the server knows this process as a holder of a key.
    fn holds(&self, process: usize, incarnation: u32, key: usize) -> bool {
        self.holders(key).contains(&Some((process, incarnation)))
    }

    /// Returns the processes, with their incarnations, that the server knows as holders of a key; `None` for a stranger.
    fn holders(&self, key: usize) -> Vec<Option<(usize, u32)>> {
        holders(&self.servers, key)
    }

    /// Returns how often a lock has become free, rather than been handed over.
    fn was_free(&self, key: usize) -> u32 {
        let name = stored_name(key);
        server_of(&self.servers, key).change(|engine| engine.data.removals(name.as_bytes()))
    }

    /// Counts from now on how long a client of another kind polls for a key, if one does.
    fn polled_anew(&mut self, key: usize) {
        if self.polled[key].is_some() {
            self.polled[key] = Some(Polled::from_now_on(self.was_free(key)));
        }
    }

    fn wait_is_kept(&mut self, id: u64) {
        let call = &self.calls[&id];
        let late = call.asked.elapsed().saturating_sub(call.limit() + call.for_replicas());
        if !late.is_zero() && !call.stood_still {
            let what = format!("{} begins {late:?} after its wait", call.who);
            self.violates(Rule::WaitIsKept, what);
        }
    }

    /// Finds bodies that are inside together and must not be.
    fn look(&mut self) {
        let inside: Vec<(&u64, &Call)> = self.calls.iter().filter(|(_, call)| call.is_inside()).collect();
        let mut together = Vec::new();
        for (at, (id, call)) in inside.iter().enumerate() {
            for (other_id, other) in &inside[..at] {
                let shared = call.plan.keys.iter().find(|key| other.plan.keys.contains(key));
                let Some(key) = shared else { continue };
                let is_bad = match (&call.plan.mode, &other.plan.mode) {
                    (LockMode::Semaphore(one), LockMode::Semaphore(two)) => {
                        let many = inside.iter().filter(|(_, third)| third.plan.keys.contains(key)).count();
                        many > usize::try_from(one.min(two).get()).unwrap_or(usize::MAX)
                    }
                    _ => !may_be_together(&call.plan, &other.plan),
                };
                let since = self
                    .pairs
                    .get(&(**other_id, **id))
                    .copied()
                    .unwrap_or_else(Instant::now);
                // Of those who share a semaphore any may be the one too many.
                let is_too_many = matches!(call.plan.mode, LockMode::Semaphore(_));
                let mut thirds = inside.iter();
                let may_overlap = self.may_overlap(*key, (**id, call), (**other_id, other), since)
                    || is_too_many
                        && thirds.any(|(third_id, third)| {
                            third.plan.keys.contains(key)
                                && self.may_overlap(*key, (**third_id, third), (**id, call), since)
                        });
                if is_bad && !may_overlap {
                    let what = format!("{} and {} are inside of key {key} together", other.who, call.who);
                    together.push(((**other_id, **id), Some(what)));
                } else if is_bad {
                    together.push(((**other_id, **id), None));
                }
            }
        }
        let known = std::mem::take(&mut self.pairs);
        for (pair, what) in together {
            let is_new = !known.contains_key(&pair);
            self.pairs
                .insert(pair, known.get(&pair).copied().unwrap_or_else(Instant::now));
            if let Some(what) = what.filter(|_| is_new || self.pairs[&pair] + FOUND_WITHIN < Instant::now()) {
                self.violates(Rule::Alone, what);
            }
        }
    }

    /// Finds calls that wait for a lock which has been free for too long, and those that were overtaken.
    fn look_at_waiting(&mut self) {
        let now = Instant::now();
        for key in 0..self.taken.len() {
            let is_inside = |call: &Call| call.inside.is_some() && call.plan.keys.contains(&key);
            if self.calls.values().any(is_inside) {
                self.taken[key] = now;
                self.used[key] = now;
                continue;
            }
            let holders = self.holders(key);
            if !holders.is_empty() {
                self.taken[key] = now;
            }
            let is_stranger =
                |holder: &Option<(usize, u32)>| holder.is_none_or(|process| self.killed.contains(&process));
            // A call for many keys keeps those that it has been given while it waits for the others.
            let wants_more = |call: &Call| call.plan.keys.len() > 1 && call.plan.keys.contains(&key);
            if holders.is_empty() || holders.iter().any(is_stranger) || self.calls.values().any(wants_more) {
                self.used[key] = now;
            }
        }
        // A waiter that forged messages have told of the lock in vain believes the next one after a pause. One that may not subscribe finds
        // what it has been given by looking.
        let is_slow = self.has_strangers || !self.deaf.is_empty();
        let patience = Duration::from_millis(if is_slow { 300 } else { 50 });
        let (ripe, rest) = std::mem::take(&mut self.overtaken)
            .into_iter()
            .partition(|(_, _, at)| at.elapsed() > patience);
        self.overtaken = rest;
        let ripe: Vec<(u64, String, Instant)> = ripe;
        for (id, by, at) in ripe {
            if let Some(call) = self
                .calls
                .get(&id)
                .filter(|call| !call.has_begun && !call.stood_still && !self.was_put_out_of_order(call.process, at))
            {
                let what = format!("{by} overtakes {}", call.who);
                self.violates(Rule::Fair, what);
            }
        }
        self.look_at_turns();
        let mut found = Vec::new();
        for call in self.calls.values().filter(|call| !call.has_begun) {
            let free = call.plan.keys.iter().map(|key| self.taken[*key]).max().unwrap_or(now);
            let since = free.max(call.asked);
            if now.saturating_duration_since(since) > FREE_FOR
                && call.has_run(FREE_FOR)
                && !call.stood_still
                && !self.was_kept_from_looking(call.process, since)
                && !self
                    .calls
                    .values()
                    .any(|other| other.stood_still && shares_a_key(other, call))
            {
                found.push((call.plan.keys.clone(), call.who.clone()));
            }
        }
        for (keys, who) in found {
            keys.iter().for_each(|key| self.taken[*key] = now);
            self.violates(
                Rule::Progress,
                format!("{who} waits though its lock has been free for {FREE_FOR:?}"),
            );
        }
        self.look_at_the_new_master();
        let mut found = Vec::new();
        for call in self.calls.values().filter(|call| !call.has_begun && !call.stood_still) {
            let used = call.plan.keys.iter().map(|key| self.used[*key]).min().unwrap_or(now);
            let since = used.max(call.asked);
            if self.was_rewound || now.saturating_duration_since(since) <= UNUSED_FOR {
                continue;
            }
            let stands_still = |other: &&Call| {
                shares_a_key(other, call)
                    && (other.frozen.is_some() || other.is_blocked || other.thawed.is_some_and(|at| at >= since))
            };
            let standing = u32::try_from(self.calls.values().filter(stands_still).count()).unwrap_or(u32::MAX);
            // What an ended call has asked for without an answer is given back by the connection of its runtime first, if that stands still
            // in vain.
            let in_vain = if self.standing.is_empty() && self.stood_until.is_none_or(|at| at < since) {
                Duration::ZERO
            } else {
                self.response_timeouts.iter().max().copied().unwrap_or_default()
            };
            let longest = UNUSED_FOR + UNUSED_FOR_A_CALL * standing + in_vain + self.for_replicas(call);
            if now.saturating_duration_since(since) > longest
                && call.has_run(longest)
                && !self.was_anybody_disturbed(since)
                && !self.losses.iter().any(|loss| loss.at + AFTERMATH >= since)
            {
                found.push((call.plan.keys.clone(), call.who.clone(), longest));
            }
        }
        for (keys, who, longest) in found {
            keys.iter().for_each(|key| self.used[*key] = now);
            let what = format!("{who} waits though nobody is inside of its lock, which was kept for {longest:?}");
            self.violates(Rule::Progress, what);
        }
    }

    /// Returns how long a call that waits for replicas may keep a lock that another call waits for.
    fn for_replicas(&self, call: &Call) -> Duration {
        let others = self.calls.values();
        let others = others.filter(|other| other.may_wait_for_replicas() && shares_a_key(other, call));
        others.map(Call::for_replicas).max().unwrap_or_default()
    }

    /// Finds calls that wait for a free lock, or for one that nobody uses, after all know of a new master.
    fn look_at_the_new_master(&mut self) {
        let is_failover = |trouble: &Trouble| Fault::FAILOVERS.contains(&trouble.fault);
        let known = self.all_know.filter(|_| {
            let mut failovers = self.troubles.iter().filter(|trouble| is_failover(trouble));
            failovers.all(|trouble| trouble.until.is_some())
        });
        let Some(known) = known else { return };
        let now = Instant::now();
        let mut found = Vec::new();
        for call in self.calls.values().filter(|call| !call.has_begun && !call.stood_still) {
            // What somebody had for a part of the time is not free for all of it.
            let lately = |keys: &[Instant]| call.plan.keys.iter().map(|key| keys[*key]).max().unwrap_or(now);
            let is_late = |since: Instant, longest: Duration| now.saturating_duration_since(since) > longest;
            let begun = call.asked.max(known);
            let is_free = is_late(lately(&self.taken).max(begun), AT_WORK_WITHIN);
            let used = call.plan.keys.iter().map(|key| self.used[*key]).min().unwrap_or(now);
            // A lock that its process does not know is given back when its release has been repeated.
            // The new master may offer it to one place after another of calls that have long left the queue of the former one, which it has
            // not heard of: each of them costs a claim.
            let is_unused = is_late(used.max(begun), AT_WORK_WITHIN + UNUSED_FOR + self.for_replicas(call))
                && call
                    .plan
                    .keys
                    .iter()
                    .any(|key| is_kept_beyond(&server_of(&self.servers, *key), *key, CLAIM));
            let of_others = |fault: Fault| !Fault::FAILOVERS.contains(&fault);
            let processes = usize::try_from(self.processes).unwrap_or_default();
            let is_disturbed =
                (0..processes).any(|process| self.was_disturbed_by(process, known.min(call.asked), of_others));
            let stands = |other: &Call| other.stood_still && shares_a_key(other, call);
            if (is_free || is_unused)
                && call.has_run(AT_WORK_WITHIN)
                && !is_disturbed
                && self.killed.is_empty()
                && !self.calls.values().any(stands)
            {
                let what = if is_free { "free" } else { "used by nobody" };
                found.push((call.plan.keys.clone(), call.who.clone(), what));
            }
        }
        for (keys, who, state) in found {
            for key in keys {
                (self.taken[key], self.used[key]) = (now, now);
            }
            let what = format!("{who} waits at the new master though its lock is {state}");
            self.violates(Rule::Progress, what);
        }
    }

    /// Finds those who wait for a turn that others have again and again.
    fn look_at_turns(&mut self) {
        let mut found = Vec::new();
        let patience = self.passed_for * 2;
        for call in self.calls.values_mut().filter(|call| !call.has_begun) {
            if call.passed_by >= STARVES_BEHIND && call.asked.elapsed() > STARVES_AFTER + patience && !call.stood_still
            {
                found.push((
                    call.process,
                    call.asked,
                    call.plan.keys[0],
                    call.who.clone(),
                    call.passed_by,
                ));
                call.passed_by = 0;
            }
        }
        for (process, asked, key, who, passed_by) in found {
            let stands_still =
                |other: &Call| other.stood_still && other.process == process && other.plan.keys.contains(&key);
            let is_lost = self.losses.iter().any(|loss| loss.at >= asked);
            if !is_lost && !self.was_disturbed(process, asked) && !self.calls.values().any(stands_still) {
                let what = format!(
                    "{who} waits for {:?}, and {passed_by} have had its lock that asked later",
                    asked.elapsed()
                );
                self.violates(Rule::Fair, what);
            }
        }
        // A holder that keeps it for long keeps it from everybody.
        let is_long = |call: &&Call| {
            call.inside
                .as_ref()
                .is_some_and(|inside| inside.since.elapsed() > CHANGES_HANDS)
        };
        let kept: BTreeSet<usize> = self
            .calls
            .values()
            .filter(is_long)
            .flat_map(|call| call.plan.keys.clone())
            .collect();
        for key in kept {
            self.polled_anew(key);
        }
        let mut found = Vec::new();
        for key in 0..self.polled.len() {
            let starves = |polled: &&Polled| {
                polled.others >= TURNS_OF_OTHERS && polled.since.elapsed() > TURN_OF_A_STRANGER + patience
            };
            let Some((since, others, before)) = self.polled[key]
                .as_ref()
                .filter(starves)
                .map(|polled| (polled.since, polled.others, polled.was_free))
            else {
                continue;
            };
            if self.was_free(key) < before + TURNS_OFFERED {
                found.push((key, since, others));
            }
            self.polled_anew(key);
        }
        for (key, since, others) in found {
            if !self.was_anybody_disturbed(since) && !self.losses.iter().any(|loss| loss.at >= since) {
                let what = format!(
                    "a client of another kind polls for key {key} in vain for {:?}, and {others} others have had it",
                    since.elapsed()
                );
                self.violates(Rule::Fair, what);
            }
        }
        let longest = |server: Server| server.change(|engine| std::mem::take(&mut engine.longest_script));
        let most = self.servers.all().into_iter().map(longest).max().unwrap_or_default();
        self.longest_script = self.longest_script.max(most);
        if most > COMMANDS_OF_A_SCRIPT {
            self.violates(Rule::NoStorm, format!("a script carries out {most} commands"));
        }
    }

    /// Returns `true` if the store has carried out all commands of a process lately, so that it could renew its locks.
    fn could_renew(&self, process: usize) -> bool {
        let now = Instant::now();
        let response_timeout = self.response_timeouts.get(process).copied().unwrap_or_default();
        self.troubles.iter().all(|trouble| {
            let concerns = trouble.scope.has(process);
            // Where connections have ended or are silent, new ones are made, which may hang as well.
            let needs_no_connection = matches!(
                trouble.fault,
                Fault::ServerFreeze | Fault::Loading | Fault::OutOfMemory | Fault::ReadOnly
            );
            let longest = if needs_no_connection {
                RENEWED_WITHIN
            } else {
                response_timeout + Duration::from_secs(1)
            };
            !concerns || trouble.until.is_some_and(|until| until + longest < now)
        })
    }

    /// Returns what is wrong if the lock of a successful call had been lost for long when its body was over.
    fn is_ok_though_lost(&self, call: &Call) -> Option<String> {
        let (lost, left) = (call.lost_at?, call.left?);
        let concerns = |trouble: &&Trouble| trouble.scope.has(call.process);
        let mut known = lost + FOUND_WITHIN;
        for trouble in self.troubles.iter().filter(concerns) {
            let until = trouble.until?;
            if until >= lost {
                known = known.max(until + FOUND_WITHIN);
            }
        }
        let is_regained = call.has_regained && !call.is_replaced;
        (left > known && !call.stood_still && !is_regained).then(|| {
            let what = left.duration_since(lost);
            format!("{} succeeds though its lock was lost {what:?} before its end", call.who)
        })
    }

    /// Counts the commands of each second.
    fn look_at_commands(&mut self) {
        let (began, commands, asked, open_then) = self.second;
        if began.elapsed() < Duration::from_secs(1) {
            return;
        }
        let open = u64::try_from(self.calls.len()).unwrap_or_default();
        let now = (Instant::now(), self.trace.commands(), self.next, open);
        self.second = now;
        let calls = now.2 - asked + open.max(open_then);
        while self.doubtful.front().is_some_and(|at| at.elapsed() > RELEASED_WITHIN) {
            self.doubtful.pop_front();
        }
        let lately = |trouble: &Trouble| {
            trouble
                .until
                .is_none_or(|until| until.elapsed() < Duration::from_secs(2))
        };
        // Calls try again while a slot is on its way.
        let moves = self
            .moved
            .iter()
            .flatten()
            .any(|at| at.elapsed() < Duration::from_secs(2));
        let (of_process, of_call) = if moves || self.troubles.iter().any(lately) {
            (COMMANDS_IN_TROUBLE, COMMANDS_OF_A_TRIAL)
        } else {
            (COMMANDS_A_SECOND, COMMANDS_A_CALL)
        };
        let releases = u64::try_from(self.doubtful.len()).unwrap_or_default();
        // What calls have released is released again at a new master, and once more at the next one.
        let is_new = self.all_know.is_some_and(|at| at.elapsed() < REPEATED_WITHIN)
            || self
                .troubles
                .iter()
                .any(|trouble| Fault::FAILOVERS.contains(&trouble.fault) && trouble.until.is_none());
        let repeated = if is_new { self.next * RELEASED_OF_A_CALL } else { 0 };
        let most = self.processes * of_process + calls * of_call + releases * COMMANDS_OF_A_RELEASE + repeated;
        if now.1 - commands > most && !self.has_strangers {
            let what = format!(
                "{} commands in a second for {calls} calls, at most {most} are explained",
                now.1 - commands
            );
            self.violates(Rule::NoStorm, what);
        }
    }

    /// Returns `true` if a lock has been taken along by each server that took over while it was held, long enough for its process to learn of
    /// the new one and to renew it there.
    fn has_survived(&self, id: u64, call: &Call) -> bool {
        let concerns = |loss: &&Loss| loss.at >= call.asked && loss.key.is_none_or(|of| call.plan.keys.contains(&of));
        let mut losses = self.losses.iter().filter(concerns).peekable();
        let learnt = self.troubles.iter().filter(|trouble| {
            let is_failover = Fault::FAILOVERS.contains(&trouble.fault) && trouble.scope.has(call.process);
            is_failover && trouble.until.is_none_or(|until| until >= call.asked)
        });
        // Not known while one of them lasts.
        let learnt: Option<Vec<_>> = learnt.map(|trouble| Some(trouble.until? + FOUND_WITHIN)).collect();
        let learnt = learnt.and_then(|learnt| learnt.into_iter().max());
        losses.peek().is_some()
            && losses.all(|loss| {
                let until = loss.survivors.as_ref().and_then(|survivors| survivors.get(&id));
                until.is_some_and(|until| learnt.is_some_and(|learnt| learnt < *until))
            })
    }

    /// Judges how a call ended.
    fn judge(&mut self, id: u64, call: &Call, outcome: &Result<u64, LockError>) {
        let is_other = |fault: Fault| !Fault::FAILOVERS.contains(&fault);
        let disturbed_otherwise = self.was_disturbed_by(call.process, call.asked, is_other);
        let disturbed = self.was_disturbed(call.process, call.asked);
        let lost_data = self.losses.iter().any(|loss| {
            // Where another server has taken over, later calls are its own.
            let is_before = loss.survivors.is_some() && self.all_know.is_some_and(|at| at < call.asked);
            loss.key.is_none_or(|key| call.plan.keys.contains(&key))
                && !is_before
                && (loss.lingers || loss.at + loss.overwritten_for + Duration::from_secs(10) >= call.asked)
        });
        let waited = call.asked.elapsed();
        let who = &call.who;
        let broken = match outcome {
            Ok(value) => {
                if let Some(what) = self.is_ok_though_lost(call) {
                    self.violates(Rule::NoOkAfterLoss, what);
                }
                let is_old = call.plan.coalesce && *value < call.written && !lost_data;
                is_old.then(|| {
                    let what = format!(
                        "{who} receives {value}, and {} was written before it asked",
                        call.written
                    );
                    (Rule::Fresh, what)
                })
            }
            Err(LockError::Busy { .. }) => {
                // A process's clock may gain 300 in a million.
                // A call that comes to lead those that share a result gives up if a round trip takes longer than the rest of its wait.
                let round_trip = if call.plan.coalesce { 5 } else { 0 };
                let is_slow = call.plan.coalesce && disturbed;
                let early = Duration::from_millis(2 + round_trip) + call.plan.wait / 3_000;
                let is_early = waited + early < call.plan.wait && !is_slow;
                let is_late = waited > call.limit() && !call.stood_still;
                (is_early || is_late).then(|| {
                    let what = format!("{who} is busy after {waited:?}, with a wait of {:?}", call.plan.wait);
                    (Rule::WaitIsKept, what)
                })
            }
            Err(LockError::Lost { reason, .. })
                if call.plan.renew
                    && call.plan.max_renewals.is_none()
                    && !call.stood_still
                    && !disturbed_otherwise
                    && self.has_survived(id, call) =>
            {
                let what = format!("{who} is told {reason:?} though the new master has its lock");
                Some((Rule::NotLostWithoutDanger, what))
            }
            // A call that finds no master tries again.
            // A call that waits for replicas fails where another server takes over, and has no other way.
            Err(LockError::Store { .. })
                if !call.has_begun
                    && call.plan.min_replicas == 0
                    && call.plan.wait > WAIT_SLACK
                    && waited + WAIT_SLACK < call.plan.wait
                    && !call.stood_still
                    && disturbed
                    && !disturbed_otherwise =>
            {
                let what = format!("{who} fails after {waited:?}, with a wait of {:?}", call.plan.wait);
                Some((Rule::WaitIsKept, what))
            }
            Err(LockError::Lost { reason, .. })
                if matches!(reason, LostReason::Expired | LostReason::Unreachable)
                    && call.plan.renew
                    && call.plan.max_renewals.is_none()
                    // These learn of the loss when they ask for it.
                    && !call.plan.signal
                    && !call.plan.guard
                    && !call.stood_still
                    && !lost_data
                    && self.could_renew(call.process) =>
            {
                let what = format!("{who} is told {reason:?} though its lock could be renewed");
                Some((Rule::NotLostWithoutDanger, what))
            }
            Err(LockError::Lost {
                reason: LostReason::Expired,
                completed: false,
                ..
            }) if call.plan.renew
                && call.plan.max_renewals.is_none()
                && !call.stood_still
                && !lost_data
                && !self.was_disturbed_by(call.process, call.asked, |fault| fault == Fault::Suspend) =>
            {
                let what = format!("{who} is told that its lease ran out, though the store did not let it be renewed");
                Some((Rule::NotLostWithoutDanger, what))
            }
            Err(LockError::Lost { reason, .. }) => {
                let ran_out = *reason == LostReason::Expired && (!call.plan.renew || call.stood_still);
                (!disturbed && !lost_data && !ran_out && !call.stood_still)
                    .then(|| (Rule::NotLostWithoutDanger, format!("{who} is told {reason:?}")))
            }
            Err(LockError::Hung { held, .. }) => {
                let renewals = call.plan.max_renewals.unwrap_or(30);
                let least = call.plan.lease.saturating_sub(self.skew).mul_f64(0.65) * (renewals + 1);
                // It counts from the request that was granted, whose answer may have been slow: that of a crowd which finds no script, or
                // one that nodes sent on while the slot moved.
                let has_moved = call.plan.keys.iter().any(|key| self.has_moved_since(*key, call.asked));
                let is_slow = disturbed || has_moved;
                let asking = if is_slow { ONE_TRY } else { Duration::from_millis(100) };
                let least = least.saturating_sub(call.passed_for + asking);
                (*held < least && !call.stood_still).then(|| {
                    let what = format!("{who} counts as hung after {held:?}");
                    (Rule::NotLostWithoutDanger, what)
                })
            }
            Err(LockError::Closed { .. }) => None,
            Err(LockError::TooFewReplicas {
                acknowledged, wanted, ..
            }) if waited <= call.limit() + call.for_replicas() || call.stood_still => {
                let at = usize::try_from(*wanted).unwrap_or(usize::MAX);
                let few = self.few.get(&call.response_timeout).and_then(|few| few.get(at));
                let were_few = few.copied().flatten().is_some_and(|at| at >= call.asked);
                let is_excused = were_few || self.failed_over(call.process, call.asked);
                (acknowledged >= wanted || !is_excused).then(|| {
                    let what = format!("{who} has {acknowledged} of {wanted} replicas, and more have kept up");
                    (Rule::Replicated, what)
                })
            }
            Err(error) => {
                let is_late = !call.has_begun && waited > call.limit() + call.for_replicas() && !call.stood_still;
                if is_late {
                    Some((Rule::WaitIsKept, format!("{who} fails after {waited:?}: {error:?}")))
                } else {
                    // Within a very short wait there may be no answer.
                    let had_time = call.plan.wait.is_zero() || call.plan.wait >= TIME_TO_ASK;
                    let is_behind_frozen = call.plan.wait < FROZEN_IN_FRONT
                        && self.calls.values().any(|other| {
                            other.process == call.process && other.stood_still && shares_a_key(other, call)
                        });
                    // While a slot is on its way, calls that need more than their lock alone wait for its end.
                    let is_on_its_way = waited + WAIT_SLACK >= call.plan.wait
                        && call.plan.keys.iter().any(|key| self.has_moved_since(*key, call.asked));
                    let is_excused = disturbed || is_on_its_way;
                    (!is_excused && had_time && !call.stood_still && !lost_data && !is_behind_frozen)
                        .then(|| (Rule::HarmsNobodyElse, format!("{who} fails: {error:?}")))
                }
            }
        };
        if let Some((rule, what)) = broken {
            self.violates(rule, what);
        }
    }
}

fn server_of(servers: &Servers, key: usize) -> Server {
    servers.server_of(stored_name(key).as_bytes())
}

/// Returns the processes, with their incarnations, that its server knows as holders of a key; `None` for a stranger.
fn holders(servers: &Servers, key: usize) -> Vec<Holder> {
    holders_on(&server_of(servers, key), key)
}

fn holders_on(server: &Server, key: usize) -> Vec<Holder> {
    let values = server.change(|engine| values(engine, key));
    values.iter().map(|value| holder(value)).collect()
}

/// Returns the process in a value of a lock, as in `…:machine-3:3001:`.
fn holder(value: &[u8]) -> Holder {
    let value = std::str::from_utf8(value).ok()?;
    let (_, rest) = value.split_once(":machine-")?;
    let mut numbers = rest.split(':');
    let process: usize = numbers.next()?.parse().ok()?;
    let number: usize = numbers.next()?.parse().ok()?;
    Some((process, u32::try_from(number.checked_sub(process * 1_000)?).ok()?))
}

/// Returns the values of those whom a server knows as holders of a key.
fn values(engine: &Engine, key: usize) -> Vec<Vec<u8>> {
    let name = stored_name(key);
    match engine.data.get(name.as_bytes()) {
        Some(Value::Text(holder)) => vec![holder.clone()],
        Some(Value::Sorted(holders)) => holders.in_order().map(|(holder, _)| holder.clone()).collect(),
        None => Vec::new(),
    }
}

/// Returns `true` if a key does not expire on a server within this time.
fn is_kept_beyond(server: &Server, key: usize, span: Duration) -> bool {
    let name = stored_name(key);
    let expires = server.read(|engine| engine.data.expires(name.as_bytes()));
    let expires = expires.and_then(|expires| u64::try_from(expires).ok());
    expires.is_some_and(|expires| Duration::from_millis(expires) > server.now() + span)
}

/// Returns until when the holders of a key have it on a server, if another one has the same holders.
fn kept(key: usize, former: &Server, next: &Server) -> Option<Duration> {
    let name = stored_name(key);
    let of = |server: &Server| {
        server.read(|engine| {
            let value = engine.data.get(name.as_bytes()).cloned();
            let expires = engine.data.expires(name.as_bytes());
            (value, expires)
        })
    };
    let ((before, _), (after, expires)) = (of(former), of(next));
    let expires = u64::try_from(expires?).ok()?;
    let until = match (before?, after?) {
        (Value::Text(before), Value::Text(after)) if before == after => expires,
        (Value::Sorted(before), Value::Sorted(after)) => {
            let names = |all: &Sorted| all.in_order().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>();
            if names(&before) != names(&after) {
                return None;
            }
            // The score is the time at which a holder's lease is over.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let first = after.in_order().map(|(_, over)| over as u64).min()?;
            first.min(expires)
        }
        _ => return None,
    };
    Some(Duration::from_millis(until))
}
