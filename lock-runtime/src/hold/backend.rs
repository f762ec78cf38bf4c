//! The state that all locks of one manager share: the store and its settings.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::hold::handover::HandoverLimits;
use crate::hold::margins::Margins;
use crate::host::{Host, Moment, Mutex, contained};
use crate::key;
use crate::stats::Counters;
use crate::store::access::Access;
use crate::store::{Lane, LeaveFree, LockStore, LossReceiver, StoreError};

/// The store of one manager, and the state that its locks share.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) access: Arc<Access>,
    /// The store's number, the same in all managers that share the store.
    pub(super) number: u64,
    /// The store's URL, without the password.
    pub(crate) url: Box<str>,
    pub(crate) prefix: String,
    pub(super) margins: Margins,
    pub(super) reports_losses: bool,
    pub(crate) stats: Counters,
    /// Counts held locks and releases under way, for `shutdown`.
    pub(crate) held: TaskTracker,
    /// Counts releases of unanswered acquires and of places in a queue, which may never have got a
    /// lock.
    pub(crate) unanswered: TaskTracker,
    pub(crate) closed: Closed,
    pub(super) handover: HandoverLimits,
    /// The lanes whose last renewal or check has failed.
    failing: Mutex<BTreeMap<Box<[Lane]>, Failure>>,
    /// The conditions on which contended locks are left free now and then.
    pub(crate) leave_free: Option<LeaveFree>,
}

/// The end of a manager.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// Asked for each lock, without the mutex that is in the token.
    is_closed: AtomicBool,
    token: CancellationToken,
}

impl Closed {
    pub(super) fn close(&self) {
        // Before the calls that wait for it are woken, and ask.
        self.is_closed.store(true, Ordering::SeqCst);
        // A waker of the user's that panics must not keep a shutdown from ending the locks.
        contained(|| self.token.cancel());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Completes once the manager is closed. Cancel safe.
    pub(crate) async fn wait(&self) {
        self.token.cancelled().await;
    }
}

impl Backend {
    /// Creates the state of a manager that has taken no lock yet, with the default limits.
    pub(crate) fn new(access: Access, url: Box<str>, prefix: String, skew: Duration, handover: HandoverLimits) -> Self {
        Self {
            number: number_of(&access.host, &access.store),
            access: Arc::new(access),
            url,
            prefix,
            margins: Margins::new(skew),
            reports_losses: false,
            stats: Counters::default(),
            held: TaskTracker::new(),
            unanswered: TaskTracker::new(),
            closed: Closed::default(),
            handover,
            failing: Mutex::default(),
            leave_free: None,
        }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.access.host
    }

    pub(crate) fn store(&self) -> &dyn LockStore {
        &*self.access.store
    }

    pub(crate) fn now(&self) -> Moment {
        self.access.now()
    }

    /// Lets the store report losses to `receiver`, if it can.
    pub(super) fn reporting_to(mut self, receiver: LossReceiver) -> Self {
        self.reports_losses = self.access.store.report_losses(receiver);
        self
    }

    /// Returns `true` if the two managers have the same locks under the same keys, also where each has
    /// connections of its own.
    pub(super) fn shares_locks_with(&self, other: &Self) -> bool {
        let is_same_place =
            || self.access.store.place().is_some() && self.access.store.place() == other.access.store.place();
        Arc::ptr_eq(&self.access.store, &other.access.store) || is_same_place()
    }

    /// Returns `key` without the manager's prefix.
    pub(crate) fn name<'a>(&self, key: &'a str) -> &'a str {
        key::without(&self.prefix, key)
    }

    /// Returns the time until which a lock is valid whose expiry was set by a command sent at
    /// `sent` or later.
    pub(super) fn deadline(&self, sent: Moment, lease: Duration) -> Moment {
        self.margins.deadline(sent, lease)
    }

    /// Returns the longest time for which a call waits for replicas. The store may have to wait for
    /// the calls before it first.
    pub(crate) fn replicas_within(&self) -> Duration {
        self.access.response_timeout.saturating_mul(2)
    }
}

/// The failures of renewals and checks at some lanes in one outage, each logged once until the store answers again.
#[derive(Debug)]
struct Failure {
    /// The time of the last one.
    at: Moment,
    /// The codes with which the store has refused renewals, or anything for a lasting reason, such as a command that
    /// its user is not allowed. Without one it was not reached or did not answer, or refused a check for the moment.
    refusals: Vec<Box<str>>,
}

impl Failure {
    fn is_refused(&self) -> bool {
        !self.refusals.is_empty()
    }
}

/// The time without a failure after which the next one is logged as that of another outage. The locks of the last
/// one may have been lost without a renewal after it.
const OUTAGE_IS_OVER: Duration = Duration::from_secs(60);

impl Backend {
    /// Logs that a check at these lanes has failed, or also a renewal (`renews`). `locks` counts the locks
    /// there. Must not be called while a lock is held, since a subscriber may use the manager.
    pub(super) fn has_failed(
        &self,
        lanes: Box<[Lane]>,
        error: &StoreError,
        renews: bool,
        locks: impl FnOnce() -> usize,
    ) {
        let refusal = (error.is_permanent() || renews && error.is_answer()).then(|| error.code());
        let is_refused = refusal.is_some();
        let now = self.now();
        {
            let mut known = self.failing.lock();
            let before = known.remove(&lanes);
            let before = before.filter(|last| now.since(last.at) < OUTAGE_IS_OVER);
            let is_first = before.is_none();
            let mut refusals = before.map(|last| last.refusals).unwrap_or_default();
            let is_told = match refusal {
                Some(code) if refusals.contains(&code) => true,
                Some(code) => {
                    refusals.push(code);
                    false
                }
                None => !is_first,
            };
            known.insert(lanes, Failure { at: now, refusals });
            if is_told {
                return;
            }
        }
        if is_refused {
            tracing::warn!(store = %self.url, %error, locks = locks(), "the store refuses to renew locks");
        } else {
            tracing::debug!(%error, "renewal failed, trying again until the deadline");
        }
    }

    /// Notes that these lanes have answered a check, or also a renewal, and logs the end of a refusal: a
    /// store that refuses renewals may permit checks. Must not be called while a lock is held.
    pub(super) fn has_answered(&self, lanes: &[Lane], has_renewed: bool) {
        let mut failing = self.failing.lock();
        let before = failing.get(lanes).map(Failure::is_refused);
        if before == Some(false) || has_renewed {
            failing.remove(lanes);
        }
        drop(failing);
        if before == Some(true) && has_renewed {
            tracing::info!(store = %self.url, "the store renews locks again");
        }
    }
}

/// Returns the number of a store on this host. Managers that share a store get the same number.
fn number_of(host: &Host, store: &Arc<dyn LockStore>) -> u64 {
    #[derive(Default)]
    struct Numbers(Mutex<Vec<(u64, Weak<dyn LockStore>)>>);

    let numbers = host.keep(Numbers::default);
    let mut numbers = numbers.0.lock();
    numbers.retain(|(_, known)| known.strong_count() > 0);
    let mut known = numbers.iter();
    let known = known.find(|(_, known)| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(store)));
    if let Some((number, _)) = known {
        return *number;
    }
    let number = host.number();
    numbers.push((number, Arc::downgrade(store)));
    number
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::panic::resume_unwind;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};

    use crate::{LockError, LockManager};

    /// That of an executor of the user's, which panics.
    struct Panicking;

    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new("this executor takes no more tasks"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waker_that_panics_does_not_keep_a_shutdown_from_ending_the_locks() -> Result<(), Box<dyn Error>> {
        let locks = LockManager::builder("memory://").build()?;
        let body = tokio::spawn(locks.lock("k").run(std::future::pending::<()>()));
        tokio::task::yield_now().await;
        let mut waiting = pin!(locks.lock("k").acquire());
        let waker = Waker::from(Arc::new(Panicking));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        locks.shutdown().await;
        assert!(matches!(body.await?, Err(LockError::Closed { .. })));
        Ok(())
    }
}
