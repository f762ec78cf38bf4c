//! Connections, as the engine knows them: what each hears, and what is to be sent to it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::Engine;
use crate::server::acl::User;
use crate::server::resp::Reply;

/// The connection of the operator, that is no connection.
pub const OPERATOR: u64 = 0;

/// How many bytes may wait to be sent to one connection. It is ended with more, or if they were more than `soft` for so
/// many seconds. 0 for any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    pub hard: usize,
    pub soft: usize,
    pub seconds: u64,
}

impl Limit {
    /// Returns the limit that a connection has at first which has subscribed.
    pub fn of_subscribers() -> Self {
        Self {
            hard: 32 << 20,
            soft: 8 << 20,
            seconds: 60,
        }
    }
}

/// One connection.
pub struct Session {
    pub is_3: bool,
    pub name: Vec<u8>,
    pub user: String,
    pub is_in: bool,
    pub channels: BTreeSet<Vec<u8>>,
    pub shard_channels: BTreeSet<Vec<u8>>,
    /// It is told of changes of keys that it has read; `true` if not of its own.
    pub tracking: Option<bool>,
    /// It ends once what is to be sent has been sent.
    pub is_ending: bool,
    /// Its next command is for a slot that is on its way here.
    pub is_asking: bool,
    /// It waits for replicas, and has sent these commands since.
    pub waits_for: Option<Waiting>,
    pub(super) queued: VecDeque<Vec<Vec<u8>>>,
    /// How much had been written after its last write. 0 before it has written anything: all replicas have that.
    pub written: usize,
    out: Vec<u8>,
    /// Since when there was more to send than its soft limit.
    is_over_since: Option<Duration>,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub replicas: usize,
    /// When it has waited long enough.
    pub until: Option<Duration>,
}

/// The one who asks.
#[derive(Clone, Copy)]
pub struct Caller {
    pub id: u64,
    /// The answer is written in RESP3.
    pub is_3: bool,
}

impl Session {
    pub(super) fn new(is_in: bool) -> Self {
        Self {
            is_3: false,
            name: Vec::new(),
            user: "default".to_owned(),
            is_in,
            channels: BTreeSet::new(),
            shard_channels: BTreeSet::new(),
            tracking: None,
            is_ending: false,
            is_asking: false,
            waits_for: None,
            queued: VecDeque::new(),
            written: 0,
            out: Vec::new(),
            is_over_since: None,
        }
    }

    /// Makes it what a new connection is.
    pub fn reset(&mut self, is_in: bool) {
        let out = std::mem::take(&mut self.out);
        *self = Self {
            out,
            ..Self::new(is_in)
        };
    }

    pub fn has_subscribed(&self) -> bool {
        !self.channels.is_empty() || !self.shard_channels.is_empty()
    }
}

impl Engine {
    /// Opens a connection, and returns its number.
    pub fn open(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        let needs_password = self.users.get("default").is_none_or(User::needs_password);
        self.sessions.insert(number, Session::new(!needs_password));
        number
    }

    /// The next connections have the numbers from this one on.
    pub fn number_from(&mut self, next: u64) {
        self.next = next;
    }

    /// Ends a connection. Returns `false` if there is none.
    pub fn close(&mut self, id: u64) -> bool {
        let session = self.sessions.remove(&id);
        if session.as_ref().is_some_and(|session| session.waits_for.is_some()) {
            self.waiting -= 1;
        }
        session.is_some()
    }

    /// Takes some of what is to be sent on a connection; `None` once it has ended.
    pub fn take_out(&mut self, id: u64, most: usize) -> Option<Vec<u8>> {
        let session = self.sessions.get_mut(&id)?;
        if session.out.is_empty() && session.is_ending {
            self.close(id);
            return None;
        }
        if most >= session.out.len() {
            return Some(std::mem::take(&mut session.out));
        }
        let rest = session.out.split_off(most);
        Some(std::mem::replace(&mut session.out, rest))
    }

    /// Returns the connections that there is something to send on, or that end.
    pub fn with_output(&self) -> impl Iterator<Item = u64> {
        let all = self.sessions.iter().filter(|(id, _)| **id != OPERATOR);
        all.filter(|(_, session)| !session.out.is_empty() || session.is_ending)
            .map(|(id, _)| *id)
    }

    /// Sends something on a connection. One that does not take what it is sent is ended when that is too much.
    pub fn send(&mut self, id: u64, reply: &Reply) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&id).filter(|_| id != OPERATOR) else {
            return;
        };
        reply.write(&mut session.out, self.version, session.is_3);
        let limit = self.limits[usize::from(session.has_subscribed())];
        let is_over = |limit: usize| limit > 0 && session.out.len() > limit;
        let is_for_long = if is_over(limit.soft) {
            let since = *session.is_over_since.get_or_insert(now);
            now.saturating_sub(since) > Duration::from_secs(limit.seconds)
        } else {
            session.is_over_since = None;
            false
        };
        if is_over(limit.hard) || is_for_long {
            self.close(id);
        }
    }

    /// Sends a message to the connection whose command is carried out after its answer, or at once to another one.
    pub(super) fn push(&mut self, id: u64, push: Reply, is_after: bool) {
        match &mut self.held_back {
            _ if self.current == Some(id) && is_after => self.after.push(push),
            Some(held_back) if self.current == Some(id) => held_back.push(push),
            _ => self.send(id, &push),
        }
    }

    /// Keeps what the connection is told whose command is carried out, for a place inside the answer.
    pub fn hold_back(&mut self) {
        self.held_back = self.script.is_none().then(Vec::new);
    }

    /// Returns what was kept.
    pub fn held_back(&mut self) -> Vec<Reply> {
        self.held_back.take().unwrap_or_default()
    }

    /// Sends a message to those who hear the channel, and returns how many they are.
    pub fn publish(&mut self, channel: &[u8], message: &[u8], is_sharded: bool) -> usize {
        let hears = |session: &Session| {
            let channels = if is_sharded {
                &session.shard_channels
            } else {
                &session.channels
            };
            channels.contains(channel)
        };
        let heard = self.sessions.iter().filter(|(_, session)| hears(session));
        let heard: Vec<u64> = heard.map(|(id, _)| *id).collect();
        let (kind, command) = if is_sharded {
            ("smessage", b"SPUBLISH".as_slice())
        } else {
            ("message", b"PUBLISH".as_slice())
        };
        for id in &heard {
            let parts = vec![
                Reply::text(kind),
                Reply::Bulk(channel.to_vec()),
                Reply::Bulk(message.to_vec()),
            ];
            self.push(*id, Reply::Push(parts), self.version.is_recent());
        }
        match &mut self.membership {
            Some(membership) if !is_sharded => membership.published.push((channel.to_vec(), message.to_vec())),
            _ => self.record(&[command, channel, message]),
        }
        heard.len()
    }
}
