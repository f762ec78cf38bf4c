//! A node of a cluster, as it sees the others: who has which slot, and which slots are on their way.

use std::collections::BTreeMap;

use super::command::Command;
use super::engine::{Caller, Engine, OPERATOR};
use super::resp::{Answer, Reply};
use super::version::Version;
use crate::sentinel::Address;

/// The number of slots.
pub const SLOTS: u16 = 16_384;

/// What a node knows. Nodes have numbers, that are the same for all.
#[derive(Clone)]
pub struct Membership {
    pub me: usize,
    pub addresses: Vec<Address>,
    /// The node that has each slot.
    pub owners: Vec<usize>,
    /// The master of each node, or `None` for one that is a master.
    pub masters: Vec<Option<usize>>,
    /// The epoch of the cluster, which grows when slots change hands.
    pub epoch: u64,
    /// The epoch of each node's configuration.
    pub epochs: Vec<u64>,
    /// It does not reach most of the others.
    pub is_down: bool,
    /// The slots that are on their way to another node, or from another one.
    pub migrating: BTreeMap<u16, usize>,
    pub importing: BTreeMap<u16, usize>,
    /// What was published here, for the others.
    pub published: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Returns the slot of a key: that of what is in its first braces, if anything is.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % SLOTS
}

impl Membership {
    /// Returns the ranges of slots, with the node that has them.
    fn ranges(&self) -> Vec<(u16, u16, usize)> {
        let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
        for (slot, owner) in (0..).zip(&self.owners) {
            match ranges.last_mut() {
                Some((_, last, of)) if of == owner => *last = slot,
                _ => ranges.push((slot, slot, *owner)),
            }
        }
        ranges
    }

    fn moved(&self, slot: u16) -> Reply {
        let Address { host, port } = &self.addresses[self.owners[usize::from(slot)]];
        Reply::error(format!("MOVED {slot} {host}:{port}"))
    }
}

impl Engine {
    /// Returns the answer to a command whose keys this node of a cluster does not serve.
    pub(super) fn redirected(&self, caller: &Caller, command: &Command, words: &[&[u8]]) -> Option<Reply> {
        let membership = self.membership.as_ref().filter(|_| caller.id != OPERATOR)?;
        let channels = sharded(command, words);
        let keys = if channels.is_empty() {
            command.keys(words)
        } else {
            channels
        };
        let slot = slot_of(keys.first()?);
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Some(Reply::error("CROSSSLOT Keys in request don't hash to the same slot"));
        }
        if membership.is_down {
            return Some(Reply::error("CLUSTERDOWN The cluster is down"));
        }
        let is_asking = self.sessions.get(&caller.id).is_some_and(|session| session.is_asking);
        // A channel is never missing.
        let missing = keys
            .iter()
            .filter(|key| channels.is_empty() && !self.is_there(key))
            .count();
        let split = || Reply::error("TRYAGAIN Multiple keys request during rehashing of slot");
        if membership.owners[usize::from(slot)] == membership.me {
            let to = membership.migrating.get(&slot).filter(|_| missing > 0)?;
            if missing < keys.len() && self.version != Version::Redis62 {
                return Some(split());
            }
            let Address { host, port } = &membership.addresses[*to];
            return Some(Reply::error(format!("ASK {slot} {host}:{port}")));
        }
        if is_asking && membership.importing.contains_key(&slot) {
            return (keys.len() > 1 && missing > 0).then(split);
        }
        Some(membership.moved(slot))
    }

    /// Returns `true` if a script may not use these keys, that are not those of its slot, or are not
    /// here while the slot is on its way to another node.
    pub(super) fn is_elsewhere(&self, command: &Command, words: &[&[u8]], slot: Option<u16>) -> bool {
        let Some(membership) = &self.membership else {
            return false;
        };
        let moves = slot.is_some_and(|slot| membership.migrating.contains_key(&slot));
        let keys = command.keys(words);
        let is_other = |key: &[u8]| Some(slot_of(key)) != slot;
        sharded(command, words).iter().any(|channel| is_other(channel))
            || keys.iter().any(|key| is_other(key) || moves && !self.is_there(key))
    }

    /// Ends the subscriptions to sharded channels whose slots are another node's by now.
    pub fn end_subscriptions(&mut self) {
        let Some(membership) = &self.membership else { return };
        let is_elsewhere = |channel: &[u8]| membership.owners[usize::from(slot_of(channel))] != membership.me;
        let mut ended = Vec::new();
        for (id, session) in &mut self.sessions {
            let channels: Vec<_> = session.shard_channels.iter().cloned().collect();
            for channel in channels {
                if is_elsewhere(&channel) {
                    session.shard_channels.remove(&channel);
                    ended.push((*id, channel, session.shard_channels.len()));
                }
            }
        }
        for (id, channel, left) in ended {
            let said = vec![Reply::text("sunsubscribe"), Reply::Bulk(channel), Reply::count(left)];
            self.send(id, &Reply::Push(said));
        }
    }

    /// Returns the number of sharded channels that connections listen to.
    #[must_use]
    pub fn shard_channels(&self) -> usize {
        self.sessions.values().map(|session| session.shard_channels.len()).sum()
    }

    /// Returns the connections that listen to sharded channels.
    #[must_use]
    pub fn shard_listeners(&self) -> Vec<u64> {
        let listen = self
            .sessions
            .iter()
            .filter(|(_, session)| !session.shard_channels.is_empty());
        listen.map(|(id, _)| *id).collect()
    }

    fn is_there(&self, key: &[u8]) -> bool {
        self.data.get(key).is_some() && !self.data.is_over(key, self.ms())
    }
}

/// Returns the sharded channels among a command's words.
fn sharded<'a, 'b>(command: &Command, words: &'a [&'b [u8]]) -> &'a [&'b [u8]] {
    match command.name {
        "ssubscribe" => &words[1..],
        "spublish" => &words[1..2],
        _ => &[],
    }
}

pub fn asking(engine: &mut Engine, caller: &Caller, _: &[&[u8]]) -> Answer {
    if engine.membership.is_none() {
        return Err(alone());
    }
    if let Some(session) = engine.sessions.get_mut(&caller.id) {
        session.is_asking = true;
    }
    Ok(Reply::ok())
}

fn alone() -> Reply {
    Reply::error("ERR This instance has cluster support disabled")
}

pub fn info(engine: &mut Engine, _: &Caller, _: &[&[u8]]) -> Answer {
    let membership = engine.membership.as_ref().ok_or_else(alone)?;
    let state = if membership.is_down { "fail" } else { "ok" };
    let nodes = membership.addresses.len();
    Ok(Reply::text(&format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_known_nodes:{nodes}\r\ncluster_current_epoch:{}\r\n",
        membership.epoch
    )))
}

pub fn slots(engine: &mut Engine, _: &Caller, _: &[&[u8]]) -> Answer {
    let membership = engine.membership.as_ref().ok_or_else(alone)?;
    let node = |number: usize| {
        let Address { host, port } = &membership.addresses[number];
        Reply::Array(vec![
            Reply::text(host),
            Reply::Int(i64::from(*port)),
            Reply::text(&format!("{number:040x}")),
        ])
    };
    let rows = membership.ranges().into_iter().map(|(first, last, owner)| {
        let replicas = (0..membership.masters.len()).filter(|number| membership.masters[*number] == Some(owner));
        let mut row = vec![Reply::Int(i64::from(first)), Reply::Int(i64::from(last)), node(owner)];
        row.extend(replicas.map(node));
        Reply::Array(row)
    });
    Ok(Reply::Array(rows.collect()))
}

pub fn nodes(engine: &mut Engine, _: &Caller, _: &[&[u8]]) -> Answer {
    let membership = engine.membership.as_ref().ok_or_else(alone)?;
    let mut text = String::new();
    for (number, Address { host, port }) in membership.addresses.iter().enumerate() {
        let myself = if number == membership.me { "myself," } else { "" };
        let (role, master) = match membership.masters[number] {
            None => ("master", "-".to_owned()),
            Some(master) => ("slave", format!("{master:040x}")),
        };
        let epoch = membership.epochs[membership.masters[number].unwrap_or(number)];
        let bus = port + 10_000;
        text += &format!("{number:040x} {host}:{port}@{bus} {myself}{role} {master} 0 0 {epoch} connected");
        for (first, last, owner) in membership.ranges() {
            if owner == number {
                text += &format!(" {first}-{last}");
            }
        }
        text.push('\n');
    }
    Ok(Reply::text(&text))
}

pub fn keyslot(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    engine.membership.as_ref().ok_or_else(alone)?;
    Ok(Reply::Int(i64::from(slot_of(words[2]))))
}
