//! The values of settings: times, numbers and words.

use std::convert::Infallible;
use std::str::FromStr;
use std::time::Duration;

use crate::hold::OnLost;
use crate::store::limits::{MAX_LEASE, MIN_LEASE};

/// The bounds of a time: the least one, and its name in messages.
#[derive(Clone, Copy)]
pub(super) struct AtLeast(Duration, &'static str);

pub(super) const LEASE: AtLeast = AtLeast(MIN_LEASE, "at least 10 ms");
pub(super) const SPAN: AtLeast = AtLeast(Duration::ZERO, "at least 0");
pub(super) const NOT_ZERO: AtLeast = AtLeast(Duration::from_millis(1), "more than 0");

/// The greatest number of a count.
pub(super) const COUNT: u32 = u32::MAX;
/// The greatest number of replicas.
pub(super) const BYTE: u32 = 255;

const TIMES: &str = "give a time such as `15s`, `1500ms`, `5m` or `1h`, or a whole number of seconds";

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// Reads `15`, `1500ms`, `2s`, `1m30s` or `1h`, as the attribute does.
pub(super) fn time(text: &str, AtLeast(least, bound): AtLeast) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let millis = if is_number {
        // Too many digits are too long a time.
        let seconds = text.parse().unwrap_or(u64::MAX);
        if let Some(advice) = may_be_milliseconds(seconds) {
            return Err(advice);
        }
        seconds.saturating_mul(1000)
    } else {
        in_units(text).ok_or(TIMES)?
    };
    let time = Duration::from_millis(millis);
    if time < least {
        return Err(format!("give {bound}"));
    }
    if time > MAX_LEASE {
        return Err(format!("give at most {} days", MAX_LEASE.as_secs() / 86_400));
    }
    Ok(time)
}

/// Returns the milliseconds of a text with units, or `None` if it is no such text.
fn in_units(text: &str) -> Option<u64> {
    let mut millis = 0_u64;
    let mut rest = text;
    loop {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        if number.is_empty() {
            return None;
        }
        let number = number.parse().unwrap_or(u64::MAX);
        millis = millis.saturating_add(number.saturating_mul(*factor));
        rest = tail.trim_start();
        if rest.is_empty() {
            return Some(millis);
        }
    }
}

/// Returns the advice for a number of seconds that may be one of milliseconds: 1000 or more, a multiple of 500,
/// and not of whole hours.
fn may_be_milliseconds(number: u64) -> Option<String> {
    if number < 1000 || !number.is_multiple_of(500) || number.is_multiple_of(3600) {
        return None;
    }
    Some(format!(
        "a number is in seconds: write `{number}ms` if milliseconds were meant, `{number}s` if not"
    ))
}

/// Takes any text.
pub(super) fn any<T: FromStr<Err = Infallible>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|never| match never {})
}

/// Reads `true` or `false`.
pub(super) fn flag(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("give `true` or `false`".to_owned()),
    }
}

/// Reads a whole number.
pub(super) fn number(text: &str, most: u32) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("give a whole number from 0 to {most}"))
}

/// Reads the name of a connection.
pub(super) fn graphic(text: &str) -> Result<String, String> {
    if text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err("give ASCII letters, digits and punctuation, without spaces".to_owned())
}

/// Reads the effect of a lost lock.
pub(super) fn on_lost(text: &str) -> Result<OnLost, String> {
    match text {
        "cancel" => Ok(OnLost::Cancel),
        "signal" => Ok(OnLost::Signal),
        _ => Err("give `cancel` or `signal`".to_owned()),
    }
}

/// Returns the beginning of a value, in one line.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns the nearest of `words`, if it is near enough to be the intended one.
pub(super) fn nearest<'a>(word: &str, words: &[&'a str]) -> Option<&'a str> {
    let fold = |word: &str| word.replace(['_', '-'], "").to_ascii_lowercase();
    let word = fold(word);
    let distances = words
        .iter()
        .map(|known| (strsim::osa_distance(&word, &fold(known)), *known));
    let near = distances.filter(|(distance, known)| *distance <= (word.len().max(known.len()) / 3).max(1));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}
