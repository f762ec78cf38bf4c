//! Giving locks back when nobody waits for it: after a drop, a panic, a cancellation, or an attempt whose
//! outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::Moment;
use crate::engine::{Engine, Timer, is_forked};
use crate::error::LostReason;
use crate::held::{Fate, Held};
use crate::manager::Shared;
use crate::store::{Queued, Receipt, ReleaseRequest, StoreError, Verdict};

/// The pause before a release is tried again; it doubles up to an eighth of the lease, at most this.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// How long a place that was not given back may stay in a store's queue.
const QUEUE_KEPT: Duration = Duration::from_secs(5);

/// An attempt to acquire that is under way. Dropped before its outcome is known, it has whatever it took released.
pub(crate) struct Pending {
    manager: Arc<Shared>,
    key: Arc<str>,
    others: Box<[Arc<str>]>,
    value: Arc<str>,
    receipt: Receipt,
    lease: Duration,
    /// Whether it asks for a place in the store's queue.
    queued: Option<Queued>,
    known: bool,
}

impl Pending {
    pub(crate) fn arm(
        manager: &Arc<Shared>,
        key: &Arc<str>,
        value: Arc<str>,
        lease: Duration,
        queued: Option<Queued>,
    ) -> Self {
        let (manager, key) = (Arc::clone(manager), Arc::clone(key));
        Self {
            manager,
            key,
            others: Box::default(),
            value,
            receipt: Receipt::default(),
            lease,
            queued,
            known: false,
        }
    }

    /// An attempt to take these keys as well.
    pub(crate) fn and(mut self, others: &[Arc<str>]) -> Self {
        self.others = others.into();
        self
    }

    pub(crate) fn value(&self) -> &Arc<str> {
        &self.value
    }

    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// The outcome is known: nothing to clean up. Returns the value.
    pub(crate) fn disarm(mut self) -> Arc<str> {
        self.known = true;
        Arc::clone(&self.value)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Nothing was sent, nothing can be left.
        if self.known || self.receipt.connection().is_none() {
            return;
        }
        for key in std::iter::once(&self.key).chain(&self.others) {
            Cleanup {
                _tracked: self.manager.held.token(),
                // A place in a queue may outlive a short lease.
                until: self.manager.clock.now().after(self.lease.max(match self.queued {
                    Some(_) => QUEUE_KEPT,
                    None => Duration::ZERO,
                })),
                manager: Arc::clone(&self.manager),
                key: Arc::clone(key),
                value: Arc::clone(&self.value),
                keep_until: None,
                lease: self.lease,
                queued: self.queued,
                unanswered_on: self.receipt.unanswered_on(),
            }
            .start();
        }
    }
}

/// Releases a held lock in the background. Does not block, and works on any thread, inside and outside a runtime.
pub(crate) fn release_later(held: &Arc<Held>) {
    if is_forked() {
        return;
    }
    // Whoever was too late leaves the key to its delay.
    let expired = held.was_late()
        || matches!(
            held.fate(),
            Some(Fate::Lost(LostReason::Expired | LostReason::Unreachable))
        );
    if expired && !held.terms.lock_delay.is_zero() {
        return;
    }
    for key in held.keys().iter() {
        Cleanup {
            _tracked: held.manager.held.token(),
            until: held.gone_by(),
            manager: Arc::clone(&held.manager),
            key: Arc::clone(key),
            value: Arc::clone(&held.value),
            keep_until: held.keep().map(|keep| held.now().after(keep)),
            lease: held.terms.time_to_live(),
            queued: None,
            unanswered_on: None,
        }
        .start();
    }
}

/// A release that goes on in the background until it is certain that nothing is left in the store.
struct Cleanup {
    manager: Arc<Shared>,
    key: Arc<str>,
    value: Arc<str>,
    /// The end of the minimum hold.
    keep_until: Option<Moment>,
    lease: Duration,
    queued: Option<Queued>,
    /// The connection of an acquire without an answer: it may still be on its way, and arrive after a release on
    /// another connection. `None` when it was answered.
    unanswered_on: Option<u64>,
    /// When the store itself has surely dropped the key.
    until: Moment,
    _tracked: TaskTrackerToken,
}

impl Cleanup {
    fn start(self) {
        let receipt = Receipt::default();
        if self.manager.store.release_now(&self.request(0, &receipt)).is_some() {
            return;
        }
        match self.manager.pace() {
            // What is virtual there is to be so here.
            (_, Timer::Caller) => drop(tokio::spawn(self.run(Timer::Caller))),
            // Without the lock thread the key goes when its lease ends.
            (_, Timer::Engine) => {
                if let Ok(engine) = Engine::get() {
                    drop(engine.handle().spawn(self.run(Timer::Engine)));
                }
            }
        }
    }

    /// The acquiring connection and the present one take turns: on the first a release cannot overtake the
    /// acquire, but it may have fallen silent for good.
    fn request<'a>(&'a self, tries: u32, receipt: &'a Receipt) -> ReleaseRequest<'a> {
        ReleaseRequest {
            key: &self.key,
            value: &self.value,
            keep: self
                .keep_until
                .map(|until| until.since(self.manager.clock.now()))
                .filter(|keep| !keep.is_zero()),
            unanswered_on: self.unanswered_on.filter(|_| tries.is_multiple_of(2)),
            queued: self.queued,
            receipt,
        }
    }

    async fn run(self, timer: Timer) {
        let mut pause = FIRST_RETRY;
        let longest = (self.lease / 8).clamp(FIRST_RETRY, LONGEST_RETRY);
        for tries in 0.. {
            let receipt = Receipt::default();
            match release_once(&self.manager, timer, &self.request(tries, &receipt)).await {
                // It had arrived, and it arrives once.
                Ok(Verdict::Owned) => return,
                // On the acquiring connection a release cannot overtake the acquire; on another one it can.
                Ok(_) if self.unanswered_on.is_none() || receipt.connection() == self.unanswered_on => return,
                Ok(_) => {}
                Err(error) => tracing::debug!(key = &*self.key, %error, "release failed, trying again"),
            }
            if self.manager.clock.now() >= self.until {
                return;
            }
            timer.sleep(pause).await;
            pause = pause.saturating_mul(2).min(longest);
        }
    }
}

/// One release, within the response time-out.
pub(crate) async fn release_once(
    manager: &Shared,
    timer: Timer,
    request: &ReleaseRequest<'_>,
) -> Result<Verdict, StoreError> {
    timer
        .answer(manager.response_timeout, manager.store.release(request))
        .await
}
