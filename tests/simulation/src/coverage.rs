//! The pairs of a feature and a fault that were reached.

use std::collections::BTreeMap;
use std::fmt;

use crate::plan::Fault;

/// How often a fault struck a call that used a feature.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(&'static str, Fault), u64>);

/// What calls may use.
pub const FEATURES: [&str; 18] = [
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

    /// Returns the pairs that were never reached.
    pub fn missing(&self) -> Vec<String> {
        let pairs = Fault::all().flat_map(|fault| FEATURES.map(|feature| (feature, fault)));
        let missing = pairs.filter(|(feature, fault)| self.count(feature, *fault) == 0);
        missing.map(|(feature, fault)| format!("{feature} × {fault}")).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<15}", "")?;
        for feature in FEATURES {
            write!(f, " {:>7}", &feature[..feature.len().min(7)])?;
        }
        for fault in Fault::all() {
            write!(f, "\n{:<15}", fault.to_string())?;
            for feature in FEATURES {
                write!(f, " {:>7}", self.count(feature, fault))?;
            }
        }
        Ok(())
    }
}
