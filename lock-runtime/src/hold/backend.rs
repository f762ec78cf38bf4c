//! The state that all locks of one manager share: the store and its settings.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::hold::handover::HandoverLimits;
use crate::hold::margins::Margins;
use crate::host::{Clock, Host, Moment, Timer, TokioClock};
use crate::key;
use crate::stats::Counters;
use crate::store::{self, Lane, LeaveFree, Limited, LockStore, LossReceiver, Ownership, ReleaseRequest, StoreError};

/// The number of response time-outs for which a release waits for earlier ones.
const PATIENCE: u32 = 10;

/// The store of one manager, and the state that its locks share.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) host: Host,
    pub(crate) store: Arc<dyn LockStore>,
    /// The store's number, the same in all managers that share the store.
    pub(super) number: u64,
    /// The store's URL, without the password.
    pub(crate) url: Box<str>,
    pub(crate) prefix: String,
    pub(super) margins: Margins,
    pub(crate) clock: Arc<dyn Clock>,
    /// `true` if waits follow the clock of the caller's runtime while that clock is paused.
    pub(super) follows_paused_clocks: bool,
    pub(super) reports_losses: bool,
    pub(crate) response_timeout: Duration,
    pub(crate) stats: Counters,
    trip: Trip,
    /// Counts held locks and releases under way, for `shutdown`.
    pub(crate) held: TaskTracker,
    /// Counts releases of unanswered acquires and of places in a queue, which may never have got a
    /// lock.
    pub(super) unanswered: TaskTracker,
    /// Notified when the store answers again.
    pub(crate) back: Notify,
    pub(crate) closed: CancellationToken,
    pub(super) handover: HandoverLimits,
    /// The lanes whose last renewal or check has failed.
    failing: Mutex<BTreeMap<Box<[Lane]>, Failing>>,
    /// The conditions on which contended locks are left free now and then.
    pub(crate) leave_free: Option<LeaveFree>,
}

impl Backend {
    /// Creates the state of a manager that has taken no lock yet, with the default limits. Without
    /// a `clock`, locks run by that of the host, and locks in memory by that of tokio.
    pub(crate) fn new(
        host: Host,
        store: Arc<dyn LockStore>,
        url: Box<str>,
        prefix: String,
        clock: Option<Arc<dyn Clock>>,
        skew: Duration,
        handover: HandoverLimits,
    ) -> Self {
        let follows_paused_clocks = clock.is_none() && store.release_is_immediate();
        let clock = clock.unwrap_or_else(|| {
            if follows_paused_clocks {
                Arc::new(TokioClock)
            } else {
                host.clock()
            }
        });
        Self {
            number: number_of(&host, &store),
            host,
            store,
            url,
            prefix,
            margins: Margins::new(skew),
            clock,
            follows_paused_clocks,
            reports_losses: false,
            response_timeout: Duration::from_secs(1),
            stats: Counters::default(),
            trip: Trip::default(),
            held: TaskTracker::new(),
            unanswered: TaskTracker::new(),
            back: Notify::new(),
            closed: CancellationToken::new(),
            handover,
            failing: Mutex::default(),
            leave_free: None,
        }
    }

    /// Lets the store report losses to `receiver`, if it can.
    pub(super) fn reporting_to(mut self, receiver: LossReceiver) -> Self {
        self.reports_losses = self.store.report_losses(receiver);
        self
    }

    /// Returns `true` if the two managers have the same locks under the same keys, also where each has
    /// connections of its own.
    pub(super) fn shares_locks_with(&self, other: &Self) -> bool {
        let is_same_place = || self.store.place().is_some() && self.store.place() == other.store.place();
        Arc::ptr_eq(&self.store, &other.store) || is_same_place()
    }

    /// Returns `key` without the manager's prefix.
    pub(crate) fn name<'a>(&self, key: &'a str) -> &'a str {
        key::without(&self.prefix, key)
    }

    /// Returns the time until which a lock is valid whose expiry was set by a command sent at
    /// `sent` or later.
    pub(crate) fn deadline(&self, sent: Moment, lease: Duration) -> Moment {
        self.margins.deadline(sent, lease)
    }

    /// Returns the duration of an undelayed round trip to the store.
    pub(crate) fn usual_round_trip(&self) -> Duration {
        self.trip.usual()
    }

    /// Records a round trip to the store that took this long.
    pub(crate) fn note_round_trip(&self, took: Duration) {
        self.trip.note(took);
    }

    /// Returns the longest time for which a call waits for replicas. The store may have to wait for
    /// the calls before it first.
    pub(crate) fn replicas_within(&self) -> Duration {
        self.response_timeout.saturating_mul(2)
    }

    /// Returns the timer for a wait that begins now.
    pub(super) fn timer(&self) -> Timer {
        if self.follows_paused_clocks {
            Timer::of_tokio()
        } else {
            Timer::LockThread
        }
    }

    /// Waits for room, sends one release, and waits for the answer until the response time-out.
    pub(super) async fn release(&self, timer: Timer, request: &ReleaseRequest<'_>) -> Result<Ownership, StoreError> {
        let patience = self.response_timeout.saturating_mul(PATIENCE);
        // The room is that of this thread's connection.
        if !request.elsewhere
            && let Some(room) = self.store.room(Limited::Releases, request.key, patience)
        {
            // If no room comes in time, the release is sent nevertheless.
            drop(room.await);
        }
        let answer = self.store.release(request);
        store::within(&self.host, timer, self.response_timeout, answer).await
    }
}

/// The failures of renewals and checks, logged once until the store answers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    /// For a reason that may pass by itself.
    Passing,
    /// The store refuses for a lasting reason, such as a command that its user is not allowed.
    Refused,
}

impl Backend {
    /// Logs that a renewal or check at these lanes has failed. `locks` counts the locks there. Must not be
    /// called while a lock is held, since a subscriber may use the manager.
    pub(super) fn has_failed(&self, lanes: Box<[Lane]>, error: &StoreError, locks: impl FnOnce() -> usize) {
        let failing = if error.is_permanent() {
            Failing::Refused
        } else {
            Failing::Passing
        };
        {
            let mut known = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
            let before = known.get(&lanes).copied();
            if before == Some(Failing::Refused) || before == Some(failing) {
                return;
            }
            known.insert(lanes, failing);
        }
        match failing {
            Failing::Passing => tracing::debug!(%error, "renewal failed, trying again until the deadline"),
            Failing::Refused => {
                tracing::warn!(store = %self.url, %error, locks = locks(), "the store refuses to renew locks");
            }
        }
    }

    /// Notes that these lanes have answered a check, or also a renewal, and logs the end of a refusal: a
    /// store that refuses renewals may permit checks. Must not be called while a lock is held.
    pub(super) fn has_answered(&self, lanes: &[Lane], has_renewed: bool) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = failing.get(lanes).copied();
        if before == Some(Failing::Passing) || has_renewed {
            failing.remove(lanes);
        }
        drop(failing);
        if before == Some(Failing::Refused) && has_renewed {
            tracing::info!(store = %self.url, "the store renews locks again");
        }
    }
}

/// The duration of an undelayed round trip to the store. Each answer to a request for a lock is
/// measured.
#[derive(Debug, Default)]
struct Trip(AtomicU64);

impl Trip {
    /// Records a round trip. A shorter one replaces the value at once, a longer one raises it by at
    /// most 1/64.
    fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Two updates at once may lose one of the two, which does no harm.
        let usual = self.0.load(Ordering::Relaxed);
        let usual = if usual == 0 { took } else { usual + usual / 64 };
        self.0.store(took.min(usual), Ordering::Relaxed);
    }

    fn usual(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Returns the number of a store on this host. Managers that share a store get the same number.
fn number_of(host: &Host, store: &Arc<dyn LockStore>) -> u64 {
    #[derive(Default)]
    struct Numbers(Mutex<Vec<(u64, Weak<dyn LockStore>)>>);

    let numbers = host.keep(Numbers::default);
    let mut numbers = numbers.0.lock().unwrap_or_else(PoisonError::into_inner);
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
