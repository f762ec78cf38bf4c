//! Chooses locks to check, so that the loss of one leads to the others that its server has lost with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::hold::tenure::Tenure;
use crate::host::Moment;

/// The longest time between two questions about the oldest lock of a server. A question reveals a
/// connection that has fallen silent; one about the oldest lock also reveals that the server has
/// lost its data, or that another one has taken its place, since the lock was granted.
const ASK_EVERY: Duration = Duration::from_millis(400);
/// The shortest time between two checks of all locks of a server that were made because one lock
/// was lost: somebody may delete keys one by one.
const SUSPECT_EVERY: Duration = Duration::from_millis(250);

/// The locks of one server that the watchdog has checked, or is about to check. Younger ones are
/// checked soon anyway.
#[derive(Debug)]
pub(super) struct CheckedLocks {
    /// The locks by id, which is the order of their grants.
    locks: BTreeMap<u64, Arc<Tenure>>,
    /// The time at which the server was last asked about the oldest lock.
    asked: Moment,
    /// The time of the last check of all locks that was made because one was lost.
    suspected: Option<Moment>,
    /// `true` if a lock was found lost since.
    is_suspect: bool,
}

impl CheckedLocks {
    pub(super) fn new(first: &Arc<Tenure>, now: Moment) -> Self {
        Self {
            locks: BTreeMap::from([(first.id, Arc::clone(first))]),
            asked: now,
            suspected: None,
            is_suspect: false,
        }
    }

    pub(super) fn insert(&mut self, held: &Arc<Tenure>) {
        self.locks.entry(held.id).or_insert_with(|| Arc::clone(held));
    }

    pub(super) fn includes(&self, held: &Tenure) -> bool {
        self.locks.contains_key(&held.id)
    }

    /// Removes a lock that has ended. Returns `true` if none is left.
    pub(super) fn remove(&mut self, held: &Tenure) -> bool {
        self.locks.remove(&held.id);
        self.locks.is_empty()
    }

    /// Records that one lock was lost.
    pub(super) fn suspect(&mut self) {
        self.is_suspect = true;
    }

    /// Returns the time at which a check is due.
    pub(super) fn next(&self) -> Moment {
        let ask = self.asked.after(ASK_EVERY);
        if self.is_suspect {
            ask.min(self.check_all_at())
        } else {
            ask
        }
    }

    fn check_all_at(&self) -> Moment {
        self.suspected
            .map_or(Moment::from_nanos(0), |suspected| suspected.after(SUSPECT_EVERY))
    }

    /// Returns the oldest lock if a check of it is due.
    pub(super) fn ask(&mut self, now: Moment) -> Option<Arc<Tenure>> {
        if now < self.asked.after(ASK_EVERY) {
            return None;
        }
        self.asked = now;
        let (_, oldest) = self.locks.first_key_value()?;
        let plan = oldest.plan();
        // `None` if a question about it is under way.
        let asked = plan.checked_at.filter(|_| !plan.is_in_flight())?;
        if now < asked.after(ASK_EVERY) {
            self.asked = asked;
            return None;
        }
        Some(Arc::clone(oldest))
    }

    /// Returns all locks if one was lost and they are to be checked now.
    pub(super) fn take_suspects(&mut self, now: Moment) -> Vec<Arc<Tenure>> {
        if !self.is_suspect || now < self.check_all_at() {
            return Vec::new();
        }
        self.is_suspect = false;
        self.suspected = Some(now);
        self.locks.values().cloned().collect()
    }
}
