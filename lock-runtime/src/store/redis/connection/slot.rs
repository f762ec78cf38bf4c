//! A slot for one connection to the server, driven by one runtime. The connection is replaced when
//! it fails or stops answering.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{oneshot, watch};

use super::batcher::{self, By, Release, Reply, Request, Sender, Take, What, release_command};
use super::dial::Dial;
use super::endpoint::{Endpoint, Target};
use super::failure::{self, Reason};
use super::handshake::{self, Mode};
use super::health::Board;
use super::idle;
use super::mark::Mark;
use super::traffic::Traffic;
use crate::host::{self, Host, Moment, Mutex, Runtime, Timer};
use crate::store::redis::keyspace::Keyspace;
use crate::store::redis::settings::TimeOuts;
use crate::store::{HolderValue, Lane, Limited, LossHint, LossReceiver, StoreError, StoreFuture, within};

/// The number of commands that may wait to be written.
const WRITE_QUEUE: usize = 1024;
/// The number of replaced connections that are kept for the releases that must follow their
/// acquires.
const RETIRED: usize = 4;
/// The time for which a replaced connection is kept.
const RETIRED_FOR: Duration = Duration::from_secs(60);
/// The time after which an unanswered try to make a background connection gets another one beside
/// it. The operating system repeats a lost request for a connection only after a second, and a
/// request to a host that died never gets an answer. The pause between two tries doubles up to
/// [`LONGEST_TRY_BESIDE`], which adds to the time for which a lost lock may go unnoticed.
const TRY_BESIDE: Duration = Duration::from_millis(250);
const LONGEST_TRY_BESIDE: Duration = Duration::from_millis(500);
/// The maximum number of concurrent tries. The first one stays, since a slow line may need its
/// time; the later ones are replaced.
const TRIES: usize = 3;
/// The upper bound of the round trip that counts as usual: see [`ConnectionSlot::challenge`].
const LONGEST_USUAL: Duration = Duration::from_millis(500);
/// The pause before the next [challenge](ConnectionSlot::challenge), after a new connection has
/// lost against the present one. It doubles up to [`LONGEST_TRUCE`].
const FIRST_TRUCE: Duration = Duration::from_millis(500);
const LONGEST_TRUCE: Duration = Duration::from_secs(4);
/// The time between the beginnings of two attempts to make a connection, if the first one failed,
/// or its connection ended within [`STEADY`]. It doubles up to the second value, which adds to the
/// time for which a lost lock may go unnoticed when the server is back, and to that after which
/// waiting calls find it there.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
const STEADY: Duration = Duration::from_secs(1);

/// The lateness of a time-out from which on the runtime has stood still, rather than waited.
const LATE: Duration = Duration::from_millis(100);

/// What a server answers by then is worth nothing.
const TAKEN_OVER: &str = "another server has taken over";

/// One try to make a connection.
type Try<'a> = Pin<Box<dyn Future<Output = Result<Connection, StoreError>> + Send + 'a>>;

/// The purpose of a slot.
pub(in crate::store::redis) enum Purpose {
    /// Acquires and releases.
    Commands {
        /// Set once the permissions have been checked.
        checked: Arc<OnceLock<()>>,
        /// The slot that reports that the server answers again.
        background: ConnectionSlot,
    },
    /// Renewals and checks, and the messages to waiters. The server also reports changes of the
    /// locks' keys on it.
    Background {
        /// The receivers of the reports.
        losses: Mutex<Vec<LossReceiver>>,
        /// The receiver of the messages.
        pushes: OnceLock<PushReceiver>,
    },
    /// Waits for replicas, which delay all that is sent after them.
    Replicas,
    /// Messages on sharded channels, and nothing else: see `queue/shards.rs`.
    Shards {
        /// The receiver of the messages.
        pushes: OnceLock<PushReceiver>,
    },
}

impl Purpose {
    fn pushes(&self) -> Option<&OnceLock<PushReceiver>> {
        match self {
            Self::Background { pushes, .. } | Self::Shards { pushes } => Some(pushes),
            Self::Commands { .. } | Self::Replicas => None,
        }
    }
}

/// The pace at which new connections are made.
#[derive(Default)]
struct RedialPause {
    /// The time for which the last attempt was scheduled.
    began: Option<Moment>,
    pause: Duration,
}

impl RedialPause {
    /// Returns the pause before an attempt that would begin at `now`. It counts from the attempt before,
    /// so a call that comes later does not wait for it.
    fn next(&mut self, host: &Host, now: Moment) -> Duration {
        let is_steady = self.began.is_none_or(|began| now.since(began) >= STEADY);
        self.pause = if is_steady {
            Duration::ZERO
        } else {
            (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE)
        };
        let pause = self.pause.mul_f64(0.5 + host.fraction() / 2.0);
        let begins = self.began.map_or(now, |began| now.max(began.after(pause)));
        self.began = Some(begins);
        begins.since(now)
    }
}

/// A push from a connection that listens.
pub(in crate::store::redis) enum Push {
    /// A message on a channel.
    Message(Vec<u8>),
    /// The server has ended the subscription to this sharded channel, unasked.
    Unsubscribed(Vec<u8>),
    /// The connection was lost, and its subscriptions with it.
    Disconnected,
}

/// A callback for [`Push`]es. Must not block.
pub(in crate::store::redis) type PushReceiver = Arc<dyn Fn(Push) + Send + Sync>;

/// A connection in use.
pub(in crate::store::redis) struct Connection {
    multiplexed: MultiplexedConnection,
    /// The sender for commands of many tasks that go out together.
    pub(in crate::store::redis) batcher: Option<Sender>,
    pub(in crate::store::redis) server: handshake::Capabilities,
    /// Unique in this process, and never zero.
    pub(in crate::store::redis) number: u64,
    /// The generation of the server: see [`Endpoint`].
    pub(in crate::store::redis) generation: u64,
    pub(super) address: Box<str>,
    traffic: Arc<Traffic>,
    /// The number of commands without an answer, on a connection for sharded channels.
    unanswered: AtomicUsize,
    /// Set once a lock in a shared mode was taken by all the commands that these modes need.
    pub(in crate::store::redis) allows_shared: AtomicBool,
}

impl Connection {
    /// Returns the time of the last answer, on the host's clock.
    pub(super) fn last_answer(&self) -> u64 {
        self.traffic.last_answer()
    }

    /// Returns the usual time until an answer.
    pub(super) fn usual(&self) -> Duration {
        self.traffic.round_trip().min(LONGEST_USUAL)
    }
}

enum State {
    Down,
    /// With the failure of the try before, if there was one.
    Connecting(Option<StoreError>),
    Up(Arc<Connection>),
    Failed(StoreError),
}

/// The means to connect to a server.
pub(in crate::store::redis) struct Server {
    pub(in crate::store::redis) dial: Dial,
    pub(in crate::store::redis) endpoint: Endpoint,
    pub(in crate::store::redis) time_outs: TimeOuts,
    pub(in crate::store::redis) health: Arc<Board>,
    /// Set if the server is one of several masters.
    pub(in crate::store::redis) mark: Option<Mark>,
}

/// A connection slot. Clones are cheap, and share one slot.
#[derive(Clone)]
pub(in crate::store::redis) struct ConnectionSlot {
    inner: Arc<Inner>,
    /// `true` if commands are sent behind `ASKING`, which a node of a cluster that is receiving their
    /// slot needs.
    is_asking: bool,
}

struct Inner {
    host: Host,
    /// Unique in this process.
    number: u64,
    server: Arc<Server>,
    names: Arc<Keyspace>,
    purpose: Purpose,
    /// The pace of new connections.
    pace: Mutex<RedialPause>,
    /// The runtime that drives the connection, or `None` for the lock thread's.
    home: Option<Runtime>,
    /// `true` once that runtime has turned out to have no network.
    unfit: AtomicBool,
    /// `true` once the connection is [kept up](idle::keep_up).
    is_kept_up: AtomicBool,
    /// `true` if a connection was lost, or could not be made, since the last one was up.
    was_down: AtomicBool,
    /// `true` while a connection is being made that may replace the present one.
    challenged: AtomicBool,
    /// The number of times in a row that such a connection has lost, and the time until which no
    /// new one is made.
    truce: Mutex<(u32, Option<Moment>)>,
    state: watch::Sender<State>,
    retired: Mutex<Vec<Arc<Connection>>>,
}

/// A slot that may be gone.
pub(super) struct WeakSlot {
    slot: Weak<Inner>,
    state: watch::Receiver<State>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.server.health.forget(self.number);
        self.server.health.report();
    }
}

impl WeakSlot {
    /// Returns the slot, or `None` if it is gone.
    pub(super) fn upgrade(&self) -> Option<ConnectionSlot> {
        self.slot.upgrade().map(ConnectionSlot::from)
    }

    /// Completes once a call has made the connection, or the slot is gone.
    ///
    /// Cancel safe.
    pub(super) async fn made(&mut self) {
        drop(self.state.wait_for(|state| matches!(state, State::Up(_))).await);
    }

    /// Completes once the slot is gone.
    ///
    /// Cancel safe.
    pub(super) async fn gone(&mut self) {
        while self.state.changed().await.is_ok() {}
    }
}

impl From<Arc<Inner>> for ConnectionSlot {
    fn from(inner: Arc<Inner>) -> Self {
        Self {
            inner,
            is_asking: false,
        }
    }
}

impl ConnectionSlot {
    pub(in crate::store::redis) fn new(
        host: &Host,
        server: Arc<Server>,
        names: Arc<Keyspace>,
        purpose: Purpose,
        home: Option<Runtime>,
    ) -> Self {
        Self::from(Arc::new(Inner {
            host: host.clone(),
            number: host.number(),
            server,
            names,
            purpose,
            pace: Mutex::default(),
            home,
            unfit: AtomicBool::new(false),
            is_kept_up: AtomicBool::new(false),
            was_down: AtomicBool::new(false),
            challenged: AtomicBool::new(false),
            truce: Mutex::default(),
            state: watch::Sender::new(State::Down),
            retired: Mutex::default(),
        }))
    }

    /// Returns this slot for commands that are sent behind `ASKING`, or for others.
    pub(in crate::store::redis) fn asking(mut self, is_asking: bool) -> Self {
        self.is_asking = is_asking;
        self
    }

    pub(in crate::store::redis) fn host(&self) -> &Host {
        &self.inner.host
    }

    /// Returns the number of the lock's group: one command can be about several locks of one group.
    pub(in crate::store::redis) fn group(&self, lock: &str) -> u16 {
        self.inner.names.group(lock)
    }

    pub(super) fn names(&self) -> &Keyspace {
        &self.inner.names
    }

    pub(in crate::store::redis) fn response_timeout(&self) -> Duration {
        self.inner.server.time_outs.response
    }

    /// Adds a receiver for reports of changed keys.
    pub(in crate::store::redis) fn report_to(&self, receiver: LossReceiver) {
        if let Purpose::Background { losses, .. } = &self.inner.purpose {
            self.health().report_to(Arc::clone(&receiver));
            losses.lock().push(receiver);
        }
    }

    /// Sets the receiver of the messages to waiters.
    pub(in crate::store::redis) fn push_to(&self, receiver: PushReceiver) {
        if let Some(pushes) = self.inner.purpose.pushes() {
            let _ = pushes.set(receiver);
        }
    }

    fn push(&self, push: Push) {
        if let Some(receiver) = self.inner.purpose.pushes().and_then(OnceLock::get) {
            receiver(push);
        }
    }

    /// Returns the connection, after making it if necessary. All callers that wait for it share one
    /// attempt.
    ///
    /// Cancel safe.
    pub(in crate::store::redis) async fn live(&self) -> Result<Arc<Connection>, StoreError> {
        match self.up() {
            Some(live) if !self.may_have_ended(&live) => Ok(live),
            before => {
                let was_up = before.is_some();
                // One that has ended is not kept for as long as this takes.
                drop(before);
                // Boxed, since it is rare.
                Box::pin(self.live_after(was_up)).await
            }
        }
    }

    /// Does the same as `live` where there is no connection, or one that may have ended.
    async fn live_after(&self, was_up: bool) -> Result<Arc<Connection>, StoreError> {
        if was_up {
            host::read_what_has_arrived().await;
        }
        let mut state = self.inner.state.subscribe();
        let mut awaited = false;
        loop {
            // `start` is called after the `match`, since it changes the state, which must not be
            // borrowed meanwhile.
            let connecting = match &*state.borrow_and_update() {
                State::Up(live) if self.is_present(live) => return Ok(Arc::clone(live)),
                State::Failed(error) if awaited => return Err(error.clone()),
                State::Connecting(_) => true,
                State::Up(_) | State::Down | State::Failed(_) => false,
            };
            if !connecting {
                self.end_former();
                self.start();
            }
            awaited = true;
            if state.changed().await.is_err() {
                return Err(StoreError::transient("the connection was given up"));
            }
        }
    }

    /// Returns `true` if the connection may have ended without the runtime of this slot, which drives
    /// it, having seen that.
    pub(super) fn may_have_ended(&self, live: &Connection) -> bool {
        self.may_end_unseen() && live.traffic.is_quiet(self.host().now())
    }

    /// Returns `true` if the runtime of this slot has no threads of its own, so that nobody may run it.
    fn may_end_unseen(&self) -> bool {
        self.inner.home.as_ref().is_some_and(Runtime::has_no_threads)
    }

    /// Returns the connection, retrying until there is one.
    ///
    /// Cancel safe.
    pub(in crate::store::redis) async fn live_at_last(&self) -> Arc<Connection> {
        loop {
            match self.live().await {
                Ok(live) => return live,
                Err(_) => self.host().sleep(Timer::LockThread, FIRST_PAUSE).await,
            }
        }
    }

    /// Waits until another connection has replaced the one with this number.
    ///
    /// Cancel safe.
    pub(in crate::store::redis) async fn replaced(&self, number: u64) {
        let mut state = self.inner.state.subscribe();
        let is_another = |state: &State| matches!(state, State::Up(live) if live.number != number);
        // Cannot fail: `self` keeps the sender alive.
        drop(state.wait_for(is_another).await);
    }

    /// Makes another connection beside the present one, if that one owes an answer for twice the
    /// usual time. The new connection replaces the present one if it is ready before the answer
    /// arrives: the server has then answered a request that was sent later, so only the present
    /// connection is silent. After a new connection has lost, the next one is made after a longer
    /// pause, since on a slow line it gains nothing.
    pub(in crate::store::redis) fn challenge(&self) {
        let Some(live) = self.up() else { return };
        let truce = self.inner.truce.lock().1;
        if truce.is_some_and(|until| self.host().now() < until) || self.inner.challenged.swap(true, Ordering::AcqRel) {
            return;
        }
        let before = live.last_answer();
        let challenge = Challenge(self.clone());
        drop(self.host().spawn(async move {
            let slot = &challenge.0;
            let is_silent = || live.last_answer() == before;
            let waited = slot.host().now().as_nanos().saturating_sub(live.traffic.asked());
            let patience = (live.usual() * 2).saturating_sub(Duration::from_nanos(waited));
            slot.host().sleep(Timer::LockThread, patience).await;
            if !is_silent() {
                return;
            }
            let made = slot
                .host()
                .timeout(Timer::LockThread, slot.inner.server.time_outs.connect, slot.connect())
                .await;
            if is_silent() {
                if let Some(Ok(another)) = made {
                    slot.replace(&live, another);
                }
                return;
            }
            let mut truce = slot.inner.truce.lock();
            let pause = (FIRST_TRUCE * 2_u32.saturating_pow(truce.0)).min(LONGEST_TRUCE);
            *truce = (truce.0.saturating_add(1).min(8), Some(slot.host().now().after(pause)));
        }));
    }

    fn replace(&self, silent: &Connection, another: Connection) {
        let replaced = self.inner.state.send_if_modified(|state| match state {
            State::Up(live) if live.number == silent.number && self.is_present(&another) => {
                *state = State::Up(Arc::new(another));
                true
            }
            _ => false,
        });
        if replaced {
            *self.inner.truce.lock() = (0, None);
            tracing::debug!("the connection does not answer, and another one does: it is replaced");
            self.push(Push::Disconnected);
            self.is_back();
        }
    }

    /// Reports that the server answers again, on any connection. While it did not, any lock may
    /// have changed.
    fn is_back(&self) {
        match &self.inner.purpose {
            Purpose::Commands { background, .. } => background.report(&LossHint::Back(Lane::default())),
            Purpose::Background { .. } => self.report(&LossHint::Back(Lane::default())),
            Purpose::Replicas | Purpose::Shards { .. } => {}
        }
    }

    /// Waits, for at most `most`, until the connection takes another command of this kind. Returns
    /// `None` if it does already.
    ///
    /// An acquire also waits here for the connection itself, so that the waiting calls do not all
    /// send at once when it is up.
    pub(in crate::store::redis) fn ready(&self, what: Limited, most: Duration) -> Option<StoreFuture<'static, ()>> {
        let is_ready = match &*self.inner.state.borrow() {
            State::Up(live) => live.batcher.as_ref().is_none_or(|batcher| batcher.is_ready(what)),
            _ => what == Limited::Releases,
        };
        if is_ready {
            return None;
        }
        let slot = self.clone();
        Some(Box::pin(async move {
            let response = slot.inner.server.time_outs.response;
            let live = slot.host().timeout(Timer::LockThread, response.min(most), slot.live());
            let Some(live) = live.await else {
                return Err(slot.failure().unwrap_or_else(|| {
                    StoreError::transient("no connection within the response time-out, or the rest of `wait`")
                }));
            };
            let ready = slot.ready_on(live?, what);
            let ready = slot.host().timeout(Timer::LockThread, most, ready).await;
            ready.unwrap_or_else(|| {
                Err(StoreError::transient(
                    "more calls of this runtime asked for locks than its connection carries within `wait`",
                )
                .advise("ask for fewer locks at once, or allow a longer `wait`"))
            })
        }))
    }

    /// Waits until a connection has room. One that has none because its server is silent is replaced
    /// by [`idle::keep_up`].
    async fn ready_on(&self, mut live: Arc<Connection>, what: Limited) -> Result<(), StoreError> {
        let mut state = self.inner.state.subscribe();
        loop {
            let Some(batcher) = &live.batcher else { return Ok(()) };
            let number = live.number;
            tokio::select! {
                biased;
                () = batcher.ready(what) => return Ok(()),
                _ = state.wait_for(|state| !matches!(state, State::Up(live) if live.number == number)) => {}
            }
            live = self.live().await?;
        }
    }

    /// Returns the connection with this number, if it is still there.
    pub(super) fn numbered(&self, number: u64) -> Option<Arc<Connection>> {
        let up = self.up().filter(|live| live.number == number);
        let is_it = |live: &&Arc<Connection>| live.number == number && self.is_present(live);
        up.or_else(|| self.inner.retired.lock().iter().find(is_it).cloned())
    }

    /// Sends one command and waits for its answer. `lock` is the lock that it is about, or empty if
    /// there are many.
    ///
    /// If the future is dropped before the answer, the command may have been carried out. A
    /// connection that leaves commands unanswered for longer than the response time-out is
    /// replaced: its later answers could be taken for those of other commands.
    pub(in crate::store::redis) async fn call(
        &self,
        live: &Connection,
        kind: Limited,
        lock: &str,
        command: Cmd,
    ) -> Result<Value, RedisError> {
        match self.batcher_of(live) {
            Some(batcher) => {
                let about = (!lock.is_empty()).then(|| batcher::hash(lock));
                self.send(live, batcher, kind, What::Command(command, about)).await
            }
            None => self.send_directly(live, command).await,
        }
    }

    /// Returns the batcher, if the next command goes through it.
    fn batcher_of<'a>(&self, live: &'a Connection) -> Option<&'a Sender> {
        live.batcher
            .as_ref()
            .filter(|batcher| !self.is_asking && batcher.is_busy())
    }

    async fn send_directly(&self, live: &Connection, command: Cmd) -> Result<Value, RedisError> {
        let _waited_for = live.batcher.as_ref().map(Sender::wait_for);
        let mut connection = live.multiplexed.clone();
        if self.is_asking {
            // Boxed, since it is rare.
            return Box::pin(self.in_flight(live, behind_asking(connection, command))).await;
        }
        let answer = async { connection.req_packed_command(&command).await?.extract_error() };
        self.in_flight(live, answer).await
    }

    /// Takes a lock, if it is free.
    pub(in crate::store::redis) async fn take(&self, live: &Connection, take: Take) -> Result<Value, RedisError> {
        match self.batcher_of(live) {
            Some(batcher) => self.send(live, batcher, Limited::Acquires, What::Take(take)).await,
            None => self.send_directly(live, take.command()).await,
        }
    }

    /// Does the same as `take`, and reads the server's mark behind it in the same flush: were it read
    /// before, the server could lose both in between. Returns both answers.
    pub(in crate::store::redis) async fn take_and_read_mark(
        &self,
        live: &Connection,
        take: Take,
    ) -> Result<Value, RedisError> {
        if let Some(batcher) = self.batcher_of(live) {
            return self.send(live, batcher, Limited::Acquires, What::Marked(take)).await;
        }
        let _waited_for = live.batcher.as_ref().map(Sender::wait_for);
        let connection = live.multiplexed.clone();
        let both = batcher::with_mark(connection, take.command(), &self.inner.names.mark);
        self.in_flight(live, both).await
    }

    /// Sends a command that runs a script: by its hash, and by its source if the server does not have it.
    pub(super) async fn call_script(
        &self,
        live: &Connection,
        kind: Limited,
        lock: &str,
        command: impl Fn(By) -> Cmd,
    ) -> Result<Value, RedisError> {
        match self.call(live, kind, lock, command(By::Hash)).await {
            // Does not use `SCRIPT LOAD`, which would have to succeed on every node of a cluster. Boxed, since it is
            // rare.
            Err(error) if failure::is_missing_script(&error) => {
                Box::pin(self.call(live, kind, lock, command(By::Source))).await
            }
            answer => answer,
        }
    }

    /// Takes or releases a lock by a script.
    pub(in crate::store::redis) async fn run(&self, live: &Connection, request: &Request) -> Result<Value, RedisError> {
        let command = |by| request.command(by, live.server.is_7, self.names());
        let may_ask_again;
        let answer = if let Some(batcher) = self.batcher_of(live) {
            may_ask_again = matches!(request, Request::Acquire(_));
            let what = What::Script(request.clone());
            self.send(live, batcher, request.limited(), what).await
        } else {
            may_ask_again = false;
            batcher::the_one(self.send_directly(live, command(By::Hash)).await)
        };
        let again = match &answer {
            Err(error) if failure::is_missing_script(error) => By::Source,
            // The run may have failed for the sake of another lock in it, before or after it took this one. Whoever
            // has a lock already and asks again is granted it. Whoever has released it would be told that it was
            // gone.
            Err(error) if may_ask_again && failure::sort(error, true).is_permanent() => By::Hash,
            _ => return answer,
        };
        // Boxed, since it is rare.
        let again = Box::pin(self.call(live, request.limited(), request.lock(), command(again)));
        batcher::the_one(again.await)
    }

    /// Returns `true` if the server is one of several masters, and keeps a mark.
    pub(in crate::store::redis) fn keeps_mark(&self) -> bool {
        self.inner.server.mark.is_some()
    }

    /// Returns the mark of a server that was open when it was asked last.
    pub(in crate::store::redis) fn open_mark(&self) -> Option<Arc<str>> {
        let mark = self.inner.server.mark.as_ref()?;
        mark.state(self.host().now()).ok()
    }

    /// Returns the mark that a request for a lock under `value` has to find, or `None` for a server that
    /// keeps none. Fails while the server is closed.
    pub(in crate::store::redis) async fn mark(
        &self,
        live: &Connection,
        value: &HolderValue,
    ) -> Result<Option<Arc<str>>, StoreError> {
        let Some(mark) = &self.inner.server.mark else {
            return Ok(None);
        };
        if value.is_shared() {
            return Err(
                StoreError::permanent("one of several masters keeps no locks that several may hold")
                    .advise("take an exclusive lock, or keep this one on a single server"),
            );
        }
        if mark.is_due(self.host().now()) {
            Box::pin(self.read_mark(live, mark, false)).await?;
        }
        mark.state(self.host().now()).map(Some).map_err(StoreError::closed)
    }

    /// Returns the error of a request that has not found the mark, which is read and written anew.
    pub(in crate::store::redis) async fn unmarked(&self, live: &Connection) -> StoreError {
        let Some(mark) = &self.inner.server.mark else {
            return StoreError::closed(Duration::ZERO);
        };
        match self.read_mark(live, mark, false).await {
            Ok(_) => StoreError::closed(mark.state(self.host().now()).err().unwrap_or_default()),
            Err(error) => error,
        }
    }

    /// Opens a closed server. Returns `true` if it was closed.
    pub(in crate::store::redis) async fn open_now(&self) -> Result<bool, StoreError> {
        match &self.inner.server.mark {
            Some(mark) => self.read_mark(&*self.live().await?, mark, true).await,
            None => Ok(false),
        }
    }

    async fn read_mark(&self, live: &Connection, mark: &Mark, open: bool) -> Result<bool, StoreError> {
        let (host, names) = (self.host(), self.names());
        let read = mark.read(
            host,
            live.multiplexed.clone(),
            names,
            live.server.is_7,
            open,
            &live.address,
        );
        let read = async {
            let read = self.in_flight(live, read).await;
            // No lock was asked for so far.
            read.map_err(|error| failure::sort(&error, false))
        };
        within(host, Timer::LockThread, self.response_timeout(), read).await
    }

    /// Releases locks of one kind by one command, and does not tell which of them were held.
    pub(in crate::store::redis) async fn release_all(
        &self,
        live: &Connection,
        releases: &[Release],
    ) -> Result<(), RedisError> {
        let lock = match releases {
            [one] => &*one.lock,
            _ => "",
        };
        let command = |by| release_command(by, live.server.is_7, self.names(), releases);
        let answer = self.call_script(live, Limited::Releases, lock, command).await;
        answer.map(drop)
    }

    async fn send(&self, live: &Connection, batcher: &Sender, kind: Limited, what: What) -> Result<Value, RedisError> {
        let (reply, answer) = oneshot::channel();
        batcher.put(kind, what, Reply::To(reply));
        let mut flight = self.flight(live);
        let answer = answer.await;
        flight.answered = true;
        answer.unwrap_or_else(|_| {
            let is_present = self.is_present(live);
            let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
            Err(if is_present {
                gone()
            } else {
                io::Error::other(TAKEN_OVER)
            }
            .into())
        })
    }

    /// Returns the reason why there is no connection, if a try has failed since the last connection
    /// was up.
    fn failure(&self) -> Option<StoreError> {
        match &*self.inner.state.borrow() {
            State::Failed(error) | State::Connecting(Some(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// Reports that the server does not answer as it should, so that another one may have taken over.
    pub(in crate::store::redis) fn ask_again(&self) {
        self.inner.server.endpoint.ask_again();
    }

    /// Returns the connection, if it is up.
    pub(in crate::store::redis) fn up(&self) -> Option<Arc<Connection>> {
        match &*self.inner.state.borrow() {
            State::Up(live) if self.is_present(live) => Some(Arc::clone(live)),
            _ => None,
        }
    }

    /// Returns `true` if the connection leads to the server that the store uses at present.
    fn is_present(&self, live: &Connection) -> bool {
        self.is_of_present(live.generation)
    }

    /// Returns `true` if connections of this generation lead to the server that the store uses at
    /// present.
    pub(in crate::store::redis) fn is_of_present(&self, generation: u64) -> bool {
        generation == self.inner.server.endpoint.generation()
    }

    pub(in crate::store::redis) fn health(&self) -> &Board {
        &self.inner.server.health
    }

    /// Tells the health that the runtime of this slot goes on. Returns the connection, if it is up.
    pub(super) fn goes_on(&self) -> Option<Arc<Connection>> {
        let live = self.up();
        // What waits for replicas, or is asked by the hundred, says nothing about the usual time until an answer.
        if let Some(live) = live
            .as_ref()
            .filter(|_| !matches!(self.inner.purpose, Purpose::Replicas | Purpose::Shards { .. }))
        {
            self.health().takes(live.usual());
        }
        // Noted while the state is locked, as each change of it is.
        if let State::Up(_) = &*self.inner.state.borrow() {
            self.health().goes_on(self.inner.number);
        }
        self.health().report();
        live
    }

    /// Stops using a connection to a server that another one has replaced. None is kept: what such
    /// a server answers does not count, and what it still holds is lost.
    pub(in crate::store::redis) fn end_former(&self) {
        let number = match &*self.inner.state.borrow() {
            State::Up(live) if !self.is_present(live) => Some(live.number),
            _ => None,
        };
        self.inner.retired.lock().retain(|live| self.is_present(live));
        if let Some(number) = number {
            tracing::debug!("another server has taken over, and the connection to the one before is ended");
            self.end(number, false);
        }
    }

    /// Reports, on the background connection, that another server has taken over.
    pub(in crate::store::redis) fn has_moved(&self) {
        self.report(&LossHint::Moved(Lane::default()));
    }

    /// Subscribes this connection to a channel.
    pub(in crate::store::redis) async fn subscribe(&self, live: &Connection, channel: &str) -> Result<(), StoreError> {
        let mut connection = live.multiplexed.clone();
        let answer = self.in_flight(live, connection.subscribe(channel)).await;
        answer.map_err(|error| failure::sort(&error, true))
    }

    /// Ends a [`subscribe`](Self::subscribe).
    pub(in crate::store::redis) async fn unsubscribe(
        &self,
        live: &Connection,
        channel: &str,
    ) -> Result<(), StoreError> {
        let mut connection = live.multiplexed.clone();
        let answer = self.in_flight(live, connection.unsubscribe(channel)).await;
        answer.map_err(|error| failure::sort(&error, true))
    }

    /// Subscribes this connection to a sharded channel.
    pub(in crate::store::redis) async fn subscribe_in_shard(
        &self,
        live: &Connection,
        channel: &str,
    ) -> Result<(), StoreError> {
        let mut subscribe = redis::cmd("SSUBSCRIBE");
        subscribe.arg(channel);
        let answer = self.call(live, Limited::Releases, "", subscribe).await;
        answer.map(drop).map_err(|error| failure::sort(&error, false))
    }

    /// Handles the end of the subscription to a sharded channel, for which nobody has asked. `redis` takes
    /// it for the answer to the oldest command under way, if there is one, and each command from then on
    /// gets the answer of the one before it: docs/upstream.md.
    fn is_unsubscribed(&self, number: u64, channel: Vec<u8>) {
        let Some(live) = self.up().filter(|live| live.number == number) else {
            return;
        };
        if live.unanswered.load(Ordering::Acquire) > 0 {
            self.end(number, false);
        } else {
            self.push(Push::Unsubscribed(channel));
        }
        // The slot is another node's by now.
        self.ask_again();
    }

    /// Notes that nobody waits any more for the answer to a command that was to be sent at `sent`. Replaces the
    /// connection if it has been silent since then for the response time-out.
    pub(super) fn has_given_up(&self, live: &Connection, sent: u64) {
        let since = live.traffic.is_given_up(sent);
        let silent = Duration::from_nanos(self.host().now().as_nanos().saturating_sub(since));
        if silent >= self.response_timeout() && self.end(live.number, true) {
            tracing::debug!(?silent, "the connection does not answer and is replaced");
        }
    }

    fn flight<'a>(&'a self, live: &'a Connection) -> InFlight<'a> {
        let sent = self.host().now().as_nanos();
        live.traffic.asks(sent);
        InFlight {
            slot: self,
            live,
            sent,
            answered: false,
        }
    }

    async fn in_flight<T>(
        &self,
        live: &Connection,
        sent: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        // Of a command that is given up, the answer is still to come.
        let is_counted = matches!(self.inner.purpose, Purpose::Shards { .. });
        if is_counted {
            live.unanswered.fetch_add(1, Ordering::AcqRel);
        }
        let flight = self.flight(live);
        let answer = tokio::select! {
            biased;
            // An answer of the server before is worth nothing, though it arrives: what it granted
            // or renewed, the present server may not know.
            () = self.inner.server.endpoint.changed(live.generation) => {
                return Err(io::Error::other(TAKEN_OVER).into());
            }
            answer = sent => answer,
        };
        flight.land();
        if is_counted {
            live.unanswered.fetch_sub(1, Ordering::AcqRel);
        }
        if let Err(error) = &answer
            && failure::ends_connection(error)
        {
            self.end(live.number, false);
        }
        answer
    }

    /// Sends one command, after connecting if necessary, and waits for its answer within the
    /// response time-out.
    pub(in crate::store::redis) async fn ask(&self, command: Cmd) -> Result<Value, StoreError> {
        let live = self.live().await?;
        let limit = self.inner.server.time_outs.response;
        match self
            .host()
            .timeout(
                Timer::LockThread,
                limit,
                self.call(&live, Limited::Releases, "", command),
            )
            .await
        {
            Some(answer) => answer.map_err(|error| failure::sort(&error, true)),
            None => Err(StoreError::unknown(format!("no answer within {limit:?}"))),
        }
    }

    /// Stops using a connection. If `retire` is set, keeps it for commands in flight and for the
    /// releases that must follow its acquires.
    ///
    /// Returns `false` if it was not in use.
    pub(in crate::store::redis) fn end(&self, number: u64, retire: bool) -> bool {
        let mut ended = None;
        self.inner.state.send_if_modified(|state| match state {
            State::Up(live) if live.number == number => {
                if let State::Up(live) = std::mem::replace(state, State::Down) {
                    ended = Some(live);
                }
                // Before another connection can be noted, or its state would be the one that stays.
                match self.inner.purpose {
                    // It may be replaced by us, and whether another one can be made is known soon.
                    Purpose::Shards { .. } => self.inner.server.health.forget(self.inner.number),
                    _ => self.inner.server.health.failed(self.inner.number, None),
                }
                true
            }
            _ => false,
        });
        self.inner.server.health.report();
        if !retire {
            self.inner.retired.lock().retain(|live| live.number != number);
        }
        let Some(live) = ended else { return false };
        self.inner.was_down.store(true, Ordering::Release);
        self.inner.server.endpoint.ask_again();
        // Key tracking and subscriptions ended with the connection.
        self.report(&LossHint::All(Lane::default()));
        self.push(Push::Disconnected);
        if retire && matches!(self.inner.purpose, Purpose::Commands { .. }) {
            self.keep_for_releases(live);
        }
        true
    }

    fn keep_for_releases(&self, live: Arc<Connection>) {
        let number = live.number;
        let mut retired = self.inner.retired.lock();
        if retired.len() == RETIRED {
            retired.remove(0);
        }
        retired.push(live);
        drop(retired);
        let slot = Arc::downgrade(&self.inner);
        let host = self.host().clone();
        drop(self.host().spawn(async move {
            host.sleep(Timer::LockThread, RETIRED_FOR).await;
            if let Some(slot) = slot.upgrade().map(ConnectionSlot::from) {
                slot.inner.retired.lock().retain(|live| live.number != number);
            }
        }));
    }

    fn start(&self) {
        let started = self.inner.state.send_if_modified(|state| match state {
            State::Down | State::Failed(_) => {
                let failure = match std::mem::replace(state, State::Down) {
                    State::Failed(error) => Some(error),
                    _ => None,
                };
                *state = State::Connecting(failure);
                true
            }
            State::Connecting(_) | State::Up(_) => false,
        });
        if !started {
            return;
        }
        let mut attempt = Redial {
            slot: self.clone(),
            result: None,
        };
        let home = self
            .inner
            .home
            .as_ref()
            .filter(|_| !self.inner.unfit.load(Ordering::Relaxed));
        let started = self.host().start();
        if started.is_ok() && !self.inner.is_kept_up.swap(true, Ordering::Relaxed) {
            let kept_up = idle::keep_up(
                self.host().clone(),
                self.downgrade(),
                self.inner.server.time_outs.response,
            );
            match home {
                Some(home) => self.host().spawn_on(home, kept_up),
                None => drop(self.host().spawn(kept_up)),
            }
        }
        match (home, started) {
            (_, Err(error)) => {
                let error = StoreError::permanent(error).advise(self.host().advice_to_start());
                attempt.result = Some(Err(error));
            }
            (Some(home), Ok(())) => self.host().spawn_on(home, attempt.run()),
            (None, Ok(())) => drop(self.host().spawn(attempt.run())),
        }
    }

    fn downgrade(&self) -> WeakSlot {
        WeakSlot {
            slot: Arc::downgrade(&self.inner),
            state: self.inner.state.subscribe(),
        }
    }

    /// Returns the command that shows whether the server answers, which has no effect.
    fn probe(&self) -> Cmd {
        if self.inner.names.is_of_cluster() {
            return handshake::hello();
        }
        let mut get = redis::cmd("GET");
        get.arg(self.inner.names.probe());
        get
    }

    /// Connects. For a background connection, starts another try beside one that is not answered
    /// soon; the first try to end decides the result.
    async fn connect(&self) -> Result<Connection, StoreError> {
        // A connection for commands gets only one try: if a slow handshake is the cause, more of
        // them do not help.
        let is_urgent = matches!(self.inner.purpose, Purpose::Background { .. });
        let mut tries: Vec<Try<'_>> = vec![Box::pin(self.establish())];
        let mut pause = TRY_BESIDE;
        // Uses the lock thread's timer, as the clock of this runtime may be paused.
        let mut next = Box::pin(self.host().sleep(Timer::LockThread, pause));
        poll_fn(move |cx| {
            loop {
                for one in &mut tries {
                    if let Poll::Ready(result) = one.as_mut().poll(cx) {
                        return Poll::Ready(result);
                    }
                }
                if !is_urgent || next.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                if tries.len() == TRIES {
                    drop(tries.remove(1));
                }
                self.inner.server.endpoint.ask_again();
                tries.push(Box::pin(self.establish()));
                pause = (pause * 2).min(LONGEST_TRY_BESIDE);
                next.set(self.host().sleep(Timer::LockThread, pause));
            }
        })
        .await
    }

    /// Makes a connection to the present server, and starts anew if another one takes over meanwhile.
    async fn establish(&self) -> Result<Connection, StoreError> {
        let endpoint = &self.inner.server.endpoint;
        loop {
            let target = endpoint.present().await?;
            let generation = target.generation;
            tokio::select! {
                biased;
                () = endpoint.changed(generation) => {}
                made = self.establish_to(target) => {
                    if made.is_err() {
                        endpoint.ask_again();
                    }
                    return made;
                }
            }
        }
    }

    /// Returns the error of a connection that was not made. Names the server where the URL does not.
    fn unreached(&self, info: &redis::ConnectionInfo, error: &RedisError) -> StoreError {
        let error = failure::sort(error, false);
        let advice = if self.inner.names.is_of_cluster() {
            "check that the node is up, and that the address that it announces (`cluster-announce-ip`, `cluster-announce-hostname`) is \
             reachable from here, then try again"
        } else if self.inner.server.endpoint.is_followed() {
            "check that the master is up, and that the address by which the sentinels name it is reachable from here, then try again"
        } else {
            return error;
        };
        if error.is_permanent() {
            return error;
        }
        let is_general = error.own_advice().is_none_or(|advice| advice.contains("in the URL"));
        let error = error.about(&info.addr().to_string());
        if is_general { error.advise(advice) } else { error }
    }

    async fn establish_to(&self, Target { generation, info }: Target) -> Result<Connection, StoreError> {
        let number = self.host().number();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            // Callers apply time-outs, on the lock thread's timer: the connection's own would need
            // a timer in the caller's runtime.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE)
            .set_push_sender(self.push_sender(number));
        let connected = self.inner.server.dial.dial(&info, config);
        let mut connection = connected.await.map_err(|error| self.unreached(&info, &error))?;
        let asked = self.host().now();
        let server = handshake::ask(&mut connection, self.inner.server.dial.naming())
            .await
            .map_err(|error| failure::sort(&error, false))?;
        if server.mode == Mode::Sentinel {
            let text = format!("{} is a sentinel, which keeps no locks", info.addr());
            return Err(StoreError::permanent(text).advise("give `redis+sentinel://host:26379/master`"));
        }
        let is_of_cluster = server.mode == Mode::Cluster;
        if is_of_cluster != self.inner.names.is_of_cluster() {
            let (text, advice) = if is_of_cluster {
                (
                    "is a node of a cluster, which keeps some locks only",
                    "give the cluster's URL, `redis+cluster://host,host`",
                )
            } else {
                (
                    "is no node of a cluster",
                    "give the URL of a single server, `redis://host:port`",
                )
            };
            return Err(StoreError::permanent(format!("{} {text}", info.addr())).advise(advice));
        }
        if server.is_replica && self.inner.server.endpoint.is_followed() {
            return Err(StoreError::transient(format!(
                "{} is a replica, though the sentinels name it as the master",
                info.addr()
            ))
            .advise("wait for the failover to end"));
        }
        let round_trip = self.host().now().as_nanos().saturating_sub(asked.as_nanos());
        let traffic = Arc::new(Traffic::new(self.host().now().as_nanos(), round_trip));
        let mut batcher = None;
        match &self.inner.purpose {
            Purpose::Commands { .. } => {
                match self.check_permissions(&mut connection, server).await {
                    // It can be asked, and releases locks if its memory is full.
                    Err(error) if failure::takes_no_writes(&error) => {
                        tracing::debug!(%error, "the permissions are not checked yet");
                    }
                    done => done?,
                }
                if let Some(mark) = &self.inner.server.mark {
                    let (names, address) = (&self.inner.names, info.addr().to_string());
                    let read = mark.read(self.host(), connection.clone(), names, server.is_7, false, &address);
                    read.await.map_err(|error| match failure::Reason::of(&error) {
                        Some(_) => failure::sort(&error, false),
                        None => handshake::refused(&error, names, &[&names.mark]),
                    })?;
                }
                batcher = Some(self.start_batcher(connection.clone(), &traffic, server, (number, generation)));
            }
            Purpose::Background { .. } => {
                let mut tracking = redis::cmd("CLIENT");
                tracking.arg("TRACKING").arg("ON").arg("NOLOOP");
                if let Err(error) = tracking.query_async::<()>(&mut connection).await {
                    tracing::debug!(%error, "the server does not report changed keys; the next renewal notices a lost lock");
                }
            }
            Purpose::Replicas | Purpose::Shards { .. } => {}
        }
        Ok(Connection {
            multiplexed: connection,
            batcher,
            server,
            number,
            generation,
            address: info.addr().to_string().into(),
            traffic,
            unanswered: AtomicUsize::new(0),
            allows_shared: AtomicBool::new(false),
        })
    }

    /// Checks that the server permits what locks need, unless a connection of the store has found so.
    async fn check_permissions(
        &self,
        connection: &mut MultiplexedConnection,
        server: handshake::Capabilities,
    ) -> Result<(), StoreError> {
        let Purpose::Commands { checked, .. } = &self.inner.purpose else {
            return Ok(());
        };
        if checked.get().is_some() {
            return Ok(());
        }
        match handshake::check_permissions(connection, server, &self.inner.names).await {
            // The node has no slot for the check any more, or not yet.
            Err(error) if self.inner.names.is_of_cluster() && failure::redirect(&error).is_some() => Ok(()),
            done => {
                done?;
                let _ = checked.set(());
                Ok(())
            }
        }
    }

    /// Connects if necessary, and checks that the server answers and permits what locks need.
    pub(in crate::store::redis) async fn check(&self) -> Result<(), StoreError> {
        self.ask(self.probe()).await?;
        let live = self.live().await?;
        let mut connection = live.multiplexed.clone();
        let checked = self.check_permissions(&mut connection, live.server);
        within(self.host(), Timer::LockThread, self.response_timeout(), checked).await
    }

    /// Starts the batcher of a connection with this number to a server of this generation.
    fn start_batcher(
        &self,
        connection: MultiplexedConnection,
        traffic: &Arc<Traffic>,
        server: handshake::Capabilities,
        (number, generation): (u64, u64),
    ) -> Sender {
        let (present, followed) = (Arc::clone(&self.inner.server), Arc::clone(&self.inner.server));
        let slot = Arc::downgrade(&self.inner);
        let used = Weak::clone(&slot);
        let link = batcher::Link {
            host: self.host().clone(),
            connection,
            flags: server.is_7,
            may_end_unseen: self.may_end_unseen(),
            names: Arc::clone(&self.inner.names),
            traffic: Arc::clone(traffic),
            is_present: Box::new(move || present.endpoint.generation() == generation),
            is_in_use: Box::new(move || {
                used.upgrade()
                    .is_some_and(|used| Self::from(used).numbered(number).is_some())
            }),
            end: Box::new(move || {
                if let Some(slot) = slot.upgrade().map(Self::from) {
                    slot.end(number, false);
                }
            }),
        };
        batcher::start(
            link,
            async move { followed.endpoint.over(generation).await },
            self.response_timeout(),
            self.inner.server.endpoint.waited_for(),
        )
    }

    /// Returns the receiver of the server's push messages.
    fn push_sender(&self, number: u64) -> impl Fn(PushInfo) -> Result<(), io::Error> + Send + Sync + 'static {
        let slot = Arc::downgrade(&self.inner);
        move |push| {
            let Some(slot) = slot.upgrade().map(ConnectionSlot::from) else {
                return Ok(());
            };
            match push.kind {
                PushKind::Invalidate => slot.report_changed(push.data.into_iter().next()),
                PushKind::SUnsubscribe => {
                    if let Some(Value::BulkString(channel)) = push.data.into_iter().next() {
                        slot.is_unsubscribed(number, channel);
                    }
                }
                PushKind::Message | PushKind::SMessage => {
                    if let Some(Value::BulkString(message)) = push.data.into_iter().nth(1) {
                        slot.push(Push::Message(message));
                    }
                }
                PushKind::Disconnection => drop(slot.end(number, false)),
                _ => {}
            }
            Ok(())
        }
    }

    /// Reports the keys that have changed; without a list, any key may have.
    fn report_changed(&self, keys: Option<Value>) {
        match keys {
            Some(Value::Array(keys)) => {
                for key in keys {
                    if let Value::BulkString(key) = key
                        && let Ok(key) = String::from_utf8(key)
                    {
                        self.report(&LossHint::Key(key.into()));
                    }
                }
            }
            _ => self.report(&LossHint::All(Lane::default())),
        }
    }

    fn report(&self, hint: &LossHint) {
        let Purpose::Background { losses, .. } = &self.inner.purpose else {
            return;
        };
        let receivers = losses.lock().clone();
        for receiver in receivers {
            receiver(hint.clone());
        }
    }
}

/// Sends a command right behind `ASKING`, in one piece: other commands cannot come between.
async fn behind_asking(mut connection: MultiplexedConnection, command: Cmd) -> Result<Value, RedisError> {
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(command);
    let answers = connection.req_packed_commands(&both, 1, 1).await?;
    batcher::the_one(Ok(Value::Array(answers)))
}

/// An attempt to connect. Dropping it publishes its result, also after a panic or an abort.
struct Redial {
    slot: ConnectionSlot,
    result: Option<Result<Connection, StoreError>>,
}

impl Redial {
    async fn run(mut self) {
        let limit = self.slot.inner.server.time_outs.connect;
        let host = self.slot.host();
        let pause = {
            let mut pace = self.slot.inner.pace.lock();
            pace.next(host, host.now())
        };
        if !pause.is_zero() {
            host.sleep(Timer::LockThread, pause).await;
        }
        let mut first = pin!(self.slot.connect());
        let mut second: Option<Try<'_>> = None;
        self.result = Some(loop {
            let began = host.now();
            let made = poll_fn(|cx| match (first.as_mut().poll(cx), &mut second) {
                (Poll::Pending, Some(second)) => second.as_mut().poll(cx),
                (polled, _) => polled,
            });
            // Uses the lock thread's timer, as the clock of this runtime may be paused.
            match host.timeout(Timer::LockThread, limit, made).await {
                Some(result) => break result,
                // The runtime or the process stood still: the answers may have arrived meanwhile,
                // and the calls that come now must not fail for the time before them. Nor must
                // they wait for what may hang since then.
                None if host.now().since(began) > limit + LATE => second = Some(Box::pin(self.slot.connect())),
                None => {
                    let endpoint = &self.slot.inner.server.endpoint;
                    endpoint.ask_again();
                    break Err(endpoint
                        .failure()
                        .unwrap_or_else(|| endpoint.no_connection_within(limit)));
                }
            }
        });
    }
}

impl Drop for Redial {
    fn drop(&mut self) {
        let inner = &self.slot.inner;
        let is_present = matches!(&self.result, Some(Ok(live)) if self.slot.is_present(live));
        let was_down = inner.was_down.swap(!is_present, Ordering::AcqRel);
        let mut is_up = false;
        // The failures of later attempts are told by the health.
        let mut failure = None;
        let result = self.result.take();
        // `moved_to` bumps the generation before `end_former` scans, so a connection published here is seen
        // by that scan.
        inner.state.send_modify(|state| {
            *state = match result {
                Some(Ok(live)) if self.slot.is_present(&live) => {
                    is_up = true;
                    inner
                        .server
                        .health
                        .connected(inner.number, &live.address, live.server.role());
                    State::Up(Arc::new(live))
                }
                Some(Ok(_)) => State::Down,
                // The runtime may have been built without I/O. A caller that waits finds `Down`, and
                // tries again on the lock thread.
                Some(Err(error))
                    if failure::has_panicked(&error)
                        && inner.home.is_some()
                        && !inner.unfit.swap(true, Ordering::Relaxed) =>
                {
                    inner.is_kept_up.store(false, Ordering::Relaxed);
                    State::Down
                }
                Some(Err(error)) => {
                    inner.server.health.failed(inner.number, Some(&error));
                    failure = matches!(state, State::Connecting(None)).then(|| error.clone());
                    State::Failed(error)
                }
                None if std::thread::panicking() => State::Failed(failure::sort(
                    &Reason::panicked("the process's log has the message").into(),
                    false,
                )),
                None => State::Failed(StoreError::transient("the attempt to connect was aborted")),
            };
        });
        if let Some(error) = failure {
            tracing::debug!(%error, "no connection, trying again");
        }
        inner.server.health.report();
        if !is_up {
            inner.was_down.store(true, Ordering::Release);
        }
        if is_up && was_down {
            self.slot.is_back();
        }
    }
}

/// An attempt to make a connection that may replace the present one.
struct Challenge(ConnectionSlot);

impl Drop for Challenge {
    fn drop(&mut self) {
        self.0.inner.challenged.store(false, Ordering::Release);
    }
}

/// A command that has been sent, and not been answered yet.
struct InFlight<'a> {
    slot: &'a ConnectionSlot,
    live: &'a Connection,
    sent: u64,
    answered: bool,
}

impl InFlight<'_> {
    fn land(mut self) {
        self.answered = true;
        let now = self.slot.host().now().as_nanos();
        let took = Duration::from_nanos(now.saturating_sub(self.sent));
        let is_in_time = took <= self.live.usual() * 2;
        if is_in_time && matches!(self.slot.inner.purpose, Purpose::Background { .. }) {
            *self.slot.inner.truce.lock() = (0, None);
        }
        self.live.traffic.answered(self.sent, now);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.slot.has_given_up(self.live, self.sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_before_a_redial_counts_from_the_attempt_before() {
        let host = Host::process();
        let ms = Duration::from_millis;
        let mut pace = RedialPause::default();
        let mut now = Moment::from_nanos(0);
        assert_eq!(pace.next(&host, now), Duration::ZERO, "the first attempt");
        for longest in [20, 40, 80, 100, 100].map(ms) {
            let pause = pace.next(&host, now);
            assert!(longest / 2 <= pause && pause <= longest, "{pause:?}, of {longest:?}");
            now = now.after(pause);
        }
        now = now.after(ms(60));
        let pause = pace.next(&host, now);
        assert!(pause <= ms(40), "{pause:?} after 60 ms");
        now = now.after(pause + ms(100));
        assert_eq!(pace.next(&host, now), Duration::ZERO, "a late call");
        now = now.after(STEADY);
        assert_eq!(pace.next(&host, now), Duration::ZERO, "a connection that lasted");
        assert!(pace.next(&host, now) <= ms(20), "a quick second attempt");
    }
}
