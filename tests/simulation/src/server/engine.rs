//! One server, without its connections' streams and without a clock: commands go in with the time at which they are
//! carried out, and bytes come out for each connection. The same commands at the same times give the same bytes.

mod gate;
mod in_script;
mod replication;
mod session;
mod tracking;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

pub use in_script::Asked;
use in_script::Running;
use replication::Acknowledged;
pub use session::{Caller, Limit, OPERATOR, Session, Waiting};

use super::acl::{User, Users};
pub use super::command::{BUSY, Command, LOADING, MEMORY, NO_AUTH, NO_SCRIPT, READ, STALE, WRITE};
use super::data::Data;
use super::log::{Log, Transaction};
use super::membership::Membership;
use super::resp::{Answer, Reply};
use super::script::Scripts;
use super::version::Version;
use crate::sentinel::Knowledge;

pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// What the operator, or a fault, has made of the server.
#[derive(Clone, Default)]
pub struct State {
    /// The server has no memory left.
    pub is_full: bool,
    /// It reads its data in.
    pub is_loading: bool,
    /// It cannot save its data, and takes no writes.
    pub cannot_save: bool,
    /// It takes no writes with fewer replicas.
    pub replicas_needed: usize,
    /// A script runs for too long. It has written something, or has not.
    pub runs_script: Option<bool>,
    /// It is a replica: `true` while the master is reached.
    pub follows: Option<bool>,
    /// The address of the master that an operator has named.
    pub master: Vec<u8>,
    /// As a replica that does not reach its master, it answers nothing.
    pub refuses_stale: bool,
    /// Commands that are refused on demand.
    pub refusals: Vec<Refusal>,
}

/// A refusal on demand.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The command, as `client|tracking`. An empty one means all.
    pub command: String,
    /// What is answered, as `TRYAGAIN Multiple keys request during rehashing of slot`.
    pub text: String,
    /// How often.
    pub times: u32,
    /// It strikes commands of scripts, instead of those of connections.
    pub in_scripts: bool,
}

pub struct Engine {
    pub version: Version,
    pub data: Data,
    pub sessions: BTreeMap<u64, Session>,
    pub scripts: Scripts,
    pub users: Users,
    pub state: State,
    /// What it knows, if it is a sentinel.
    pub watches: Option<Knowledge>,
    /// What it knows, if it is a node of a cluster.
    pub membership: Option<Membership>,
    /// How much may wait to be sent to a usual connection, and to one that has subscribed.
    pub limits: [Limit; 2],
    /// Keys whose time is over are found without being asked for.
    pub seeks_expired: bool,
    /// The keys whose readers are known, at most. 0 for any number.
    pub most_tracked: usize,
    pub(super) log: Log,
    /// What its replicas have told that they have, and what it tells its master.
    replicas: Mutex<Vec<Weak<Acknowledged>>>,
    acknowledged: Option<Arc<Acknowledged>>,
    /// Those who have read each key, and are told once when it changes.
    readers: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    now: Duration,
    next: u64,
    /// The connection whose command is carried out, what its script declares and may write, and what it is told next.
    current: Option<u64>,
    script: Option<Running>,
    after: Vec<Reply>,
    held_back: Option<Vec<Reply>>,
    /// What the command has written so far.
    transaction: Transaction,
    is_applying: bool,
    /// Connections that wait for replicas.
    waiting: usize,
    /// The connections that have been answered since somebody looked, and with how many replicas.
    pub counted: Vec<(u64, usize)>,
    /// The most commands of one script.
    pub longest_script: u32,
}

impl Engine {
    pub fn new(version: Version, scripts: Scripts) -> Self {
        let mut new = Self::empty(version, scripts);
        new.users.insert("default".to_owned(), User::usual());
        new.sessions.insert(OPERATOR, Session::new(true));
        new
    }

    /// Returns what is left of an engine while its script has it.
    pub(super) fn hollow(of: &Self) -> Self {
        Self::empty(of.version, of.scripts.without())
    }

    fn empty(version: Version, scripts: Scripts) -> Self {
        Self {
            version,
            data: Data::default(),
            sessions: BTreeMap::new(),
            scripts,
            users: BTreeMap::new(),
            state: State::default(),
            watches: None,
            membership: None,
            limits: [Limit::default(), Limit::of_subscribers()],
            seeks_expired: true,
            most_tracked: 1_000_000,
            log: Log::default(),
            replicas: Mutex::default(),
            acknowledged: None,
            readers: BTreeMap::new(),
            now: Duration::ZERO,
            next: 1,
            current: None,
            script: None,
            after: Vec::new(),
            held_back: None,
            transaction: Transaction::default(),
            is_applying: false,
            waiting: 0,
            counted: Vec::new(),
            longest_script: 0,
        }
    }

    /// Returns the time of the command, in ms since 1970.
    pub fn ms(&self) -> i64 {
        i64::try_from(self.now.as_millis()).unwrap_or(i64::MAX)
    }

    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns `true` for a time that makes a key that expires then go at once.
    pub fn is_past(&self, at: i64) -> bool {
        at <= self.ms() && self.state.follows.is_none() && !self.is_applying
    }

    /// Refuses a command so often with this text, or all commands if the name is empty.
    pub fn refuse(&mut self, command: &str, text: &str, times: u32) {
        self.state.refusals.push(Refusal {
            command: command.to_lowercase(),
            text: text.to_owned(),
            times,
            in_scripts: false,
        });
    }

    /// Does the same to a command that a script sends.
    pub fn refuse_in_scripts(&mut self, command: &str, text: &str, times: u32) {
        self.refuse(command, text, times);
        if let Some(refusal) = self.state.refusals.last_mut() {
            refusal.in_scripts = true;
        }
    }

    /// Carries out a command of a connection, and returns its answer, which is also sent. The answer is `None` if it is
    /// given by pushes, or later: one command after another of a connection that waits is kept until the wait is over.
    pub fn execute(&mut self, id: u64, words: &[&[u8]], now: Duration) -> Reply {
        self.tick(now);
        match self.sessions.get_mut(&id) {
            Some(session) if session.waits_for.is_some() => {
                session
                    .queued
                    .push_back(words.iter().map(|word| word.to_vec()).collect());
                Reply::None
            }
            _ => self.carry_out(id, words),
        }
    }

    fn carry_out(&mut self, id: u64, words: &[&[u8]]) -> Reply {
        let Some(session) = self.sessions.get(&id).filter(|session| !session.is_ending) else {
            return Reply::None;
        };
        let caller = Caller { id, is_3: session.is_3 };
        self.forget_some();
        self.current = Some(id);
        let before = self.offset();
        let reply = self.process(&caller, words).unwrap_or_else(|refusal| refusal);
        self.has_asked(id, words);
        self.send(id, &reply);
        if !self.after.is_empty() {
            // Messages go before what is said of keys.
            let (messages, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.after).into_iter().partition(Reply::is_message);
            for push in messages.iter().chain(&others) {
                self.send(id, push);
            }
        }
        self.current = None;
        self.commit();
        let offset = self.offset();
        if let Some(session) = self.sessions.get_mut(&id).filter(|_| offset != before) {
            session.written = offset;
        }
        reply
    }

    /// Lets time go on to `now`.
    pub fn tick(&mut self, now: Duration) {
        self.now = now;
        if self.seeks_expired {
            self.expire_all();
            self.commit();
        }
        if self.waiting > 0 {
            self.answer_waiting();
        }
    }

    /// Returns `true` if connections wait for replicas.
    pub fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// What a connection asks for is for its next command only.
    fn has_asked(&mut self, id: u64, words: &[&[u8]]) {
        let is_asking = words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"ASKING"));
        if let Some(session) = self.sessions.get_mut(&id).filter(|_| !is_asking) {
            session.is_asking = false;
        }
    }

    fn call(&mut self, caller: &Caller, command: &Command, words: &[&[u8]]) -> Answer {
        let answer = (command.run)(self, caller, words);
        if command.is(READ, self.version) {
            self.remember(caller, command, words);
        }
        answer
    }
}
