//! One connection to the server, made on the lock thread, replaced when it fails or no longer answers.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, RedisError, Value};
use tokio::sync::watch;

use super::failure;
use super::server::{self, Server};
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
        /// The keys' prefix, for the check of permissions.
        prefix: String,
    },
    /// Renewals and checks. It has the server report changes of the locks' keys.
    Renewals {
        /// Where the reports go.
        losses: Mutex<Vec<LossReceiver>>,
    },
}

/// A connection in use.
#[derive(Clone)]
pub(super) struct Live {
    connection: MultiplexedConnection,
    pub(super) server: Server,
    /// Unique in this process, and never zero.
    pub(super) number: u64,
    /// When the oldest command was sent that was given up since the last answer, in nanoseconds of the boot
    /// clock; 0: none.
    stalled: Arc<AtomicU64>,
    /// When the last answer came, on the same clock.
    heard: Arc<AtomicU64>,
}

enum State {
    Down,
    Connecting,
    Up(Live),
    Failed(StoreError),
}

/// A connection slot. Cheap to clone; all clones are one slot.
#[derive(Clone)]
pub(super) struct Link(Arc<Inner>);

struct Inner {
    client: Client,
    purpose: Purpose,
    connect_timeout: Duration,
    response_timeout: Duration,
    state: watch::Sender<State>,
    retired: Mutex<Vec<Live>>,
    /// Whether the permissions have been checked.
    checked: OnceLock<()>,
}

impl Link {
    pub(super) fn new(client: Client, purpose: Purpose, connect_timeout: Duration, response_timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            client,
            purpose,
            connect_timeout,
            response_timeout,
            state: watch::Sender::new(State::Down),
            retired: Mutex::default(),
            checked: OnceLock::new(),
        }))
    }

    /// Where reports of changed keys are to go.
    pub(super) fn report_to(&self, receiver: LossReceiver) {
        if let Purpose::Renewals { losses } = &self.0.purpose {
            losses.lock().unwrap_or_else(PoisonError::into_inner).push(receiver);
        }
    }

    /// The connection, made if need be. All who wait for it share one attempt.
    ///
    /// Cancel safe.
    pub(super) async fn live(&self) -> Result<Live, StoreError> {
        let mut state = self.0.state.subscribe();
        let mut awaited = false;
        loop {
            // Starting changes the state, which must not be borrowed then.
            let connecting = match &*state.borrow_and_update() {
                State::Up(live) => return Ok(live.clone()),
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
    pub(super) fn numbered(&self, number: u64) -> Option<Live> {
        if let State::Up(live) = &*self.0.state.borrow()
            && live.number == number
        {
            return Some(live.clone());
        }
        self.retired().iter().find(|live| live.number == number).cloned()
    }

    /// Sends one command and waits for its answer.
    ///
    /// Dropped before the answer, the command may have been carried out. A connection that leaves commands
    /// unanswered for longer than the response time-out is replaced: its later answers might be taken for those
    /// of other commands.
    pub(super) async fn call(&self, live: &Live, command: &Cmd) -> Result<Value, RedisError> {
        let flight = Flight {
            link: self,
            live,
            sent: BootClock.now().as_nanos(),
            answered: false,
        };
        let mut connection = live.connection.clone();
        let answer = command.query_async::<Value>(&mut connection).await;
        flight.land();
        if let Err(error) = &answer
            && failure::ends_connection(error)
        {
            self.end(live.number, false);
        }
        answer
    }

    /// Sends one command on the connection, made if need be, and waits for its answer within the response time-out.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        let live = self.live().await?;
        let limit = self.0.response_timeout;
        match Timer::Engine.timeout(limit, self.call(&live, command)).await {
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
        // The server tracked the keys for that connection.
        self.report(None);
        if retire && matches!(self.0.purpose, Purpose::Commands { .. }) {
            self.keep_for_releases(live);
        }
    }

    fn keep_for_releases(&self, live: Live) {
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

    fn retired(&self) -> std::sync::MutexGuard<'_, Vec<Live>> {
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
        match Engine::get() {
            Ok(engine) => drop(engine.handle().spawn(attempt.run())),
            Err(error) => attempt.result = Some(Err(StoreError::permanent(error))),
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
        match &self.0.purpose {
            Purpose::Commands { prefix } => {
                if self.0.checked.get().is_none() {
                    server::check_permissions(&mut connection, server, prefix).await?;
                    let _ = self.0.checked.set(());
                }
            }
            Purpose::Renewals { .. } => {
                let mut tracking = redis::cmd("CLIENT");
                tracking.arg("TRACKING").arg("ON").arg("NOLOOP");
                if let Err(error) = tracking.query_async::<()>(&mut connection).await {
                    tracing::debug!(%error, "the server does not report changed keys; the next renewal notices a lost lock");
                }
            }
        }
        Ok(Live {
            connection,
            server,
            number,
            stalled: Arc::default(),
            heard: Arc::default(),
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
                PushKind::Disconnection => link.end(number, false),
                _ => {}
            }
            Ok(())
        }
    }

    /// Passes on which keys have changed; without a list it may be any.
    fn report(&self, keys: Option<Value>) {
        let Purpose::Renewals { losses } = &self.0.purpose else {
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
        let limit = self.link.0.connect_timeout;
        self.result = Some(match tokio::time::timeout(limit, self.link.establish()).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::transient(format!("no connection within {limit:?}"))),
        });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let result = self.result.take();
        let result = result.unwrap_or_else(|| Err(StoreError::transient("the attempt to connect was aborted")));
        self.link.0.state.send_replace(match result {
            Ok(live) => State::Up(live),
            Err(error) => State::Failed(error),
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
        if silent >= self.link.0.response_timeout {
            tracing::debug!(?silent, "the connection does not answer and is replaced");
            self.link.end(self.live.number, true);
        }
    }
}
