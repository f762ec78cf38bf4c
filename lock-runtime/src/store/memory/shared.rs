//! The shared modes, in memory: the same steps as the Lua scripts of the Redis store.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::Tables;
use super::queue::Ticket;
use crate::host::Moment;
use crate::store::holder::Holder;
use crate::store::limits::claim;
use crate::store::{
    AcquireRequest, Attempt, Fence, FencingToken, HolderValue, LockMode, Ownership, QueueOutcome, ReleaseRequest,
    RenewRequest, StoreError, mode,
};

/// The number of a lock's holders in each mode.
type Tallies = HashMap<LockMode, u32>;

/// The holders of one lock. A lock without holders has no entry.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// The end of each holder's lease, and its mode.
    expires: HashMap<Arc<str>, (Moment, LockMode)>,
    /// The holders, ordered by the end of their leases.
    in_order: BTreeSet<(Moment, Arc<str>)>,
    tallies: Tallies,
    /// The fencing token that an owner's holders share.
    token: Option<FencingToken>,
}

impl Holders {
    /// Adds a holder, or sets its new lease.
    fn put(&mut self, value: &Arc<str>, mode: &LockMode, expires: Moment) {
        match self.expires.insert(Arc::clone(value), (expires, mode.clone())) {
            Some((before, _)) => drop(self.in_order.remove(&(before, Arc::clone(value)))),
            None => *self.tallies.entry(mode.clone()).or_default() += 1,
        }
        self.in_order.insert((expires, Arc::clone(value)));
    }

    fn take_out(&mut self, value: &str) {
        let Some((value, (expires, mode))) = self.expires.remove_entry(value) else {
            return;
        };
        self.in_order.remove(&(expires, value));
        if let Some(count) = self.tallies.get_mut(&mode) {
            *count -= 1;
            if *count == 0 {
                self.tallies.remove(&mode);
            }
        }
    }

    /// Records the token that later holders of the same owner share.
    fn note(&mut self, mode: &LockMode, token: Option<FencingToken>) {
        if token.is_some() && matches!(mode, LockMode::Owner(_)) {
            self.token = token;
        }
    }

    fn first_to_end(&self) -> Option<&(Moment, Arc<str>)> {
        self.in_order.first()
    }
}

/// Returns `true` if the present holders can share the lock with one in this mode.
fn admits(tallies: &Tallies, mode: &LockMode) -> bool {
    match mode {
        LockMode::Exclusive | LockMode::Write => tallies.is_empty(),
        LockMode::Read | LockMode::Owner(_) => tallies.keys().all(|other| other == mode),
        LockMode::Semaphore(permits) => {
            // The smallest of all numbers counts. A holder in another mode lets nobody in.
            let permits = tallies.keys().fold(permits.get(), |fewest, other| match other {
                LockMode::Semaphore(permits) => fewest.min(permits.get()),
                _ => 0,
            });
            tallies.values().sum::<u32>() < permits
        }
    }
}

/// Returns `true` if a holder in this mode may pass the waiters in the queue. It may if its owner has the
/// lock: otherwise a workflow could wait for itself.
fn passes(tallies: &Tallies, mode: &LockMode) -> bool {
    matches!(mode, LockMode::Owner(_)) && tallies.contains_key(mode) && admits(tallies, mode)
}

/// Returns the value under which a released holder is kept for its minimum hold: a renewal does not
/// find it.
fn kept_name(value: &str) -> Arc<str> {
    let (class, rest) = mode::split(value);
    let (token, rest) = rest.split_at_checked(mode::TOKEN_LENGTH).unwrap_or((rest, ""));
    let backwards: String = token.chars().rev().collect();
    format!("{class}:{backwards}{rest}").into()
}

impl Tables {
    /// Removes the holders whose leases are over, and returns the others.
    fn holders(&mut self, key: &str, now: Moment) -> Option<&mut Holders> {
        let holders = self.shared.get_mut(key)?;
        while let Some((expires, value)) = holders.first_to_end()
            && *expires <= now
        {
            let value = Arc::clone(value);
            holders.take_out(&value);
        }
        if holders.expires.is_empty() {
            self.shared.remove(key);
        }
        self.shared.get_mut(key)
    }

    /// Returns `true` if the key is held in a shared mode.
    pub(super) fn is_shared(&mut self, key: &str, now: Moment) -> bool {
        !self.shared.is_empty() && self.holders(key, now).is_some()
    }

    fn admitted(&mut self, key: &str, mode: &LockMode, now: Moment) -> bool {
        match self.holders(key, now) {
            Some(holders) => admits(&holders.tallies, mode),
            None => true,
        }
    }

    fn may_pass(&mut self, key: &str, mode: &LockMode, now: Moment) -> bool {
        let holders = self.holders(key, now);
        holders.is_some_and(|holders| passes(&holders.tallies, mode))
    }

    /// Returns the holder whose lease ends first, and the rest of that lease.
    pub(super) fn first_to_end(&mut self, key: &str, now: Moment) -> Option<(Holder, Duration)> {
        let (expires, value) = self.holders(key, now)?.first_to_end()?;
        Some((Holder::of(&**value), expires.since(now)))
    }

    /// Returns the holders of the key, each with the rest of its lease.
    pub(super) fn shared_holders(&mut self, key: &str, now: Moment) -> Vec<(Holder, Duration)> {
        let holders = self.holders(key, now).into_iter();
        let in_order = holders.flat_map(|holders| &holders.in_order);
        in_order
            .map(|(expires, value)| (Holder::of(&**value), expires.since(now)))
            .collect()
    }

    /// Returns the fencing token that the holders share, if they do.
    pub(super) fn shared_token(&self, key: &str) -> Option<FencingToken> {
        self.shared.get(key)?.token
    }

    /// Removes locks without live holders, once there are enough locks to make that worthwhile.
    fn sweep_shared(&mut self, now: Moment) {
        if self.shared.len() >= self.sweep_shared_at.max(64) {
            let is_held = |holders: &Holders| holders.in_order.last().is_some_and(|(last, _)| *last > now);
            self.shared.retain(|_, holders| is_held(holders));
            self.sweep_shared_at = self.shared.len() * 2;
        }
    }

    /// Adds a holder, and takes a fencing token for it if `fence` is set.
    fn enter(
        &mut self,
        key: &Arc<str>,
        value: &HolderValue,
        lease: Duration,
        fence: bool,
        now: Moment,
    ) -> Result<Option<FencingToken>, StoreError> {
        let token = fence.then(|| self.token_for(key, value.mode())).transpose()?;
        self.sweep_shared(now);
        let holders = self.shared.entry(Arc::clone(key)).or_default();
        holders.put(value.text(), value.mode(), now.after(lease));
        holders.note(value.mode(), token);
        Ok(token)
    }

    /// Returns a fencing token for a holder. The holders of one owner share theirs.
    fn token_for(&mut self, key: &str, mode: &LockMode) -> Result<FencingToken, StoreError> {
        let shared = self.shared.get(key).and_then(|holders| holders.token);
        match (mode, shared) {
            (LockMode::Owner(_), Some(token)) => Ok(token),
            _ => self.next_fence(),
        }
    }

    fn first_in(&self, key: &str) -> Option<(u64, LockMode)> {
        let (number, ticket) = self.shared_queues.get(key)?.places.first_key_value()?;
        Some((*number, ticket.value.mode().clone()))
    }

    /// Returns the waiters that need not wait for those in front of them.
    fn passing(&mut self, key: &str, now: Moment) -> Vec<u64> {
        let holders = self.holders(key, now);
        let mode = holders.and_then(|holders| {
            holders
                .tallies
                .keys()
                .find(|mode| passes(&holders.tallies, mode))
                .cloned()
        });
        let (Some(mode), Some(queue)) = (mode, self.shared_queues.get(key)) else {
            return Vec::new();
        };
        let alike = queue.places.iter().filter(|(_, ticket)| *ticket.value.mode() == mode);
        alike.map(|(number, _)| *number).collect()
    }

    fn hand_to(&mut self, key: &str, number: u64, now: Moment) -> Option<Arc<Ticket>> {
        let ticket = self.shared_queues.get_mut(key)?.places.remove(&number)?;
        let (claim, fence) = (claim(ticket.asked.ttl), ticket.asked.fence);
        let handed = self.enter(&ticket.key, &ticket.value, claim, fence, now);
        *ticket.granted.lock() = Some(handed);
        Some(ticket)
    }

    /// Grants the lock again to a value that holds it already: the request was delivered twice.
    pub(super) fn hand_again(&mut self, ticket: &Ticket, now: Moment) -> Option<Result<QueueOutcome, StoreError>> {
        let holders = self.holders(&ticket.key, now)?;
        holders.expires.get(ticket.value.text())?;
        let handed = self.enter(&ticket.key, &ticket.value, ticket.asked.ttl, ticket.asked.fence, now);
        Some(self.take(ticket, handed, now))
    }

    /// Hands the lock to as many waiters at the front of the queue as can share it, and then to
    /// those further back that need not wait for them. Returns the waiters to wake, once the tables
    /// are unlocked.
    pub(super) fn serve(&mut self, key: &str, now: Moment) -> Vec<Arc<Ticket>> {
        let mut handed = Vec::new();
        if !self.shared_queues.contains_key(key) || self.seen(key, now).is_some() {
            return handed;
        }
        while let Some((number, mode)) = self.first_in(key)
            && self.admitted(key, &mode, now)
        {
            handed.extend(self.hand_to(key, number, now));
        }
        for number in self.passing(key, now) {
            handed.extend(self.hand_to(key, number, now));
        }
        if self.shared_queues.get(key).is_some_and(|queue| queue.places.is_empty()) {
            self.shared_queues.remove(key);
        }
        handed
    }

    /// Takes a lock in a shared mode, unless it has waiters. Also returns the waiters to wake.
    pub(super) fn acquire_shared(
        &mut self,
        request: &AcquireRequest<'_>,
        now: Moment,
    ) -> (Result<Attempt, StoreError>, Vec<Arc<Ticket>>) {
        if self.seen(request.key, now).is_some() {
            return (Err(StoreError::other_kind()), Vec::new());
        }
        let handed = self.serve(request.key, now);
        let mode = request.value.mode();
        let holders = self.holders(request.key, now);
        let enters = holders.is_some_and(|holders| holders.expires.contains_key(request.value.text()))
            || self.may_pass(request.key, mode, now)
            || (!self.shared_queues.contains_key(&**request.key) && self.admitted(request.key, mode, now));
        let attempt = if enters {
            let fence = self.enter(request.key, request.value, request.ttl, request.fence, now);
            fence.map(|fence| Attempt::Granted { fence })
        } else {
            let (holder, remaining) = self.first_to_end(request.key, now).unzip();
            Ok(Attempt::Busy { holder, remaining })
        };
        (attempt, handed)
    }

    pub(super) fn renew_shared(&mut self, request: &RenewRequest, now: Moment) -> Ownership {
        let verdict = self.shared_verdict(&request.key, &request.value, now);
        if verdict == Ownership::Owned
            && let Some(lease) = request.extend
            && let Some(holders) = self.shared.get_mut(&*request.key)
        {
            holders.put(request.value.text(), request.value.mode(), now.after(lease));
        }
        verdict
    }

    /// Releases the lock. Also returns the waiters to wake.
    pub(super) fn release_shared(
        &mut self,
        request: &ReleaseRequest<'_>,
        now: Moment,
    ) -> (Ownership, Vec<Arc<Ticket>>) {
        if request.queued.is_some() {
            self.leave_queue(request.key, request.value);
        }
        let value = request.value.text();
        let mut verdict = Ownership::Gone;
        if let Some(holders) = self.holders(request.key, now) {
            if holders.expires.contains_key(value) {
                verdict = Ownership::Owned;
                if let Some(keep) = request.keep {
                    holders.put(&kept_name(value), request.value.mode(), now.after(keep));
                }
                holders.take_out(value);
            } else if request.keep.is_some() && holders.expires.contains_key(&kept_name(value)) {
                // The same release, delivered twice.
                verdict = Ownership::Owned;
            }
            if holders.expires.is_empty() {
                self.shared.remove(&**request.key);
            }
        }
        (verdict, self.serve(request.key, now))
    }

    pub(super) fn fence_shared(&mut self, key: &str, value: &HolderValue, now: Moment) -> Result<Fence, StoreError> {
        match self.shared_verdict(key, value, now) {
            Ownership::Owned => {
                let token = self.token_for(key, value.mode())?;
                if let Some(holders) = self.shared.get_mut(key) {
                    holders.note(value.mode(), Some(token));
                }
                Ok(Fence::Token(token))
            }
            verdict => Ok(Fence::NotOwned(verdict)),
        }
    }

    /// Returns the ownership of a value. If it does not hold the lock, that is `Gone` if it could
    /// share the lock with the present holders, and `Foreign` otherwise.
    fn shared_verdict(&mut self, key: &str, value: &HolderValue, now: Moment) -> Ownership {
        let holders = self.holders(key, now);
        if holders.is_some_and(|holders| holders.expires.contains_key(value.text())) {
            Ownership::Owned
        } else if self.seen(key, now).is_none() && self.admitted(key, value.mode(), now) {
            Ownership::Gone
        } else {
            Ownership::Foreign
        }
    }
}

/// Changes made by the testing kit.
#[cfg(feature = "testing")]
impl Tables {
    pub(super) fn end_shared_leases(&mut self, key: &str, at: Moment) {
        if let Some(holders) = self.shared.get_mut(key) {
            holders.expires.values_mut().for_each(|(expires, _)| *expires = at);
            holders.in_order = holders.expires.keys().map(|value| (at, Arc::clone(value))).collect();
        }
    }

    pub(super) fn put_shared(&mut self, key: &Arc<str>, value: &HolderValue, lease: Duration, now: Moment) {
        self.sweep_shared(now);
        let holders = self.shared.entry(Arc::clone(key)).or_default();
        holders.put(value.text(), value.mode(), now.after(lease));
    }
}
