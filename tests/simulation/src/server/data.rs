//! The keyspace: texts and sorted sets, with the times at which they expire. It knows no connection and no command.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// All keys of one server.
#[derive(Clone, Default)]
pub struct Data {
    keys: BTreeMap<Vec<u8>, Entry>,
    expiries: BTreeSet<(i64, Vec<u8>)>,
    /// How often each key was removed, or expired.
    removals: BTreeMap<Vec<u8>, u32>,
}

#[derive(Clone)]
struct Entry {
    value: Value,
    expires: Option<i64>,
}

#[derive(Clone)]
pub enum Value {
    Text(Vec<u8>),
    Sorted(Sorted),
}

impl Data {
    pub fn get(&self, key: &[u8]) -> Option<&Value> {
        self.keys.get(key).map(|entry| &entry.value)
    }

    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut Value> {
        self.keys.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Returns when a key expires, in ms since 1970.
    pub fn expires(&self, key: &[u8]) -> Option<i64> {
        self.keys.get(key)?.expires
    }

    pub fn set(&mut self, key: &[u8], value: Value, expires: Option<i64>) {
        self.take_out(key);
        self.keys.insert(key.to_vec(), Entry { value, expires });
        self.expiries.extend(expires.map(|at| (at, key.to_vec())));
    }

    pub fn expire(&mut self, key: &[u8], expires: Option<i64>) {
        if let Some(entry) = self.keys.get_mut(key) {
            let before = std::mem::replace(&mut entry.expires, expires);
            if let Some(before) = before {
                self.expiries.remove(&(before, key.to_vec()));
            }
            self.expiries.extend(expires.map(|at| (at, key.to_vec())));
        }
    }

    pub fn remove(&mut self, key: &[u8]) -> bool {
        let is_there = self.take_out(key);
        if is_there {
            match self.removals.get_mut(key) {
                Some(count) => *count += 1,
                None => drop(self.removals.insert(key.to_vec(), 1)),
            }
        }
        is_there
    }

    pub fn removals(&self, key: &[u8]) -> u32 {
        self.removals.get(key).copied().unwrap_or_default()
    }

    fn take_out(&mut self, key: &[u8]) -> bool {
        let Some(entry) = self.keys.remove(key) else {
            return false;
        };
        if let Some(at) = entry.expires {
            self.expiries.remove(&(at, key.to_vec()));
        }
        true
    }

    /// Returns `true` if the key's time is over. At its last millisecond it is still there.
    pub fn is_over(&self, key: &[u8], now: i64) -> bool {
        self.expires(key).is_some_and(|at| now > at)
    }

    /// Returns a key whose time is over.
    pub fn next_over(&self, now: i64) -> Option<Vec<u8>> {
        let (at, key) = self.expiries.first()?;
        (now > *at).then(|| key.clone())
    }

    pub fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.keys.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A sorted set.
#[derive(Clone, Default)]
pub struct Sorted {
    scores: BTreeMap<Vec<u8>, f64>,
    order: BTreeSet<(Score, Vec<u8>)>,
}

/// A score that can be put in order, with -0 and 0 in one place.
#[derive(Clone, Copy)]
struct Score(f64);

impl Score {
    fn new(score: f64) -> Self {
        Self(score + 0.0)
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

impl Sorted {
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Returns the score before.
    pub fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        let before = self.scores.insert(member.to_vec(), score);
        if let Some(before) = before {
            self.order.remove(&(Score::new(before), member.to_vec()));
        }
        self.order.insert((Score::new(score), member.to_vec()));
        before
    }

    pub fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else {
            return false;
        };
        self.order.remove(&(Score::new(score), member.to_vec()))
    }

    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    /// Returns the members from the lowest score to the highest, those of one score by their bytes.
    pub fn in_order(&self) -> impl DoubleEndedIterator<Item = (&Vec<u8>, f64)> {
        self.order.iter().map(|(_, member)| (member, self.scores[member]))
    }

    /// Returns the same, from a score on.
    pub fn from(&self, least: f64) -> impl Iterator<Item = (&Vec<u8>, f64)> {
        let from = (Score::new(least), Vec::new());
        self.order
            .range(from..)
            .map(|(_, member)| (member, self.scores[member]))
    }
}
