//! Inspects, lists and releases the memory store's locks for operators, with patterns in Redis's
//! syntax.

use std::collections::BTreeSet;

use super::{MemoryStore, Tables};
use crate::host::Moment;
use crate::store::FencingToken;
use crate::store::info::LockInfo;

impl Tables {
    /// Returns a snapshot of a lock, or `None` if it is free and has no waiters.
    pub(super) fn info(&mut self, key: &str, now: Moment) -> Option<LockInfo> {
        let mut info = LockInfo::free(key);
        if let Some((holder, remaining)) = self.seen(key, now) {
            info.add(holder, Some(remaining));
        }
        for (holder, remaining) in self.shared_holders(key, now) {
            info.add(holder, Some(remaining));
        }
        info.fence = self.shared_token(key);
        info.waiters = self.waiters(key);
        info.last_fence = Some(self.last_fence).filter(|token| *token > 0).map(FencingToken::new);
        Some(info).filter(|info| !info.is_idle())
    }

    /// Returns the held locks whose keys match.
    pub(super) fn matching(&mut self, pattern: &str, now: Moment) -> Vec<LockInfo> {
        let keys = self.slots.keys().chain(self.shared.keys());
        let keys: BTreeSet<_> = keys.filter(|key| matches(pattern, key)).cloned().collect();
        let found = keys.iter().filter_map(|key| self.info(key, now));
        found.filter(|info| !info.holders.is_empty()).collect()
    }
}

impl MemoryStore {
    /// Takes a lock away and wakes the waiters that got it. Returns `true` if it was held.
    pub(super) fn take_away(&self, key: &str) -> bool {
        let mut tables = self.tables.lock();
        let now = Self::now();
        let exclusive = tables.seen(key, now).is_some();
        let shared = tables.is_shared(key, now);
        tables.slots.remove(key);
        tables.shared.remove(key);
        let mut next = Vec::new();
        if exclusive {
            next.extend(tables.hand_over(key, now));
        }
        if exclusive || shared {
            next.extend(tables.serve(key, now));
        }
        drop(tables);
        for next in next {
            next.wake();
        }
        exclusive || shared
    }
}

/// Returns `true` if a whole key matches a pattern. Compares bytes, as Redis does.
fn matches(pattern: &str, key: &str) -> bool {
    let (mut pattern, mut key) = (pattern.as_bytes(), key.as_bytes());
    // The place to resume after a mismatch: behind the last star, one byte further on in the key.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            again = Some((rest, key));
            pattern = rest;
        } else if let Some((byte, rest)) = key.split_first() {
            if let Some(behind) = after_one(pattern, *byte) {
                (pattern, key) = (behind, rest);
            } else if let Some((starred, [_, further @ ..])) = again {
                again = Some((starred, further));
                (pattern, key) = (starred, further);
            } else {
                return false;
            }
        } else {
            return pattern.is_empty();
        }
    }
}

/// Returns the rest of a pattern whose first element matches this byte.
fn after_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (matched, rest) = match pattern {
        [] => return None,
        [b'?', rest @ ..] => (true, rest),
        [b'[', b'^', set @ ..] => {
            let (found, rest) = in_set(set, byte);
            (!found, rest)
        }
        [b'[', set @ ..] => in_set(set, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte, rest),
    };
    matched.then_some(rest)
}

/// Returns `true` if a byte is in a set, and the pattern behind the set. A set without an end
/// extends to the end of the pattern.
fn in_set(mut set: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut found = false;
    loop {
        set = match set {
            [] => return (found, set),
            [b'\\', literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
            [b']', rest @ ..] => return (found, rest),
            [start, b'-', end, rest @ ..] => {
                found |= (*start.min(end)..=*start.max(end)).contains(&byte);
                rest
            }
            [literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_are_read_as_redis_reads_them() {
        for (pattern, key, expected) in [
            ("*", "inventory:7", true),
            ("inventory:*", "inventory:7", true),
            ("inventory:*", "account:7", false),
            ("*:?", "account:7", true),
            ("*:?", "account:77", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-c-", false),
            ("[a-c]x", "bx", true),
            ("[c-a]x", "bx", true),
            ("[^a-c]x", "bx", false),
            (r"\*", "*", true),
            (r"\*", "x", false),
            (r"[\]]", "]", true),
            ("[ab", "b", true),
            ("", "a", false),
            ("a**", "a", true),
        ] {
            assert_eq!(matches(pattern, key), expected, "{pattern} {key}");
        }
    }
}
