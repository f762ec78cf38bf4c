//! Commands about the connection itself: who it is, what it hears, what it is told.

use std::collections::BTreeSet;

use super::engine::{Caller, Engine, Session};
use super::number;
use super::resp::{Answer, Reply};
use super::strings::integer;

fn syntax() -> Reply {
    Reply::error("ERR syntax error")
}

impl Engine {
    fn session(&mut self, caller: &Caller) -> Result<&mut Session, Reply> {
        let session = self.sessions.get_mut(&caller.id);
        session.ok_or_else(|| Reply::error("ERR the connection has ended"))
    }

    fn log_in(&mut self, caller: &Caller, user: &[u8], password: &[u8]) -> Answer {
        let user = String::from_utf8_lossy(user).into_owned();
        if !self.users.get(&user).is_some_and(|user| user.lets_in(password)) {
            return Err(Reply::error(
                "WRONGPASS invalid username-password pair or user is disabled.",
            ));
        }
        let session = self.session(caller)?;
        (session.user, session.is_in) = (user, true);
        Ok(Reply::ok())
    }
}

pub fn time(engine: &mut Engine, _: &Caller, _: &[&[u8]]) -> Answer {
    let now = engine.now();
    Ok(Reply::Array(vec![
        Reply::text(&now.as_secs().to_string()),
        Reply::text(&now.subsec_micros().to_string()),
    ]))
}

pub fn echo(_: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    Ok(Reply::Bulk(words[1].to_vec()))
}

pub fn ping(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    if words.len() > 2 {
        return Err(Reply::error("ERR wrong number of arguments for 'ping' command"));
    }
    let said = words.get(1).map(|word| word.to_vec());
    if !caller.is_3 && engine.session(caller)?.has_subscribed() {
        return Ok(Reply::Array(vec![
            Reply::text("pong"),
            Reply::Bulk(said.unwrap_or_default()),
        ]));
    }
    Ok(said.map_or(Reply::Status("PONG".to_owned()), Reply::Bulk))
}

pub fn hello(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let mut protocol = None;
    if let Some(word) = words.get(1) {
        let asked = number::integer(word)
            .ok_or_else(|| Reply::error("ERR Protocol version is not an integer or out of range"))?;
        if !(2..=3).contains(&asked) {
            return Err(Reply::error("NOPROTO unsupported protocol version"));
        }
        protocol = Some(asked == 3);
    }
    let mut options = words.get(2..).unwrap_or_default();
    let mut name = None;
    while let [option, rest @ ..] = options {
        match (option.to_ascii_uppercase().as_slice(), rest) {
            (b"AUTH", [user, password, rest @ ..]) => {
                engine.log_in(caller, user, password)?;
                options = rest;
            }
            (b"SETNAME", [new, rest @ ..]) => {
                name = Some(new.to_vec());
                options = rest;
            }
            _ => {
                let option = String::from_utf8_lossy(option);
                return Err(Reply::error(format!("ERR Syntax error in HELLO option '{option}'")));
            }
        }
    }
    if !engine.session(caller)?.is_in {
        return Err(Reply::error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to \
             authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    let session = engine.session(caller)?;
    session.name = name.unwrap_or_else(|| session.name.clone());
    session.is_3 = protocol.unwrap_or(session.is_3);
    let (product, version, module) = engine.version.greeting();
    let proto = if engine.session(caller)?.is_3 { 3 } else { 2 };
    let role = if engine.state.follows.is_some() {
        "replica"
    } else {
        "master"
    };
    let text = Reply::text;
    let modules = module.map(|[name, path]| {
        Reply::Map(vec![
            (text("name"), text(name)),
            (text("ver"), Reply::Int(1)),
            (text("path"), text(path)),
            (text("args"), Reply::Array(Vec::new())),
        ])
    });
    let is_sentinel = engine.watches.is_some();
    let mode = match engine.membership {
        _ if is_sentinel => "sentinel",
        Some(_) => "cluster",
        None => "standalone",
    };
    let mut said = vec![
        (text("server"), text(product)),
        (text("version"), text(version)),
        (text("proto"), Reply::Int(proto)),
        (text("id"), Reply::Int(i64::try_from(caller.id).unwrap_or_default())),
        (text("mode"), text(mode)),
        (text("role"), text(role)),
        (text("modules"), Reply::Array(modules.into_iter().collect())),
    ];
    if is_sentinel {
        said.retain(|(field, _)| *field != text("role"));
    }
    Ok(Reply::Map(said))
}

pub fn auth(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    match words {
        [_, password] => {
            if engine.users.get("default").is_some_and(|user| !user.needs_password()) {
                return Err(Reply::error(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
                ));
            }
            engine.log_in(caller, b"default", password)
        }
        [_, user, password] => engine.log_in(caller, user, password),
        _ => Err(syntax()),
    }
}

pub fn select(_: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    match integer(words[1])? {
        0 => Ok(Reply::ok()),
        // The engine has one database.
        _ => Err(Reply::error("ERR DB index is out of range")),
    }
}

pub fn quit(engine: &mut Engine, caller: &Caller, _: &[&[u8]]) -> Answer {
    engine.session(caller)?.is_ending = true;
    Ok(Reply::ok())
}

pub fn reset(engine: &mut Engine, caller: &Caller, _: &[&[u8]]) -> Answer {
    let needs_password = engine.users.get("default").is_none_or(super::acl::User::needs_password);
    engine.session(caller)?.reset(!needs_password);
    Ok(Reply::Status("RESET".to_owned()))
}

/// The messages that a connection hears: usual ones, or those of a shard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Usual,
    Sharded,
}

impl Kind {
    fn channels(self, session: &mut Session) -> &mut BTreeSet<Vec<u8>> {
        match self {
            Self::Usual => &mut session.channels,
            Self::Sharded => &mut session.shard_channels,
        }
    }
}

fn hear(engine: &mut Engine, caller: &Caller, words: &[&[u8]], kind: Kind, what: &str) -> Answer {
    for channel in &words[1..] {
        let channels = kind.channels(engine.session(caller)?);
        channels.insert(channel.to_vec());
        let count = channels.len();
        said(engine, caller, what, Reply::Bulk(channel.to_vec()), count);
    }
    Ok(Reply::None)
}

fn unhear(engine: &mut Engine, caller: &Caller, words: &[&[u8]], kind: Kind, what: &str) -> Answer {
    let named: Vec<Vec<u8>> = match &words[1..] {
        [] => kind.channels(engine.session(caller)?).iter().cloned().collect(),
        named => named.iter().map(|channel| channel.to_vec()).collect(),
    };
    if named.is_empty() {
        said(engine, caller, what, Reply::Nil, 0);
    }
    for channel in named {
        let channels = kind.channels(engine.session(caller)?);
        channels.remove(&channel);
        let count = channels.len();
        said(engine, caller, what, Reply::Bulk(channel), count);
    }
    Ok(Reply::None)
}

pub fn subscribe(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    hear(engine, caller, words, Kind::Usual, "subscribe")
}

pub fn unsubscribe(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    unhear(engine, caller, words, Kind::Usual, "unsubscribe")
}

pub fn ssubscribe(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    hear(engine, caller, words, Kind::Sharded, "ssubscribe")
}

pub fn sunsubscribe(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    unhear(engine, caller, words, Kind::Sharded, "sunsubscribe")
}

fn said(engine: &mut Engine, caller: &Caller, what: &str, channel: Reply, count: usize) {
    engine.send(
        caller.id,
        &Reply::Push(vec![Reply::text(what), channel, Reply::count(count)]),
    );
}

pub fn publish(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    Ok(Reply::count(engine.publish(words[1], words[2], false)))
}

pub fn spublish(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    Ok(Reply::count(engine.publish(words[1], words[2], true)))
}

pub fn client_id(_: &mut Engine, caller: &Caller, _: &[&[u8]]) -> Answer {
    Ok(Reply::Int(i64::try_from(caller.id).unwrap_or_default()))
}

pub fn client_getname(engine: &mut Engine, caller: &Caller, _: &[&[u8]]) -> Answer {
    let name = engine.session(caller)?.name.clone();
    Ok(if name.is_empty() { Reply::Nil } else { Reply::Bulk(name) })
}

pub fn client_setname(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    if !words[2].iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(Reply::error(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    engine.session(caller)?.name = words[2].to_vec();
    Ok(Reply::ok())
}

pub fn client_setinfo(_: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let option = words[2].to_ascii_lowercase();
    if option != b"lib-name" && option != b"lib-ver" {
        let option = String::from_utf8_lossy(words[2]);
        return Err(Reply::error(format!("ERR Unrecognized option '{option}'")));
    }
    if !words[3].iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        let option = String::from_utf8_lossy(&option).into_owned();
        return Err(Reply::error(format!(
            "ERR {option} cannot contain spaces, newlines or special characters."
        )));
    }
    Ok(Reply::ok())
}

/// Switches something on or off that the engine does not do: it evicts no client, and no key.
pub fn client_switch(_: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    match words[2].to_ascii_lowercase().as_slice() {
        b"on" | b"off" => Ok(Reply::ok()),
        _ => Err(syntax()),
    }
}

pub fn client_tracking(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let mut no_loop = false;
    for option in &words[3..] {
        if !option.eq_ignore_ascii_case(b"NOLOOP") {
            return Err(syntax());
        }
        no_loop = true;
    }
    let session = engine.session(caller)?;
    session.tracking = match words[2].to_ascii_lowercase().as_slice() {
        b"on" => Some(no_loop),
        b"off" => None,
        _ => return Err(syntax()),
    };
    Ok(Reply::ok())
}

pub fn client_trackinginfo(engine: &mut Engine, caller: &Caller, _: &[&[u8]]) -> Answer {
    let tracking = engine.session(caller)?.tracking;
    let flags = match tracking {
        None => vec!["off"],
        Some(false) => vec!["on"],
        Some(true) => vec!["on", "noloop"],
    };
    let redirect = if tracking.is_some() { 0 } else { -1 };
    Ok(Reply::Map(vec![
        (
            Reply::text("flags"),
            Reply::Set(flags.into_iter().map(Reply::text).collect()),
        ),
        (Reply::text("redirect"), Reply::Int(redirect)),
        (Reply::text("prefixes"), Reply::Array(Vec::new())),
    ]))
}

pub fn client_kill(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let filters = &words[2..];
    if filters.len() == 1 {
        // No connection has an address.
        return Err(Reply::error("ERR No such client"));
    }
    if filters.is_empty() || !filters.len().is_multiple_of(2) {
        return Err(syntax());
    }
    let (mut only, mut skips_me, mut has_subscribed, mut user) = (None, true, None, None);
    for pair in filters.chunks_exact(2) {
        let told = String::from_utf8_lossy(pair[1]).into_owned();
        match pair[0].to_ascii_uppercase().as_slice() {
            b"ID" => only = Some(connection_id(engine, pair[1])?),
            b"TYPE" => {
                has_subscribed = Some(match told.to_lowercase().as_str() {
                    "normal" => false,
                    "pubsub" => true,
                    _ => return Err(Reply::error(format!("ERR Unknown client type '{told}'"))),
                });
            }
            b"USER" if engine.users.contains_key(&told) => user = Some(told),
            b"USER" => return Err(Reply::error(format!("ERR No such user '{told}'"))),
            b"SKIPME" => {
                skips_me = match told.to_lowercase().as_str() {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(syntax()),
                }
            }
            _ => return Err(syntax()),
        }
    }
    let all = engine.sessions.iter().filter(|(id, session)| {
        **id != super::engine::OPERATOR
            && only.is_none_or(|only| only == **id)
            && !(skips_me && **id == caller.id)
            && has_subscribed.is_none_or(|has| has == session.has_subscribed())
            && user.as_ref().is_none_or(|user| *user == session.user)
    });
    let all: Vec<u64> = all.map(|(id, _)| *id).collect();
    for id in &all {
        if *id == caller.id {
            engine.session(caller)?.is_ending = true;
        } else {
            engine.close(*id);
        }
    }
    Ok(Reply::count(all.len()))
}

fn connection_id(engine: &Engine, word: &[u8]) -> Result<u64, Reply> {
    use super::version::Version;
    let id = number::integer(word);
    match engine.version {
        Version::Redis62 => id.ok_or_else(|| Reply::error("ERR value is not an integer or out of range")),
        Version::Valkey9 => id.filter(|id| *id > 0).ok_or_else(syntax),
        _ => id
            .filter(|id| *id > 0)
            .ok_or_else(|| Reply::error("ERR client-id should be greater than 0")),
    }
    .map(|id| u64::try_from(id).unwrap_or(u64::MAX))
}
