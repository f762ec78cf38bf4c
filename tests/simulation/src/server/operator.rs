//! Scripts, and the commands of those who look after a server.

use super::acl::User;
mod config;

use std::time::Duration;

pub use config::{config_get, config_set};

use super::engine::{Caller, Engine, Waiting};
use super::number;
use super::resp::{Answer, Reply};
use super::script;
use super::strings::integer;
use super::version::Version;

/// A container has no command of its own.
pub fn never(_: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let word = |at: usize| {
        words
            .get(at)
            .map(|word| String::from_utf8_lossy(word))
            .unwrap_or_default()
    };
    Err(Reply::error(format!(
        "ERR Unknown subcommand or wrong number of arguments for '{}'. Try {} HELP.",
        word(1),
        word(0).to_uppercase()
    )))
}

/// A script's keys, and its other arguments.
type Given<'a, 'b> = (&'a [&'b [u8]], &'a [&'b [u8]]);

fn keys_of<'a, 'b>(words: &'a [&'b [u8]]) -> Result<Given<'a, 'b>, Reply> {
    let count = integer(words[2])?;
    let rest = &words[3..];
    if count > i64::try_from(rest.len()).unwrap_or(i64::MAX) {
        return Err(Reply::error("ERR Number of keys can't be greater than number of args"));
    }
    let count = usize::try_from(count).map_err(|_| Reply::error("ERR Number of keys can't be negative"))?;
    Ok(rest.split_at(count))
}

pub fn eval(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let (keys, arguments) = keys_of(words)?;
    let hash = engine.scripts.load(words[1], engine.version)?;
    script::run(engine, caller, &hash, keys, arguments)
}

pub fn evalsha(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let hash = String::from_utf8_lossy(words[1]).to_lowercase();
    if words[1].len() != 40 {
        return Err(script::unknown(engine.version));
    }
    let (keys, arguments) = keys_of(words)?;
    script::run(engine, caller, &hash, keys, arguments)
}

pub fn script_load(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    Ok(Reply::text(&engine.scripts.load(words[2], engine.version)?))
}

pub fn script_exists(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let knows = |hash: &&[u8]| i64::from(engine.scripts.knows(&String::from_utf8_lossy(hash)));
    Ok(Reply::Array(
        words[2..].iter().map(|hash| Reply::Int(knows(hash))).collect(),
    ))
}

pub fn script_flush(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let is_mode = |word: &&[u8]| word.eq_ignore_ascii_case(b"SYNC") || word.eq_ignore_ascii_case(b"ASYNC");
    if words.len() > 3 || !words[2..].iter().all(is_mode) {
        return Err(Reply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    engine.scripts.forget();
    Ok(Reply::ok())
}

pub fn script_kill(engine: &mut Engine, _: &Caller, _: &[&[u8]]) -> Answer {
    match engine.state.runs_script {
        None => Err(Reply::error("NOTBUSY No scripts in execution right now.")),
        Some(true) => Err(Reply::error(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script termination or kill the \
             server in a hard way using the SHUTDOWN NOSAVE command.",
        )),
        Some(false) => {
            engine.state.runs_script = None;
            Ok(Reply::ok())
        }
    }
}

pub fn acl_setuser(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let name = String::from_utf8_lossy(words[2]).into_owned();
    let mut user = engine
        .users
        .get(&name)
        .cloned()
        .unwrap_or_else(|| User::new(engine.version));
    for rule in &words[3..] {
        user.change(rule).map_err(|reason| {
            let rule = String::from_utf8_lossy(rule);
            Reply::error(format!("ERR Error in ACL SETUSER modifier '{rule}': {reason}"))
        })?;
    }
    // Connections that hear what they no longer may hear are ended.
    let mut ended = Vec::new();
    let before = engine.users.get(&name);
    let is_less = before.is_some_and(|before| user.has_lost_channels(before, engine.version));
    for (id, session) in engine.sessions.iter().filter(|(_, session)| session.user == name) {
        let channels = session.channels.iter().chain(&session.shard_channels);
        let channels: Vec<&[u8]> = channels.map(Vec::as_slice).collect();
        if is_less && !user.may_hear(&channels) {
            ended.push(*id);
        }
    }
    for id in ended {
        engine.close(id);
    }
    engine.users.insert(name, user);
    Ok(Reply::ok())
}

pub fn acl_deluser(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let mut gone = 0;
    for name in &words[2..] {
        let name = String::from_utf8_lossy(name).into_owned();
        if name == "default" {
            return Err(Reply::error("ERR The 'default' user cannot be removed"));
        }
        if engine.users.remove(&name).is_some() {
            gone += 1;
            let all: Vec<u64> = engine
                .sessions
                .iter()
                .filter(|(_, one)| one.user == name)
                .map(|(id, _)| *id)
                .collect();
            for id in all {
                match engine.sessions.get_mut(&id) {
                    Some(session) if id == caller.id => session.is_ending = true,
                    _ => {
                        engine.close(id);
                    }
                }
            }
        }
    }
    Ok(Reply::Int(gone))
}

pub fn acl_whoami(engine: &mut Engine, caller: &Caller, _: &[&[u8]]) -> Answer {
    let user = engine.sessions.get(&caller.id).map(|session| session.user.clone());
    Ok(Reply::text(&user.unwrap_or_default()))
}

pub fn replicaof(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    if words[1].eq_ignore_ascii_case(b"NO") && words[2].eq_ignore_ascii_case(b"ONE") {
        engine.promote();
    } else {
        let master = [words[1], words[2]].join(&b' ');
        if engine.state.follows.is_some() && engine.state.master == master {
            return Ok(Reply::Status("OK Already connected to specified master".to_owned()));
        }
        // The link is down until the simulation says that it is up.
        engine.state.follows = Some(false);
        engine.state.master = master;
    }
    Ok(Reply::ok())
}

pub fn role(engine: &mut Engine, _: &Caller, _: &[&[u8]]) -> Answer {
    let role = if engine.state.follows.is_some() {
        "slave"
    } else {
        "master"
    };
    let offset = i64::try_from(engine.offset()).unwrap_or_default();
    Ok(Reply::Array(vec![
        Reply::text(role),
        Reply::Int(offset),
        Reply::Array(Vec::new()),
    ]))
}

pub fn wait(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    if engine.state.follows.is_some() {
        let since = if engine.version == Version::Valkey9 {
            ""
        } else {
            "since Redis 4.0 "
        };
        return Err(Reply::error(format!(
            "ERR WAIT cannot be used with replica instances. Please also note that {since}if a replica is configured to be writable (which is not the \
             default) writes to replicas are just local and are not propagated."
        )));
    }
    let replicas = usize::try_from(integer(words[1])?).unwrap_or_default();
    let ms = number::integer(words[2]).ok_or_else(|| Reply::error("ERR timeout is not an integer or out of range"))?;
    let ms = u64::try_from(ms).map_err(|_| Reply::error("ERR timeout is negative"))?;
    let waits_for = Waiting {
        replicas,
        until: (ms > 0).then(|| engine.now().saturating_add(Duration::from_millis(ms))),
    };
    if engine.wait_for_replicas(caller.id, waits_for) {
        return Ok(Reply::None);
    }
    let written = engine.sessions.get(&caller.id).map_or(0, |session| session.written);
    Ok(Reply::count(engine.replicas_with(written)))
}

pub fn info(engine: &mut Engine, _: &Caller, _: &[&[u8]]) -> Answer {
    let (product, version, _) = engine.version.greeting();
    let role = if engine.state.follows.is_some() {
        "slave"
    } else {
        "master"
    };
    let count = engine.sessions.len() - 1;
    let text = format!("{product}_version:{version}\r\nrole:{role}\r\nconnected_clients:{count}\r\n");
    Ok(Reply::Bulk(text.into_bytes()))
}

pub fn debug(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    match words {
        [_, what, value] if what.eq_ignore_ascii_case(b"SET-ACTIVE-EXPIRE") => {
            engine.seeks_expired = *value == b"1";
            Ok(Reply::ok())
        }
        _ => Err(Reply::error("ERR the engine knows no other DEBUG command")),
    }
}
