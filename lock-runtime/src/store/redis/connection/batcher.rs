//! Sends many commands in few round trips: the commands that a runtime's tasks have ready at one
//! time go out together, and acquires and releases among them share runs of a script. The commands
//! under way are bounded, and the others wait before they are sent: more would time out behind each
//! other and be sent again, until nothing gets through. A call that waits for that reserves nothing,
//! so one that is no longer polled is passed over.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::fast::FixedState;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{mpsc, oneshot};

use crate::host::{Host, Sleep, Timer};
use crate::store::redis::keyspace::{Beside, Keyspace};
use crate::store::redis::reply::millis;
use crate::store::redis::scripts::{ACQUIRE, Form, LockScript, SHARED_ACQUIRE, release_of};
use crate::store::{HolderValue, LeaveFree, Limited};

/// The maximum number of commands sent together: a longer script would delay the server's other
/// clients.
pub(super) const TOGETHER: usize = 100;
/// The maximum number of acquires or releases in shared modes in one script run. Each has more to check, and
/// lets waiters in.
pub(in crate::store::redis) const SHARED_TOGETHER: usize = 32;
/// The number of awaited answers above which further commands are sent together. *Measured* on 2
/// cores: sending each command by itself is a third faster with 16 tasks, and a third slower with
/// 64 tasks, also if these are spread over the nodes of a cluster.
const DIRECT: usize = 24;
/// The maximum number of batches in flight. With fewer, the server would idle between two batches;
/// with more, each batch would carry fewer commands.
const UNDER_WAY: usize = 2;
/// The maximum numbers of acquires and of releases in flight on a connection, so that none waits
/// for its answer for long. *Measured*: a server carries out 20 to 50 per millisecond. Releases are
/// sent many in one script, and are counted apart, since other calls wait for them.
const ACQUIRES: usize = 256;
const RELEASES: usize = 1024;
/// The time after which the batcher passes over a caller that it has woken for room and that has
/// not used it: the caller may no longer be polled.
const PASSED_OVER: Duration = Duration::from_millis(5);

type Answer = Result<Value, RedisError>;

/// One command, and the receiver of its answer.
struct Op {
    what: What,
    reply: Counted,
}

/// A reply, and the place that its command occupies until the reply is given.
struct Counted {
    reply: Reply,
    _place: InFlight,
}

impl Counted {
    fn give(self, answer: Answer) {
        self.reply.give(answer);
    }
}

pub(in crate::store::redis) enum What {
    /// A command, and the hash of the lock it is about, or `None` if there are many.
    Command(Cmd, Option<u64>),
    Take(Take),
    /// The same, behind which the server's mark is read.
    Marked(Take),
    Script(Request),
}

/// A request that a script carries out, alone or in one run with others.
pub(in crate::store::redis) enum Request {
    Acquire(Acquire),
    Release(Release),
}

impl Request {
    pub(super) fn limited(&self) -> Limited {
        match self {
            Self::Acquire(_) => Limited::Acquires,
            Self::Release(_) => Limited::Releases,
        }
    }

    pub(super) fn lock(&self) -> &str {
        match self {
            Self::Acquire(acquire) => &acquire.lock,
            Self::Release(release) => &release.lock,
        }
    }

    /// Returns the command for this request alone. `flags` is `true` if the server knows script flags.
    pub(super) fn command(&self, by: By, flags: bool, names: &Keyspace) -> Cmd {
        match self {
            Self::Acquire(acquire) => acquire_command(by, flags, names, slice::from_ref(acquire)),
            Self::Release(release) => release_command(by, flags, names, slice::from_ref(release)),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Acquire(acquire) => Kind::Acquire(acquire.terms),
            Self::Release(release) => Kind::Release {
                is_shared: release.is_shared,
            },
        }
    }
}

/// The plain request for a lock. Its `GET` returns the holder, and refuses a key of another type.
pub(in crate::store::redis) struct Take {
    lock: Arc<str>,
    value: Arc<str>,
    /// In ms.
    ttl: u64,
}

impl Take {
    pub(in crate::store::redis) fn new(lock: &Arc<str>, value: &HolderValue, ttl: u64) -> Self {
        Self {
            lock: Arc::clone(lock),
            value: Arc::clone(value.text()),
            ttl,
        }
    }

    pub(super) fn command(&self) -> Cmd {
        let mut set = Cmd::with_capacity(7, self.lock.len() + self.value.len() + 32);
        set.arg("SET").arg(&*self.lock).arg(&*self.value);
        set.arg("NX").arg("GET").arg("PX").arg(self.ttl);
        set
    }
}

/// A request for a lock that takes a script.
pub(in crate::store::redis) struct Acquire {
    pub(in crate::store::redis) lock: Arc<str>,
    pub(in crate::store::redis) value: Arc<str>,
    /// In ms.
    pub(in crate::store::redis) ttl: u64,
    pub(in crate::store::redis) terms: Terms,
}

/// The terms that all requests in one run of a script share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store::redis) struct Terms {
    pub(in crate::store::redis) fence: bool,
    pub(in crate::store::redis) mode: AcquireMode,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store::redis) enum AcquireMode {
    Exclusive {
        fair: bool,
    },
    /// Any other.
    Shared {
        /// `true` to use all the commands that these modes need.
        all_commands: bool,
    },
}

impl AcquireMode {
    fn is_shared(self) -> bool {
        matches!(self, Self::Shared { .. })
    }
}

impl Terms {
    fn script(self) -> &'static LockScript {
        match self.mode {
            AcquireMode::Exclusive { .. } => &ACQUIRE,
            AcquireMode::Shared { .. } => &SHARED_ACQUIRE,
        }
    }

    /// Returns the arguments in front of those for each lock.
    fn write_to(self, command: &mut Cmd, names: &Keyspace) {
        let fence = u8::from(self.fence);
        match self.mode {
            AcquireMode::Exclusive { fair } => command.arg(fence).arg(u8::from(fair)),
            AcquireMode::Shared { all_commands } => command.arg(&names.channels).arg(fence).arg(u8::from(all_commands)),
        };
    }
}

/// The release of a lock.
#[derive(Clone)]
pub(in crate::store::redis) struct Release {
    pub(in crate::store::redis) lock: Arc<str>,
    /// The holder's value; empty to take a call out of the queue only.
    pub(in crate::store::redis) value: Arc<str>,
    /// `true` if the value's mode is any but exclusive.
    pub(in crate::store::redis) is_shared: bool,
    /// The time for which to keep the key, in ms, or 0 to delete it.
    pub(in crate::store::redis) keep: u64,
    /// The member to take out of the queue; empty for none.
    pub(in crate::store::redis) member: String,
    /// The conditions on which the lock may be left free for a while.
    pub(in crate::store::redis) leave_free: Option<LeaveFree>,
}

impl Release {
    /// Returns the release of what `value` holds, at once and whole.
    pub(in crate::store::redis) fn of(lock: &Arc<str>, value: &HolderValue) -> Self {
        Self {
            lock: Arc::clone(lock),
            value: Arc::clone(value.text()),
            is_shared: value.is_shared(),
            keep: 0,
            member: String::new(),
            leave_free: None,
        }
    }

    /// Returns `true` for the release of an exclusive lock at once, in whatever state its queue is.
    fn is_plain(&self) -> bool {
        !self.is_shared && self.keep == 0 && self.member.is_empty() && self.leave_free.is_none()
    }

    /// Returns the key of the queue of the lock.
    pub(in crate::store::redis) fn queue<'a>(&'a self, names: &'a Keyspace) -> Beside<'a> {
        names.queue_in(&self.lock, self.is_shared)
    }

    /// Returns `true` if this only takes a call out of a queue, and holds nothing.
    pub(super) fn is_of_a_place(&self) -> bool {
        self.value.is_empty()
    }
}

/// The receiver of an answer.
pub(in crate::store::redis) enum Reply {
    To(oneshot::Sender<Answer>),
    /// No call waits for the answer.
    Report(Report),
}

/// A callback for the answer to a command that no call waits for. Called with `None` on drop, if
/// there was no answer.
pub(in crate::store::redis) struct Report(Option<Box<dyn FnOnce(Option<Answer>) + Send>>);

impl Report {
    pub(in crate::store::redis) fn new(report: impl FnOnce(Option<Answer>) + Send + 'static) -> Self {
        Self(Some(Box::new(report)))
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(report) = self.0.take() {
            report(None);
        }
    }
}

impl Reply {
    fn give(self, answer: Answer) {
        match self {
            // The waiting call may have been dropped.
            Self::To(reply) => drop(reply.send(answer)),
            Self::Report(mut report) => {
                if let Some(report) = report.0.take() {
                    report(Some(answer));
                }
            }
        }
    }
}

/// The handle that puts commands into the batcher of a connection.
#[derive(Clone)]
pub(in crate::store::redis) struct Sender {
    ops: mpsc::UnboundedSender<Op>,
    load: Arc<Load>,
}

/// The load of a connection.
struct Load {
    /// The number of commands that are not on the connection yet.
    queued: AtomicUsize,
    /// The number of commands whose answers are awaited, on this connection or on all that the cores
    /// are busy with.
    waited_for: Arc<AtomicUsize>,
    acquires: Arc<Capacity>,
    releases: Arc<Capacity>,
}

impl Load {
    fn capacity(&self, kind: Limited) -> &Arc<Capacity> {
        match kind {
            Limited::Acquires => &self.acquires,
            Limited::Releases => &self.releases,
        }
    }
}

/// Counts the commands of one kind in flight, and wakes callers when there is room for more.
///
/// A command counts from the moment it is put into the batcher until its answer arrives. A waiting
/// caller reserves nothing, since it may never be polled again: it checks again when it is woken
/// for capacity. If it does not, the batcher wakes the next callers.
struct Capacity {
    host: Host,
    most: usize,
    taken: AtomicUsize,
    /// The length of [`Waiters::tasks`].
    waiting: AtomicUsize,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    /// The callers that have not been woken for room since they last checked, in order of arrival.
    tasks: BTreeMap<u64, Waker>,
}

impl Capacity {
    fn new(host: &Host, most: usize) -> Arc<Self> {
        Arc::new(Self {
            host: host.clone(),
            most,
            taken: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            waiters: Mutex::default(),
        })
    }

    fn free(&self) -> usize {
        self.most.saturating_sub(self.taken.load(Ordering::SeqCst))
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>) -> InFlight {
        self.taken.fetch_add(1, Ordering::SeqCst);
        InFlight(Arc::clone(self))
    }

    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Wakes the first `count` waiters, but no more than there is room for.
    fn tell(&self, count: usize) {
        if !self.is_waited_for() {
            return;
        }
        let mut waiters = self.waiters();
        let mut told = Vec::new();
        while told.len() < count.min(self.free())
            && let Some((_, task)) = waiters.tasks.pop_first()
        {
            told.push(task);
        }
        self.waiting.store(waiters.tasks.len(), Ordering::SeqCst);
        drop(waiters);
        told.into_iter().for_each(Waker::wake);
    }
}

/// A command in flight.
struct InFlight(Arc<Capacity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
        self.0.tell(1);
    }
}

/// A caller that waits for capacity.
struct Waiter<'a> {
    capacity: &'a Capacity,
    number: Option<u64>,
}

impl Waiter<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut waiters = self.capacity.waiters();
        let Waiters { next, tasks } = &mut *waiters;
        let number = *self.number.get_or_insert_with(|| {
            *next += 1;
            *next
        });
        // Counted first: a place that is freed meanwhile is either seen below, or announced by
        // `tell`.
        let former = tasks.insert(number, cx.waker().clone());
        self.capacity.waiting.store(tasks.len(), Ordering::SeqCst);
        // The waiters in front come first, until they have been woken for capacity.
        let free = self.capacity.free();
        let is_full = tasks.range(..number).take(free).count() == free;
        let own = if is_full { None } else { tasks.remove(&number) };
        self.capacity.waiting.store(tasks.len(), Ordering::SeqCst);
        drop(waiters);
        // Dropped after the unlock: dropping a waker may drop a task that waits here.
        drop((former, own));
        if is_full { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may still hold this mutex.
        let Some(number) = self.number.filter(|_| !self.capacity.host.is_forked()) else {
            return;
        };
        let mut waiters = self.capacity.waiters();
        let own = waiters.tasks.remove(&number);
        self.capacity.waiting.store(waiters.tasks.len(), Ordering::SeqCst);
        drop(waiters);
        drop(own);
    }
}

impl Sender {
    /// Returns `true` if the next command goes through the batcher: many answers are awaited, or a
    /// command is still queued, which the next one must not overtake. Otherwise, the way over
    /// another task would cost more than it saves.
    pub(super) fn is_busy(&self) -> bool {
        self.load.queued.load(Ordering::Acquire) > 0 || self.load.waited_for.load(Ordering::Relaxed) > DIRECT
    }

    /// Counts a command whose answer is awaited, until the returned value is dropped.
    pub(super) fn wait_for(&self) -> WaitedFor<'_> {
        self.load.waited_for.fetch_add(1, Ordering::Relaxed);
        WaitedFor(&self.load)
    }

    /// Queues a command. Drops its reply if the batcher has ended.
    pub(in crate::store::redis) fn put(&self, kind: Limited, what: What, reply: Reply) {
        self.load.queued.fetch_add(1, Ordering::AcqRel);
        let reply = Counted {
            reply,
            _place: self.load.capacity(kind).enter(),
        };
        drop(self.ops.send(Op { what, reply }));
    }

    /// Returns `true` if there is room for another command of this kind.
    pub(super) fn is_ready(&self, kind: Limited) -> bool {
        let capacity = self.load.capacity(kind);
        capacity.free() > capacity.waiting.load(Ordering::SeqCst)
    }

    /// Waits until there is room for another command of this kind. Reserves nothing. Cancel safe.
    pub(in crate::store::redis) async fn ready(&self, kind: Limited) {
        let mut waiter = Waiter {
            capacity: self.load.capacity(kind),
            number: None,
        };
        poll_fn(|cx| waiter.poll(cx)).await;
    }
}

/// A command whose answer is awaited.
pub(super) struct WaitedFor<'a>(&'a Load);

impl Drop for WaitedFor<'_> {
    fn drop(&mut self) {
        self.0.waited_for.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a batcher for a connection, in the current runtime. It ends when all senders are dropped.
/// `flags` is `true` if the server knows script flags; `waited_for` counts the awaited answers.
pub(in crate::store::redis) fn start(
    host: &Host,
    connection: MultiplexedConnection,
    flags: bool,
    names: Arc<Keyspace>,
    waited_for: Arc<AtomicUsize>,
) -> Sender {
    let (sender, ops) = mpsc::unbounded_channel();
    let load = Arc::new(Load {
        queued: AtomicUsize::new(0),
        waited_for,
        acquires: Capacity::new(host, ACQUIRES),
        releases: Capacity::new(host, RELEASES),
    });
    let batcher = Batcher {
        host: host.clone(),
        connection,
        flags,
        names,
        load: Arc::clone(&load),
        under_way: VecDeque::with_capacity(UNDER_WAY),
        pass_over: None,
    };
    drop(host.spawn_here(batcher.run(ops)));
    Sender { ops: sender, load }
}

/// A batch in flight, until its answers have reached their receivers.
type Sending = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Batcher {
    host: Host,
    connection: MultiplexedConnection,
    flags: bool,
    names: Arc<Keyspace>,
    load: Arc<Load>,
    /// The batches in flight, in the order of sending, which is also that of the answers.
    under_way: VecDeque<Sending>,
    /// The time at which the batcher passes over callers that it has woken for capacity.
    pass_over: Option<Pin<Box<Sleep>>>,
}

impl Batcher {
    async fn run(mut self, mut ops: mpsc::UnboundedReceiver<Op>) {
        let mut together = Vec::with_capacity(TOGETHER);
        poll_fn(|cx| {
            let done = self.carry(&mut ops, &mut together, cx);
            self.pass_over(cx);
            done
        })
        .await;
    }

    fn carry(
        &mut self,
        ops: &mut mpsc::UnboundedReceiver<Op>,
        together: &mut Vec<Op>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            while let Some(first) = self.under_way.front_mut()
                && first.as_mut().poll(cx).is_ready()
            {
                self.under_way.pop_front();
            }
            if self.under_way.len() >= UNDER_WAY {
                return Poll::Pending;
            }
            match ops.poll_recv_many(cx, together, TOGETHER) {
                Poll::Ready(0) if self.under_way.is_empty() => return Poll::Ready(()),
                Poll::Ready(0) | Poll::Pending => return Poll::Pending,
                Poll::Ready(_) => self.send(together, cx),
            }
        }
    }

    /// Wakes further callers for unused room, a while after the first ones.
    fn pass_over(&mut self, cx: &mut Context<'_>) {
        let capacities = [&self.load.acquires, &self.load.releases];
        while capacities.iter().any(|capacity| capacity.is_waited_for()) {
            let after = self
                .pass_over
                .get_or_insert_with(|| Box::pin(self.host.sleep(Timer::LockThread, PASSED_OVER)));
            if after.as_mut().poll(cx).is_pending() {
                return;
            }
            self.pass_over = None;
            for capacity in capacities {
                capacity.tell(usize::MAX);
            }
        }
        self.pass_over = None;
    }

    /// Sends these operations, and leaves the vector empty with its capacity.
    fn send(&mut self, ops: &mut Vec<Op>, cx: &mut Context<'_>) {
        let count = ops.len();
        let alone = if count == 1 { ops.pop() } else { None };
        let mut sending: Sending = if let Some(op) = alone {
            self.send_one(op)
        } else {
            Box::pin(send_together(self.connection.clone(), self.pack(ops.drain(..))))
        };
        // The first poll puts the batch on the connection, ahead of later ones.
        if sending.as_mut().poll(cx).is_pending() {
            self.under_way.push_back(sending);
        }
        self.load.queued.fetch_sub(count, Ordering::AcqRel);
    }

    fn send_one(&self, Op { what, reply }: Op) -> Sending {
        let mut connection = self.connection.clone();
        match what {
            What::Command(command, _) => Box::pin(send_alone(connection, command, reply)),
            What::Take(take) => Box::pin(send_alone(connection, take.command(), reply)),
            marked @ What::Marked(_) => {
                let op = Op { what: marked, reply };
                Box::pin(send_together(connection, self.pack(std::iter::once(op))))
            }
            What::Script(request) => {
                let command = request.command(By::Hash, self.flags, &self.names);
                Box::pin(async move { reply.give(the_one(connection.req_packed_command(&command).await)) })
            }
        }
    }

    fn pack(&self, ops: impl ExactSizeIterator<Item = Op>) -> Packed {
        let mut packed = Packed {
            pipeline: Pipeline::with_capacity(ops.len()),
            replies: Vec::with_capacity(ops.len()),
            reads_mark: false,
        };
        // By what one run can do together, for the locks of one group.
        let mut runs = Runs::new();
        for Op { what, reply } in ops {
            match what {
                What::Script(request) => {
                    let kind = (request.kind(), self.names.group(request.lock()));
                    let run = packed.run_of(kind, request.lock(), reply, &mut runs, self);
                    match request {
                        Request::Acquire(acquire) => run.acquires.push(acquire),
                        Request::Release(release) => run.releases.push(release),
                    }
                }
                What::Command(command, about) => {
                    packed.add_command(command, about, &mut runs, self);
                    packed.replies.push(Replies::One(reply));
                }
                What::Take(take) => {
                    packed.add_command(take.command(), Some(hash(&take.lock)), &mut runs, self);
                    packed.replies.push(Replies::One(reply));
                }
                What::Marked(take) => {
                    packed.add_command(take.command(), Some(hash(&take.lock)), &mut runs, self);
                    packed.replies.push(Replies::Marked(reply));
                    packed.reads_mark = true;
                }
            }
        }
        for run in runs.values_mut() {
            packed.add_run(run, self);
        }
        if packed.reads_mark {
            packed.pipeline.cmd("GET").arg(&self.names.mark);
        }
        packed
    }
}

/// The runs of scripts that a batch gathers, by their kinds and by the groups of their locks.
type Runs = BTreeMap<(Kind, u16), Run>;

/// The kind of requests that one run of a script carries out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Acquire(Terms),
    Release { is_shared: bool },
}

impl Kind {
    fn is_shared(self) -> bool {
        match self {
            Self::Acquire(terms) => terms.mode.is_shared(),
            Self::Release { is_shared } => is_shared,
        }
    }
}

/// Acquires or releases that are sent as one command.
#[derive(Default)]
struct Run {
    acquires: Vec<Acquire>,
    releases: Vec<Release>,
    replies: Vec<Counted>,
    /// The locks' hashes.
    locks: Vec<u64>,
}

impl Run {
    fn command(&self, batcher: &Batcher) -> Cmd {
        let Batcher { flags, names, .. } = batcher;
        if self.acquires.is_empty() {
            release_command(By::Hash, *flags, names, &self.releases)
        } else {
            acquire_command(By::Hash, *flags, names, &self.acquires)
        }
    }
}

/// The content of a batch.
struct Packed {
    pipeline: Pipeline,
    replies: Vec<Replies>,
    /// `true` if the last command reads the server's mark.
    reads_mark: bool,
}

/// The receivers of one command's answer.
enum Replies {
    One(Counted),
    /// Gets the mark as well.
    Marked(Counted),
    /// Each gets one element of an array.
    Each(Vec<Counted>),
}

impl Packed {
    fn add_command(&mut self, command: Cmd, about: Option<u64>, runs: &mut Runs, batcher: &Batcher) {
        // It must not overtake what was asked for the same lock before.
        for run in runs.values_mut() {
            if about.is_none_or(|about| run.locks.contains(&about)) {
                self.add_run(run, batcher);
            }
        }
        self.pipeline.add_command(command);
    }

    /// Returns the run that an acquire or a release of this lock is to be a part of.
    fn run_of<'a>(
        &mut self,
        kind: (Kind, u16),
        lock: &str,
        reply: Counted,
        runs: &'a mut Runs,
        batcher: &Batcher,
    ) -> &'a mut Run {
        let lock = hash(lock);
        for (other, run) in &mut *runs {
            if *other != kind && run.locks.contains(&lock) {
                self.add_run(run, batcher);
            }
        }
        let run = runs.entry(kind).or_default();
        if kind.0.is_shared() && run.locks.len() == SHARED_TOGETHER {
            self.add_run(run, batcher);
        }
        run.locks.push(lock);
        run.replies.push(reply);
        run
    }

    fn add_run(&mut self, run: &mut Run, batcher: &Batcher) {
        let run = std::mem::take(run);
        if !run.locks.is_empty() {
            self.pipeline.add_command(run.command(batcher));
            self.replies.push(Replies::Each(run.replies));
        }
    }
}

async fn send_alone(mut connection: MultiplexedConnection, command: Cmd, reply: Counted) {
    let answer = connection.req_packed_command(&command).await;
    reply.give(answer.and_then(Value::extract_error));
}

async fn send_together(mut connection: MultiplexedConnection, packed: Packed) {
    let count = packed.replies.len() + usize::from(packed.reads_mark);
    match connection.req_packed_commands(&packed.pipeline, 0, count).await {
        Ok(mut answers) => {
            let mark = if packed.reads_mark { answers.pop() } else { None };
            for (replies, answer) in packed.replies.into_iter().zip(answers) {
                match (replies, answer) {
                    (Replies::One(reply), answer) => reply.give(answer.extract_error()),
                    (Replies::Marked(reply), answer) => {
                        let mark = mark.clone().unwrap_or(Value::Nil);
                        reply.give(answer.extract_error().map(|answer| Value::Array(vec![answer, mark])));
                    }
                    (Replies::Each(replies), Value::Array(answers)) => {
                        for (reply, answer) in replies.into_iter().zip(answers) {
                            reply.give(answer.extract_error());
                        }
                    }
                    (Replies::Each(replies), answer) => {
                        let answer = answer.extract_error();
                        for reply in replies {
                            reply.give(answer.clone());
                        }
                    }
                }
            }
        }
        Err(error) => {
            for replies in packed.replies {
                match replies {
                    Replies::One(reply) | Replies::Marked(reply) => reply.give(Err(error.clone())),
                    Replies::Each(replies) => replies.into_iter().for_each(|reply| reply.give(Err(error.clone()))),
                }
            }
        }
    }
}

/// Sends a command, and reads the server's mark behind it. Returns both answers.
pub(super) async fn with_mark(mut connection: MultiplexedConnection, command: Cmd, mark: &str) -> Answer {
    let mut both = Pipeline::with_capacity(2);
    both.add_command(command).cmd("GET").arg(mark);
    let mut answers = connection.req_packed_commands(&both, 0, 2).await?;
    let mark = answers.pop().unwrap_or(Value::Nil);
    Ok(Value::Array(vec![the_one(Ok(Value::Array(answers)))?, mark]))
}

/// Returns the only element of a script's answer.
pub(in crate::store::redis) fn the_one(answer: Answer) -> Answer {
    match answer.and_then(Value::extract_error)? {
        Value::Array(answers) => match <[Value; 1]>::try_from(answers) {
            Ok([answer]) => Ok(answer),
            Err(answers) => Ok(Value::Array(answers)),
        },
        answer => Ok(answer),
    }
}

/// Returns a hash by which the commands of one lock are kept in order. Two locks with one hash only share fewer
/// runs of a script.
pub(in crate::store::redis) fn hash(lock: &str) -> u64 {
    FixedState::default().hash_one(lock)
}

/// The way in which a command names its script.
#[derive(Clone, Copy)]
pub(super) enum By {
    Hash,
    /// For a server that does not have it.
    Source,
}

/// Returns the command that asks for locks on the same terms. `flags` is `true` if the server knows script
/// flags.
fn acquire_command(by: By, flags: bool, names: &Keyspace, acquires: &[Acquire]) -> Cmd {
    let mut command = Cmd::with_capacity(8 + 4 * acquires.len(), 192 + 256 * acquires.len());
    let Some(Acquire { terms, lock, .. }) = acquires.first() else {
        return command;
    };
    run_script(&mut command, by, terms.script().form(flags));
    command.arg(2 * acquires.len() + usize::from(terms.fence));
    let is_shared = terms.mode.is_shared();
    for acquire in acquires {
        command
            .arg(&*acquire.lock)
            .arg(names.queue_in(&acquire.lock, is_shared));
    }
    // See `drawing`.
    if terms.fence {
        command.arg(&*names.counter(lock));
    }
    terms.write_to(&mut command, names);
    for acquire in acquires {
        command.arg(&*acquire.value).arg(acquire.ttl);
    }
    command
}

/// Returns the command that releases locks of one kind, likewise.
pub(super) fn release_command(by: By, flags: bool, names: &Keyspace, releases: &[Release]) -> Cmd {
    let is_shared = releases.first().is_some_and(|release| release.is_shared);
    let are_plain = releases.iter().all(Release::is_plain);
    let each = if are_plain { 3 } else { 6 };
    let mut command = Cmd::with_capacity(4 + each * releases.len(), 128 + 256 * releases.len());
    run_script(&mut command, by, release_of(is_shared).form(flags));
    command.arg(2 * releases.len());
    for release in releases {
        command.arg(&*release.lock).arg(release.queue(names));
    }
    command.arg(&names.channels);
    for release in releases {
        command.arg(&*release.value);
        if are_plain {
            continue;
        }
        command.arg(release.keep).arg(&release.member);
        command.arg(release.leave_free.map_or_else(String::new, |free| {
            let LeaveFree { pause, every, is_due } = free;
            format!("{}:{}:{}", millis(pause), every.as_millis(), u8::from(is_due))
        }));
    }
    command
}

pub(super) fn run_script(command: &mut Cmd, by: By, script: &Form) {
    match by {
        By::Hash => command.arg("EVALSHA").arg(&script.hash),
        By::Source => command.arg("EVAL").arg(&script.source),
    };
}
