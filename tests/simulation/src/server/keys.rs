//! Commands on keys of all kinds.

use super::data::Value;
use super::engine::{Caller, Engine};
use super::glob;
use super::number;
use super::resp::{Answer, Reply};
use super::strings::integer;
use super::version::Version;

pub fn del(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let mut gone = 0;
    for key in &words[1..] {
        if engine.value(key).is_some() {
            engine.data.remove(key);
            engine.record(&[b"DEL", key]);
            engine.changed(key);
            gone += 1;
        }
    }
    Ok(Reply::Int(gone))
}

pub fn exists(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    Ok(Reply::count(
        words[1..].iter().filter(|key| engine.value(key).is_some()).count(),
    ))
}

pub fn kind(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let kind = match engine.value(words[1]) {
        None => "none",
        Some(Value::Text(_)) => "string",
        Some(Value::Sorted(_)) => "zset",
    };
    Ok(Reply::Status(kind.to_owned()))
}

fn rest(engine: &mut Engine, key: &[u8]) -> i64 {
    if engine.value(key).is_none() {
        return -2;
    }
    let now = engine.ms();
    engine.data.expires(key).map_or(-1, |at| (at - now).max(0))
}

pub fn pttl(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    Ok(Reply::Int(rest(engine, words[1])))
}

pub fn ttl(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let rest = rest(engine, words[1]);
    Ok(Reply::Int(if rest < 0 { rest } else { (rest + 500) / 1000 }))
}

pub fn expire(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let seconds = integer(words[2])?;
    expire_at(engine, caller, words, seconds.checked_mul(1000), false)
}

pub fn pexpire(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let ms = integer(words[2])?;
    expire_at(engine, caller, words, Some(ms), false)
}

pub fn pexpireat(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let ms = integer(words[2])?;
    expire_at(engine, caller, words, Some(ms), true)
}

fn expire_at(engine: &mut Engine, _: &Caller, words: &[&[u8]], ms: Option<i64>, is_date: bool) -> Answer {
    let (key, is_7) = (words[1], engine.version.is_7());
    let name = String::from_utf8_lossy(words[0]).to_lowercase();
    if words.len() > 3 {
        return Err(Reply::error(if is_7 {
            format!("ERR Unsupported option {}", String::from_utf8_lossy(words[3]))
        } else {
            format!("ERR wrong number of arguments for '{name}' command")
        }));
    }
    let base = if is_date { 0 } else { engine.ms() };
    let at = ms.and_then(|ms| ms.checked_add(base)).ok_or_else(|| {
        let name = if is_7 {
            format!("'{name}' command")
        } else {
            name.clone()
        };
        Reply::error(format!("ERR invalid expire time in {name}"))
    })?;
    if engine.value(key).is_none() {
        return Ok(Reply::Int(0));
    }
    if engine.is_past(at) {
        engine.data.remove(key);
        engine.record(&[b"DEL", key]);
        engine.changed(key);
    } else {
        engine.data.expire(key, Some(at));
        engine.record(&[b"PEXPIREAT", key, at.to_string().as_bytes()]);
        engine.changed_late(key);
    }
    Ok(Reply::Int(1))
}

pub fn persist(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    if engine.value(words[1]).is_none() || engine.data.expires(words[1]).is_none() {
        return Ok(Reply::Int(0));
    }
    engine.data.expire(words[1], None);
    engine.record(words);
    engine.changed(words[1]);
    Ok(Reply::Int(1))
}

pub fn dbsize(engine: &mut Engine, _: &Caller, _: &[&[u8]]) -> Answer {
    Ok(Reply::count(engine.data.len()))
}

pub fn flushall(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let is_mode = |word: &&[u8]| word.eq_ignore_ascii_case(b"SYNC") || word.eq_ignore_ascii_case(b"ASYNC");
    if words.len() > 2 || !words[1..].iter().all(is_mode) {
        return Err(Reply::error("ERR syntax error"));
    }
    engine.data.clear();
    engine.record(&[b"FLUSHALL"]);
    engine.flushed();
    Ok(Reply::ok())
}

/// A key's place among the others, which does not move when others come and go.
fn place(key: &[u8]) -> u64 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash >> 16
}

/// Keys that are there from the first step to the last are found.
pub fn scan(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let syntax = || Reply::error("ERR syntax error");
    let cursor = std::str::from_utf8(words[1])
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    let cursor = cursor.ok_or_else(|| Reply::error("ERR invalid cursor"))?;
    let (mut pattern, mut count) = (b"*".as_slice(), 10);
    let mut options = words[2..].iter();
    while let Some(word) = options.next() {
        let value = options.next().ok_or_else(syntax)?;
        match word.to_ascii_uppercase().as_slice() {
            b"MATCH" => pattern = value,
            b"COUNT" => {
                count = number::integer(value)
                    .ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))?;
                if count < 1 {
                    return Err(syntax());
                }
            }
            _ => return Err(syntax()),
        }
    }
    let mut all: Vec<_> = engine.data.keys().map(|key| (place(key), key.clone())).collect();
    all.sort();
    let mut seen = 0;
    let mut found = Vec::new();
    let mut next = 0;
    for (place, key) in all.into_iter().filter(|(place, _)| *place >= cursor) {
        if seen >= count && place > next {
            // The next step begins behind the last place of this one.
            return Ok(scanned(next + 1, found));
        }
        (seen, next) = (seen + 1, place);
        // Redis 8 finds those whose time is over before it looks at the pattern.
        let is_fresh = engine.version != Version::Redis8 || engine.value(&key).is_some();
        if is_fresh && glob::matches(pattern, &key) && engine.value(&key).is_some() {
            found.push(Reply::Bulk(key));
        }
    }
    Ok(scanned(0, found))
}

fn scanned(next: u64, found: Vec<Reply>) -> Reply {
    Reply::Array(vec![Reply::text(&next.to_string()), Reply::Array(found)])
}
