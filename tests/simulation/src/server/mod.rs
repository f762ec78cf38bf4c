//! A simulated Redis or Valkey server: an [`Engine`] with streams, a clock, and what an operator or a fault does to it.

mod acl;
mod command;
mod connection;
pub mod data;
pub mod engine;
mod glob;
mod keys;
pub mod log;
mod number;
mod operator;
pub mod resp;
pub mod script;
mod sorted;
mod strings;
pub mod version;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
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

/// The time since 1970 at which a simulation begins.
pub const EPOCH: Duration = Duration::from_secs(1_700_000_000);
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
    began: Instant,
    /// Notified when there is something to send, by connection.
    outputs: BTreeMap<u64, Arc<Notify>>,
    /// It carries nothing out.
    is_frozen: bool,
    /// Nothing listens.
    is_down: bool,
    trace: Trace,
    /// The number of commands that were carried out.
    commands: u64,
    /// The number of the last connection.
    last: u64,
    looks: Option<AbortHandle>,
}

/// What has happened: always its hash, and its text if somebody reads it.
struct Trace {
    hash: DefaultHasher,
    lines: Option<Vec<String>>,
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
    /// Makes a server in the current runtime. Its trace has lines only if they are read.
    pub fn new(version: Version, is_read: bool) -> Self {
        let scripts = Scripts::new(version, None).expect("there is memory for Lua");
        let clock = Clock {
            began: Instant::now(),
            shows: EPOCH,
            drift: 0.0,
        };
        let server = Self(Arc::new(Shared {
            inner: Mutex::new(Inner {
                engine: Engine::new(version, scripts),
                clock,
                began: Instant::now(),
                outputs: BTreeMap::new(),
                is_frozen: false,
                is_down: false,
                trace: Trace {
                    hash: DefaultHasher::new(),
                    lines: is_read.then(Vec::new),
                },
                commands: 0,
                last: 0,
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

    /// Adds a line to the trace.
    pub fn note(&self, what: impl FnOnce() -> String) {
        self.inner().note(what);
    }

    /// Takes the lines of the trace out, and returns their hash with that of all commands and replies.
    pub fn trace(&self) -> (u64, Vec<String>) {
        let mut inner = self.inner();
        let lines = inner.trace.lines.as_mut().map(std::mem::take).unwrap_or_default();
        (inner.trace.hash.finish(), lines)
    }

    /// Returns the number of commands that were carried out.
    pub fn commands(&self) -> u64 {
        self.inner().commands
    }

    /// Carries out a command as an operator.
    pub fn command(&self, words: &[&str]) -> Reply {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.inner().execute(OPERATOR, &words)
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

    /// Returns `true` unless nothing listens.
    pub fn is_up(&self) -> bool {
        !self.inner().is_down
    }

    /// Stops the server, or lets it go on: what it receives meanwhile waits.
    pub fn freeze(&self, is_frozen: bool) {
        self.inner().is_frozen = is_frozen;
        self.0.goes_on.notify_waiters();
    }

    /// Lets nobody connect, or everybody.
    pub fn go_down(&self, is_down: bool) {
        self.inner().is_down = is_down;
    }
}

/// The clock, replicas and restarts.
impl Server {
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
    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.trace.lines {
            lines.push(format!("{:>10.6} {}", self.began.elapsed().as_secs_f64(), what()));
        }
    }

    fn tick(&mut self) {
        if self.is_frozen || self.is_down {
            return;
        }
        let now = self.clock.now();
        self.engine.tick(now);
        self.settle();
    }

    fn execute(&mut self, client: u64, words: &[&[u8]]) -> Reply {
        let now = self.clock.now();
        let reply = self.engine.execute(client, words, now);
        self.settle();
        reply
    }

    fn carry_out(&mut self, client: u64, words: &[&[u8]]) {
        self.commands += 1;
        let reply = self.execute(client, words);
        let hash = &mut self.trace.hash;
        (self.began.elapsed(), client, words).hash(hash);
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
