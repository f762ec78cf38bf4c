//! The table of commands.

use std::sync::LazyLock;

use super::engine::{Caller, Engine};
use super::resp::Answer;
use super::version::Version;
use super::{connection, keys, membership, operator, sorted, strings};

/// Changes data.
pub const WRITE: u16 = 1;
/// Only reads data, and has its keys tracked.
pub const READ: u16 = 1 << 1;
/// May need more memory.
pub const MEMORY: u16 = 1 << 2;
/// Scripts may not use it.
pub const NO_SCRIPT: u16 = 1 << 3;
/// A replica without its master answers it.
pub const STALE: u16 = 1 << 4;
/// A server that loads its data answers it.
pub const LOADING: u16 = 1 << 5;
/// Whoever has not logged in may use it.
pub const NO_AUTH: u16 = 1 << 6;
/// A server that runs a script for too long answers it.
pub const BUSY: u16 = 1 << 7;
/// A connection of RESP2 that has subscribed may use it.
pub const SUBSCRIBED: u16 = 1 << 8;

/// The keys among a command's arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    First,
    All,
    /// As many as the second argument says, after it.
    Counted,
}

/// The channels among a command's arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    None,
    First,
    All,
}

pub type Run = fn(&mut Engine, &Caller, &[&[u8]]) -> Answer;

pub struct Command {
    /// With that of the command that it is within, as `client|id`.
    pub name: &'static str,
    /// The number of words, negative for at least so many.
    pub arity: i32,
    flags: u16,
    /// Other flags that it has before 7.0 and before 7.2, and more that it has in Valkey.
    before_7: Option<u16>,
    before_72: Option<u16>,
    in_valkey: u16,
    pub keys: Keys,
    pub channels: Channels,
    pub run: Run,
    /// Commands that are named by its second word.
    within: &'static [Command],
    /// The first release that has it.
    since: Version,
}

const fn command(name: &'static str, arity: i32, flags: u16, keys: Keys, run: Run) -> Command {
    Command {
        name,
        arity,
        flags,
        before_7: None,
        before_72: None,
        in_valkey: 0,
        keys,
        channels: Channels::None,
        run,
        within: &[],
        since: Version::Redis62,
    }
}

const CALM: u16 = STALE | LOADING;

impl Command {
    const fn on_channels(self, channels: Channels) -> Self {
        Self { channels, ..self }
    }

    /// The first release that has it.
    const fn since(self, since: Version) -> Self {
        Self { since, ..self }
    }

    /// The flags that it has before 7.0.
    const fn before_7(self, flags: u16) -> Self {
        Self {
            before_7: Some(flags),
            ..self
        }
    }

    /// The flags that it has before 7.2.
    const fn before_72(self, flags: u16) -> Self {
        Self {
            before_72: Some(flags),
            ..self
        }
    }

    /// More flags that it has in Valkey.
    const fn in_valkey(self, more: u16) -> Self {
        Self {
            in_valkey: more,
            ..self
        }
    }
}

const fn container(name: &'static str, flags_before_7: u16, within: &'static [Command]) -> Command {
    let command = command(name, -2, 0, Keys::None, operator::never);
    Command { within, ..command }.before_7(flags_before_7)
}

/// A command about the server or its connections.
const fn calm(name: &'static str, arity: i32, more: u16, run: Run) -> Command {
    command(name, arity, CALM | more, Keys::None, run)
}

static CLIENT: [Command; 9] = [
    calm("client|id", 2, NO_SCRIPT, connection::client_id).in_valkey(BUSY),
    calm("client|getname", 2, NO_SCRIPT, connection::client_getname).in_valkey(BUSY),
    calm("client|setname", 3, NO_SCRIPT, connection::client_setname).in_valkey(BUSY),
    calm("client|setinfo", 4, NO_SCRIPT, connection::client_setinfo)
        .in_valkey(BUSY)
        .since(Version::Redis8),
    calm("client|no-evict", 3, NO_SCRIPT, connection::client_switch)
        .in_valkey(BUSY)
        .since(Version::Redis70),
    calm("client|no-touch", 3, NO_SCRIPT, connection::client_switch)
        .in_valkey(BUSY)
        .since(Version::Redis8),
    calm("client|kill", -3, NO_SCRIPT, connection::client_kill),
    calm("client|tracking", -3, NO_SCRIPT, connection::client_tracking),
    calm("client|trackinginfo", 2, NO_SCRIPT, connection::client_trackinginfo),
];

static SCRIPT: [Command; 4] = [
    command("script|load", 3, STALE | NO_SCRIPT, Keys::None, operator::script_load).before_7(NO_SCRIPT),
    command("script|exists", -3, NO_SCRIPT, Keys::None, operator::script_exists).in_valkey(STALE),
    command("script|flush", -2, NO_SCRIPT, Keys::None, operator::script_flush).in_valkey(STALE),
    command("script|kill", 2, NO_SCRIPT | BUSY, Keys::None, operator::script_kill),
];

static ACL: [Command; 3] = [
    calm("acl|setuser", -3, NO_SCRIPT, operator::acl_setuser),
    calm("acl|deluser", -3, NO_SCRIPT, operator::acl_deluser),
    calm("acl|whoami", 2, NO_SCRIPT, operator::acl_whoami),
];

static CONFIG: [Command; 2] = [
    calm("config|set", -4, NO_SCRIPT, operator::config_set),
    calm("config|get", -3, NO_SCRIPT, operator::config_get),
];

/// What may be used before a login, and while a script runs for too long.
const LOGIN: u16 = NO_SCRIPT | NO_AUTH | BUSY;

static CLUSTER: [Command; 4] = [
    command("cluster|info", 2, STALE, Keys::None, membership::info).in_valkey(LOADING),
    command("cluster|slots", 2, CALM, Keys::None, membership::slots).before_72(STALE),
    command("cluster|nodes", 2, STALE, Keys::None, membership::nodes).in_valkey(LOADING),
    command("cluster|keyslot", 3, STALE, Keys::None, membership::keyslot),
];

static COMMANDS: [Command; 53] = [
    command("get", 2, READ, Keys::First, strings::get),
    command("mget", -2, READ, Keys::All, strings::mget),
    command("set", -3, WRITE | MEMORY, Keys::First, strings::set),
    command("setnx", 3, WRITE | MEMORY, Keys::First, strings::setnx),
    command("getset", 3, WRITE | MEMORY, Keys::First, strings::getset),
    command("incr", 2, WRITE | MEMORY, Keys::First, strings::incr),
    command("del", -2, WRITE, Keys::All, keys::del),
    command("unlink", -2, WRITE, Keys::All, keys::del),
    command("exists", -2, READ, Keys::All, keys::exists),
    command("type", 2, READ, Keys::First, keys::kind),
    command("ttl", 2, READ, Keys::First, keys::ttl),
    command("pttl", 2, READ, Keys::First, keys::pttl),
    command("expire", -3, WRITE, Keys::First, keys::expire),
    command("pexpire", -3, WRITE, Keys::First, keys::pexpire),
    command("pexpireat", -3, WRITE, Keys::First, keys::pexpireat),
    command("persist", 2, WRITE, Keys::First, keys::persist),
    command("scan", -2, READ, Keys::None, keys::scan),
    command("dbsize", 1, READ, Keys::None, keys::dbsize),
    command("flushall", -1, WRITE, Keys::None, keys::flushall),
    command("flushdb", -1, WRITE, Keys::None, keys::flushall),
    command("zadd", -4, WRITE | MEMORY, Keys::First, sorted::zadd),
    command("zrem", -3, WRITE, Keys::First, sorted::zrem),
    command("zscore", 3, READ, Keys::First, sorted::zscore),
    command("zcard", 2, READ, Keys::First, sorted::zcard),
    command("zrange", -4, READ, Keys::First, sorted::zrange),
    command("zrangebyscore", -4, READ, Keys::First, sorted::zrangebyscore),
    calm("time", 1, 0, connection::time),
    calm("echo", 2, 0, connection::echo).before_7(0),
    command("ping", -1, SUBSCRIBED, Keys::None, connection::ping).before_7(SUBSCRIBED | STALE),
    calm("hello", -1, LOGIN, connection::hello),
    calm("auth", -2, LOGIN, connection::auth),
    calm("select", 2, 0, connection::select).in_valkey(BUSY),
    calm("quit", -1, LOGIN | SUBSCRIBED, connection::quit),
    calm("reset", 1, LOGIN | SUBSCRIBED, connection::reset).before_7(CALM | NO_SCRIPT | BUSY | SUBSCRIBED),
    calm("subscribe", -2, NO_SCRIPT | SUBSCRIBED, connection::subscribe).on_channels(Channels::All),
    calm("unsubscribe", -1, NO_SCRIPT | SUBSCRIBED, connection::unsubscribe),
    calm("publish", 3, 0, connection::publish).on_channels(Channels::First),
    calm("ssubscribe", -2, NO_SCRIPT | SUBSCRIBED, connection::ssubscribe)
        .on_channels(Channels::All)
        .since(Version::Redis70),
    calm("sunsubscribe", -1, NO_SCRIPT | SUBSCRIBED, connection::sunsubscribe).since(Version::Redis70),
    calm("spublish", 3, 0, connection::spublish)
        .on_channels(Channels::First)
        .since(Version::Redis70),
    command("eval", -3, STALE | NO_SCRIPT, Keys::Counted, operator::eval).before_7(NO_SCRIPT),
    command("evalsha", -3, STALE | NO_SCRIPT, Keys::Counted, operator::evalsha).before_7(NO_SCRIPT),
    container("client", CALM | NO_SCRIPT, &CLIENT),
    container("script", NO_SCRIPT, &SCRIPT),
    container("acl", CALM | NO_SCRIPT, &ACL),
    container("config", CALM | NO_SCRIPT, &CONFIG),
    command("asking", 1, 0, Keys::None, membership::asking),
    container("cluster", STALE, &CLUSTER),
    command("replicaof", 3, STALE | NO_SCRIPT, Keys::None, operator::replicaof),
    calm("role", 1, NO_SCRIPT, operator::role),
    command("wait", 3, 0, Keys::None, operator::wait).before_72(NO_SCRIPT),
    calm("info", -1, 0, operator::info),
    calm("debug", -2, NO_SCRIPT, operator::debug),
];

/// The commands by the first letters of their names.
static BY_LETTER: LazyLock<[Vec<&'static Command>; 32]> = LazyLock::new(|| {
    std::array::from_fn(|at| {
        let all = COMMANDS.iter();
        all.filter(|one| letter(one.name.as_bytes()) == at).collect()
    })
});

/// Returns a number that the first letter has, small or capital.
fn letter(name: &[u8]) -> usize {
    usize::from(name.first().copied().unwrap_or_default() & 31)
}

/// Why there is no such command.
pub enum Missing {
    Command,
    /// The second word names none.
    Within,
    /// The number of words is not right for the command of this name.
    Arity(&'static str),
}

impl Command {
    /// Returns the command that these words name.
    pub fn find(words: &[&[u8]], version: Version) -> Result<&'static Self, Missing> {
        let is_named = |one: &Self, prefix: usize, word: &[u8]| {
            let name = &one.name.as_bytes()[prefix..];
            one.since <= version && word.eq_ignore_ascii_case(name)
        };
        let word = words.first().copied().unwrap_or_default();
        let alike = &BY_LETTER[letter(word)];
        let outer = alike.iter().find(|one| is_named(one, 0, word));
        let outer: &'static Self = outer.ok_or(Missing::Command)?;
        let within = words.get(1).filter(|_| !outer.within.is_empty());
        let inner = |word: &&[u8]| {
            let mut all = outer.within.iter();
            all.find(|one| is_named(one, outer.name.len() + 1, word))
        };
        let found = match within.map(inner) {
            Some(Some(inner)) if version.is_7() || inner.takes(words.len()) || inner.counts_words() => inner,
            // Before 7.0, it is the outer command that finds out.
            Some(_) if version.is_7() => return Err(Missing::Within),
            _ => outer,
        };
        if !found.takes(words.len()) && (version.is_7() || !found.counts_words()) {
            return Err(Missing::Arity(found.name));
        }
        Ok(found)
    }

    /// Before 7.0, this command counts its words by itself.
    fn counts_words(&self) -> bool {
        self.name == "client|kill"
    }

    fn takes(&self, words: usize) -> bool {
        let words = i32::try_from(words).unwrap_or(i32::MAX);
        if self.arity < 0 {
            words >= -self.arity
        } else {
            words == self.arity
        }
    }

    /// Returns the flags that the command has in this version.
    pub fn flags(&self, version: Version) -> u16 {
        match version {
            Version::Redis62 => self.before_7.or(self.before_72).unwrap_or(self.flags),
            Version::Redis70 => self.before_72.unwrap_or(self.flags),
            Version::Valkey9 => self.flags | self.in_valkey,
            _ => self.flags,
        }
    }

    /// Returns all commands that this version has, each with its name.
    pub fn all(version: Version) -> impl Iterator<Item = &'static Self> {
        let inner = COMMANDS.iter().flat_map(|command| command.within);
        COMMANDS.iter().chain(inner).filter(move |one| one.since <= version)
    }

    /// Returns `true` if its second word names the command.
    pub fn is_container(&self) -> bool {
        !self.within.is_empty()
    }

    pub fn is(&self, flag: u16, version: Version) -> bool {
        self.flags(version) & flag != 0
    }

    /// Returns the keys among the words of such a command.
    pub fn keys<'a, 'b>(&self, words: &'a [&'b [u8]]) -> &'a [&'b [u8]] {
        let keys = match self.keys {
            Keys::None => None,
            Keys::First => words.get(1..2),
            Keys::All => words.get(1..),
            Keys::Counted => {
                let count = words.get(2).and_then(|count| super::number::integer(count));
                let count = count.and_then(|count| usize::try_from(count).ok());
                count.and_then(|count| words.get(3..)?.get(..count))
            }
        };
        keys.unwrap_or_default()
    }

    /// Returns the channels among the words of such a command.
    pub fn channels<'a, 'b>(&self, words: &'a [&'b [u8]]) -> &'a [&'b [u8]] {
        let channels = match self.channels {
            Channels::None => None,
            Channels::First => words.get(1..2),
            Channels::All => words.get(1..),
        };
        channels.unwrap_or_default()
    }
}
