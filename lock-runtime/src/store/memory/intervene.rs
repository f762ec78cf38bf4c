//! Changes that the testing kit makes to the store without the knowledge of the locks' holders.
//! Only this module knows where each mode keeps its holders.

use std::sync::Arc;
use std::time::Duration;

use super::exclusive::Slot;
use super::{MemoryStore, Tables};
use crate::host::Moment;
use crate::store::HolderValue;
use crate::store::holder::Holder;

impl Tables {
    /// Returns the holders of a key.
    fn who_has(&mut self, key: &str, now: Moment) -> Vec<Holder> {
        let exclusive = self.seen(key, now);
        let holders = self.shared_holders(key, now).into_iter().chain(exclusive);
        holders.map(|(holder, _)| holder).collect()
    }

    /// Sets the end of the leases of all holders of a key to `at`.
    fn end_leases(&mut self, key: &str, at: Moment) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.end_at(at);
        }
        self.end_shared_leases(key, at);
    }

    /// Puts a value under a key without holders, ahead of any waiters.
    fn put_value(&mut self, key: &Arc<str>, value: &HolderValue, lease: Duration, now: Moment) {
        if value.is_shared() {
            self.put_shared(key, value, lease, now);
        } else {
            self.put(key, Slot::new(value, now.after(lease)), now);
        }
    }
}

impl MemoryStore {
    /// Returns the holders of a key.
    pub(crate) fn holders(&self, key: &str) -> Vec<Holder> {
        self.tables.lock().who_has(key, Self::now())
    }

    /// Sets the leases of all holders of a key to end after `rest`.
    pub(crate) fn end_leases(&self, key: &str, rest: Duration) {
        self.tables.lock().end_leases(key, Self::now().after(rest));
    }

    /// Puts a value under a key in place of all its holders.
    pub(crate) fn replace(&self, key: &Arc<str>, value: &HolderValue, lease: Duration) {
        let mut tables = self.tables.lock();
        let now = Self::now();
        tables.end_leases(key, now);
        tables.put_value(key, value, lease, now);
    }
}
