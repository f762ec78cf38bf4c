//! Sends many commands in few round trips: commands that a runtime's tasks have ready at one time go
//! out together, and acquires and releases among them share runs of a script. The commands
//! under way are bounded, and the others wait before they are sent: more would time out behind each
//! other and be sent again, until nothing gets through. A call that waits for that reserves nothing,
//! so one that is no longer polled is passed over.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use foldhash::fast::FixedState;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{mpsc, oneshot};

use crate::host::{Host, Mutex, Sleep, Timer, read_what_has_arrived};
use crate::store::redis::connection::failure::{self, Reason, sort};
use crate::store::redis::connection::traffic::Traffic;
use crate::store::redis::keyspace::{Beside, Keyspace};
use crate::store::redis::reply::{attempt, millis, taken_once};
use crate::store::redis::scripts::{ACQUIRE, Form, LockScript, SHARED_ACQUIRE, release_of};
use crate::store::responder::Responder;
use crate::store::{Attempt, HolderValue, LeaveFree, Limited, Ownership, StoreError};

/// The maximum number of commands sent together: a longer script would delay the server's other
/// clients.
pub(super) const TOGETHER: usize = 100;
/// The maximum number of releases of exclusive locks in one script run, which hands a lock to no more waiters
/// than `TURNS` in `queue.lua` and frees the others: their waiters would not be notified.
pub(in crate::store::redis) const RELEASED_TOGETHER: usize = 50;
/// The maximum number of acquires or releases in shared modes in one script run. Each has more to check, and
/// lets waiters in.
pub(in crate::store::redis) const SHARED_TOGETHER: usize = 32;
/// The number of awaited answers above which further commands go through the batcher.
const DIRECT: usize = 2;
/// The maximum number of batches in flight, and with it the share of each. *Measured* on 2 cores: with 16
/// tasks and threads, eight are a third faster than four; with 64, four and eight are equally fast.
const UNDER_WAY: usize = 8;
/// The maximum numbers of acquires and of releases in flight on a connection, so that none waits
/// for its answer for long. *Measured*: a server carries out 20 to 50 per millisecond. Releases are
/// sent many in one script, and are counted apart, since other calls wait for them.
const ACQUIRES: usize = 256;
const RELEASES: usize = 1024;
/// The time after which the batcher passes over a caller that it has woken for room and that has
/// not used it: the caller may no longer be polled.
const PASSED_OVER: Duration = Duration::from_millis(5);

/// The time after which a batch is passed on as soon as its answers are there: the runtime may have stood still,
/// and calls whose time is up meanwhile wait for a few passes more.
const LATE: Duration = Duration::from_millis(10);

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
#[derive(Clone)]
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
    pub(in crate::store::redis) fn new(lock: &Arc<str>, value: &Arc<str>, ttl: u64) -> Self {
        Self {
            lock: Arc::clone(lock),
            value: Arc::clone(value),
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
#[derive(Clone)]
pub(in crate::store::redis) struct Acquire {
    pub(in crate::store::redis) lock: Arc<str>,
    pub(in crate::store::redis) value: Arc<str>,
    /// In ms.
    pub(in crate::store::redis) ttl: u64,
    pub(in crate::store::redis) terms: Terms,
}

/// The terms that all requests in one run of a script share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) struct Terms {
    pub(in crate::store::redis) fence: bool,
    pub(in crate::store::redis) mode: AcquireMode,
}

#[derive(Clone, Copy, PartialEq, Eq)]
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

    /// Returns `true` for the release of a lock at once, in whatever state its queue is.
    fn is_plain(&self) -> bool {
        self.keep == 0 && self.member.is_empty() && self.leave_free.is_none()
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
    /// For the answer to a [`Take`] with this value.
    Taken(Responder<Attempt>, Arc<str>),
    /// For the answer to an [`Acquire`].
    Attempt(Responder<Attempt>),
    /// For the answer to a [`Release`], and the function that reads it.
    Ownership(Responder<Ownership>, fn(&Value) -> Result<Ownership, StoreError>),
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
            Self::Taken(responder, value) => {
                responder.respond(read(answer, |answer| taken_once(answer, &value)));
            }
            Self::Attempt(responder) => responder.respond(read(answer, attempt)),
            Self::Ownership(responder, verdict) => responder.respond(read(answer, verdict)),
        }
    }
}

fn read<T>(answer: Answer, read: impl Fn(&Value) -> Result<T, StoreError>) -> Result<T, StoreError> {
    read(&answer.map_err(|error| sort(&error, true))?)
}

/// The handle that puts commands into the batcher of a connection.
pub(in crate::store::redis) struct Sender {
    ops: mpsc::UnboundedSender<Op>,
    load: Arc<Load>,
    /// Tells the batcher by its drop that the connection is not used any more.
    _alive: oneshot::Sender<()>,
}

/// The load of a connection.
struct Load {
    host: Host,
    /// The number of commands that are not on the connection yet.
    queued: AtomicUsize,
    /// The number of commands whose answers are awaited, on this connection or on all that the cores
    /// are busy with.
    waited_for: Arc<AtomicUsize>,
    acquires: Capacity,
    releases: Capacity,
}

impl Load {
    fn capacity(&self, kind: Limited) -> &Capacity {
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
    fn new(most: usize) -> Self {
        Self {
            most,
            taken: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            waiters: Mutex::default(),
        }
    }

    fn free(&self) -> usize {
        self.most.saturating_sub(self.taken.load(Ordering::SeqCst))
    }

    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Wakes the first `count` waiters, but no more than there is room for.
    fn notify(&self, count: usize) {
        if !self.is_waited_for() {
            return;
        }
        let mut waiters = self.waiters.lock();
        let mut notified = Vec::new();
        while notified.len() < count.min(self.free())
            && let Some((_, task)) = waiters.tasks.pop_first()
        {
            notified.push(task);
        }
        self.waiting.store(waiters.tasks.len(), Ordering::SeqCst);
        drop(waiters);
        notified.into_iter().for_each(Waker::wake);
    }
}

/// A command in flight.
struct InFlight {
    load: Arc<Load>,
    kind: Limited,
}

impl InFlight {
    fn begin(load: &Arc<Load>, kind: Limited) -> Self {
        load.queued.fetch_add(1, Ordering::AcqRel);
        load.waited_for.fetch_add(1, Ordering::Relaxed);
        load.capacity(kind).taken.fetch_add(1, Ordering::SeqCst);
        Self {
            load: Arc::clone(load),
            kind,
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.load.waited_for.fetch_sub(1, Ordering::Relaxed);
        let capacity = self.load.capacity(self.kind);
        capacity.taken.fetch_sub(1, Ordering::SeqCst);
        capacity.notify(1);
    }
}

/// A caller that waits for capacity.
struct Waiter<'a> {
    host: &'a Host,
    capacity: &'a Capacity,
    number: Option<u64>,
}

impl Waiter<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut waiters = self.capacity.waiters.lock();
        let Waiters { next, tasks } = &mut *waiters;
        let number = *self.number.get_or_insert_with(|| {
            *next += 1;
            *next
        });
        // Counted first: a place that is freed meanwhile is either seen below, or announced by
        // `notify`.
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
        let Some(number) = self.number.filter(|_| !self.host.is_forked()) else {
            return;
        };
        let mut waiters = self.capacity.waiters.lock();
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
        let Load { queued, waited_for, .. } = &*self.load;
        queued.load(Ordering::Acquire) > 0 || waited_for.load(Ordering::Relaxed) > DIRECT
    }

    /// Counts a command that is sent without the batcher, until the returned value is dropped.
    pub(super) fn wait_for(&self) -> WaitedFor<'_> {
        self.load.waited_for.fetch_add(1, Ordering::Relaxed);
        WaitedFor(&self.load)
    }

    /// Queues a command. Drops its reply if the batcher has ended.
    pub(in crate::store::redis) fn put(&self, kind: Limited, what: What, reply: Reply) {
        let reply = Counted {
            reply,
            _place: InFlight::begin(&self.load, kind),
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
            host: &self.load.host,
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

/// Starts a batcher for a connection, in the current runtime. It ends when `moved` completes, since another
/// server has taken over, or when the sender is dropped; what is then not answered within `response` may never
/// be. `waited_for` counts the awaited answers.
pub(super) fn start(
    link: Link,
    moved: impl Future<Output = ()> + Send + 'static,
    response: Duration,
    waited_for: Arc<AtomicUsize>,
) -> Sender {
    let (sender, ops) = mpsc::unbounded_channel();
    let (alive, dropped) = oneshot::channel::<()>();
    let host = link.host.clone();
    let load = Arc::new(Load {
        host: host.clone(),
        queued: AtomicUsize::new(0),
        waited_for,
        acquires: Capacity::new(ACQUIRES),
        releases: Capacity::new(RELEASES),
    });
    let batcher = Batcher {
        link: Arc::new(link),
        load: Arc::clone(&load),
        under_way: VecDeque::with_capacity(UNDER_WAY),
        pass_over: None,
        reading: None,
        has_ended: false,
        runs: Vec::new(),
    };
    let over = {
        let host = host.clone();
        async move {
            let unused = async {
                drop(dropped.await);
                host.sleep(Timer::LockThread, response).await;
            };
            tokio::select! {
                () = moved => {}
                () = unused => {}
            }
        }
    };
    drop(host.spawn_here(batcher.run(ops, Box::pin(over))));
    Sender {
        ops: sender,
        load,
        _alive: alive,
    }
}

/// The connection of a batcher.
pub(super) struct Link {
    pub(super) host: Host,
    pub(super) connection: MultiplexedConnection,
    /// `true` if the server knows script flags.
    pub(super) flags: bool,
    /// `true` if only threads inside `block_on` look at its socket.
    pub(super) may_end_unseen: bool,
    pub(super) names: Arc<Keyspace>,
    pub(super) traffic: Arc<Traffic>,
    /// Returns `true` until another server has taken over.
    pub(super) is_present: Box<dyn Fn() -> bool + Send + Sync>,
    /// Returns `false` once the connection has been seen to end.
    pub(super) is_in_use: Box<dyn Fn() -> bool + Send + Sync>,
    /// Stops using the connection, which has broken.
    pub(super) end: Box<dyn Fn() + Send + Sync>,
}

impl Link {
    /// Notes the answer to what was sent at `sent`. Returns `None` if it does not count, since another server
    /// has taken over.
    fn answered<T>(&self, sent: u64, answer: Result<T, RedisError>) -> Option<Result<T, RedisError>> {
        match &answer {
            Err(error) if failure::ends_connection(error) => (self.end)(),
            _ => self.traffic.answered(sent, self.host.now().as_nanos()),
        }
        (self.is_present)().then_some(answer)
    }

    /// Returns a value, or the error that it is. Stops using the connection after some errors.
    fn read(&self, answer: Value) -> Answer {
        let answer = answer.extract_error();
        if let Err(error) = &answer
            && failure::ends_connection(error)
        {
            (self.end)();
        }
        answer
    }
}

/// A batch in flight, until its answers have reached their receivers.
type Sending = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Batcher {
    link: Arc<Link>,
    load: Arc<Load>,
    /// The batches in flight and when each was sent, in this order, which is also that of the answers.
    under_way: VecDeque<(u64, Sending)>,
    /// The time at which the batcher passes over callers that it has woken for capacity.
    pass_over: Option<Pin<Box<Sleep>>>,
    /// Set while the runtime reads what has arrived, before the next batch.
    reading: Option<Sending>,
    /// `true` if the connection had ended by then.
    has_ended: bool,
    /// The runs of the last batch, which are empty, for the next one.
    runs: Vec<Run>,
}

impl Batcher {
    async fn run(mut self, mut ops: mpsc::UnboundedReceiver<Op>, mut over: Sending) {
        let mut together = Vec::with_capacity(TOGETHER);
        poll_fn(|cx| {
            // From here on, no answer counts. Dropping the receivers tells them so.
            if over.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let done = self.carry(&mut ops, &mut together, cx);
            self.pass_over(cx);
            done
        })
        .await;
    }

    /// Sends the queued commands, and passes on the answers to one batch. A batch has its share of the
    /// awaited commands, so that the server carries out some batches while the tasks continue that got the
    /// answers to others. If several batches are answered at once, the tasks of the first come next, and what
    /// they send is on its way before the tasks of the second continue: otherwise all batches would become
    /// one, for which the server and the client would wait in turn.
    fn carry(
        &mut self,
        ops: &mut mpsc::UnboundedReceiver<Op>,
        together: &mut Vec<Op>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let now = self.link.host.now().as_nanos();
        while let Some((sent, first)) = self.under_way.front_mut()
            && Duration::from_nanos(now.saturating_sub(*sent)) >= LATE
            && first.as_mut().poll(cx).is_ready()
        {
            self.under_way.pop_front();
        }
        while self.under_way.len() < UNDER_WAY {
            ready!(self.read_first(cx));
            let share = self.load.waited_for.load(Ordering::Relaxed) / UNDER_WAY + 1;
            match ops.poll_recv_many(cx, together, share.min(TOGETHER)) {
                Poll::Ready(0) if self.under_way.is_empty() => return Poll::Ready(()),
                Poll::Ready(0) | Poll::Pending => break,
                Poll::Ready(_) if self.has_ended => self.refuse(together),
                Poll::Ready(_) => self.send(together, cx),
            }
        }
        let Some((_, first)) = self.under_way.front_mut() else {
            return Poll::Pending;
        };
        ready!(first.as_mut().poll(cx));
        self.under_way.pop_front();
        // Behind the tasks that this has woken.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Before a batch, lets the runtime read what has arrived on a connection that may have ended unseen.
    fn read_first(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Link { traffic, host, .. } = &*self.link;
        let begins = self.reading.is_none()
            && self.link.may_end_unseen
            && self.load.queued.load(Ordering::Acquire) > 0
            && traffic.is_quiet(host.now());
        if begins {
            self.reading = Some(Box::pin(read_what_has_arrived()));
        }
        if let Some(reading) = &mut self.reading {
            ready!(reading.as_mut().poll(cx));
            self.reading = None;
            self.link.traffic.looks(self.link.host.now().as_nanos());
            self.has_ended = !(self.link.is_in_use)();
        }
        Poll::Ready(())
    }

    /// Answers that these operations were not sent, and leaves the vector empty with its capacity.
    fn refuse(&self, ops: &mut Vec<Op>) {
        let count = ops.len();
        for Op { reply, .. } in ops.drain(..) {
            let ended = Reason::passing("the connection had ended before the command was sent", "try again");
            reply.give(Err(ended.into()));
        }
        self.load.queued.fetch_sub(count, Ordering::AcqRel);
    }

    /// Wakes further callers for unused room, a while after the first ones.
    fn pass_over(&mut self, cx: &mut Context<'_>) {
        let capacities = [&self.load.acquires, &self.load.releases];
        while capacities.iter().any(|capacity| capacity.is_waited_for()) {
            let after = self
                .pass_over
                .get_or_insert_with(|| Box::pin(self.link.host.sleep(Timer::LockThread, PASSED_OVER)));
            if after.as_mut().poll(cx).is_pending() {
                return;
            }
            self.pass_over = None;
            for capacity in capacities {
                capacity.notify(usize::MAX);
            }
        }
        self.pass_over = None;
    }

    /// Sends these operations, and leaves the vector empty with its capacity.
    fn send(&mut self, ops: &mut Vec<Op>, cx: &mut Context<'_>) {
        let count = ops.len();
        let sent = self.link.host.now().as_nanos();
        self.link.traffic.asks(sent);
        let alone = if count == 1 { ops.pop() } else { None };
        let mut sending = match alone {
            Some(op) => self.send_one(sent, op),
            None => self.send_together(sent, ops.drain(..)),
        };
        // The first poll puts the batch on the connection, ahead of later ones.
        if sending.as_mut().poll(cx).is_pending() {
            self.under_way.push_back((sent, sending));
        }
        self.load.queued.fetch_sub(count, Ordering::AcqRel);
    }

    fn send_one(&mut self, sent: u64, Op { what, reply }: Op) -> Sending {
        let link = Arc::clone(&self.link);
        match what {
            What::Command(command, _) => Box::pin(send_alone(link, sent, command, reply)),
            What::Take(take) => Box::pin(send_alone(link, sent, take.command(), reply)),
            marked @ What::Marked(_) => self.send_together(sent, std::iter::once(Op { what: marked, reply })),
            What::Script(request) => {
                let command = request.command(By::Hash, link.flags, &link.names);
                Box::pin(async move {
                    let answer = link.connection.clone().send_packed_command(&command).await;
                    if let Some(answer) = link.answered(sent, answer) {
                        reply.give(the_one(answer.and_then(|answer| link.read(answer))));
                    }
                })
            }
        }
    }

    fn send_together(&mut self, sent: u64, ops: impl ExactSizeIterator<Item = Op>) -> Sending {
        let packed = Packing::new(&self.link, &mut self.runs, ops.len()).pack(ops);
        Box::pin(send_together(Arc::clone(&self.link), sent, packed))
    }
}

/// The kind of requests that one run of a script carries out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Acquire(Terms),
    Release { is_shared: bool },
}

impl Kind {
    /// Returns the maximum number of requests in one run.
    fn most(self) -> usize {
        match self {
            Self::Acquire(terms) if !terms.mode.is_shared() => TOGETHER,
            Self::Release { is_shared: false } => RELEASED_TOGETHER,
            Self::Acquire(_) | Self::Release { is_shared: true } => SHARED_TOGETHER,
        }
    }
}

/// Acquires or releases that are sent as one command. One that is empty may become another.
struct Run {
    /// What the run can do together, and the group of its locks.
    kind: (Kind, u16),
    acquires: Vec<Acquire>,
    releases: Vec<Release>,
    replies: Vec<Counted>,
    /// The locks' hashes.
    locks: Vec<u64>,
}

impl Run {
    fn new(kind: (Kind, u16)) -> Self {
        Self {
            kind,
            acquires: Vec::new(),
            releases: Vec::new(),
            replies: Vec::new(),
            locks: Vec::new(),
        }
    }

    fn command(&self, Link { flags, names, .. }: &Link) -> Cmd {
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
    /// In the order of the commands, and of the requests in each.
    replies: Vec<(Part, Counted)>,
    /// `true` if the last command reads the server's mark.
    reads_mark: bool,
}

/// The part of a command's answer that a receiver gets.
enum Part {
    Whole,
    /// All of it, and the mark.
    Marked,
    /// One element of an array. `of` is the number of receivers for the first of them, and 0 for the others.
    Element {
        of: usize,
    },
}

/// A batch that is being gathered.
struct Packing<'a> {
    link: &'a Link,
    packed: Packed,
    runs: &'a mut Vec<Run>,
    /// Commands that follow the runs, since each is about a lock in one of them, and the hashes of these locks:
    /// as after a pipelined release.
    later: Vec<(u64, Cmd, Part, Counted)>,
}

impl<'a> Packing<'a> {
    /// The number of runs whose memory is kept for the next batch.
    const KEPT: usize = 4;

    fn new(link: &'a Link, runs: &'a mut Vec<Run>, ops: usize) -> Self {
        Self {
            link,
            packed: Packed {
                pipeline: Pipeline::with_capacity(ops),
                replies: Vec::with_capacity(ops),
                reads_mark: false,
            },
            runs,
            later: Vec::new(),
        }
    }

    fn pack(mut self, ops: impl Iterator<Item = Op>) -> Packed {
        for Op { what, reply } in ops {
            match what {
                What::Script(request) => {
                    let kind = (request.kind(), self.link.names.group(request.lock()));
                    let run = self.run_of(kind, request.lock(), reply);
                    match request {
                        Request::Acquire(acquire) => run.acquires.push(acquire),
                        Request::Release(release) => run.releases.push(release),
                    }
                }
                What::Command(command, about) => self.add_command(command, about, Part::Whole, reply),
                What::Take(take) => self.add_command(take.command(), Some(hash(&take.lock)), Part::Whole, reply),
                What::Marked(take) => {
                    self.add_command(take.command(), Some(hash(&take.lock)), Part::Marked, reply);
                    self.packed.reads_mark = true;
                }
            }
        }
        self.add_all();
        self.runs.truncate(Self::KEPT);
        if self.packed.reads_mark {
            self.packed.pipeline.cmd("GET").arg(&self.link.names.mark);
        }
        self.packed
    }

    /// Adds a command behind all that was asked for the same lock before, or for any lock without one.
    fn add_command(&mut self, command: Cmd, about: Option<u64>, part: Part, reply: Counted) {
        match about {
            None => self.add_all(),
            Some(lock) if self.is_later(lock) || self.runs.iter().any(|run| run.locks.contains(&lock)) => {
                self.later.push((lock, command, part, reply));
                return;
            }
            Some(_) => {}
        }
        self.add(command, part, reply);
    }

    fn is_later(&self, lock: u64) -> bool {
        self.later.iter().any(|(other, ..)| *other == lock)
    }

    fn add(&mut self, command: Cmd, part: Part, reply: Counted) {
        self.packed.pipeline.add_command(command);
        self.packed.replies.push((part, reply));
    }

    /// Adds the runs, and the commands that follow them.
    fn add_all(&mut self) {
        for run in &mut *self.runs {
            self.packed.add_run(run, self.link);
        }
        for (_, command, part, reply) in std::mem::take(&mut self.later) {
            self.add(command, part, reply);
        }
    }

    /// Returns the run that an acquire or a release of this lock is to be a part of.
    fn run_of(&mut self, kind: (Kind, u16), lock: &str, reply: Counted) -> &mut Run {
        let lock = hash(lock);
        if self.is_later(lock) {
            self.add_all();
        }
        let (mut own, mut free) = (None, None);
        for (at, run) in self.runs.iter_mut().enumerate() {
            if run.locks.is_empty() {
                free = free.or(Some(at));
            } else if run.kind != kind {
                if run.locks.contains(&lock) {
                    self.packed.add_run(run, self.link);
                }
            } else {
                if run.locks.len() == kind.0.most() {
                    self.packed.add_run(run, self.link);
                }
                own = Some(at);
            }
        }
        let at = own.or(free).unwrap_or(self.runs.len());
        if at == self.runs.len() {
            self.runs.push(Run::new(kind));
        }
        let run = &mut self.runs[at];
        run.kind = kind;
        run.locks.push(lock);
        run.replies.push(reply);
        run
    }
}

impl Packed {
    /// Adds a run, unless it is empty, and leaves it empty with its capacity.
    fn add_run(&mut self, run: &mut Run, link: &Link) {
        if run.locks.is_empty() {
            return;
        }
        self.pipeline.add_command(run.command(link));
        let mut of = run.replies.len();
        for reply in run.replies.drain(..) {
            self.replies.push((
                Part::Element {
                    of: std::mem::take(&mut of),
                },
                reply,
            ));
        }
        run.acquires.clear();
        run.releases.clear();
        run.locks.clear();
    }
}

async fn send_alone(link: Arc<Link>, sent: u64, command: Cmd, reply: Counted) {
    let answer = link.connection.clone().send_packed_command(&command).await;
    if let Some(answer) = link.answered(sent, answer) {
        reply.give(answer.and_then(|answer| link.read(answer)));
    }
}

async fn send_together(link: Arc<Link>, sent: u64, packed: Packed) {
    let Packed {
        pipeline,
        replies,
        reads_mark,
    } = packed;
    let count = pipeline.cmd_iter().count();
    let answer = link.connection.clone().send_packed_commands(&pipeline, 0, count).await;
    let Some(answer) = link.answered(sent, answer) else {
        return;
    };
    let mut answers = match answer {
        Ok(answers) => answers,
        Err(error) => {
            let all = replies.into_iter();
            return all.for_each(|(_, reply)| reply.give(Err(error.clone())));
        }
    };
    let mark = if reads_mark { answers.pop() } else { None };
    let mut replies = replies.into_iter();
    for answer in answers {
        let Some((part, reply)) = replies.next() else { return };
        match part {
            Part::Whole => reply.give(link.read(answer)),
            Part::Marked => {
                let mark = mark.clone().unwrap_or(Value::Nil);
                reply.give(link.read(answer).map(|answer| Value::Array(vec![answer, mark])));
            }
            Part::Element { of } => {
                let others = replies.by_ref().take(of.saturating_sub(1)).map(|(_, reply)| reply);
                let all = std::iter::once(reply).chain(others);
                if let Value::Array(elements) = answer {
                    let mut elements = elements.into_iter();
                    // One without an element is dropped, which says that its outcome is unknown.
                    for reply in all {
                        if let Some(element) = elements.next() {
                            reply.give(element.extract_error());
                        }
                    }
                } else {
                    let answer = link.read(answer);
                    all.for_each(|reply| reply.give(answer.clone()));
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
