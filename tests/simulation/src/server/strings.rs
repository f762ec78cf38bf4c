//! Commands on texts.

use super::data::Value;
use super::engine::{Caller, Engine, WRONG_TYPE};
use super::number;
use super::resp::{Answer, Reply};
use super::version::Version;

const NO_INTEGER: &str = "ERR value is not an integer or out of range";

pub fn integer(word: &[u8]) -> Result<i64, Reply> {
    number::integer(word).ok_or_else(|| Reply::error(NO_INTEGER))
}

impl Engine {
    /// Returns a text.
    fn text(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Reply> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(Value::Sorted(_)) => Err(Reply::error(WRONG_TYPE)),
        }
    }

    /// Puts a text. `is_late` if the answer, the former text, is said before the change.
    fn put(&mut self, key: &[u8], text: &[u8], expires: Option<i64>, is_late: bool) {
        self.data.set(key, Value::Text(text.to_vec()), expires);
        match expires {
            Some(at) => self.record(&[b"SET", key, text, b"PXAT", at.to_string().as_bytes()]),
            None => self.record(&[b"SET", key, text]),
        }
        if is_late {
            self.changed_late(key);
        } else {
            self.changed(key);
        }
    }
}

pub fn get(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    Ok(Reply::or_nil(engine.text(words[1])?))
}

pub fn mget(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let texts = words[1..].iter().map(|key| {
        // Before 7.0, the caller learns amid the answer that a key has expired.
        engine.hold_back();
        let text = Reply::or_nil(engine.text(key).ok().flatten());
        match engine.held_back() {
            pushes if pushes.is_empty() => text,
            pushes => Reply::Led(pushes, Box::new(text)),
        }
    });
    Ok(Reply::Array(texts.collect()))
}

#[derive(Default)]
struct Options {
    if_absent: bool,
    if_present: bool,
    get: bool,
    keep: bool,
    /// A time, whether it is in ms, and whether it is one since 1970.
    expires: Option<(i64, bool, bool)>,
}

impl Options {
    fn read(words: &[&[u8]], is_7: bool) -> Result<Self, Reply> {
        let syntax = || Reply::error("ERR syntax error");
        let mut options = Self::default();
        let mut time: Option<(&[u8], bool, bool)> = None;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let word = word.to_ascii_uppercase();
            match word.as_slice() {
                b"NX" if !options.if_present && (is_7 || !options.get) => options.if_absent = true,
                b"XX" if !options.if_absent => options.if_present = true,
                b"GET" if is_7 || !options.if_absent => options.get = true,
                b"KEEPTTL" if time.is_none() => options.keep = true,
                b"PX" | b"EX" | b"PXAT" | b"EXAT" if time.is_none() && !options.keep => {
                    let value = words.next().ok_or_else(syntax)?;
                    time = Some((value, word[0] == b'P', word.ends_with(b"AT")));
                }
                _ => return Err(syntax()),
            }
        }
        if let Some((value, in_ms, is_date)) = time {
            options.expires = Some((integer(value)?, in_ms, is_date));
        }
        Ok(options)
    }
}

pub fn set(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let (key, value) = (words[1], words[2]);
    let options = Options::read(&words[3..], engine.version.is_7())?;
    let invalid = || {
        let name = if engine.version.is_7() { "'set' command" } else { "set" };
        Reply::error(format!("ERR invalid expire time in {name}"))
    };
    let expires = match options.expires {
        None => None,
        Some((time, in_ms, is_date)) => {
            let ms = if in_ms { Some(time) } else { time.checked_mul(1000) };
            let ms = ms.filter(|_| time > 0).ok_or_else(invalid)?;
            let at = if is_date { Some(ms) } else { ms.checked_add(engine.ms()) };
            Some(at.ok_or_else(invalid)?)
        }
    };
    let former = if options.get { engine.text(key)? } else { None };
    let is_there = engine.value(key).is_some();
    if options.if_absent && is_there || options.if_present && !is_there {
        return Ok(Reply::or_nil(former));
    }
    let kept = if options.keep { engine.data.expires(key) } else { None };
    if engine.version == Version::Valkey9 && expires.is_some_and(|at| engine.is_past(at)) {
        // Redis keeps it until it is looked at.
        if engine.data.remove(key) {
            engine.record(&[b"DEL", key]);
            engine.changed(key);
        }
    } else {
        engine.put(key, value, expires.or(kept), options.get);
    }
    Ok(if options.get {
        Reply::or_nil(former)
    } else {
        Reply::ok()
    })
}

pub fn setnx(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    if engine.value(words[1]).is_some() {
        return Ok(Reply::Int(0));
    }
    engine.put(words[1], words[2], None, false);
    Ok(Reply::Int(1))
}

pub fn getset(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let former = engine.text(words[1])?;
    engine.put(words[1], words[2], None, true);
    Ok(Reply::or_nil(former))
}

pub fn incr(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let key = words[1];
    let before = engine.text(key)?.map_or(Ok(0), |text| integer(&text))?;
    let next = before
        .checked_add(1)
        .ok_or_else(|| Reply::error("ERR increment or decrement would overflow"))?;
    let expires = engine.data.expires(key);
    engine
        .data
        .set(key, Value::Text(next.to_string().into_bytes()), expires);
    engine.record(&[b"INCR", key]);
    engine.changed(key);
    Ok(Reply::Int(next))
}
