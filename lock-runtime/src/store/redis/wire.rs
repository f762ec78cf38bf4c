//! Many commands in few round trips: what the tasks of a runtime have to say to the server at one time is sent together, and
//! all releases in it are one script's run.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{mpsc, oneshot};

use super::names::Names;
use super::scripts::release_of;

/// How many commands are sent together at most: a longer script would hold up the server's other clients.
const TOGETHER: usize = 100;
/// How many answers may be waited for before further commands are sent together. *Measured* on 2 cores: with 16 tasks sending each
/// command by itself is faster by a third, with 64 tasks slower by a third.
const DIRECT: usize = 24;
/// How many sendings are under way at once. With fewer the server would idle, with more there would be less to send together.
const UNDER_WAY: usize = 2;

type Answer = Result<Value, RedisError>;

/// One command, and who waits for its answer.
pub(super) struct Op {
    pub(super) what: What,
    pub(super) reply: Reply,
}

pub(super) enum What {
    /// A command, and the hash of the lock it is about; `None`: of many.
    Command(Cmd, Option<u64>),
    Release(Release),
}

/// A lock to be given back.
pub(super) struct Release {
    pub(super) lock: String,
    pub(super) queue: String,
    pub(super) value: String,
    /// Whether the value's mode is one that several may hold.
    pub(super) is_shared: bool,
    /// How long to keep it, in ms; 0: not.
    pub(super) keep: u64,
    /// What to take out of its queue; empty: nothing.
    pub(super) member: String,
}

impl Release {
    /// The command for one of them alone, by a script's name and source.
    pub(super) fn command(&self, name: &str, script: &str, names: &Names) -> Cmd {
        release(name, script, names, std::slice::from_ref(self))
    }
}

/// Who takes an answer.
pub(super) enum Reply {
    To(oneshot::Sender<Answer>),
    /// Nobody waits for it.
    Report(Report),
}

/// Takes the answer to a command that nobody waits for. Dropped, there was none.
pub(super) struct Report(Option<Box<dyn FnOnce(Option<Answer>) + Send>>);

impl Report {
    pub(super) fn new(report: impl FnOnce(Option<Answer>) + Send + 'static) -> Self {
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
            // Who waited may have left.
            Self::To(reply) => drop(reply.send(answer)),
            Self::Report(mut report) => {
                if let Some(report) = report.0.take() {
                    report(Some(answer));
                }
            }
        }
    }
}

/// The way to a connection's wire.
#[derive(Clone)]
pub(super) struct Sender {
    ops: mpsc::UnboundedSender<Op>,
    load: Arc<Load>,
}

/// What is under way on a connection.
#[derive(Default)]
struct Load {
    /// Commands that are not on the connection yet.
    queued: AtomicUsize,
    /// Commands whose answers are waited for.
    waited_for: AtomicUsize,
}

impl Sender {
    /// Whether commands are better sent together. A few at a time are not worth the way over another task, unless one of
    /// them is still to be sent: nothing may overtake it.
    pub(super) fn is_busy(&self) -> bool {
        self.load.queued.load(Ordering::Acquire) > 0 || self.load.waited_for.load(Ordering::Relaxed) > DIRECT
    }

    /// Counts a command whose answer is waited for, until the returned value is dropped.
    pub(super) fn wait_for(&self) -> WaitedFor<'_> {
        self.load.waited_for.fetch_add(1, Ordering::Relaxed);
        WaitedFor(&self.load)
    }

    /// Puts a command behind those that are there. If they are sent no more, its reply is dropped.
    pub(super) fn put(&self, what: What, reply: Reply) {
        self.load.queued.fetch_add(1, Ordering::AcqRel);
        drop(self.ops.send(Op { what, reply }));
    }
}

/// A command whose answer is waited for.
pub(super) struct WaitedFor<'a>(&'a Load);

impl Drop for WaitedFor<'_> {
    fn drop(&mut self) {
        self.0.waited_for.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts to send on a connection, in the runtime that this is called in, until all senders are gone. `flags`: whether the server knows
/// script flags.
pub(super) fn start(connection: MultiplexedConnection, flags: bool, names: Arc<Names>) -> Sender {
    let (sender, ops) = mpsc::unbounded_channel();
    let load = Arc::<Load>::default();
    let wire = Wire {
        connection,
        flags,
        names,
        load: Arc::clone(&load),
        under_way: VecDeque::with_capacity(UNDER_WAY),
    };
    drop(tokio::spawn(wire.run(ops)));
    Sender { ops: sender, load }
}

/// Something sent, until its answers are given to those who wait for them.
type Sending = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Wire {
    connection: MultiplexedConnection,
    flags: bool,
    names: Arc<Names>,
    load: Arc<Load>,
    /// In the order in which they were sent, which is that of the answers.
    under_way: VecDeque<Sending>,
}

impl Wire {
    async fn run(mut self, mut ops: mpsc::UnboundedReceiver<Op>) {
        let mut together = Vec::with_capacity(TOGETHER);
        poll_fn(|cx| {
            loop {
                while let Some(first) = self.under_way.front_mut()
                    && first.as_mut().poll(cx).is_ready()
                {
                    self.under_way.pop_front();
                }
                if self.under_way.len() >= UNDER_WAY {
                    return Poll::Pending;
                }
                match ops.poll_recv_many(cx, &mut together, TOGETHER) {
                    Poll::Ready(0) if self.under_way.is_empty() => return Poll::Ready(()),
                    Poll::Ready(0) | Poll::Pending => return Poll::Pending,
                    Poll::Ready(_) => self.send(std::mem::take(&mut together), cx),
                }
            }
        })
        .await;
    }

    fn send(&mut self, ops: Vec<Op>, cx: &mut Context<'_>) {
        let count = ops.len();
        let mut sending: Sending = match <[Op; 1]>::try_from(ops) {
            Ok([Op { what, reply }]) => {
                let mut connection = self.connection.clone();
                match what {
                    What::Command(command, _) => Box::pin(async move {
                        let answer = connection.req_packed_command(&command).await;
                        reply.give(answer.and_then(Value::extract_error));
                    }),
                    What::Release(release) => {
                        let script = release_of(release.is_shared).form(self.flags);
                        let command = release.command("EVALSHA", &script.hash, &self.names);
                        Box::pin(async move { reply.give(the_one(connection.req_packed_command(&command).await)) })
                    }
                }
            }
            Err(ops) => Box::pin(send_together(self.connection.clone(), self.pack(ops))),
        };
        // The first poll puts it on the connection: what is sent later stays behind it.
        if sending.as_mut().poll(cx).is_pending() {
            self.under_way.push_back(sending);
        }
        self.load.queued.fetch_sub(count, Ordering::AcqRel);
    }

    fn pack(&self, ops: Vec<Op>) -> Packed {
        let mut packed = Packed {
            pipeline: Pipeline::with_capacity(ops.len()),
            replies: Vec::with_capacity(ops.len()),
        };
        // Of exclusive locks, and of those that several may hold.
        let mut releases = [Releases::default(), Releases::default()];
        for Op { what, reply } in ops {
            match what {
                What::Release(release) => {
                    let [exclusive, shared] = &mut releases;
                    let of_its_kind = if release.is_shared { shared } else { exclusive };
                    of_its_kind.add(release, reply);
                }
                What::Command(command, about) => {
                    // A command must not overtake the release of the lock it is about.
                    for releases in &mut releases {
                        if about.is_none_or(|about| releases.locks.contains(&about)) {
                            packed.add_releases(releases, self);
                        }
                    }
                    packed.pipeline.add_command(command);
                    packed.replies.push(Replies::One(reply));
                }
            }
        }
        for releases in &mut releases {
            packed.add_releases(releases, self);
        }
        packed
    }
}

/// Releases to be sent as one.
#[derive(Default)]
struct Releases {
    what: Vec<Release>,
    replies: Vec<Reply>,
    /// The locks' hashes.
    locks: Vec<u64>,
}

impl Releases {
    fn add(&mut self, release: Release, reply: Reply) {
        self.locks.push(hash(&release.lock));
        self.what.push(release);
        self.replies.push(reply);
    }
}

/// What is sent together.
struct Packed {
    pipeline: Pipeline,
    replies: Vec<Replies>,
}

/// Who takes one command's answer.
enum Replies {
    One(Reply),
    /// An array's elements go to these.
    Each(Vec<Reply>),
}

impl Packed {
    fn add_releases(&mut self, releases: &mut Releases, wire: &Wire) {
        let Releases { what, replies, .. } = std::mem::take(releases);
        if let Some(first) = what.first() {
            let script = release_of(first.is_shared).form(wire.flags);
            let command = release("EVALSHA", &script.hash, &wire.names, &what);
            self.pipeline.add_command(command);
            self.replies.push(Replies::Each(replies));
        }
    }
}

async fn send_together(mut connection: MultiplexedConnection, packed: Packed) {
    let count = packed.replies.len();
    match connection.req_packed_commands(&packed.pipeline, 0, count).await {
        Ok(answers) => {
            for (replies, answer) in packed.replies.into_iter().zip(answers) {
                match (replies, answer) {
                    (Replies::One(reply), answer) => reply.give(answer.extract_error()),
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
                    Replies::One(reply) => reply.give(Err(error.clone())),
                    Replies::Each(replies) => replies.into_iter().for_each(|reply| reply.give(Err(error.clone()))),
                }
            }
        }
    }
}

/// The only element of a script's answer.
pub(super) fn the_one(answer: Answer) -> Answer {
    match answer.and_then(Value::extract_error)? {
        Value::Array(answers) => match <[Value; 1]>::try_from(answers) {
            Ok([answer]) => Ok(answer),
            Err(answers) => Ok(Value::Array(answers)),
        },
        answer => Ok(answer),
    }
}

/// Tells locks apart well enough to keep their commands in order.
pub(super) fn hash(lock: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    lock.hash(&mut hasher);
    hasher.finish()
}

fn release(name: &str, script: &str, names: &Names, releases: &[Release]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(2 * releases.len() + 1).arg(&names.counter);
    for release in releases {
        command.arg(&release.lock).arg(&release.queue);
    }
    command.arg(&names.channels);
    for release in releases {
        command.arg(&release.value).arg(release.keep).arg(&release.member);
    }
    command
}
