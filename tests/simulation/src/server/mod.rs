//! A simulated Redis or Valkey server: an [`Engine`] with streams, a clock, and what an operator or a fault does to it.

mod acl;
mod command;
mod connection;
pub mod data;
pub mod engine;
mod glob;
mod keys;
pub mod log;
pub mod membership;
mod number;
mod operator;
pub mod resp;
pub mod script;
mod sorted;
mod strings;
pub mod version;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use engine::{Engine, OPERATOR};
use log::Kept;
use resp::Reply;
use script::Scripts;
use version::Version;

use crate::trace::Trace;

/// The time since 1970 at which a simulation begins.
pub const EPOCH: Duration = Duration::from_secs(1_700_000_000);
/// The numbers of connections to one of several servers are apart from those to others.
const NUMBERS: u64 = 1_000_000;
/// How often the server looks for keys whose time is over.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// A server. Clones are one server.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    /// Notified when a server that stood still goes on.
    goes_on: Notify,
}

struct Inner {
    engine: Engine,
    clock: Clock,
    /// Notified when there is something to send, by connection.
    outputs: BTreeMap<u64, Arc<Notify>>,
    /// It carries nothing out.
    is_frozen: bool,
    /// Nothing listens.
    is_down: bool,
    /// Nothing is there that could refuse a connection.
    is_dark: bool,
    trace: Trace,
    /// The number of the last connection.
    last: u64,
    looks: Option<AbortHandle>,
}

/// The server's clock, which can be wrong.
#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    /// What it shows at `began`.
    shows: Duration,
    /// How many seconds it gains in a million.
    drift: f64,
}

impl Clock {
    fn now(&self) -> Duration {
        let passed = self.began.elapsed();
        self.shows + passed.mul_f64((1.0 + self.drift / 1e6).max(0.0))
    }

    fn is_now(&mut self, shows: Duration) {
        (self.began, self.shows) = (Instant::now(), shows);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.looks.iter().for_each(AbortHandle::abort);
    }
}

impl Server {
    /// Makes a server in the current runtime.
    pub fn new(version: Version, trace: &Trace) -> Self {
        Self::beside(version, trace, 0, EPOCH)
    }

    /// Makes several servers, each with a clock that is ahead by so much.
    pub fn several(version: Version, trace: &Trace, ahead: &[Duration]) -> Vec<Self> {
        let firsts = (0..).map(|at: u64| at * NUMBERS);
        let clocks = firsts.zip(ahead);
        clocks
            .map(|(first, ahead)| Self::beside(version, trace, first, EPOCH + *ahead))
            .collect()
    }

    /// Makes one of several servers. Its connections have the numbers after `first`, and its clock shows `shows`.
    fn beside(version: Version, trace: &Trace, first: u64, shows: Duration) -> Self {
        let scripts = Scripts::new(version, None).expect("there is memory for Lua");
        let clock = Clock {
            began: Instant::now(),
            shows,
            drift: 0.0,
        };
        let mut engine = Engine::new(version, scripts);
        engine.number_from(first + 1);
        let server = Self(Arc::new(Shared {
            inner: Mutex::new(Inner {
                engine,
                clock,
                outputs: BTreeMap::new(),
                is_frozen: false,
                is_down: false,
                is_dark: false,
                trace: trace.clone(),
                last: first,
                looks: None,
            }),
            goes_on: Notify::new(),
        }));
        let weak = Arc::downgrade(&server.0);
        let looks = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOKS_EVERY).await;
                let Some(server) = weak.upgrade().map(Self) else {
                    return;
                };
                server.inner().tick();
            }
        });
        server.inner().looks = Some(looks.abort_handle());
        server
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the server as a whole: its state, its users, its limits.
    pub fn change<T>(&self, change: impl FnOnce(&mut Engine) -> T) -> T {
        let mut inner = self.inner();
        let done = change(&mut inner.engine);
        inner.settle();
        done
    }

    /// Looks at the server, which notices nothing of it.
    pub fn read<T>(&self, look: impl FnOnce(&Engine) -> T) -> T {
        look(&self.inner().engine)
    }

    /// Adds a line to the trace.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let trace = self.inner().trace.clone();
        trace.note(what);
    }

    /// Returns `true` if both are one server.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Carries out a command as an operator.
    pub fn command(&self, words: &[&str]) -> Reply {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.says(&words)
    }

    /// As [`command`](Self::command), with any bytes.
    pub fn says(&self, words: &[&[u8]]) -> Reply {
        self.inner().execute(OPERATOR, words)
    }
}

/// Connections.
impl Server {
    /// Opens a connection. Returns its number, and what is notified when there is something to send.
    pub fn open(&self) -> (u64, Arc<Notify>) {
        let mut inner = self.inner();
        let id = inner.engine.open();
        inner.last = id;
        let has_output = Arc::new(Notify::new());
        inner.outputs.insert(id, Arc::clone(&has_output));
        (id, has_output)
    }

    /// Carries out a command of a connection.
    pub fn carry_out(&self, id: u64, words: &[&[u8]]) {
        self.inner().carry_out(id, words);
    }

    /// Takes some of what is to be sent; `None` once the connection has ended.
    pub fn take_out(&self, id: u64, most: usize) -> Option<Vec<u8>> {
        self.inner().engine.take_out(id, most)
    }

    pub fn close(&self, id: u64) {
        let mut inner = self.inner();
        inner.engine.close(id);
        inner.settle();
    }

    /// Waits until the server has something to send on a connection, and at most so long.
    pub async fn until_it_sends(&self, id: u64, most: Duration) {
        let output = self.inner().outputs.get(&id).cloned();
        if let Some(output) = output {
            drop(tokio::time::timeout(most, output.notified()).await);
        }
    }

    /// Waits while the server stands still.
    pub async fn until_it_runs(&self) {
        loop {
            let goes_on = self.0.goes_on.notified();
            if !self.inner().is_frozen {
                return;
            }
            goes_on.await;
        }
    }

    /// Returns `true` while the server stands still.
    pub fn is_frozen(&self) -> bool {
        self.inner().is_frozen
    }

    /// Returns `true` unless nothing listens.
    pub fn is_up(&self) -> bool {
        !self.inner().is_down
    }

    /// Stops the server, or lets it go on: what it receives meanwhile waits.
    pub fn freeze(&self, is_frozen: bool) {
        self.inner().is_frozen = is_frozen;
        self.0.goes_on.notify_waiters();
    }

    /// Returns `true` if nothing is there that could refuse a connection.
    pub fn is_dark(&self) -> bool {
        self.inner().is_dark
    }

    /// Returns `true` if it listens and has power.
    pub fn is_there(&self) -> bool {
        self.is_up() && !self.is_dark()
    }

    /// Lets nobody connect, and answers nobody who tries, or ends that.
    pub fn go_dark(&self, is_dark: bool) {
        self.inner().is_dark = is_dark;
    }

    /// Lets nobody connect, or everybody.
    pub fn go_down(&self, is_down: bool) {
        self.inner().is_down = is_down;
    }
}

/// The clock, replicas and restarts.
impl Server {
    /// Returns the time that the clock shows.
    pub fn now(&self) -> Duration {
        self.inner().clock.now()
    }

    /// Sets the clock forward.
    pub fn step_forward(&self, by: Duration) {
        let mut inner = self.inner();
        let now = inner.clock.now() + by;
        inner.clock.is_now(now);
    }

    /// Sets the clock back.
    pub fn step_back(&self, by: Duration) {
        let mut inner = self.inner();
        let now = inner.clock.now().saturating_sub(by);
        inner.clock.is_now(now);
    }

    /// From now on the clock gains so many seconds in a million, or loses them.
    pub fn drift(&self, by: f64) {
        let mut inner = self.inner();
        let now = inner.clock.now();
        inner.clock.is_now(now);
        inner.clock.drift = by;
    }

    /// Makes this server a replica of another one, with all its data.
    pub fn follow(&self, master: &Self) {
        let master = master.inner();
        let mut inner = self.inner();
        inner.engine.follow(&master.engine);
        inner.settle();
    }

    /// Does at most so many of the steps that the master is ahead. Returns how many are left.
    pub fn catch_up(&self, master: &Self, most: usize) -> usize {
        let master = master.inner();
        let mut inner = self.inner();
        let left = inner.engine.catch_up(&master.engine, most);
        inner.settle();
        left
    }

    /// Answers the connections that have waited for replicas, which have just told what they have, and those that have waited for long enough.
    pub fn counts_replicas(&self) {
        let mut inner = self.inner();
        if inner.engine.has_waiting() {
            inner.tick();
        }
    }

    /// Ends all connections and begins anew with some of the data.
    pub fn restart(&self, kept: Kept) {
        let mut inner = self.inner();
        inner.note(|| format!("the server restarts with {kept:?}"));
        inner.engine.restart(kept);
        // The network knows connections by their numbers, so no number comes twice.
        let next = inner.last + 1;
        inner.engine.number_from(next);
        inner.settle();
    }
}

impl Inner {
    fn note(&self, what: impl FnOnce() -> String) {
        self.trace.note(what);
    }

    fn tick(&mut self) {
        if self.is_frozen || self.is_down || self.is_dark {
            return;
        }
        let now = self.clock.now();
        self.engine.tick(now);
        for (client, replicas) in std::mem::take(&mut self.engine.counted) {
            self.note(|| format!("client {client}: WAIT -> {replicas}"));
        }
        self.settle();
    }

    fn execute(&mut self, client: u64, words: &[&[u8]]) -> Reply {
        let now = self.clock.now();
        let reply = self.engine.execute(client, words, now);
        self.settle();
        reply
    }

    fn carry_out(&mut self, client: u64, words: &[&[u8]]) {
        let reply = self.execute(client, words);
        self.trace.add(client, words, self.engine.watches.is_some());
        self.note(|| {
            let said: Vec<_> = words
                .iter()
                .take(8)
                .map(|word| String::from_utf8_lossy(&word[..word.len().min(60)]))
                .collect();
            format!("client {client}: {} -> {reply:?}", said.join(" ").replace('\n', " "))
        });
    }

    /// Wakes those who have something to send, and those whose connection has ended.
    fn settle(&mut self) {
        for id in self.engine.with_output() {
            if let Some(output) = self.outputs.get(&id) {
                output.notify_one();
            }
        }
        if self.outputs.len() + 1 > self.engine.sessions.len() {
            let sessions = &self.engine.sessions;
            self.outputs.retain(|id, output| {
                let is_there = sessions.contains_key(id);
                if !is_there {
                    output.notify_one();
                }
                is_there
            });
        }
    }
}
