//! A master, its replicas, and the sentinels that watch them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::followers::{Followers, Steps};
use crate::sentinel::{Address, KNOWN, Knowledge, NAME, SWITCHED};
use crate::server::Server;
use crate::server::version::Version;
use crate::trace::Trace;

/// How many servers there are, and how many sentinels.
pub const SERVERS: usize = 3;
pub const SENTINELS: usize = 3;

/// Servers and sentinels. Clones are one group.
#[derive(Clone)]
pub struct Group(Arc<Inner>);

struct Inner {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
    state: Mutex<State>,
    steps: Steps,
}

struct State {
    /// The server that was made the master last.
    master: usize,
    epoch: u64,
    followers: Followers,
    /// The sentinels that hear nothing of the others.
    apart: [bool; SENTINELS],
    /// The highest epoch that sentinels have shown.
    highest: u64,
}

/// Returns the address of a server by its number.
pub fn server_address(number: usize) -> Address {
    Address {
        host: format!("db{}", number + 1),
        port: 6379,
    }
}

/// Returns the address of a sentinel by its number.
pub fn sentinel_address(number: usize) -> Address {
    Address {
        host: format!("s{}", number + 1),
        port: 26379,
    }
}

impl Group {
    /// Makes a group. The first server is the master; each server's clock is ahead by so much.
    pub fn new(version: Version, trace: &Trace, ahead: &[Duration]) -> Self {
        let ahead = [ahead, &[Duration::ZERO; SENTINELS]].concat();
        let mut servers = Server::several(version, trace, &ahead);
        let sentinels = servers.split_off(SERVERS);
        for (at, sentinel) in sentinels.iter().enumerate() {
            let others = (0..SENTINELS).filter(|other| *other != at);
            sentinel.watches(Knowledge {
                master: server_address(0),
                shown: server_address(0),
                epoch: 0,
                host: sentinel_address(at).host,
                others: others.map(sentinel_address).collect(),
                set_up: 0,
            });
        }
        let group = Self(Arc::new(Inner {
            servers,
            sentinels,
            state: Mutex::new(State {
                master: 0,
                epoch: 0,
                followers: Followers::new(SERVERS),
                apart: [false; SENTINELS],
                highest: 0,
            }),
            steps: Steps::default(),
        }));
        (1..SERVERS).for_each(|replica| group.follows(replica, 0));
        group.0.steps.begin(&group.0, |group| {
            let group = Self(group);
            group.state().followers.take_in(&group.0.servers, |_| false);
            group.0.steps.look();
            group.0.servers.iter().for_each(Server::counts_replicas);
        });
        group
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all servers and sentinels with their addresses.
    pub fn places(&self) -> Vec<(Address, Server)> {
        let servers = self.0.servers.iter().cloned().enumerate();
        let servers = servers.map(|(at, server)| (server_address(at), server));
        let sentinels = self.0.sentinels.iter().cloned().enumerate();
        servers
            .chain(sentinels.map(|(at, sentinel)| (sentinel_address(at), sentinel)))
            .collect()
    }

    /// Returns a server by its number.
    pub fn server(&self, number: usize) -> &Server {
        &self.0.servers[number]
    }

    /// Returns a sentinel by its number.
    pub fn sentinel(&self, number: usize) -> &Server {
        &self.0.sentinels[number]
    }

    pub fn servers(&self) -> &[Server] {
        &self.0.servers
    }

    pub fn sentinels(&self) -> &[Server] {
        &self.0.sentinels
    }

    /// Returns the number of the server that was made the master last.
    pub fn master(&self) -> usize {
        self.state().master
    }

    /// Returns the replicas that follow the master and are there.
    pub fn candidates(&self) -> Vec<usize> {
        let state = self.state();
        let follows = |number: &usize| state.followers.of(*number) == Some(state.master);
        (0..SERVERS)
            .filter(follows)
            .filter(|number| self.server(*number).is_there())
            .collect()
    }

    /// Returns the sentinels that run and hear of each other.
    pub fn able(&self) -> Vec<usize> {
        let apart = self.state().apart;
        let runs = |number: &usize| {
            let sentinel = self.sentinel(*number);
            !apart[*number] && sentinel.is_up() && !sentinel.is_frozen()
        };
        (0..SENTINELS).filter(runs).collect()
    }

    /// Lets a sentinel hear nothing of the others, or ends that.
    pub fn is_apart(&self, sentinel: usize, is_apart: bool) {
        self.state().apart[sentinel] = is_apart;
    }

    /// Returns the epoch of the last failover, and whether it is higher than all before.
    pub fn epoch(&self) -> (u64, bool) {
        let state = self.state();
        (state.epoch, state.epoch > state.highest)
    }

    /// Sets how old the data of all replicas are.
    pub fn lags(&self, lag: Duration) {
        self.state().followers.lags(lag);
    }

    /// Tells somebody of each step of the replicas.
    pub fn is_looked_at(&self, looks_on: impl Fn() + Send + Sync + 'static) {
        self.0.steps.are_looked_at(looks_on);
    }

    /// Returns how many replicas of the master lack nothing that it wrote longer ago than this.
    pub fn fresh_replicas(&self, lately: Duration) -> usize {
        let state = self.state();
        state.followers.fresh(&self.0.servers, state.master, lately)
    }

    /// Makes a server a replica of another one, with all of that one's data.
    pub fn follows(&self, number: usize, master: usize) {
        self.state().followers.follows(&self.0.servers, number, master);
    }

    /// Makes a replica the master.
    pub fn promote(&self, number: usize) {
        let mut state = self.state();
        state.master = number;
        state.epoch += 1;
        state.followers.promote(&self.0.servers, number);
    }

    /// Sentinels are set up anew, and count from the beginning again.
    pub fn resets_epochs(&self) {
        self.state().epoch = 0;
        for sentinel in self.sentinels() {
            sentinel.learns(|knowledge| {
                knowledge.epoch = 0;
                knowledge.set_up += 1;
            });
        }
    }

    /// A sentinel that carries a failover out knows the new master, and tells so.
    pub fn knows(&self, sentinel: usize) {
        let (master, epoch) = self.present();
        self.sentinel(sentinel).learns(|knowledge| {
            knowledge.master = master.clone();
            knowledge.epoch = epoch;
        });
        let message = format!("master {NAME} {} {}", master.host, master.port);
        self.sentinel(sentinel).tells(KNOWN, &message);
    }

    /// The failover is over for the sentinels.
    pub fn is_settled(&self) {
        let mut state = self.state();
        state.highest = state.highest.max(state.epoch);
    }

    /// A sentinel sees that the failover is over, or hears of it, and tells so.
    pub fn switches(&self, sentinel: usize) {
        let (master, epoch) = self.present();
        let mut former = None;
        self.sentinel(sentinel).learns(|knowledge| {
            let shown = std::mem::replace(&mut knowledge.shown, master.clone());
            knowledge.master = master.clone();
            knowledge.epoch = epoch;
            former = Some(shown);
        });
        let Some(former) = former else { return };
        let message = format!("{NAME} {} {} {} {}", former.host, former.port, master.host, master.port);
        self.sentinel(sentinel).tells(SWITCHED, &message);
    }

    fn present(&self) -> (Address, u64) {
        let state = self.state();
        (server_address(state.master), state.epoch)
    }
}
