//! The nodes of a cluster: masters that have the slots, and a replica of each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::followers::{Followers, Steps};
use crate::sentinel::Address;
use crate::server::Server;
use crate::server::data::Value;
use crate::server::engine::Engine;
use crate::server::membership::{Membership, SLOTS, slot_of};
use crate::server::resp::Reply;
use crate::server::version::Version;
use crate::trace::Trace;

/// How many masters there are.
pub const MASTERS: usize = 3;
/// How many nodes there are. Each of the first ones is a master, and has a replica among the others.
pub const NODES: usize = 2 * MASTERS;

/// Nodes. Clones are one cluster.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    nodes: Vec<Server>,
    state: Mutex<State>,
    steps: Steps,
}

/// What is the case, whether or not nodes know it yet.
struct State {
    owners: Vec<usize>,
    masters: Vec<Option<usize>>,
    epoch: u64,
    /// The epoch of each node's configuration.
    epochs: Vec<u64>,
    /// The slots that are on their way, and where to.
    moving: BTreeMap<u16, usize>,
    followers: Followers,
    /// The node that the others do not hear.
    apart: Option<usize>,
    /// The nodes that are told what is the case, and when.
    news: Vec<(Instant, usize)>,
}

/// Returns the address of a node by its number.
pub fn node_address(number: usize) -> Address {
    Address {
        host: format!("n{}", number + 1),
        port: 6379,
    }
}

impl Cluster {
    /// Makes a cluster whose masters have a third of the slots each, but some that are given to others; each node's clock is ahead by so much.
    pub fn new(version: Version, trace: &Trace, ahead: &[Duration], given: &[(u16, usize)]) -> Self {
        let nodes = Server::several(version, trace, ahead);
        let mut owners: Vec<usize> = (0..usize::from(SLOTS))
            .map(|slot| slot * MASTERS / usize::from(SLOTS))
            .collect();
        for (slot, to) in given {
            owners[usize::from(*slot)] = *to;
        }
        let masters: Vec<Option<usize>> = (0..NODES).map(|at| at.checked_sub(MASTERS)).collect();
        for (me, node) in nodes.iter().enumerate() {
            let membership = Membership {
                me,
                addresses: (0..NODES).map(node_address).collect(),
                owners: owners.clone(),
                masters: masters.clone(),
                epoch: 1,
                epochs: vec![1; NODES],
                is_down: false,
                migrating: BTreeMap::new(),
                importing: BTreeMap::new(),
                published: Vec::new(),
            };
            node.change(|engine| engine.membership = Some(membership));
        }
        let mut followers = Followers::new(NODES);
        for (number, master) in masters.iter().enumerate() {
            if let Some(master) = master {
                followers.follows(&nodes, number, *master);
            }
        }
        let cluster = Self(Arc::new(Inner {
            nodes,
            state: Mutex::new(State {
                owners,
                masters,
                epoch: 1,
                epochs: vec![1; NODES],
                moving: BTreeMap::new(),
                followers,
                apart: None,
                news: Vec::new(),
            }),
            steps: Steps::default(),
        }));
        cluster.0.steps.begin(&cluster.0, |cluster| {
            let cluster = Self(cluster);
            cluster.step();
            cluster.0.steps.look();
            let nodes = cluster.nodes().iter();
            nodes.filter(|node| !node.is_frozen()).for_each(Server::counts_replicas);
        });
        cluster
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes take in what their masters have written, and tell each other what was published and what has changed.
    fn step(&self) {
        let mut state = self.state();
        let nodes = &self.0.nodes;
        let apart = state.apart;
        state.followers.take_in(nodes, |of| apart == Some(of));
        for (from, node) in nodes.iter().enumerate() {
            if node.is_frozen() {
                continue;
            }
            let published = node.member(|membership| std::mem::take(&mut membership.published));
            for (channel, message) in published {
                for (to, other) in nodes.iter().enumerate() {
                    let is_reached = from == to || apart != Some(from) && apart != Some(to);
                    if from != to && is_reached && other.is_there() {
                        other.change(|engine| engine.publish(&channel, &message, false));
                        other.member(|membership| membership.published.pop());
                    }
                }
            }
        }
        let news = std::mem::take(&mut state.news);
        for (at, number) in news {
            let is_able = apart != Some(number) && nodes[number].is_there() && !nodes[number].is_frozen();
            if at.elapsed().is_zero() || !is_able {
                state.news.push((at, number));
            } else {
                self.tell(&state, number);
            }
        }
    }

    /// Tells a node what is the case.
    fn tell(&self, state: &State, number: usize) {
        self.0.nodes[number].member(|membership| {
            membership.owners.clone_from(&state.owners);
            membership.masters.clone_from(&state.masters);
            membership.epoch = state.epoch;
            membership.epochs.clone_from(&state.epochs);
            membership.is_down = false;
            let (me, owners) = (membership.me, &membership.owners);
            membership.migrating.retain(|slot, _| owners[usize::from(*slot)] == me);
            membership.importing.retain(|slot, _| owners[usize::from(*slot)] != me);
        });
        self.0.nodes[number].change(Engine::end_subscriptions);
    }

    /// Tells a node at once, and the others within so much time each.
    fn spread(&self, state: &mut State, first: usize, mut after: impl FnMut() -> Duration) {
        self.tell(state, first);
        let now = Instant::now();
        state.news.retain(|(_, number)| *number != first);
        for number in (0..NODES).filter(|number| *number != first) {
            state.news.push((now + after(), number));
        }
    }

    /// Returns `true` if each node that is there knows what is the case.
    pub fn is_known(&self) -> bool {
        let state = self.state();
        let mut waiting = state.news.iter();
        !waiting.any(|(_, number)| self.0.nodes[*number].is_there())
    }

    /// Returns all nodes with their addresses.
    pub fn places(&self) -> Vec<(Address, Server)> {
        let nodes = self.0.nodes.iter().cloned().enumerate();
        nodes.map(|(at, node)| (node_address(at), node)).collect()
    }

    pub fn node(&self, number: usize) -> &Server {
        &self.0.nodes[number]
    }

    pub fn nodes(&self) -> &[Server] {
        &self.0.nodes
    }

    /// Returns the numbers of the masters.
    pub fn masters(&self) -> Vec<usize> {
        let state = self.state();
        (0..NODES).filter(|number| state.masters[*number].is_none()).collect()
    }

    /// Returns the number of the master that has a slot.
    pub fn owner(&self, slot: u16) -> usize {
        self.state().owners[usize::from(slot)]
    }

    /// Returns the node that has a key, which may be on its way.
    pub fn server_of(&self, key: &[u8]) -> &Server {
        let slot = slot_of(key);
        let state = self.state();
        let owner = &self.0.nodes[state.owners[usize::from(slot)]];
        let has = |node: &Server| node.read(|engine| engine.data.get(key).is_some());
        match state.moving.get(&slot).map(|to| &self.0.nodes[*to]) {
            Some(target) if !has(owner) && has(target) => target,
            _ => owner,
        }
    }

    /// Returns a replica of a master that is there.
    pub fn replica_of(&self, master: usize) -> Option<usize> {
        let state = self.state();
        (0..NODES).find(|number| state.followers.of(*number) == Some(master) && self.node(*number).is_there())
    }

    /// Tells somebody of each step of the replicas.
    pub fn is_looked_at(&self, looks_on: impl Fn() + Send + Sync + 'static) {
        self.0.steps.are_looked_at(looks_on);
    }

    /// Returns how many replicas each master has at least that lack nothing that it wrote longer ago than this.
    pub fn fresh_replicas(&self, lately: Duration) -> usize {
        let state = self.state();
        let masters = (0..NODES).filter(|number| state.masters[*number].is_none());
        let of = |master| match state.apart {
            Some(apart) if apart == master => 0,
            _ => state.followers.fresh(&self.0.nodes, master, lately),
        };
        masters.map(of).min().unwrap_or_default()
    }

    /// Sets how old the data of all replicas are.
    pub fn lags(&self, lag: Duration) {
        self.state().followers.lags(lag);
    }

    /// The others do not hear this node any more, or all hear each other.
    pub fn is_apart(&self, apart: Option<usize>) {
        self.state().apart = apart;
    }

    /// A node reaches too few of the others.
    pub fn is_down(&self, number: usize) {
        self.node(number).member(|membership| membership.is_down = true);
    }
}

/// What came of moving a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyMove {
    Done,
    /// The target takes no writes.
    Refused,
    /// There is no key in the slot.
    NoneLeft,
}

/// Slots that move.
impl Cluster {
    /// Begins to move a slot: what is not at its owner is looked for at the target.
    pub fn opens(&self, slot: u16, to: usize) {
        let mut state = self.state();
        let from = state.owners[usize::from(slot)];
        state.moving.insert(slot, to);
        self.node(to)
            .member(|membership| membership.importing.insert(slot, from));
        self.node(from)
            .member(|membership| membership.migrating.insert(slot, to));
    }

    /// Moves one of the keys in a slot that is being moved.
    pub fn moves_one(&self, slot: u16, nth: usize) -> KeyMove {
        let state = self.state();
        let Some(to) = state.moving.get(&slot).copied() else {
            return KeyMove::NoneLeft;
        };
        let (source, target) = (self.node(state.owners[usize::from(slot)]), self.node(to));
        let keys: Vec<Vec<u8>> = source.read(|engine| {
            let keys = engine.data.keys().filter(|key| slot_of(key) == slot);
            keys.cloned().collect()
        });
        let Some(key) = keys.get(nth % keys.len().max(1)) else {
            return KeyMove::NoneLeft;
        };
        let (value, expires) = source.read(|engine| (engine.data.get(key).cloned(), engine.data.expires(key)));
        let left = expires.map(|at| at - i64::try_from(source.now().as_millis()).unwrap_or(i64::MAX));
        let is_over = left.is_some_and(|left| left <= 0);
        if let Some(value) = value.filter(|_| !is_over) {
            let said = match value {
                Value::Text(text) => target.says(&[b"SET", key, &text]),
                Value::Sorted(members) => {
                    let scored: Vec<(String, Vec<u8>)> = members
                        .in_order()
                        .map(|(member, score)| (format!("{score}"), member.clone()))
                        .collect();
                    let mut words: Vec<&[u8]> = vec![b"ZADD", key];
                    for (score, member) in &scored {
                        words.extend([score.as_bytes(), member]);
                    }
                    target.says(&words)
                }
            };
            if matches!(said, Reply::Error(_)) {
                return KeyMove::Refused;
            }
            if let Some(left) = left {
                target.says(&[b"PEXPIRE", key, left.to_string().as_bytes()]);
            }
        }
        source.says(&[b"DEL", key]);
        KeyMove::Done
    }

    /// The target has the slot from now on. The source learns of it after `gap`, until which it points to the target for each key, and the others
    /// after so much time each.
    pub fn closes(&self, slot: u16, gap: Duration, after: impl FnMut() -> Duration) {
        let mut state = self.state();
        let Some(to) = state.moving.remove(&slot) else { return };
        let from = std::mem::replace(&mut state.owners[usize::from(slot)], to);
        state.epoch += 1;
        state.epochs[to] = state.epoch;
        self.spread(&mut state, to, after);
        if gap.is_zero() {
            state.news.retain(|(_, number)| *number != from);
            self.tell(&state, from);
        } else {
            let at = Instant::now() + gap;
            let its = state.news.iter_mut().filter(|(_, number)| *number == from);
            its.for_each(|(due, _)| *due = at);
        }
    }
}

/// Nodes that take over.
impl Cluster {
    /// A replica has all that its master has written.
    pub fn catches_up(&self, replica: usize) {
        self.state().followers.catch_up(&self.0.nodes, replica);
    }

    /// Makes a replica the master of its shard, and lets the others learn of it after so much time each.
    pub fn promotes(&self, replica: usize, after: impl FnMut() -> Duration) {
        let mut state = self.state();
        let Some(former) = state.followers.of(replica) else {
            return;
        };
        state.followers.promote(&self.0.nodes, replica);
        for owner in state.owners.iter_mut().filter(|owner| **owner == former) {
            *owner = replica;
        }
        state.masters[replica] = None;
        state.masters[former] = Some(replica);
        state.epoch += 1;
        state.epochs[replica] = state.epoch;
        self.spread(&mut state, replica, after);
    }

    /// A former master follows the node that has taken over from it.
    pub fn demotes(&self, former: usize) {
        let mut state = self.state();
        if let Some(master) = state.masters[former] {
            state.followers.follows(&self.0.nodes, former, master);
            state.news.retain(|(_, number)| *number != former);
            self.tell(&state, former);
        }
    }
}

impl Server {
    /// Changes what a node of a cluster knows.
    fn member<T: Default>(&self, change: impl FnOnce(&mut Membership) -> T) -> T {
        self.change(|engine| engine.membership.as_mut().map(change).unwrap_or_default())
    }
}
