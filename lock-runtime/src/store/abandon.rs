//! Attempts and places in a queue that their calls have given up, and releases in the background:
//! after a drop, a panic, a cancellation, or an attempt whose outcome is unknown. A release never
//! overtakes its acquire: it counts on the connection of an unanswered acquire, which orders the
//! two, or on another one if it is sent so much later that the acquire has arrived if it ever does.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::host::{Moment, Timer};
use crate::store::access::Access;
use crate::store::{Abandoned, Effect, HolderValue, LeaveFree, Ownership, Queued, Receipt, ReleaseRequest, Tracked};

/// The pause before a release is retried. It doubles up to [`LONGEST_RETRY`], and after
/// [`SELDOM_AFTER`] up to [`SELDOM`]: by then the store is most likely down. So it does at once
/// after a lasting refusal. A pause after a try without an answer ends early when the store answers
/// again.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_millis(500);
const SELDOM: Duration = Duration::from_secs(5);
const SELDOM_AFTER: Duration = Duration::from_secs(60);
/// The maximum time for which an unanswered acquire may be under way. The operating system gives up
/// a connection on which nothing is acknowledged for 3 s, and a server that stood still carries out
/// what it received before what is sent later. If a release is sent after this time and answered,
/// the acquire has therefore arrived before it, or never will.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(5);
/// The time after which the release of an abandoned place in a store's queue is given up. The calls
/// of this process that wait there keep all its places alive, so a place outlives any lease.
const PLACE_KEPT: Duration = Duration::from_secs(600);
/// The same for a release that the server refuses for a lasting reason, and so is in vain until its
/// user is allowed it.
const PLACE_REFUSED: Duration = Duration::from_secs(60);
/// The time that the first try has before another connection tries as well, if the acquire was
/// answered: at least this, and at least twice the usual round trip.
const FIRST_TRY: Duration = Duration::from_millis(300);

impl Access {
    /// Releases whatever an abandoned attempt has taken, or may still get, in the background.
    pub(crate) fn abandon(self: &Arc<Self>, abandoned: &Abandoned) {
        if self.store.abandon(abandoned) {
            return;
        }
        let Abandoned { ttl, queued, .. } = *abandoned;
        let now = self.now();
        let (may_hold, held_for, kept_for) = match queued {
            None => (true, ttl, ttl),
            Some(_) if abandoned.may_grant => (true, ttl.max(UNDER_WAY), ttl.max(PLACE_KEPT)),
            // A mere place holds nothing up: those of a process that has ended count for nothing.
            Some(_) => (false, PLACE_REFUSED, PLACE_KEPT),
        };
        let Tracked { held, unanswered } = &abandoned.tracked;
        let is_held = may_hold && abandoned.unanswered_on.is_none();
        for key in &abandoned.keys {
            BackgroundRelease {
                access: Arc::clone(self),
                key: Arc::clone(key),
                value: abandoned.value.clone(),
                queued,
                keep_until: None,
                leave_free: None,
                unanswered_on: abandoned.unanswered_on,
                elsewhere: abandoned.elsewhere,
                arrived_by: now.after(UNDER_WAY),
                held_until: now.after(held_for),
                until: now.after(kept_for),
                tracked: if is_held { held.token() } else { unanswered.token() },
                unanswered: unanswered.clone(),
            }
            .start();
        }
    }
}

/// A release of one key in the background, which is repeated until the store can no longer have the
/// lock.
pub(crate) struct BackgroundRelease {
    access: Arc<Access>,
    key: Arc<str>,
    value: HolderValue,
    /// The place in the store's queue that the value may have, if any.
    queued: Option<Queued>,
    /// The end of the minimum hold.
    keep_until: Option<Moment>,
    leave_free: Option<LeaveFree>,
    /// The connection of an unanswered acquire, which may still be under way and arrive after a
    /// release on another connection. `None` if the acquire was answered.
    unanswered_on: Option<u64>,
    /// `true` if the first try goes to another connection than `unanswered_on`.
    elsewhere: bool,
    /// The time by which an unanswered acquire has arrived, if it ever does.
    arrived_by: Moment,
    /// The time by which the key has expired in the store, and until which a lasting refusal may end.
    held_until: Moment,
    /// The time by which the place in the store's queue does not matter any more, either.
    until: Moment,
    tracked: TaskTrackerToken,
    unanswered: TaskTracker,
}

impl BackgroundRelease {
    /// Creates the release of a lock that is held, under `key`, by `value` until `gone_by` at the latest.
    pub(crate) fn of_held(
        access: &Arc<Access>,
        key: &Arc<str>,
        value: &HolderValue,
        gone_by: Moment,
        held: &TaskTracker,
    ) -> Self {
        Self {
            access: Arc::clone(access),
            key: Arc::clone(key),
            value: value.clone(),
            queued: None,
            keep_until: None,
            leave_free: None,
            unanswered_on: None,
            elsewhere: false,
            arrived_by: Moment::from_nanos(0),
            held_until: gone_by,
            until: gone_by,
            tracked: held.token(),
            unanswered: held.clone(),
        }
    }

    /// Keeps the key until this moment instead of deleting it.
    pub(crate) fn keeping_until(mut self, keep_until: Option<Moment>) -> Self {
        self.keep_until = keep_until;
        self
    }

    pub(crate) fn leaving_free(mut self, leave_free: Option<LeaveFree>) -> Self {
        self.leave_free = leave_free;
        self
    }

    /// Releases the lock in the background. Does not block, and works on any thread, inside and outside of
    /// a runtime.
    pub(crate) fn start(self) {
        let receipt = Receipt::default();
        if self.access.store.release_now(&self.request(0, &receipt)).is_some() {
            return;
        }
        // Under a clock that a test has paused, the retries follow that clock too. If no task can
        // be spawned, the key expires with its lease.
        let access = Arc::clone(&self.access);
        let timer = access.timer();
        access.host.spawn_by(timer, self.run(timer));
    }

    /// Returns the request for one try. Connections take turns, since each may have fallen silent for
    /// good, or be impossible to make: that of an unanswered acquire, which a release cannot overtake
    /// there, this thread's, and another thread's.
    fn request<'a>(&'a self, tries: u32, receipt: &'a Receipt) -> ReleaseRequest<'a> {
        let turn = tries % if self.unanswered_on.is_some() { 3 } else { 2 };
        ReleaseRequest {
            key: &self.key,
            value: &self.value,
            keep: self
                .keep_until
                .map(|until| until.since(self.access.clock.now()))
                .filter(|keep| !keep.is_zero()),
            unanswered_on: self.unanswered_on.filter(|_| turn == 0),
            elsewhere: turn == if self.unanswered_on.is_some() { 2 } else { 1 },
            queued: self.queued,
            leave_free: self.leave_free,
            receipt,
        }
    }

    async fn run(mut self, timer: Timer) {
        let access = Arc::clone(&self.access);
        let host = &access.host;
        let mut pause = FIRST_RETRY;
        let began = access.clock.now();
        for tries in u32::from(self.elsewhere && self.unanswered_on.is_some()).. {
            let mut back = pin!(access.back.notified());
            // Listens before the try, so that a store that returns during the try ends the pause.
            back.as_mut().enable();
            let attempt = if tries == 0 && self.unanswered_on.is_none() {
                self.try_in_a_hurry(timer).await
            } else {
                self.try_once(timer, tries).await
            };
            let until = match attempt {
                ReleaseAttempt::Done => return,
                ReleaseAttempt::Refused { for_good: true } => self.held_until,
                ReleaseAttempt::MayLandLater
                | ReleaseAttempt::Refused { for_good: false }
                | ReleaseAttempt::NoAnswer => self.until,
            };
            let now = access.clock.now();
            if now >= until {
                return;
            }
            if now >= self.held_until {
                self.tracked = self.unanswered.token();
            }
            // The jitter spreads releases that failed together.
            tokio::select! {
                () = host.sleep(timer, pause.mul_f64(0.5 + host.fraction() / 2.0)) => {}
                // The return of some connection tells nothing new about a store that has answered.
                () = back, if attempt == ReleaseAttempt::NoAnswer => {}
            }
            let is_seldom = attempt == ReleaseAttempt::Refused { for_good: true }
                || access.clock.now().since(began) >= SELDOM_AFTER;
            pause = (pause * 2).min(if is_seldom { SELDOM } else { LONGEST_RETRY });
        }
    }

    /// Tries, and soon afterwards on another connection as well.
    async fn try_in_a_hurry(&self, timer: Timer) -> ReleaseAttempt {
        let first_try = FIRST_TRY.max(self.access.usual_round_trip() * 2);
        let mut first = pin!(self.try_once(timer, 0));
        if let Some(attempt) = self.access.host.timeout(timer, first_try, first.as_mut()).await {
            return attempt;
        }
        let mut second = pin!(self.try_once(timer, 1));
        let (attempt, other) = tokio::select! {
            attempt = first.as_mut() => (attempt, second),
            attempt = second.as_mut() => (attempt, first),
        };
        if attempt == ReleaseAttempt::Done {
            attempt
        } else {
            other.await
        }
    }

    async fn try_once(&self, timer: Timer, tries: u32) -> ReleaseAttempt {
        let receipt = Receipt::default();
        let asked = self.access.clock.now();
        let answer = self.access.release(timer, &self.request(tries, &receipt)).await;
        match answer {
            // The acquire had arrived, and it arrives only once.
            Ok(Ownership::Owned) => ReleaseAttempt::Done,
            // On the acquiring connection a release cannot overtake the acquire; on another one it
            // can.
            Ok(_) if self.unanswered_on.is_none() || receipt.connection() == self.unanswered_on => ReleaseAttempt::Done,
            Ok(_) if asked >= self.arrived_by => ReleaseAttempt::Done,
            Ok(_) => ReleaseAttempt::MayLandLater,
            Err(error) => {
                // Once for each connection that is tried.
                if tries < 2 {
                    tracing::debug!(key = &*self.key, %error, "release failed, trying again");
                }
                let was_answered = receipt.connection().is_some() && error.effect() == Effect::None;
                if error.is_permanent() || was_answered {
                    ReleaseAttempt::Refused {
                        for_good: error.is_permanent(),
                    }
                } else {
                    ReleaseAttempt::NoAnswer
                }
            }
        }
    }
}

/// The outcome of a try to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReleaseAttempt {
    /// The store has nothing to release, and will have nothing.
    Done,
    /// The store has nothing to release, and the acquire may arrive after this answer.
    MayLandLater,
    /// The store refuses.
    Refused { for_good: bool },
    /// There was no answer.
    NoAnswer,
}

#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::LockManager;
    use crate::store::{AcquireRequest, Attempt, Fence, HolderValue, LockStore, RenewRequest, StoreFuture};

    /// A store that answers no acquire, and has nothing to release.
    #[derive(Debug, Default)]
    struct Silent {
        releases: AtomicUsize,
    }

    impl LockStore for Silent {
        fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
            request.receipt.sent_on(1);
            Box::pin(std::future::pending())
        }

        fn renew<'a>(&'a self, _: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
            Box::pin(std::future::pending())
        }

        fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
            self.releases.fetch_add(1, Ordering::SeqCst);
            request.receipt.sent_on(2);
            Box::pin(std::future::ready(Ok(Ownership::Gone)))
        }

        fn fence<'a>(&'a self, _: &'a str, _: &'a HolderValue) -> StoreFuture<'a, Fence> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn a_release_that_was_answered_is_not_repeated_at_each_return_of_a_connection() {
        let store = Arc::new(Silent::default());
        let shared: Arc<dyn LockStore> = store.clone();
        let locks = LockManager::builder("silent").with_store(shared).build().unwrap();
        let unanswered = tokio::time::timeout(Duration::from_millis(10), locks.lock("k").acquire()).await;
        assert!(unanswered.is_err(), "the store answered");
        let releases = || store.releases.load(Ordering::SeqCst);
        while releases() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..100 {
            locks.shared().backend.access.back.notify_waiters();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let releases = releases();
        assert!(releases <= 20, "{releases} releases of what was not there");
    }
}
