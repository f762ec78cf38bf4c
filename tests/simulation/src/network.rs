//! The network between processes and servers, and what can go wrong in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionInfo, RedisError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use lock_runtime::world;

use crate::process::Process;
use crate::sentinel::Address;
use crate::server::{Server, resp};

/// What a stream takes before it is read, and what is written to it at a time.
const STREAM: usize = 1 << 16;
const CHUNK: usize = 1 << 14;
/// A client's system gives a connection up on which nothing was acknowledged for this long.
const UNACKNOWLEDGED: Duration = Duration::from_secs(3);
/// A client's system gives a silent connection up on which nothing is sent either.
const IDLE: Duration = Duration::from_secs(13);

/// The user that may not subscribe.
const DEAF: &str = "deaf";

/// The connections of all processes to all servers and sentinels. Clones are one network.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    places: Vec<(Address, Server)>,
    state: Mutex<State>,
}

struct State {
    seed: u64,
    /// The chance of each process's packets, so that fewer processes change nothing for the others.
    chances: BTreeMap<u32, fastrand::Rng>,
    links: BTreeMap<u64, Link>,
    /// The ways to the servers, by the number of the process.
    ways: BTreeMap<u32, Way>,
    /// The number of connections that were asked for.
    dials: u64,
    /// The processes whose lock threads reach nothing, those whose connections are cut when they subscribe, and those whose user may not.
    cut_off: BTreeSet<u32>,
    deafened: BTreeSet<u32>,
    deaf: BTreeSet<u32>,
}

/// The way from one process to the servers.
#[derive(Clone, Copy)]
pub struct Way {
    pub dial: DialFault,
    /// The shortest and the longest time that a packet takes.
    pub latency: (Duration, Duration),
    /// Bytes arrive one at a time.
    pub trickles: bool,
    pub silence: Silence,
}

impl Default for Way {
    fn default() -> Self {
        Self {
            dial: DialFault::None,
            latency: (Duration::from_micros(50), Duration::from_micros(500)),
            trickles: false,
            silence: Silence::default(),
        }
    }
}

/// What happens to those who connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFault {
    None,
    Refused,
    /// Nothing answers.
    Hangs,
    /// The connection is cut after so many commands.
    Dies(u32),
}

/// The directions in which nothing arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    pub up: bool,
    pub down: bool,
}

/// One connection.
struct Link {
    process: u32,
    server: Server,
    /// It leads to a sentinel.
    is_to_sentinel: bool,
    /// It was made in the lock thread.
    is_background: bool,
    silence: Silence,
    /// Since when the client waits for an acknowledgement.
    unacknowledged: Option<Instant>,
    silent_since: Option<Instant>,
    /// The number of commands after which it is cut.
    dies_after: Option<u32>,
    loses_reply: bool,
    changed: Arc<Notify>,
    tasks: Vec<AbortHandle>,
}

impl Network {
    /// Makes a network that leads to these servers.
    pub fn new(places: Vec<(Address, Server)>, seed: u64) -> Self {
        Self(Arc::new(Inner {
            places,
            state: Mutex::new(State {
                seed,
                chances: BTreeMap::new(),
                links: BTreeMap::new(),
                ways: BTreeMap::new(),
                dials: 0,
                cut_off: BTreeSet::new(),
                deafened: BTreeSet::new(),
                deaf: BTreeSet::new(),
            }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is at an address.
    fn at(&self, info: &ConnectionInfo) -> Option<Server> {
        let redis::ConnectionAddr::Tcp(host, port) = info.addr() else {
            return None;
        };
        let mut places = self.0.places.iter();
        let found = places.find(|(address, _)| address.host == *host && address.port == *port);
        found.map(|(_, server)| server.clone())
    }

    /// Connects a process with the server at an address.
    ///
    /// # Errors
    /// Fails where nobody listens, and where the server ends the connection.
    pub async fn dial(
        self,
        process: Process,
        info: ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let number = process.number();
        self.state().dials += 1;
        let is_background = world::current_runtime() == Some(world::LOCK_THREAD);
        tokio::time::sleep(self.latency(number) + self.latency(number)).await;
        let way = self.way(number);
        let Some(server) = self.at(&info) else {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        };
        match way.dial {
            DialFault::Refused => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            _ if server.is_dark() => std::future::pending().await,
            _ if !server.is_up() => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            DialFault::Hangs => std::future::pending().await,
            _ if way.silence != Silence::default() => std::future::pending().await,
            _ if is_background && self.state().cut_off.contains(&number) => std::future::pending().await,
            DialFault::None | DialFault::Dies(_) => {}
        }
        let dies_after = match way.dial {
            DialFault::Dies(after) => Some(after),
            _ => None,
        };
        let stream = self.open(number, server, is_background, dies_after);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await?;
        drop(world::spawn_beside(&process.world(), driver));
        Ok(connection)
    }

    /// Returns a stream that leads to a server.
    fn open(&self, process: u32, server: Server, is_background: bool, dies_after: Option<u32>) -> DuplexStream {
        let (theirs, ours) = tokio::io::duplex(STREAM);
        let (requests, answers) = tokio::io::split(ours);
        let (id, has_output) = server.open();
        if self.state().deaf.contains(&process) {
            server.change(|engine| {
                if let Some(session) = engine.sessions.get_mut(&id) {
                    DEAF.clone_into(&mut session.user);
                }
            });
        }
        let changed = Arc::new(Notify::new());
        let up = tokio::spawn(self.clone().up(id, server.clone(), requests, Arc::clone(&changed)));
        let down = self
            .clone()
            .down(id, server.clone(), answers, has_output, Arc::clone(&changed));
        let down = tokio::spawn(down);
        server.note(|| format!("client {id} connects from {process}"));
        let link = Link {
            process,
            is_to_sentinel: server.is_sentinel(),
            server,
            is_background,
            silence: Silence::default(),
            unacknowledged: None,
            silent_since: None,
            dies_after,
            loses_reply: false,
            changed,
            tasks: vec![up.abort_handle(), down.abort_handle()],
        };
        self.state().links.insert(id, link);
        theirs
    }

    /// Carries what the client sends.
    async fn up(self, id: u64, server: Server, mut requests: ReadHalf<DuplexStream>, changed: Arc<Notify>) {
        let mut unread = Vec::new();
        let mut one = [0];
        loop {
            let read = match self.trickles(id) {
                true => requests
                    .read(&mut one)
                    .await
                    .inspect(|read| unread.extend(&one[..*read])),
                false => requests.read_buf(&mut unread).await,
            };
            if !matches!(read, Ok(1..)) {
                break;
            }
            if !self.travel(id, &changed, |silence| silence.up).await {
                return;
            }
            server.until_it_runs().await;
            while let Some(command) = resp::take_command(&mut unread) {
                let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
                server.carry_out(id, &words);
                if self.dies_now(id, words.first().copied().unwrap_or_default()) {
                    self.cut(id);
                    return;
                }
            }
        }
        // The client has ended it. The server hears of it when it can.
        if self.travel(id, &changed, |silence| silence.up).await {
            self.cut(id);
        }
    }

    /// Carries what the server sends.
    async fn down(
        self,
        id: u64,
        server: Server,
        mut answers: WriteHalf<DuplexStream>,
        has_output: Arc<Notify>,
        changed: Arc<Notify>,
    ) {
        loop {
            has_output.notified().await;
            loop {
                if !self.travel(id, &changed, |silence| silence.down).await {
                    return;
                }
                let most = if self.trickles(id) { 1 } else { CHUNK };
                let Some(out) = server.take_out(id, most) else {
                    self.cut(id);
                    return;
                };
                if out.is_empty() {
                    break;
                }
                if answers.write_all(&out).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Waits as long as a packet takes. Returns `false` if the connection ends meanwhile.
    async fn travel(&self, id: u64, changed: &Notify, is_silent: fn(Silence) -> bool) -> bool {
        let process = match self.state().links.get_mut(&id) {
            Some(link) => {
                if link.silent_since.is_some() {
                    link.unacknowledged.get_or_insert_with(Instant::now);
                }
                link.process
            }
            None => return false,
        };
        tokio::time::sleep(self.latency(process)).await;
        loop {
            let changed = changed.notified();
            match self.state().links.get(&id) {
                Some(link) if !is_silent(link.silence) => return true,
                Some(_) => {}
                None => return false,
            }
            changed.await;
        }
    }

    fn latency(&self, process: u32) -> Duration {
        let mut state = self.state();
        let (least, most) = state.ways.entry(process).or_default().latency;
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let seed = state.seed ^ u64::from(process) << 32;
        let chance = state.chances.entry(process);
        let chance = chance.or_insert_with(|| fastrand::Rng::with_seed(seed));
        Duration::from_micros(chance.u64(micros(least)..=micros(most)))
    }

    fn trickles(&self, id: u64) -> bool {
        let state = self.state();
        let way = state.links.get(&id).and_then(|link| state.ways.get(&link.process));
        way.is_some_and(|way| way.trickles)
    }

    /// Returns `true` if the connection is to be cut now that another command was carried out.
    fn dies_now(&self, id: u64, command: &[u8]) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let Some(link) = state.links.get_mut(&id) else {
            return true;
        };
        let is_deafened = state.deafened.contains(&link.process) && !link.is_to_sentinel;
        if command.eq_ignore_ascii_case(b"SUBSCRIBE") && is_deafened {
            return true;
        }
        if link.loses_reply {
            return true;
        }
        match &mut link.dies_after {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }
}

/// Faults.
impl Network {
    /// Returns the way of a process.
    pub fn way(&self, process: u32) -> Way {
        *self.state().ways.entry(process).or_default()
    }

    /// Changes the way of a process.
    pub fn change(&self, process: u32, change: impl FnOnce(&mut Way)) {
        change(self.state().ways.entry(process).or_default());
    }

    /// Returns the connections of a process, the oldest first.
    pub fn links(&self, process: u32) -> Vec<u64> {
        let state = self.state();
        let links = state.links.iter().filter(|(_, link)| link.process == process);
        links.map(|(id, _)| *id).collect()
    }

    /// Returns the connections of a process's lock thread, the oldest first.
    pub fn background_links(&self, process: u32) -> Vec<u64> {
        let state = self.state();
        let links = state.links.iter();
        let links = links.filter(|(_, link)| link.process == process && link.is_background);
        links.map(|(id, _)| *id).collect()
    }

    /// Returns the number of all connections, and how many were asked for so far.
    pub fn counts(&self) -> (usize, u64) {
        let state = self.state();
        (state.links.len(), state.dials)
    }

    /// Ends a connection, with what is on its way.
    pub fn cut(&self, id: u64) {
        let Some(link) = self.state().links.remove(&id) else {
            return;
        };
        link.server.close(id);
        link.end();
    }

    /// Carries out the next command of a connection, and cuts it before the reply arrives.
    pub fn lose_reply(&self, id: u64) {
        if let Some(link) = self.state().links.get_mut(&id) {
            link.loses_reply = true;
        }
    }

    /// Lets nothing through on a connection, in one direction or in both. Both ends of it believe that it is there.
    pub fn silence(&self, id: u64, silence: Silence) {
        let mut state = self.state();
        let Some(link) = state.links.get_mut(&id) else { return };
        link.silence = silence;
        link.changed.notify_waiters();
        if silence == Silence::default() {
            (link.silent_since, link.unacknowledged) = (None, None);
        } else if link.silent_since.is_none() {
            link.silent_since = Some(Instant::now());
            let watch = tokio::spawn(self.clone().give_up(id));
            link.tasks.push(watch.abort_handle());
        }
    }

    /// Lets nothing through on the connections of a process's lock thread, and lets it make no new ones; or ends that.
    pub fn cut_off(&self, process: u32, is_cut_off: bool) {
        if is_cut_off {
            self.state().cut_off.insert(process);
        } else {
            self.state().cut_off.remove(&process);
        }
        let silence = Silence {
            up: is_cut_off,
            down: is_cut_off,
        };
        for link in self.background_links(process) {
            self.silence(link, silence);
        }
    }

    /// Lets a process connect as a user that may not subscribe, and ends its connections.
    pub fn may_not_listen(&self, process: u32) {
        let rules = ["on", "nopass", "~*", "&*", "+@all", "-subscribe"];
        let words: Vec<&str> = ["ACL", "SETUSER", DEAF].into_iter().chain(rules).collect();
        for (_, server) in &self.0.places {
            drop(server.command(&words));
        }
        self.state().deaf.insert(process);
        self.hang_up(process);
    }

    /// Cuts the connections of a process when they subscribe, or ends that.
    pub fn deafen(&self, process: u32, is_deafened: bool) {
        let mut state = self.state();
        if is_deafened {
            state.deafened.insert(process);
        } else {
            state.deafened.remove(&process);
        }
    }

    /// Ends a silent connection at the client when its system gives it up. The server hears nothing of that.
    async fn give_up(self, id: u64) {
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let mut state = self.state();
            let Some(link) = state.links.get(&id) else { return };
            let Some(since) = link.silent_since else { return };
            let is_over = match link.unacknowledged {
                Some(since) => since.elapsed() >= UNACKNOWLEDGED,
                None => since.elapsed() >= IDLE,
            };
            if is_over {
                let link = state.links.remove(&id);
                drop(state);
                let Some(link) = link else { return };
                let server = link.server.clone();
                server.note(|| format!("the system of client {id} gives it up"));
                // The next that the server sends is answered by a reset. Or it asks, after five minutes.
                drop(tokio::spawn(async move {
                    server.until_it_sends(id, Duration::from_secs(300)).await;
                    server.close(id);
                }));
                link.end();
                return;
            }
        }
    }

    /// Ends all connections of a process that is killed.
    pub fn hang_up(&self, process: u32) {
        for id in self.links(process) {
            self.cut(id);
        }
    }

    /// Returns the connections to a server, the oldest first.
    pub fn links_to(&self, server: &Server) -> Vec<u64> {
        let state = self.state();
        let links = state.links.iter().filter(|(_, link)| link.server.is(server));
        links.map(|(id, _)| *id).collect()
    }

    /// Ends all connections to a server that goes down.
    pub fn cut_all(&self, server: &Server) {
        for id in self.links_to(server) {
            self.cut(id);
        }
    }

    /// Ends a server, with its connections.
    pub fn take_down(&self, server: &Server) {
        server.go_down(true);
        self.cut_all(server);
    }

    /// Takes a server's power: nothing answers, and nothing ends.
    pub fn darken(&self, server: &Server) {
        server.go_dark(true);
        for link in self.links_to(server) {
            self.silence(link, Silence { up: true, down: true });
        }
    }

    /// Returns `true` if what a server publishes on a channel now reaches a process.
    pub fn is_heard_by(&self, process: u32, server: &Server, channel: &str) -> bool {
        let all = self.links_to(server);
        let state = self.state();
        let mut open = all.into_iter().filter(|id| {
            let link = state.links.get(id);
            link.is_some_and(|link| link.process == process && link.silence == Silence::default() && !link.loses_reply)
        });
        let hears = |id: u64| {
            server.read(|engine| {
                let session = engine.sessions.get(&id);
                session.is_some_and(|session| session.channels.contains(channel.as_bytes()))
            })
        };
        open.any(hears)
    }
}

impl Link {
    /// Drops the client's stream, so that its end reads the end.
    fn end(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
