//! Commands on sorted sets.

use super::data::{Sorted, Value};
use super::engine::{Caller, Engine, WRONG_TYPE};
use super::number;
use super::resp::{Answer, Reply};
use super::strings::integer;

fn syntax() -> Reply {
    Reply::error("ERR syntax error")
}

impl Engine {
    fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut Sorted>, Reply> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Sorted(set)) => Ok(Some(set)),
            Some(Value::Text(_)) => Err(Reply::error(WRONG_TYPE)),
        }
    }
}

pub fn zadd(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let key = words[1];
    let (mut if_absent, mut if_present, mut counts_changes) = (false, false, false);
    let mut pairs = &words[2..];
    while let [word, rest @ ..] = pairs {
        match word.to_ascii_uppercase().as_slice() {
            b"NX" => if_absent = true,
            b"XX" => if_present = true,
            b"CH" => counts_changes = true,
            _ => break,
        }
        pairs = rest;
    }
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(syntax());
    }
    if if_absent && if_present {
        return Err(Reply::error(
            "ERR XX and NX options at the same time are not compatible",
        ));
    }
    let scores = pairs.chunks_exact(2).map(|pair| {
        let score = number::double(pair[0]).ok_or_else(|| Reply::error("ERR value is not a valid float"));
        Ok((score?, pair[1]))
    });
    let scores: Vec<_> = scores.collect::<Result<_, Reply>>()?;
    let is_absent = engine.sorted(key)?.is_none();
    if is_absent {
        if if_present {
            return Ok(Reply::Int(0));
        }
        engine.data.set(key, Value::Sorted(Sorted::default()), None);
    }
    let Some(Value::Sorted(set)) = engine.data.get_mut(key) else {
        return Err(Reply::error(WRONG_TYPE));
    };
    let (mut added, mut updated) = (0, 0);
    #[allow(clippy::float_cmp)]
    for (score, member) in scores {
        match set.score(member) {
            Some(_) if if_absent => {}
            None if if_present => {}
            before => {
                added += i64::from(before.is_none());
                updated += i64::from(before.is_some_and(|before| before != score));
                if before != Some(score) {
                    set.insert(member, score);
                }
            }
        }
    }
    if added + updated > 0 {
        engine.record(words);
        engine.changed_late(key);
    }
    Ok(Reply::Int(if counts_changes { added + updated } else { added }))
}

pub fn zrem(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let key = words[1];
    let Some(set) = engine.sorted(key)? else {
        return Ok(Reply::Int(0));
    };
    let gone = words[2..].iter().filter(|member| set.remove(member)).count();
    if set.len() == 0 {
        engine.data.remove(key);
    }
    if gone > 0 {
        engine.record(words);
        engine.changed(key);
    }
    Ok(Reply::count(gone))
}

pub fn zscore(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let score = engine.sorted(words[1])?.and_then(|set| set.score(words[2]));
    Ok(score.map_or(Reply::Nil, Reply::Double))
}

pub fn zcard(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    Ok(Reply::count(engine.sorted(words[1])?.map_or(0, |set| set.len())))
}

fn listed<'a>(all: impl Iterator<Item = (&'a Vec<u8>, f64)>, with_scores: bool, caller: &Caller) -> Reply {
    let parts = all.flat_map(|(member, score)| {
        let member = Reply::Bulk(member.clone());
        match (with_scores, caller.is_3) {
            (false, _) => vec![member],
            (true, false) => vec![member, Reply::Double(score)],
            (true, true) => vec![Reply::Array(vec![member, Reply::Double(score)])],
        }
    });
    Reply::Array(parts.collect())
}

pub fn zrange(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let mut with_scores = false;
    for word in &words[4..] {
        if !word.eq_ignore_ascii_case(b"WITHSCORES") {
            return Err(syntax());
        }
        with_scores = true;
    }
    let (first, last) = (integer(words[2])?, integer(words[3])?);
    let Some(set) = engine.sorted(words[1])? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let count = i64::try_from(set.len()).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { count.saturating_add(at) } else { at };
    let (first, last) = (place(first).max(0), place(last).min(count - 1));
    if first > last {
        return Ok(Reply::Array(Vec::new()));
    }
    let [skip, take] = [first, last - first + 1].map(|number| usize::try_from(number).unwrap_or_default());
    if last == count - 1 {
        let mut all: Vec<_> = set.in_order().rev().take(take).collect();
        all.reverse();
        return Ok(listed(all.into_iter(), with_scores, caller));
    }
    Ok(listed(set.in_order().skip(skip).take(take), with_scores, caller))
}

/// Reads the end of a range; `true` if it is not itself part of it.
fn bound(word: &[u8]) -> Result<(f64, bool), Reply> {
    let (text, is_out) = word.strip_prefix(b"(").map_or((word, false), |text| (text, true));
    let number = number::double(text).ok_or_else(|| Reply::error("ERR min or max is not a float"));
    Ok((number?, is_out))
}

pub fn zrangebyscore(engine: &mut Engine, caller: &Caller, words: &[&[u8]]) -> Answer {
    let (mut with_scores, mut skip, mut take) = (false, 0, -1);
    let mut options = words[4..].iter();
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"WITHSCORES") {
            with_scores = true;
        } else if word.eq_ignore_ascii_case(b"LIMIT") {
            let (Some(first), Some(count)) = (options.next(), options.next()) else {
                return Err(syntax());
            };
            (skip, take) = (integer(first)?, integer(count)?);
        } else {
            return Err(syntax());
        }
    }
    let ((least, is_above), (most, is_below)) = (bound(words[2])?, bound(words[3])?);
    let Some(set) = engine.sorted(words[1])? else {
        return Ok(Reply::Array(Vec::new()));
    };
    #[allow(clippy::float_cmp)]
    let within = set
        .from(least)
        .skip_while(|(_, score)| is_above && *score == least)
        .take_while(|(_, score)| *score < most || !is_below && *score == most);
    // A negative number of those to be skipped leaves nothing, and a negative count all.
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let take = usize::try_from(take).unwrap_or(usize::MAX);
    Ok(listed(within.skip(skip).take(take), with_scores, caller))
}
