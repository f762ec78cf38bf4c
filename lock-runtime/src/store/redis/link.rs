//! One connection to the server, driven by one runtime, replaced when it fails or no longer answers.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::failure;
use super::names::Names;
use super::scripts::release_of;
use super::server::{self, Server};
use super::wire::{self, Release, Reply, Sender, What};
use crate::clock::{BootClock, Clock};
use crate::engine::{Engine, Timer};
use crate::store::{LossHint, LossReceiver, StoreError};

/// How many commands may wait to be written.
const WRITE_QUEUE: usize = 1024;
/// How many replaced connections are kept for the releases that must follow their acquires, and for how long.
const RETIRED: usize = 4;
const RETIRED_FOR: Duration = Duration::from_secs(60);

/// What a link is for.
pub(super) enum Purpose {
    /// Acquires and releases.
    Commands {
        /// For the check of permissions.
        names: Arc<Names>,
        /// Whether they have been checked.
        checked: Arc<OnceLock<()>>,
    },
    /// Renewals and checks, and the messages to those who wait. It has the server report changes of the locks' keys.
    Background {
        /// Where the reports go.
        losses: Mutex<Vec<LossReceiver>>,
        /// Where the messages go.
        pushes: OnceLock<PushReceiver>,
    },
}

/// What a background connection has to say to those who wait.
pub(super) enum Push {
    /// A message on a channel.
    Message(Vec<u8>),
    /// Nothing more is heard on the channels.
    Disconnected,
}

/// Takes [`Push`]es. Must not block.
pub(super) type PushReceiver = Arc<dyn Fn(Push) + Send + Sync>;

/// A connection in use.
pub(super) struct Live {
    connection: MultiplexedConnection,
    /// Where commands of many tasks are sent together.
    pub(super) wire: Option<Sender>,
    pub(super) server: Server,
    /// Unique in this process, and never zero.
    pub(super) number: u64,
    /// When the oldest command was sent that was given up since the last answer, in nanoseconds of the boot
    /// clock; 0: none.
    stalled: AtomicU64,
    /// When the last answer came, on the same clock.
    heard: AtomicU64,
}

enum State {
    Down,
    Connecting,
    Up(Arc<Live>),
    Failed(StoreError),
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeOuts {
    pub(super) connect: Duration,
    pub(super) response: Duration,
}

/// A connection slot. Cheap to clone; all clones are one slot.
#[derive(Clone)]
pub(super) struct Link(Arc<Inner>);

struct Inner {
    client: Client,
    purpose: Purpose,
    /// The runtime that is to drive the connection; `None`: the lock thread's.
    home: Option<Handle>,
    /// Whether that runtime has turned out to have no network.
    unfit: AtomicBool,
    time_outs: TimeOuts,
    state: watch::Sender<State>,
    retired: Mutex<Vec<Arc<Live>>>,
}

impl Link {
    pub(super) fn new(client: Client, purpose: Purpose, home: Option<Handle>, time_outs: TimeOuts) -> Self {
        Self(Arc::new(Inner {
            client,
            purpose,
            home,
            unfit: AtomicBool::new(false),
            time_outs,
            state: watch::Sender::new(State::Down),
            retired: Mutex::default(),
        }))
    }

    /// Where reports of changed keys are to go.
    pub(super) fn report_to(&self, receiver: LossReceiver) {
        if let Purpose::Background { losses, .. } = &self.0.purpose {
            losses.lock().unwrap_or_else(PoisonError::into_inner).push(receiver);
        }
    }

    /// Where messages are to go.
    pub(super) fn push_to(&self, receiver: PushReceiver) {
        if let Purpose::Background { pushes, .. } = &self.0.purpose {
            let _ = pushes.set(receiver);
        }
    }

    fn push(&self, push: Push) {
        if let Purpose::Background { pushes, .. } = &self.0.purpose
            && let Some(receiver) = pushes.get()
        {
            receiver(push);
        }
    }

    /// The connection, made if need be. All who wait for it share one attempt.
    ///
    /// Cancel safe.
    pub(super) async fn live(&self) -> Result<Arc<Live>, StoreError> {
        if let Some(live) = self.up() {
            return Ok(live);
        }
        let mut state = self.0.state.subscribe();
        let mut awaited = false;
        loop {
            // Starting changes the state, which must not be borrowed then.
            let connecting = match &*state.borrow_and_update() {
                State::Up(live) => return Ok(Arc::clone(live)),
                State::Failed(error) if awaited => return Err(error.clone()),
                State::Connecting => true,
                State::Down | State::Failed(_) => false,
            };
            if !connecting {
                self.start();
            }
            awaited = true;
            if state.changed().await.is_err() {
                return Err(StoreError::transient("the connection was given up"));
            }
        }
    }

    /// The connection with this number, if it is still there.
    pub(super) fn numbered(&self, number: u64) -> Option<Arc<Live>> {
        let up = self.up().filter(|live| live.number == number);
        up.or_else(|| self.retired().iter().find(|live| live.number == number).cloned())
    }

    /// Sends one command about a lock, or with an empty one about many, and waits for its answer.
    ///
    /// Dropped before the answer, the command may have been carried out. A connection that leaves commands
    /// unanswered for longer than the response time-out is replaced: its later answers might be taken for those
    /// of other commands.
    pub(super) async fn call(&self, live: &Live, lock: &str, command: Cmd) -> Result<Value, RedisError> {
        let _waited_for = live.wire.as_ref().map(Sender::wait_for);
        match &live.wire {
            Some(wire) if wire.is_busy() => {
                let about = (!lock.is_empty()).then(|| wire::hash(lock));
                self.send(live, wire, What::Command(command, about)).await
            }
            _ => {
                let mut connection = live.connection.clone();
                self.fly(live, command.query_async::<Value>(&mut connection)).await
            }
        }
    }

    /// Gives a lock back.
    pub(super) async fn release(&self, live: &Live, release: Release, names: &Names) -> Result<Value, RedisError> {
        match &live.wire {
            Some(wire) if wire.is_busy() => {
                let _waited_for = wire.wait_for();
                self.send(live, wire, What::Release(release)).await
            }
            _ => {
                let script = release_of(release.is_shared).form(live.server.is_7);
                let command = release.command("EVALSHA", &script.hash, names);
                wire::the_one(self.call(live, &release.lock, command).await)
            }
        }
    }

    async fn send(&self, live: &Live, wire: &Sender, what: What) -> Result<Value, RedisError> {
        let (reply, answer) = oneshot::channel();
        wire.put(what, Reply::To(reply));
        let gone = || RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        self.fly(live, async { answer.await.unwrap_or_else(|_| Err(gone())) })
            .await
    }

    /// The connection, if there is one already.
    pub(super) fn up(&self) -> Option<Arc<Live>> {
        match &*self.0.state.borrow() {
            State::Up(live) => Some(Arc::clone(live)),
            _ => None,
        }
    }

    /// Has the server send what is published on a channel to this connection.
    pub(super) async fn subscribe(&self, live: &Live, channel: &str) -> Result<(), StoreError> {
        let mut connection = live.connection.clone();
        let answer = self.fly(live, connection.subscribe(channel)).await;
        answer.map_err(|error| failure::sort(error, true))
    }

    /// Takes [`subscribe`](Self::subscribe) back.
    pub(super) async fn unsubscribe(&self, live: &Live, channel: &str) -> Result<(), StoreError> {
        let mut connection = live.connection.clone();
        let answer = self.fly(live, connection.unsubscribe(channel)).await;
        answer.map_err(|error| failure::sort(error, true))
    }

    async fn fly<T>(&self, live: &Live, sent: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
        let flight = Flight {
            link: self,
            live,
            sent: BootClock.now().as_nanos(),
            answered: false,
        };
        let answer = sent.await;
        flight.land();
        if let Err(error) = &answer
            && failure::ends_connection(error)
        {
            self.end(live.number, false);
        }
        answer
    }

    /// Sends one command on the connection, made if need be, and waits for its answer within the response time-out.
    pub(super) async fn ask(&self, command: Cmd) -> Result<Value, StoreError> {
        let live = self.live().await?;
        let limit = self.0.time_outs.response;
        match Timer::Engine.timeout(limit, self.call(&live, "", command)).await {
            Some(answer) => answer.map_err(|error| failure::sort(error, true)),
            None => Err(StoreError::unknown(format!("no answer within {limit:?}"))),
        }
    }

    /// Stops using a connection. `retire`: it may still carry commands, and releases must follow the acquires on it.
    fn end(&self, number: u64, retire: bool) {
        let mut ended = None;
        self.0.state.send_if_modified(|state| match state {
            State::Up(live) if live.number == number => {
                if let State::Up(live) = std::mem::replace(state, State::Down) {
                    ended = Some(live);
                }
                true
            }
            _ => false,
        });
        if !retire {
            self.retired().retain(|live| live.number != number);
        }
        let Some(live) = ended else { return };
        // The server tracked the keys, and sent the messages, for that connection.
        self.report(None);
        self.push(Push::Disconnected);
        if retire && matches!(self.0.purpose, Purpose::Commands { .. }) {
            self.keep_for_releases(live);
        }
    }

    fn keep_for_releases(&self, live: Arc<Live>) {
        let number = live.number;
        let mut retired = self.retired();
        if retired.len() == RETIRED {
            retired.remove(0);
        }
        retired.push(live);
        drop(retired);
        let link = Arc::downgrade(&self.0);
        if let Ok(engine) = Engine::get() {
            drop(engine.handle().spawn(async move {
                tokio::time::sleep(RETIRED_FOR).await;
                if let Some(link) = link.upgrade().map(Link) {
                    link.retired().retain(|live| live.number != number);
                }
            }));
        }
    }

    fn retired(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Live>>> {
        self.0.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        let started = self.0.state.send_if_modified(|state| match state {
            State::Down | State::Failed(_) => {
                *state = State::Connecting;
                true
            }
            State::Connecting | State::Up(_) => false,
        });
        if !started {
            return;
        }
        let mut attempt = Attempt {
            link: self.clone(),
            result: None,
        };
        match (&self.0.home, Engine::get()) {
            (Some(home), Ok(_)) if !self.0.unfit.load(Ordering::Relaxed) => drop(home.spawn(attempt.run())),
            (_, Ok(engine)) => drop(engine.handle().spawn(attempt.run())),
            (_, Err(error)) => attempt.result = Some(Err(StoreError::permanent(error))),
        }
    }

    async fn establish(&self) -> Result<Live, StoreError> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            // Time-outs are the caller's, on the lock thread's timer: the connection's own would need one in
            // the caller's runtime.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE)
            .set_push_sender(self.push_sender(number));
        let connected = self
            .0
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        let mut connection = connected.map_err(|error| failure::sort(error, false))?;
        let server = server::ask(&mut connection)
            .await
            .map_err(|error| failure::sort(error, false))?;
        let mut wire = None;
        match &self.0.purpose {
            Purpose::Commands { names, checked } => {
                if checked.get().is_none() {
                    server::check_permissions(&mut connection, server, names).await?;
                    let _ = checked.set(());
                }
                wire = Some(wire::start(connection.clone(), server.is_7, Arc::clone(names)));
            }
            Purpose::Background { .. } => {
                let mut tracking = redis::cmd("CLIENT");
                tracking.arg("TRACKING").arg("ON").arg("NOLOOP");
                if let Err(error) = tracking.query_async::<()>(&mut connection).await {
                    tracing::debug!(%error, "the server does not report changed keys; the next renewal notices a lost lock");
                }
            }
        }
        Ok(Live {
            connection,
            wire,
            server,
            number,
            stalled: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        })
    }

    /// Takes what the server sends without being asked.
    fn push_sender(&self, number: u64) -> impl Fn(PushInfo) -> Result<(), io::Error> + Send + Sync + 'static {
        let link = Arc::downgrade(&self.0);
        move |push| {
            let Some(link) = link.upgrade().map(Link) else {
                return Ok(());
            };
            match push.kind {
                PushKind::Invalidate => link.report(push.data.into_iter().next()),
                PushKind::Message => {
                    if let Some(Value::BulkString(message)) = push.data.into_iter().nth(1) {
                        link.push(Push::Message(message));
                    }
                }
                PushKind::Disconnection => link.end(number, false),
                _ => {}
            }
            Ok(())
        }
    }

    /// Passes on which keys have changed; without a list it may be any.
    fn report(&self, keys: Option<Value>) {
        let Purpose::Background { losses, .. } = &self.0.purpose else {
            return;
        };
        let receivers = losses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tell = |hint: LossHint| receivers.iter().for_each(|receiver| receiver(hint.clone()));
        match keys {
            Some(Value::Array(keys)) => {
                for key in keys {
                    if let Value::BulkString(key) = key
                        && let Ok(key) = String::from_utf8(key)
                    {
                        tell(LossHint::Key(key.into()));
                    }
                }
            }
            _ => tell(LossHint::All),
        }
    }
}

/// An attempt to connect. However it ends, it says so.
struct Attempt {
    link: Link,
    result: Option<Result<Live, StoreError>>,
}

impl Attempt {
    async fn run(mut self) {
        let limit = self.link.0.time_outs.connect;
        // On the lock thread's timer: the clock of the runtime at hand may be paused.
        self.result = Some(match Timer::Engine.timeout(limit, self.link.establish()).await {
            Some(result) => result,
            None => Err(StoreError::transient(format!("no connection within {limit:?}"))),
        });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let inner = &self.link.0;
        let has_panicked = std::thread::panicking() && inner.home.is_some();
        inner.state.send_replace(match self.result.take() {
            Some(Ok(live)) => State::Up(Arc::new(live)),
            Some(Err(error)) => State::Failed(error),
            // A runtime may have been built without network. Who waits tries again, on the lock thread.
            None if has_panicked && !inner.unfit.swap(true, Ordering::Relaxed) => State::Down,
            None => State::Failed(StoreError::transient("the attempt to connect was aborted")),
        });
    }
}

/// A command that has been sent and not been answered.
struct Flight<'a> {
    link: &'a Link,
    live: &'a Live,
    sent: u64,
    answered: bool,
}

impl Flight<'_> {
    fn land(mut self) {
        self.answered = true;
        self.live.stalled.store(0, Ordering::Relaxed);
        self.live.heard.store(BootClock.now().as_nanos(), Ordering::Relaxed);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // A connection that has answered others meanwhile is slow, not silent.
        let sent = self.sent.max(self.live.heard.load(Ordering::Relaxed));
        let stalled = &self.live.stalled;
        let first = match stalled.compare_exchange(0, sent, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => sent,
            Err(earlier) => earlier,
        };
        let silent = Duration::from_nanos(BootClock.now().as_nanos().saturating_sub(first));
        if silent >= self.link.0.time_outs.response {
            tracing::debug!(?silent, "the connection does not answer and is replaced");
            self.link.end(self.live.number, true);
        }
    }
}
