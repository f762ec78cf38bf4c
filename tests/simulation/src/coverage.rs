//! The pairs of a feature and a fault that were reached.

use std::collections::BTreeMap;

use crate::plan::{Fault, Shape};

/// How often a fault struck a call that used a feature.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(&'static str, Fault), u64>);

/// What calls may use.
pub const FEATURES: [&str; 19] = [
    "exclusive",
    "read",
    "write",
    "semaphore",
    "owner",
    "keys",
    "fair",
    "pipelined",
    "reentrant",
    "fencing",
    "signal",
    "coalesce",
    "guard",
    "tasks",
    "drives",
    "at_least",
    "lock_delay",
    "no_renewal",
    "min_replicas",
];

impl Coverage {
    pub fn hit(&mut self, feature: &'static str, fault: Fault) {
        *self.0.entry((feature, fault)).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (pair, count) in &other.0 {
            *self.0.entry(*pair).or_default() += count;
        }
    }

    fn count(&self, feature: &'static str, fault: Fault) -> u64 {
        self.0.get(&(feature, fault)).copied().unwrap_or_default()
    }

    /// Returns the features that calls may use in a world of this kind.
    fn features(shape: Shape) -> impl Iterator<Item = &'static str> {
        // What is drawn apart from the rest is not for groups, and one server has no replicas.
        let left_out = if shape.has_several() { "drives" } else { "min_replicas" };
        FEATURES.into_iter().filter(move |feature| *feature != left_out)
    }

    /// Returns the pairs that were never reached. Of several servers these are the ones of its own faults: the others are reached with one server.
    pub fn missing(&self, shape: Shape) -> Vec<String> {
        let own = shape.own_faults();
        let is_wanted = |fault: &Fault| own.is_empty() || own.contains(fault);
        let pairs = Fault::all(shape)
            .filter(is_wanted)
            .flat_map(|fault| Self::features(shape).map(move |feature| (feature, fault)));
        let missing = pairs.filter(|(feature, fault)| self.count(feature, *fault) == 0);
        missing.map(|(feature, fault)| format!("{feature} × {fault}")).collect()
    }

    /// Returns a table of all pairs.
    pub fn table(&self, shape: Shape) -> String {
        let mut table = format!("{:<15}", "");
        for feature in Self::features(shape) {
            table += &format!(" {:>7}", &feature[..feature.len().min(7)]);
        }
        for fault in Fault::all(shape) {
            table += &format!("\n{:<15}", fault.to_string());
            for feature in Self::features(shape) {
                table += &format!(" {:>7}", self.count(feature, fault));
            }
        }
        table
    }
}
