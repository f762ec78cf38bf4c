//! Finds the master that sentinels watch, and follows it when another server takes over.
//!
//! Each sentinel has a task of its own on the lock thread, which asks it every ten seconds, when a
//! connection of the store fails, and when the sentinel sends word of a failover. Such a message is
//! a hint, and only its answers count. One that did not answer is asked every second or two, since
//! it cannot send word of a failover.

mod agreement;
mod url;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, PushInfo, PushKind, RedisError, Value,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::agreement::{AGAIN, Agreement, Attendance, Decision, Group, Other, Trouble, View};
pub(super) use self::url::SentinelUrl;
use super::connection::dial::Dial;
use super::connection::{Board, CurrentMaster, failure};
use super::settings::TimeOuts;
use crate::host::{Host, Moment, Mutex, Timer};
use crate::store::StoreError;

/// The pause between two questions while nothing happens.
const STEADY: Duration = Duration::from_secs(10);
/// The longest pause before a sentinel that did not answer is asked again. The store hears nothing
/// of it meanwhile, and a master that another one has replaced may still accept writes.
const UNHEARD: Duration = Duration::from_secs(2);
/// The pause between two questions while the server does not answer as it should.
const DOWN: Duration = Duration::from_secs(1);
/// The same while no server is known: calls fail after the response time-out, and must not fail for
/// a sentinel that has long been back.
const UNKNOWN: Duration = Duration::from_millis(250);
/// The minimum pause between two questions, however many messages a sentinel sends.
const HINTED: Duration = Duration::from_millis(50);
/// The maximum number of sentinels, with those that others name.
const MOST: usize = 16;
/// The events of a sentinel that tell of a failover. It knows the new master from the second one
/// on, and publishes the first one at its end.
const EVENTS: [&str; 2] = ["+switch-master", "+failover-state-reconf-slaves"];

const LOG_IN: &str = "give the sentinels' user and password in the URL, `?sentinel_user=…&sentinel_password=…`";

const ALLOW: &str = "allow the sentinels' user `+subscribe &* +sentinel|master +sentinel|get-master-addr-by-name +sentinel|sentinels +sentinel|myid`";

/// Follows a master. Dropping it ends the tasks that do so.
pub(super) struct Sentinels {
    _ended: DropGuard,
}

struct Inner {
    host: Host,
    dial: Dial,
    time_outs: TimeOuts,
    master: String,
    /// The settings for connections to sentinels.
    sentinel: ConnectionInfo,
    /// The settings for connections to the master.
    server: ConnectionInfo,
    current_master: Arc<CurrentMaster>,
    health: Arc<Board>,
    agreement: Mutex<Agreement>,
    /// End the tasks of sentinels that the URL does not name.
    learnt: Mutex<BTreeMap<String, DropGuard>>,
    ended: CancellationToken,
}

impl Sentinels {
    /// Begins to follow the master of `url`, once a connection asks for it, and tells `current_master`
    /// of it.
    ///
    /// # Errors
    /// Fails if the lock thread cannot be started.
    pub(super) fn follow(
        host: &Host,
        url: SentinelUrl,
        dial: Dial,
        time_outs: TimeOuts,
        current_master: Arc<CurrentMaster>,
        health: Arc<Board>,
    ) -> io::Result<Self> {
        let ended = CancellationToken::new();
        let names = url.sentinels.iter().map(|info| info.addr().to_string());
        let inner = Arc::new(Inner {
            host: host.clone(),
            dial,
            time_outs,
            agreement: Mutex::new(Agreement::new(&url.master, names)),
            learnt: Mutex::default(),
            master: url.master,
            // There is at least one.
            sentinel: url.sentinels.first().unwrap_or(&url.server).clone(),
            server: url.server,
            current_master,
            health,
            ended: ended.clone(),
        });
        let sentinels = Self {
            _ended: ended.drop_guard(),
        };
        for info in url.sentinels {
            Inner::watch(&inner, info, inner.ended.clone())?;
        }
        Ok(sentinels)
    }
}

impl Inner {
    /// Starts the task for one sentinel.
    fn watch(inner: &Arc<Self>, info: ConnectionInfo, ended: CancellationToken) -> io::Result<()> {
        let requests = inner.current_master.requests();
        let watch = Watch {
            inner: Arc::clone(inner),
            name: info.addr().to_string(),
            info,
            connection: None,
            id: None,
            announced: Arc::default(),
            problem: None,
            requests,
        };
        inner.host.spawn(async move {
            tokio::select! {
                () = watch.run() => {}
                () = ended.cancelled() => {}
            }
        })
    }

    /// Returns the pause between two questions while something is wrong.
    fn pause(&self) -> Duration {
        let has_found = {
            let agreement = self.agreement.lock();
            agreement.has_found()
        };
        let pause = if has_found { DOWN } else { UNKNOWN };
        self.up_to(pause)
    }

    /// Returns half of `pause` or more, so that not all processes ask at once.
    fn up_to(&self, pause: Duration) -> Duration {
        pause.mul_f64(0.5 + self.host.fraction() / 2.0)
    }

    /// Takes in a sentinel's answer to a question of this time. Returns `true` if it names another
    /// server than the present one.
    ///
    /// Publishes the sentinels' decision while their views are locked, so in order.
    fn learn(&self, sentinel: &str, view: Result<View, Trouble>, question: u64, asked: Moment) -> bool {
        let mut agreement = self.agreement.lock();
        agreement.learn(sentinel, view, question, asked);
        let mut moved = None;
        match agreement.decide() {
            Decision::Wait | Decision::Stay => {}
            Decision::Move { view, former, named_by } => {
                let address = at(self.server.addr(), view.host, view.port);
                self.current_master
                    .moved_to(self.server.clone().set_addr(address.clone()));
                moved = Some((address, view.epoch, former, named_by.join(", ")));
            }
            Decision::Missing(reason, question) => self.current_master.missing(reason, question),
        }
        let is_at_odds = agreement.is_at_odds(sentinel);
        let attendance = agreement.attendance(self.host.now());
        // A subscriber may use the manager.
        drop(agreement);
        match moved {
            None => {}
            Some((address, epoch, None, named_by)) => {
                tracing::info!(master = %self.master, %address, epoch, named_by, "the sentinels name the master");
            }
            Some((address, epoch, Some(former), named_by)) => {
                tracing::warn!(master = %self.master, %address, epoch, %former, named_by, "the sentinels name another master");
            }
        }
        match attendance {
            None => {}
            Some(Attendance::Low {
                answering,
                sentinels,
                said,
            }) => {
                tracing::warn!(
                    master = %self.master,
                    answering,
                    sentinels,
                    said,
                    "fewer than half of the sentinels answer, and the next failover may not be followed"
                );
            }
            Some(Attendance::Restored { lasted }) => {
                tracing::info!(master = %self.master, ?lasted, "at least half of the sentinels answer again");
            }
        }
        is_at_odds
    }

    /// Starts tasks for the sentinels that this one knows, and ends those of sentinels that are not
    /// named any more.
    fn meet(inner: &Arc<Self>, sentinel: &str, id: Option<String>, others: Vec<(String, ConnectionInfo)>) {
        let mut started = Vec::new();
        let unnamed = {
            let mut agreement = inner.agreement.lock();
            let named = others.iter().map(|(id, info)| Other {
                id: id.clone(),
                address: info.addr().to_string(),
            });
            let group = Group {
                id,
                others: named.collect(),
            };
            agreement.is_of(sentinel, group);
            let unnamed = agreement.forget_unnamed();
            for (_, info) in others {
                if agreement.len() < MOST && agreement.add(&info.addr().to_string()) {
                    started.push(info);
                }
            }
            unnamed
        };
        let mut learnt = inner.learnt.lock();
        for sentinel in &unnamed {
            learnt.remove(sentinel);
        }
        let mut failed = None;
        for info in started {
            let ended = inner.ended.child_token();
            learnt.insert(info.addr().to_string(), ended.clone().drop_guard());
            failed = Self::watch(inner, info, ended).err().or(failed);
        }
        drop(learnt);
        if let Some(error) = failed {
            tracing::debug!(%error, "no task could be started for a sentinel");
        }
        for sentinel in unnamed {
            inner.health.no_sentinel(&sentinel);
        }
    }
}

/// Returns the address of another server of the same kind.
pub(super) fn at(like: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match like {
        ConnectionAddr::TcpTls {
            insecure, tls_params, ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    }
}

/// The task that watches one sentinel.
struct Watch {
    inner: Arc<Inner>,
    name: String,
    info: ConnectionInfo,
    connection: Option<MultiplexedConnection>,
    /// The sentinel's run id, if this process may ask for it.
    id: Option<String>,
    /// Notified by messages of the sentinel, and by the end of the connection.
    announced: Arc<Notify>,
    /// The problem with the last answer.
    problem: Option<String>,
    /// Changes when a connection to the server fails.
    requests: watch::Receiver<u64>,
}

impl Watch {
    async fn run(mut self) {
        let inner = Arc::clone(&self.inner);
        let host = &inner.host;
        // Asks nothing before a connection to the master is wanted.
        if *self.requests.borrow_and_update() == 0 && self.requests.changed().await.is_err() {
            return;
        }
        loop {
            let asked = host.now();
            let question = *self.requests.borrow_and_update();
            let view = self.ask().await;
            let (least, mut most) = match view {
                Ok(_) => (HINTED, STEADY),
                Err(_) => (inner.pause(), inner.up_to(UNHEARD)),
            };
            self.report(view.as_ref().err());
            let failure = view.as_ref().err();
            let failure = failure.map(|trouble| StoreError::transient(trouble.text.clone()));
            inner.health.sentinel(&self.name, failure);
            if inner.learn(&self.name, view, question, asked) {
                most = AGAIN + inner.up_to(HINTED);
            }
            tokio::select! {
                biased;
                () = self.announced.notified() => {}
                requested = self.requests.changed() => {
                    if requested.is_err() {
                        return;
                    }
                    let rest = asked.after(inner.pause()).since(host.now());
                    tokio::select! {
                        biased;
                        () = self.announced.notified() => {}
                        () = host.sleep(Timer::LockThread, rest) => {}
                    }
                }
                () = host.sleep(Timer::LockThread, most) => {}
            }
            let rest = asked.after(least).since(host.now());
            host.sleep(Timer::LockThread, rest).await;
        }
    }

    /// Logs a problem with the sentinel, once until it answers or has another one.
    fn report(&mut self, trouble: Option<&Trouble>) {
        let problem = trouble.map(|trouble| &trouble.text);
        if problem != self.problem.as_ref() {
            if let Some(problem) = problem {
                tracing::debug!(sentinel = %self.name, problem, "a sentinel does not tell where the master is");
            }
            self.problem = problem.cloned();
        }
    }

    /// Asks the sentinel on its connection, or else on a new one.
    async fn ask(&mut self) -> Result<View, Trouble> {
        if let Some(connection) = self.connection.take()
            && let Ok(view) = self.ask_on(connection).await
        {
            return Ok(view);
        }
        let mut connection = self.connect().await?;
        let mut own = redis::cmd("SENTINEL");
        own.arg("MYID");
        let mut same = connection.clone();
        let named = async {
            match self.inner.dial.naming() {
                Some(naming) => self.query::<Value>(&mut same, naming).await.map(drop),
                None => Ok(()),
            }
        };
        // Both are on their way at once.
        let (named, id) = join(named, self.query(&mut connection, own)).await;
        if let Err(trouble) = named {
            tracing::debug!(sentinel = %self.name, problem = %trouble.text, "the sentinel takes no name for a connection");
        }
        self.id = id.ok();
        self.ask_on(connection).await
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Trouble> {
        let announced = Arc::downgrade(&self.announced);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if matches!(push.kind, PushKind::Message | PushKind::Disconnection)
                    && let Some(announced) = announced.upgrade()
                {
                    announced.notify_one();
                }
                Ok::<_, io::Error>(())
            });
        // Below that of the connection that waits for this, which then tells the reason.
        let limit = self.inner.time_outs.connect.mul_f64(0.75);
        let mut connection = self.within(limit, self.inner.dial.dial(&self.info, config)).await?;
        for event in EVENTS {
            let subscribed = connection.subscribe(event);
            if let Err(trouble) = self.within(self.inner.time_outs.response, subscribed).await {
                tracing::debug!(sentinel = %self.name, problem = %trouble.text, "the sentinel does not send messages");
            }
        }
        Ok(connection)
    }

    /// Asks on a connection, and keeps it if the sentinel answers.
    async fn ask_on(&mut self, mut connection: MultiplexedConnection) -> Result<View, Trouble> {
        let sentinel = |what: &str| {
            let mut command = redis::cmd("SENTINEL");
            command.arg(what).arg(&self.inner.master);
            command
        };
        // In this order: the address is never older than the epoch. During a failover only the
        // second answer has the new one.
        let about: HashMap<String, String> = self.query(&mut connection, sentinel("MASTER")).await?;
        let address = sentinel("GET-MASTER-ADDR-BY-NAME");
        let address: Option<(String, u16)> = self.query(&mut connection, address).await?;
        // Its user may not be allowed this.
        let others = self.query(&mut connection, sentinel("SENTINELS")).await;
        if let Ok(others) = others {
            let others: Vec<HashMap<String, String>> = others;
            let others = others.iter().filter_map(|other| {
                let (host, port) = (other.get("ip")?.clone(), other.get("port")?.parse().ok()?);
                let info = self.inner.sentinel.clone();
                let address = at(info.addr(), host, port);
                Some((other.get("runid")?.clone(), info.set_addr(address)))
            });
            Inner::meet(&self.inner, &self.name, self.id.clone(), others.collect());
        }
        self.connection = Some(connection);
        let epoch = about.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        match (epoch, address) {
            (Some(epoch), Some((host, port))) => Ok(View { epoch, host, port }),
            _ => Err(Trouble {
                text: format!("it does not tell the address of `{}`", self.inner.master),
                advice: None,
                is_permanent: false,
            }),
        }
    }

    async fn query<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
        command: Cmd,
    ) -> Result<T, Trouble> {
        self.within(self.inner.time_outs.response, command.query_async(connection))
            .await
    }

    /// Waits for an answer, for at most `limit`.
    async fn within<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, Trouble> {
        match self.inner.host.timeout(Timer::LockThread, limit, answer).await {
            Some(answer) => answer.map_err(|error| trouble(&error)),
            None => Err(Trouble {
                text: format!("no answer within {limit:?}"),
                advice: None,
                is_permanent: false,
            }),
        }
    }
}

/// Returns the problem with a sentinel's answer, and what to do about it.
fn trouble(error: &RedisError) -> Trouble {
    let detail = error.detail().unwrap_or_default();
    let (text, advice) = if detail.contains("No such master with that name") {
        (
            "it knows no such master".to_owned(),
            Some("give the name from the sentinels' configuration, `sentinel monitor <name> …`, after the addresses"),
        )
    } else if detail.to_ascii_lowercase().contains("unknown command") {
        (
            "it is a server and no sentinel".to_owned(),
            Some("give the addresses of the sentinels, whose usual port is 26379, or `redis://…` for one server"),
        )
    } else {
        let sorted = failure::sort(error, false);
        let refuses = matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
            || error.kind() == redis::ErrorKind::AuthenticationFailed;
        let advice = if error.code() == Some("NOPERM") {
            Some(ALLOW)
        } else if refuses {
            Some(LOG_IN)
        } else {
            sorted.own_advice()
        };
        return Trouble {
            text: failure::readable(error),
            advice: advice.map(Into::into),
            is_permanent: sorted.is_permanent(),
        };
    };
    Trouble {
        text,
        advice: advice.map(Into::into),
        is_permanent: true,
    }
}
