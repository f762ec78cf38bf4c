//! Runs a plan: a server, a network, processes with managers and calls, and the faults, on one thread in virtual time.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use lock_runtime::{HandoverLimits, HeldLock, LockError, LockManager, LockRequest, OnLost, current, distributed_lock};
use tokio::runtime::{Builder, RngSeed};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

use lock_simulation::cluster::{Cluster, NODES};
use lock_simulation::group::{Group, SENTINELS, SERVERS};
use lock_simulation::network::Network;
use lock_simulation::process::Process;
use lock_simulation::server::Server;
use lock_simulation::server::data::Value;
use lock_simulation::servers::Servers;
use lock_simulation::trace::Trace;

use crate::chance;
use crate::faults;
use crate::judge::{Asked, Judge, Rule, Verdict};
use crate::plan::{BodyEnd, CallPlan, Fault, KEYS, LENGTH, Plan, ProcessPlan, Shape, Without, name_of, stored_name};

/// All calls are over this long after the last has begun.
const CALLS_END: Duration = Duration::from_secs(120);
/// What is left by calls is gone this long after the last of them.
const QUIET: Duration = Duration::from_secs(6);

/// The most commands for each call, for each process and second, and for each process and second in which something is wrong: calls try
/// again, each with a command or two for what it wants.
const MOST_COMMANDS: (u64, u64, u64) = (8, 60, 200);
/// The most commands that release what a call may have taken without an answer: for five seconds it may still arrive.
const MOST_FOR_A_RELEASE: u64 = 15;
/// The most commands for each call where strangers change locks or publish: each forged message costs those whom it tells a look.
const MOST_AMONG_STRANGERS: u64 = 40;
/// The most connections for each process: at all, for each second, and for each second in which something is wrong.
const MOST_DIALS: (u64, u64, u64) = (20, 1, 50);

/// The most commands for each process and sentinel: at all, for each second, and for each second in which something is wrong. A question is
/// three, after eight on a new connection.
const MOST_QUESTIONS: (u64, u64, u64) = (40, 1, 40);

/// What a run has left to tell.
pub struct Ended {
    pub trace: u64,
    pub story: Vec<String>,
    pub verdict: Verdict,
    pub commands: u64,
    pub dials: u64,
    /// The virtual time.
    pub length: Duration,
}

/// Runs one seed on a thread of its own.
pub fn run(seed: u64, shape: Shape, without: &Without, is_read: bool) -> Ended {
    let plan = Plan::draw(seed, shape, without);
    let run = std::thread::spawn(move || {
        chance::seed(seed);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .rng_seed(RngSeed::from_bytes(&seed.to_le_bytes()))
            .build()
            .expect("a runtime without a network can always be built");
        runtime.block_on(story(plan, is_read))
    });
    run.join().unwrap_or_else(|_| panic!("seed {seed} has panicked"))
}

/// What all of a run share.
pub struct Stage {
    pub plan: Plan,
    pub servers: Servers,
    /// One failover, and one fault of sentinels, at a time.
    pub turns: [tokio::sync::Mutex<()>; 2],
    pub network: Network,
    pub judge: Judge,
    pub trace: Trace,
    began: Instant,
}

impl Stage {
    /// Returns `true` as long as calls begin.
    pub fn is_on(&self) -> bool {
        self.began.elapsed() < LENGTH
    }

    /// Returns the server that has a key.
    pub fn server_of(&self, key: usize) -> Server {
        self.servers.server_of(stored_name(key).as_bytes())
    }
}

/// A process, with the manager of its present incarnation.
pub struct Host {
    pub number: usize,
    pub stage: Arc<Stage>,
    pub process: Process,
    pub incarnation: u32,
    pub locks: LockManager,
    /// How far each task has come. The next incarnation goes on there.
    progress: Arc<Vec<AtomicUsize>>,
    done: Arc<Done>,
    /// The runtimes by the numbers of the plan: one that was shut down is replaced.
    runtimes: Vec<AtomicUsize>,
    is_over: AtomicBool,
}

/// The tasks that are under way.
#[derive(Default)]
struct Done {
    open: AtomicUsize,
    changed: Notify,
}

impl Done {
    fn one_less(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    async fn all(&self) {
        loop {
            let changed = self.changed.notified();
            if self.open.load(Ordering::Relaxed) == 0 {
                return;
            }
            changed.await;
        }
    }
}

async fn story(plan: Plan, is_read: bool) -> Ended {
    let trace = Trace::new(is_read);
    let servers = match (&plan.several, plan.shape) {
        (Some(drawn), Shape::Cluster) => {
            Servers::Cluster(Cluster::new(plan.version, &trace, &drawn.ahead, &drawn.given))
        }
        (Some(drawn), _) => Servers::Group(Group::new(plan.version, &trace, &drawn.ahead)),
        (None, _) => Servers::One(Server::new(plan.version, &trace)),
    };
    servers.lag(plan.lag());
    let network = Network::new(servers.places(), plan.seed);
    let judge = Judge::new(servers.clone(), trace.clone(), KEYS, &plan);
    let stage = Arc::new(Stage {
        servers,
        turns: Default::default(),
        network: network.clone(),
        judge: judge.clone(),
        trace: trace.clone(),
        began: Instant::now(),
        plan,
    });
    if stage.plan.wants_replicas() {
        stage.servers.are_looked_at(judge.looker());
    }
    trace.note(|| format!("seed {}: {:?}", stage.plan.seed, stage.plan.version));
    let done = Arc::new(Done::default());
    let hosts: Vec<Arc<faults::Slot>> = (0..stage.plan.processes.len())
        .map(|number| {
            let progress = (0..stage.plan.processes[number].tasks.len()).map(|_| AtomicUsize::new(0));
            let host = Host::start(&stage, number, 0, Arc::new(progress.collect()), &done);
            Arc::new(faults::Slot::new(host))
        })
        .collect();
    let looks = tokio::spawn({
        let judge = judge.clone();
        async move {
            loop {
                sleep(Duration::from_millis(20)).await;
                judge.look();
            }
        }
    });
    faults::strike_all(&stage, &hosts).await;
    sleep(LENGTH.saturating_sub(stage.began.elapsed())).await;
    if timeout(CALLS_END, done.all()).await.is_err() {
        judge.violates(
            Rule::Healthy,
            format!("calls have not ended {CALLS_END:?} after the last of them began"),
        );
    }
    looks.abort();
    sleep(QUIET).await;
    traces(&stage, &hosts);
    connections(&stage, &hosts);
    let alive: Vec<Arc<Host>> = hosts.iter().map(|host| host.get()).collect();
    drop(hosts);
    healthy(&stage, &alive).await;
    let ends: Vec<(usize, bool)> = alive
        .iter()
        .map(|host| (host.number, host.process.is_killed()))
        .collect();
    drop(alive);
    sleep(QUIET).await;
    // One looks for keys that have expired; a process keeps two on its lock thread, and for a minute one for each connection that has
    // been replaced. A killed process drops nothing.
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let dials = usize::try_from(network.counts().1).unwrap_or(usize::MAX);
    // Several have one that replicates, and each of these servers looks for keys.
    let of_several = match stage.servers {
        Servers::One(_) => 0,
        Servers::Group(_) => SERVERS + SENTINELS,
        // One that asks where the slots are, for each process, and two for each node that it knows.
        Servers::Cluster(_) => NODES + stage.plan.processes.len() * (1 + 2 * NODES),
    };
    let most = 1 + of_several + stage.plan.processes.len() * 2 + dials.max(stage.plan.processes.len() * 3 * 4);
    if tasks > most && !stage.plan.faults.iter().any(|fault| fault.kind == Fault::Kill) {
        judge.violates(Rule::NoTraces, format!("{tasks} tasks are left without a manager"));
    }
    for (number, is_killed) in ends {
        let left = network.links(u32::try_from(number).unwrap_or_default()).len();
        if left > 0 && !is_killed {
            judge.violates(
                Rule::NoTraces,
                format!("process {number} has {left} connections without a manager"),
            );
        }
    }
    let (hash, story) = trace.take();
    Ended {
        trace: hash,
        story,
        verdict: judge.verdict(),
        commands: trace.commands(),
        dials: network.counts().1,
        length: stage.began.elapsed(),
    }
}

/// Looks for what calls have left in the store.
fn traces(stage: &Stage, hosts: &[Arc<faults::Slot>]) {
    for server in stage.servers.masters() {
        traces_on(stage, &server, hosts);
    }
}

fn traces_on(stage: &Stage, server: &Server, hosts: &[Arc<faults::Slot>]) {
    let keys: Vec<Vec<u8>> = server.change(|engine| engine.data.keys().cloned().collect());
    for key in keys {
        let name = String::from_utf8_lossy(&key).into_owned();
        if name.starts_with("dist_lock:%lock-fence") {
            continue;
        }
        let members = server.change(|engine| {
            let now = engine.now().as_millis();
            engine
                .data
                .get(&key)
                .map(|value| members_of(value, now))
                .unwrap_or_default()
        });
        let value = members.join(", ");
        let is_live = |slot: &Arc<faults::Slot>| {
            let host = slot.get();
            value.contains(&format!(":{}:", host.place())) && !host.process.is_killed()
        };
        // A server that went back to older data has locks that were released since.
        let is_back = stage
            .plan
            .faults
            .iter()
            .any(|fault| fault.kind == Fault::RestartRewound);
        // A forged member of a queue has the lock for a claim at most.
        let is_forged = value.contains(faults::FORGER) && !name.contains("%lock-");
        if is_forged || hosts.iter().any(is_live) && !is_back {
            stage.judge.violates(Rule::NoTraces, format!("{name} is left: {value}"));
        }
        // A killed process has left it, or an operator has.
        drop(server.command(&["DEL", &name]));
    }
}

/// Looks for connections and subscriptions that nobody needs any more.
fn connections(stage: &Stage, hosts: &[Arc<faults::Slot>]) {
    let masters = stage.servers.masters();
    let listening: Vec<u64> = masters
        .iter()
        .flat_map(|server| {
            server.change(|engine| {
                let all = engine
                    .sessions
                    .iter()
                    .filter(|(_, session)| !session.channels.is_empty());
                all.map(|(id, _)| *id).collect::<Vec<_>>()
            })
        })
        .collect();
    for slot in hosts {
        let host = slot.get();
        let links = stage.network.links(u32::try_from(host.number).unwrap_or_default());
        let heard = links.iter().filter(|link| listening.contains(link)).count();
        if heard > 0 {
            let what = format!("process {} still listens on {heard} connections", host.number);
            stage.judge.violates(Rule::NoTraces, what);
        }
        // One for pushes, one of the lock thread, one of each runtime, and for a minute four retired ones of each of these. And those on which
        // replicas are waited for.
        let replicas = if stage.plan.wants_replicas() { 5 } else { 0 };
        let at_one = 1 + (1 + host.runtimes.len()) * 5 + replicas;
        let most = match stage.servers {
            Servers::One(_) => at_one,
            // And one for each sentinel.
            Servers::Group(_) => at_one + SENTINELS,
            // As many for each node, and one on which it is asked where the slots are.
            Servers::Cluster(_) => NODES * (at_one + 1),
        };
        if links.len() > most {
            let what = format!(
                "process {} has {} connections, at most {most} are needed",
                host.number,
                links.len()
            );
            stage.judge.violates(Rule::NoStorm, what);
        }
    }
    let (commands, asked) = (stage.trace.commands(), stage.judge.asked());
    let dials = stage.network.counts().1;
    let seconds = stage.began.elapsed().as_secs() + 1;
    let processes = u64::try_from(hosts.len()).unwrap_or_default();
    stage.trace.note(|| {
        format!("{commands} commands, {dials} dials for {asked} calls of {processes} processes in {seconds} s")
    });
    let (nodes, sentinels) = match stage.servers {
        Servers::One(_) => (1, 0),
        Servers::Group(_) => (1, SENTINELS),
        Servers::Cluster(_) => (NODES, 0),
    };
    let [nodes, sentinels] = [nodes, sentinels].map(|count| u64::try_from(count).unwrap_or_default());
    let disturbed = stage.judge.disturbed_for().as_secs() + 1;
    let by_time = nodes * (seconds * MOST_COMMANDS.1 + disturbed * MOST_COMMANDS.2);
    let by_call = if stage.judge.has_strangers() {
        MOST_AMONG_STRANGERS
    } else {
        MOST_COMMANDS.0
    };
    let by_release = stage.judge.doubted() * MOST_FOR_A_RELEASE;
    if commands > asked * by_call + by_release + processes * by_time {
        stage.judge.violates(
            Rule::NoStorm,
            format!("{commands} commands for {asked} calls in {seconds} s"),
        );
    }
    let questions = stage.trace.questions();
    if questions
        > processes * sentinels * (MOST_QUESTIONS.0 + seconds * MOST_QUESTIONS.1 + disturbed * MOST_QUESTIONS.2)
    {
        stage.judge.violates(
            Rule::NoStorm,
            format!("{questions} questions to sentinels in {seconds} s"),
        );
    }
    if dials > processes * nodes * (MOST_DIALS.0 + seconds * MOST_DIALS.1 + disturbed * MOST_DIALS.2) {
        stage.judge.violates(
            Rule::NoStorm,
            format!("{dials} connections were asked for in {seconds} s"),
        );
    }
}

/// Returns what a key holds. The members of a set whose time is over stay until the next one comes.
fn members_of(value: &Value, now: u128) -> Vec<String> {
    match value {
        Value::Text(text) => vec![String::from_utf8_lossy(text).into_owned()],
        Value::Sorted(members) => {
            let left = members.in_order().filter(|(_, score)| !is_over(*score, now));
            left.map(|(member, score)| format!("{} {score}", String::from_utf8_lossy(member)))
                .collect()
        }
    }
}

/// Returns `true` if this is a time, in milliseconds, and is over.
#[allow(clippy::cast_precision_loss)]
fn is_over(score: f64, now: u128) -> bool {
    (1e12..now as f64).contains(&score)
}

/// Every process gets every lock.
async fn healthy(stage: &Arc<Stage>, hosts: &[Arc<Host>]) {
    for host in hosts {
        if host.process.is_killed() || host.is_over.load(Ordering::Relaxed) {
            continue;
        }
        for key in 0..KEYS {
            let request = host
                .locks
                .lock(name_of(key))
                .wait(Duration::from_secs(3))
                .lease(Duration::from_secs(10));
            let mode = match key {
                2 => request.write(),
                3 => request.semaphore(3),
                4 => request.owner("red"),
                _ => request,
            };
            let probe = host.process.spawn(50, async move { mode.run(async {}).await });
            match timeout(Duration::from_secs(20), probe).await {
                Ok(Ok(Ok(()))) => {}
                ended => {
                    let what = format!("process {} cannot take key {key}: {ended:?}", host.number);
                    stage.judge.violates(Rule::Healthy, what);
                }
            }
        }
        // The runtime of the probes ends with them.
        host.process.shut_down_runtime(50);
    }
}

impl Host {
    /// Starts a process, or the next incarnation of one.
    fn start(
        stage: &Arc<Stage>,
        number: usize,
        incarnation: u32,
        progress: Arc<Vec<AtomicUsize>>,
        done: &Arc<Done>,
    ) -> Arc<Self> {
        let plan = &stage.plan.processes[number];
        let id = u32::try_from(number).unwrap_or_default();
        let seed = stage.plan.seed ^ (u64::from(id) << 40) ^ (u64::from(incarnation) << 48);
        let process = Process::new(id, incarnation, plan.drift, fastrand::Rng::with_seed(seed));
        let runtimes = (0..plan.runtimes).map(|number| AtomicUsize::new(usize::try_from(number).unwrap_or_default()));
        let host = Arc::new(Self {
            number,
            stage: Arc::clone(stage),
            locks: manager(stage, plan, &process),
            process,
            incarnation,
            progress,
            done: Arc::clone(done),
            runtimes: runtimes.collect(),
            is_over: AtomicBool::new(false),
        });
        (0..plan.tasks.len()).for_each(|task| host.spawn(task));
        host
    }

    /// Starts the process anew after it was killed.
    pub fn restart(&self) -> Arc<Self> {
        Self::start(
            &self.stage,
            self.number,
            self.incarnation + 1,
            Arc::clone(&self.progress),
            &self.done,
        )
    }

    /// The manager was shut down: calls fail from now on.
    pub fn is_shut_down(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns the process's place in the values of its locks.
    fn place(&self) -> String {
        format!(
            "machine-{}:{}",
            self.number,
            self.number * 1_000 + usize::try_from(self.incarnation).unwrap_or_default()
        )
    }

    fn runtime(&self, planned: u32) -> u32 {
        let of = usize::try_from(planned).unwrap_or_default();
        u32::try_from(self.runtimes[of].load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Returns the number that a runtime of the plan has at present.
    pub fn present_runtime(&self, planned: u32) -> u32 {
        self.runtime(planned % self.stage.plan.processes[self.number].runtimes)
    }

    /// Shuts a runtime down. Its tasks go on in another one.
    pub fn replace_runtime(self: &Arc<Self>, planned: u32) {
        let plan = &self.stage.plan.processes[self.number];
        let planned = planned % plan.runtimes;
        let old = self.runtime(planned);
        self.runtimes[usize::try_from(planned).unwrap_or_default()].fetch_add(10, Ordering::Relaxed);
        self.process.shut_down_runtime(old);
        for (task, _) in plan
            .tasks
            .iter()
            .enumerate()
            .filter(|(_, task)| task.runtime == planned)
        {
            self.spawn(task);
        }
    }

    /// Lets the runtime of a task stand still from now on: the task does something else, without an await.
    fn blocks(&self, task: usize, span: Duration) {
        let runtime = self.runtime(self.stage.plan.processes[self.number].tasks[task].runtime);
        let (process, judge) = (self.process.clone(), self.stage.judge.clone());
        let of = (self.number, self.incarnation, runtime);
        process.block(runtime);
        judge.blocks(of, true);
        drop(tokio::spawn(async move {
            sleep(span).await;
            judge.blocks(of, false);
            process.unblock(runtime);
        }));
    }

    fn spawn(self: &Arc<Self>, task: usize) {
        let plan = &self.stage.plan.processes[self.number].tasks[task];
        self.done.open.fetch_add(1, Ordering::Relaxed);
        let ends = Ends(Arc::clone(&self.done));
        let host = Arc::clone(self);
        drop(self.process.spawn(self.runtime(plan.runtime), async move {
            let _ends = ends;
            let calls = &host.stage.plan.processes[host.number].tasks[task].calls;
            loop {
                let number = host.progress[task].fetch_add(1, Ordering::Relaxed);
                let Some(call) = calls.get(number % calls.len().max(1)) else {
                    return;
                };
                sleep(call.pause).await;
                if host.stage.began.elapsed() > LENGTH {
                    return;
                }
                one_call(&host, task, call).await;
            }
        }));
    }

    /// The tasks of a killed process end here; its destructors do not run.
    pub fn forget_tasks(&self) {
        for _ in 0..self.stage.plan.processes[self.number].tasks.len() {
            self.done.one_less();
        }
    }
}

/// Counts a task down when it ends, unless its process was killed: nobody drops it then.
struct Ends(Arc<Done>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.one_less();
    }
}

fn manager(stage: &Arc<Stage>, plan: &ProcessPlan, process: &Process) -> LockManager {
    let (network, home) = (stage.network.clone(), process.clone());
    let (passes, time) = plan.handover;
    let number = usize::try_from(process.number()).unwrap_or_default();
    let named = stage
        .plan
        .several
        .as_ref()
        .and_then(|several| several.named.get(number));
    let url = stage.servers.url(number, named.copied().unwrap_or(1));
    LockManager::builder(&url)
        .world(process.world())
        .dial(move |info, config| network.clone().dial(home.clone(), info, config))
        .handover(HandoverLimits::new(passes, time))
        .response_timeout(plan.response_timeout)
        .build()
        .expect("a simulated process has all that a manager needs")
}

/// A call of a body that ends with an error of its own.
#[derive(Clone, Debug)]
struct Own;

async fn one_call(host: &Arc<Host>, task: usize, plan: &CallPlan) {
    let judge = &host.stage.judge;
    let id = judge.asks(&Asked {
        process: host.number,
        incarnation: host.incarnation,
        task,
        runtime: host.runtime(host.stage.plan.processes[host.number].tasks[task].runtime),
        home: &host.process,
        passed_for: host.stage.plan.processes[host.number].handover.1,
        response_timeout: host.stage.plan.processes[host.number].response_timeout,
        plan,
    });
    let _ended = EndsCall(judge.clone(), id);
    let call = call(Arc::clone(host), id, plan.clone());
    let handled = Handled {
        future: Some(Box::pin(call)),
        polls: 0,
        freeze: plan.freeze,
        drop_after: plan.drop_after,
        frozen: None,
        judge: judge.clone(),
        id,
    };
    if plan.blocks.is_some() {
        judge.strikes_call(id, Fault::Blocked);
    }
    match handled.await {
        Some(Ok(outcome)) => judge.ends(id, outcome.as_ref()),
        Some(Err(())) => judge.strikes_call(id, Fault::Panic),
        None => judge.strikes_call(id, Fault::Dropped),
    }
    if let Some(span) = plan.blocks {
        host.blocks(task, span);
    }
}

/// A call that is dropped with its runtime has ended too.
struct EndsCall(Judge, u64);

impl Drop for EndsCall {
    fn drop(&mut self) {
        self.0.ends(self.1, None);
    }
}

/// Makes the call. Returns `Err` if its body panics, as planned, and `None` if it returns an error of its own.
async fn call(host: Arc<Host>, id: u64, plan: CallPlan) -> Result<Option<Result<u64, LockError>>, ()> {
    let outcome = CatchPanic(Box::pin(async move {
        if plan.coalesce {
            return Some(coalescing(&host, id, &plan).await);
        }
        let request = request(&host.locks, &plan);
        if plan.guard {
            return Some(with_guard(&host, id, &plan, request).await);
        }
        let inner = body(Arc::clone(&host), id, plan.clone());
        match request.run(Watched::new(&host, id, Box::pin(inner))).await {
            Ok(Ok(value)) => Some(Ok(value)),
            Ok(Err(Own)) => None,
            Err(error) => Some(Err(error)),
        }
    }));
    outcome.await
}

fn request(locks: &LockManager, plan: &CallPlan) -> LockRequest {
    let mut request = match plan.keys.as_slice() {
        [key] => locks.lock(name_of(*key)),
        keys => locks.lock_all(keys.iter().map(|key| name_of(*key))),
    };
    request = request.lease(plan.lease).wait(plan.wait).renew(plan.renew);
    request = request.at_least(plan.at_least).lock_delay(plan.lock_delay);
    if plan.keys.len() == 1 {
        request = request.mode(plan.mode.clone());
    }
    if plan.min_replicas > 0 {
        request = request.min_replicas(plan.min_replicas);
    }
    if let Some(most) = plan.max_renewals {
        request = request.max_renewals(most);
    }
    request = request.fair(plan.fair);
    request = request.pipelined(plan.pipelined);
    request = request.fencing(plan.fencing);
    if plan.signal {
        request = request.on_lost(OnLost::Signal);
    }
    request
}

async fn with_guard(host: &Arc<Host>, id: u64, plan: &CallPlan, request: LockRequest) -> Result<u64, LockError> {
    let guard = request.acquire().await?;
    let judge = &host.stage.judge;
    judge.begins(id, Some(guard.handle().clone()));
    let leaves = Leaves(judge.clone(), id);
    let value = tokio::select! {
        biased;
        lost = guard.handle().lost() => Err(lost),
        () = sleep(plan.body.span) => Ok(judge.reads(plan.keys[0])),
    };
    judge.leaves(id, value.is_ok());
    drop(leaves);
    if plan.body.end == BodyEnd::Panic {
        std::panic::resume_unwind(Box::new(Own));
    }
    let value = value?;
    if plan.body.awaits > 0 {
        guard.release().await?;
    }
    Ok(value)
}

/// A body that is dropped has left.
struct Leaves(Judge, u64);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.leaves(self.1, false);
    }
}

#[distributed_lock(key = "key:<key>", coalesce, manager = host.locks, lease = plan.lease, wait = plan.wait, min_replicas = plan.min_replicas)]
async fn read_through(host: &Arc<Host>, key: usize, id: u64, plan: &CallPlan) -> Result<u64, LockError> {
    let inner = body(Arc::clone(host), id, plan.clone());
    Ok(Watched::new(host, id, Box::pin(inner)).await.unwrap_or(u64::MAX))
}

async fn coalescing(host: &Arc<Host>, id: u64, plan: &CallPlan) -> Result<u64, LockError> {
    read_through(host, plan.keys[0], id, plan).await
}

async fn body(host: Arc<Host>, id: u64, plan: CallPlan) -> Result<u64, Own> {
    let judge = &host.stage.judge;
    let held = current();
    if let Some(held) = held.as_ref().filter(|_| plan.fencing)
        && let Ok(token) = held.fencing_token().await
    {
        judge.has_token(id, token.get());
    }
    if plan.reentrant {
        let again = host.locks.lock(name_of(plan.keys[0])).reentrant(true);
        drop(again.run(sleep(Duration::from_millis(1))).await);
    }
    if plan.drives {
        drive_another(&host, &plan).await;
    }
    if let Some(held) = held.as_ref().filter(|_| plan.tasks) {
        let part = sleep(plan.body.span / 2);
        let part = Part {
            part: Box::pin(part),
            judge: judge.clone(),
            id,
        };
        let task = held.spawn(part);
        // One that is not waited for ends with the body.
        if plan.body.awaits.is_multiple_of(2) {
            drop(task.await);
        }
    }
    for number in 0..plan.body.awaits {
        let step = sleep(plan.body.span / plan.body.awaits);
        // Some ask for the loss now and then, others never do.
        let asks = plan.signal && plan.body.awaits.is_multiple_of(2) && number % 2 == 0;
        match held.as_ref().filter(|_| asks) {
            Some(held) => tokio::select! {
                biased;
                _ = held.lost() => return Err(Own),
                () = step => {}
            },
            None => step.await,
        }
    }
    match plan.body.end {
        BodyEnd::Value => Ok(judge.reads(plan.keys[0])),
        BodyEnd::Error => Err(Own),
        BodyEnd::Panic => std::panic::resume_unwind(Box::new(Own)),
    }
}

/// Polls, in the middle of a body, a task of somebody else who wants the same lock, and drops it.
async fn drive_another(host: &Arc<Host>, plan: &CallPlan) {
    let judge = &host.stage.judge;
    let other = plan.of_another();
    let id = judge.asks(&Asked {
        process: host.number,
        incarnation: host.incarnation,
        task: 0,
        runtime: 0,
        home: &host.process,
        passed_for: Duration::ZERO,
        response_timeout: Duration::ZERO,
        plan: &other,
    });
    let ended = EndsCall(judge.clone(), id);
    let inner = async {
        sleep(Duration::from_millis(1)).await;
        Ok(0)
    };
    let body = Watched::new(host, id, Box::pin(inner));
    let request = host.locks.lock(name_of(plan.keys[0])).wait(other.wait).reentrant(true);
    let mut task = Some(async {
        let _ended = ended;
        drop(request.run(body).await);
    });
    poll_fn(move |cx| {
        let mut tasks = LocalSet::new();
        if let Some(task) = task.take() {
            drop(tasks.spawn_local(task));
            let _ = Pin::new(&mut tasks).poll(cx);
        }
        Poll::Ready(())
    })
    .await;
}

/// A part of a body that runs in a task of the lock. The judge sees its polls.
struct Part {
    part: Pin<Box<Sleep>>,
    judge: Judge,
    id: u64,
}

impl Future for Part {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.judge.polls_part(self.id);
        self.part.as_mut().poll(cx)
    }
}

/// A body whose polls the judge sees.
struct Watched {
    body: Pin<Box<dyn Future<Output = Result<u64, Own>> + Send>>,
    judge: Judge,
    id: u64,
    has_begun: bool,
}

impl Watched {
    fn new(host: &Host, id: u64, body: Pin<Box<dyn Future<Output = Result<u64, Own>> + Send>>) -> Self {
        Self {
            body,
            judge: host.stage.judge.clone(),
            id,
            has_begun: false,
        }
    }
}

impl Future for Watched {
    type Output = Result<u64, Own>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.has_begun {
            self.judge.polls(self.id);
        } else {
            self.has_begun = true;
            let held: Option<HeldLock> = current();
            self.judge.begins(self.id, held);
        }
        let polled = self.body.as_mut().poll(cx);
        if polled.is_ready() {
            self.judge.leaves(self.id, true);
        }
        polled
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.has_begun {
            self.judge.leaves(self.id, false);
        }
    }
}

/// Turns a planned panic into an error. Another panic goes on.
struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, ()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) if panic.is::<Own>() => Poll::Ready(Err(())),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A call whose caller does not poll it for a while, or drops it.
struct Handled<F> {
    future: Option<Pin<Box<F>>>,
    polls: u32,
    freeze: Option<(u32, Duration)>,
    drop_after: Option<u32>,
    frozen: Option<Pin<Box<Sleep>>>,
    judge: Judge,
    id: u64,
}

impl<F: Future> Future for Handled<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(frozen) = &mut self.frozen {
            std::task::ready!(frozen.as_mut().poll(cx));
            self.frozen = None;
            self.judge.freezes(self.id, false);
        }
        let Some(future) = &mut self.future else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        self.polls += 1;
        if self.drop_after.is_some_and(|after| self.polls >= after) {
            self.future = None;
            return Poll::Ready(None);
        }
        if let Some((_, span)) = self.freeze.filter(|(after, _)| self.polls == *after) {
            let mut frozen = Box::pin(sleep(span));
            self.judge.freezes(self.id, true);
            if frozen.as_mut().poll(cx).is_pending() {
                self.frozen = Some(frozen);
            }
        }
        Poll::Pending
    }
}
