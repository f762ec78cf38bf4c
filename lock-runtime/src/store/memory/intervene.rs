//! What the testing kit does to the store behind its holders' backs. The one place that knows where each mode's holders are.

use std::sync::Arc;
use std::time::Duration;

use super::exclusive::Slot;
use super::{MemoryStore, Tables};
use crate::clock::Moment;
use crate::holder::Holder;
use crate::store::Mode;

impl Tables {
    /// Who has a key.
    fn who_has(&mut self, key: &str, now: Moment) -> Vec<Holder> {
        let exclusive = self.seen(key, now);
        let holders = self.shared_holders(key, now).into_iter().chain(exclusive);
        holders.map(|(holder, _)| holder).collect()
    }

    /// Lets the leases of all who have a key end at `at`.
    fn end_leases(&mut self, key: &str, at: Moment) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.end_at(at);
        }
        self.end_shared_leases(key, at);
    }

    /// Puts a value under a key that nobody has, whoever waits for it.
    fn put_value(&mut self, key: &Arc<str>, value: &Arc<str>, lease: Duration, now: Moment) {
        if Mode::is_shared(value) {
            self.put_shared(key, value, lease, now);
        } else {
            self.put(key, Slot::new(value, now.after(lease)), now);
        }
    }
}

impl MemoryStore {
    /// Who has a key.
    pub(crate) fn holders(&self, key: &str) -> Vec<Holder> {
        self.tables().who_has(key, Self::now())
    }

    /// Lets the leases of all who have a key end after `rest`.
    pub(crate) fn end_leases(&self, key: &str, rest: Duration) {
        self.tables().end_leases(key, Self::now().after(rest));
    }

    /// Puts a value under a key in the place of all who have it.
    pub(crate) fn replace(&self, key: &Arc<str>, value: &Arc<str>, lease: Duration) {
        let mut tables = self.tables();
        let now = Self::now();
        tables.end_leases(key, now);
        tables.put_value(key, value, lease, now);
    }
}
