//! Counters and gauges of a manager's locks, and with the feature `metrics` those of the process.

#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
pub(crate) mod metrics;
#[cfg(feature = "serde")]
mod serialize;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::EndCause;
use crate::error::LostReason;
use crate::host::Sharded;
use crate::key::CallSite;

/// A snapshot of a manager's gauges, and of its counters since its creation. See
/// [`LockManager::stats`](crate::LockManager::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The number of locks held now: from the grant until the call begins to release the lock or hands
    /// it over, or the lock is lost. The locks of several keys that one call takes count as one, and a
    /// nested call that re-enters a lock does not count. Zero after a
    /// [`shutdown`](crate::LockManager::shutdown).
    ///
    /// A lock whose guard is leaked, for example by [`std::mem::forget`], counts until it ends by its
    /// `max_renewals`, `max_hold` or, with `renew(false)`, its lease.
    pub held: u64,
    /// The number of calls that wait for a lock now: from their first poll until they get the lock,
    /// fail or are dropped. A call whose first attempt is under way counts, and so does a call that
    /// waits for another call's result under `coalesce`; a nested call that re-enters a lock does not.
    /// A call that is no longer polled counts until it is dropped. Zero after a
    /// [`shutdown`](crate::LockManager::shutdown) otherwise.
    pub waiting: u64,
    /// The time that calls have waited, in all: calls that have got their lock or another call's
    /// result, that have failed, and that were dropped before; not those that are
    /// [`waiting`](Self::waiting). The time of each call is rounded down to microseconds.
    pub waited: Duration,
    /// The number of locks acquired.
    pub acquired: u64,
    /// The number of acquired locks that another call of this process handed over, without a round
    /// trip to the store.
    pub passed: u64,
    /// The number of calls that received a clone of another call's result instead of a lock, under
    /// `coalesce`.
    pub coalesced: u64,
    /// The number of calls that ended with [`LockError::Busy`](crate::LockError::Busy).
    pub busy: u64,
    /// The number of calls that failed before their body began because of the store: with
    /// [`LockError::Store`](crate::LockError::Store) or
    /// [`LockError::TooFewReplicas`](crate::LockError::TooFewReplicas).
    pub store_failures: u64,
    /// The number of renewals that the store confirmed.
    pub renewals: u64,
    /// The number of attempts to renew a lock that the store did not confirm while the lock still
    /// held: it refused, or did not answer in time. Each is repeated until the lease is over.
    pub renewal_failures: u64,
    /// The number of locks lost because the lease ran out.
    pub lost_expired: u64,
    /// The number of locks lost because the key held another holder's value.
    pub lost_taken: u64,
    /// The number of locks lost because the key was gone.
    pub lost_deleted: u64,
    /// The number of locks lost because the store could not be reached.
    pub lost_unreachable: u64,
    /// The number of [pipelined](crate::LockRequest::pipelined) releases that failed, or found the
    /// lock lost.
    pub unconfirmed: u64,
    /// The number of calls cancelled after `max_renewals`, or `max_hold`.
    pub hung: u64,
    /// The number of polls of a body that began before the deadline and ended after it. A poll
    /// cannot be stopped midway, so a body that blocks its thread beyond the deadline can overlap
    /// the next holder. A [fencing token](crate::HeldLock::fencing_token) protects data against
    /// that.
    pub overruns: u64,
}

/// Writes one line for a log, `waited=1.5s held=1 waiting=0 …`, with each field's name.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = lock_runtime::LockManager::connect("memory://").await?;
/// locks.lock("k").acquire().await?.release().await?;
/// assert!(locks.stats().to_string().contains(" held=0 waiting=0 acquired=1 "));
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited={:?}", self.waited)?;
        let mut numbers = self.numbers().into_iter();
        numbers.try_for_each(|(name, number)| write!(f, " {name}={number}"))
    }
}

/// The counters and gauges of a manager.
#[derive(Debug, Default)]
pub(crate) struct Counters(Sharded<Shard>);

/// Defines what depends on the names of the counters.
macro_rules! counters {
    ($($counter:ident)*) => {
        /// The counts of some threads. A gauge that another thread has counted down wraps around.
        #[derive(Debug, Default)]
        struct Shard {
            held: AtomicU64,
            waiting: AtomicU64,
            /// Those of the waiting calls that wait for the result of another one.
            following: AtomicU64,
            /// In microseconds: nanoseconds would overflow within three weeks while 10,000 calls wait.
            waited: AtomicU64,
            $($counter: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats {
                    held: self.gauge(|shard| &shard.held),
                    waiting: self.gauge(|shard| &shard.waiting),
                    waited: Duration::from_micros(self.sum(|shard| &shard.waited)),
                    $($counter: self.sum(|shard| &shard.$counter),)*
                }
            }
        }

        impl Stats {
            /// Returns all but the time, each with its name.
            fn numbers(&self) -> Vec<(&'static str, u64)> {
                vec![("held", self.held), ("waiting", self.waiting), $((stringify!($counter), self.$counter),)*]
            }
        }
    };
}

counters! {
    acquired passed coalesced busy store_failures renewals renewal_failures lost_expired lost_taken lost_deleted
    lost_unreachable unconfirmed hung overruns
}

/// An event that a counter counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Acquired,
    /// A lock passed on inside the process.
    Passed,
    /// A call received the result of another one.
    Coalesced,
    Busy,
    /// A call failed before its body began, since the store did not answer or refused.
    StoreFailed,
    /// A call failed before its body began, since too few replicas had its lock.
    TooFewReplicas,
    /// An attempt to renew a lock was not confirmed, and the lock still holds.
    RenewalFailed,
    /// A release that no call waited for failed.
    Unconfirmed,
    /// A poll of a body ended after the deadline.
    Overrun,
    /// A lock ended before its guard.
    Ended(EndCause),
}

impl Counters {
    /// Counts a call that begins to wait. It calls [`waited`](Self::waited) once it no longer does.
    pub(crate) fn waits(&self, site: CallSite) {
        self.0.own().waiting.fetch_add(1, Ordering::Relaxed);
        metrics::waits(site);
    }

    /// Counts a call out that has waited for `span`. `site` is `None` in a forked child, where a thread of the
    /// parent may have locked the application's recorder.
    pub(crate) fn waited(&self, site: Option<CallSite>, span: Duration) {
        let shard = self.0.own();
        shard.waiting.fetch_sub(1, Ordering::Relaxed);
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        shard.waited.fetch_add(micros, Ordering::Relaxed);
        if let Some(site) = site {
            metrics::waited(site);
        }
    }

    /// Counts a waiting call that waits for the result of another one.
    pub(crate) fn follows(&self) {
        self.0.own().following.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn followed(&self) {
        self.0.own().following.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of waiting calls that wait for a lock themselves.
    pub(crate) fn asking(&self) -> usize {
        let waiting = self.gauge(|shard| &shard.waiting);
        let asking = waiting.saturating_sub(self.gauge(|shard| &shard.following));
        usize::try_from(asking).unwrap_or(usize::MAX)
    }

    /// Counts a held lock, until [`ends`](Self::ends) is called for it.
    pub(crate) fn holds(&self) {
        self.0.own().held.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a lock out that a call no longer holds.
    pub(crate) fn ends(&self) {
        self.0.own().held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an event of a call, and gives it to the recorder. Must not be called while a lock is held, since a
    /// recorder may take its time.
    pub(crate) fn count(&self, event: Event, site: CallSite) {
        self.tally(event);
        metrics::count(event, site);
    }

    /// Counts an event, and leaves the recorder to the caller.
    pub(crate) fn tally(&self, event: Event) {
        let shard = self.0.own();
        let counter = match event {
            Event::Acquired => &shard.acquired,
            Event::Passed => &shard.passed,
            Event::Coalesced => &shard.coalesced,
            Event::Busy => &shard.busy,
            Event::StoreFailed | Event::TooFewReplicas => &shard.store_failures,
            Event::RenewalFailed => &shard.renewal_failures,
            Event::Unconfirmed => &shard.unconfirmed,
            Event::Overrun => &shard.overruns,
            Event::Ended(EndCause::Lost(LostReason::Expired)) => &shard.lost_expired,
            Event::Ended(EndCause::Lost(LostReason::Taken)) => &shard.lost_taken,
            Event::Ended(EndCause::Lost(LostReason::Deleted)) => &shard.lost_deleted,
            Event::Ended(EndCause::Lost(LostReason::Unreachable)) => &shard.lost_unreachable,
            Event::Ended(EndCause::Hung) => &shard.hung,
            // A forked child's lock belongs to its parent, and a shutdown is not a failure.
            Event::Ended(EndCause::Lost(LostReason::Forked) | EndCause::Closed) => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a renewal, and leaves the recorder to the caller.
    pub(crate) fn renewed(&self) {
        self.0.own().renewals.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self, counter: fn(&Shard) -> &AtomicU64) -> u64 {
        let parts = self.0.iter().map(|shard| counter(shard).load(Ordering::Relaxed));
        parts.fold(0, u64::wrapping_add)
    }

    /// Returns none for less than none, which is read if one has begun in a shard that was read before, and has ended in
    /// another one since.
    fn gauge(&self, gauge: fn(&Shard) -> &AtomicU64) -> u64 {
        self.sum(gauge).cast_signed().max(0).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use crate::{LockError, LockManager, LockRequest};

    type Outcome = Result<(), Box<dyn Error>>;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the numbers of locks held and calls waiting.
    fn gauges(locks: &LockManager) -> (u64, u64) {
        let stats = locks.stats();
        (stats.held, stats.waiting)
    }

    /// Each thread counts in a part of its own.
    #[test]
    fn a_lock_that_another_thread_releases_is_held_no_more() -> Outcome {
        let locks = LockManager::builder("memory://").build()?;
        for _ in 0..3 {
            let guard = std::thread::scope(|scope| scope.spawn(|| locks.lock("k").acquire_blocking()).join());
            let guard = guard.map_err(|_| "the thread has panicked")??;
            assert_eq!(gauges(&locks), (1, 0));
            drop(guard);
            assert_eq!(gauges(&locks), (0, 0));
        }
        assert_eq!(locks.stats().acquired, 3);
        Ok(())
    }

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// The ways in which a call waits.
    fn requests(locks: &LockManager) -> [LockRequest; 4] {
        [
            locks.lock("k"),
            locks.lock("k").fair(true),
            locks.lock("k").semaphore(1),
            locks.lock_all(["k", "other"]),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_call_counts_until_it_is_dropped_at_whichever_await() -> Outcome {
        let locks = LockManager::builder("memory://").build()?;
        for at in 0..requests(&locks).len() {
            let holder = requests(&locks)[at].clone().acquire().await?;
            assert_eq!(gauges(&locks), (1, 0));
            for polls in 1..6 {
                let before = locks.stats().waited;
                {
                    let mut first = pin!(requests(&locks)[at].clone().acquire());
                    let mut second = pin!(requests(&locks)[at].clone().acquire());
                    assert_eq!(gauges(&locks), (1, 0), "a call that was never polled waits");
                    for _ in 0..polls {
                        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
                        assert_eq!(gauges(&locks), (1, 2), "request {at}, {polls} polls");
                        tokio::time::sleep(SECOND / 10).await;
                    }
                }
                assert_eq!(gauges(&locks), (1, 0), "request {at}, {polls} polls");
                let waited = locks.stats().waited.saturating_sub(before);
                assert_eq!(waited.as_millis(), u128::from(polls * 200_u32), "request {at}");
            }
            holder.release().await?;
            assert_eq!(gauges(&locks), (0, 0));
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_waited_is_that_of_calls_that_have_got_their_lock_and_of_those_that_have_failed() -> Outcome {
        let locks = LockManager::builder("memory://").build()?;
        let holder = locks.lock("k").acquire().await?;
        assert_eq!(locks.stats().waited, Duration::ZERO);
        let busy = locks.lock("k").wait(5 * SECOND).acquire().await;
        let Err(LockError::Busy { waited, .. }) = busy else {
            return Err("not busy".into());
        };
        assert_eq!(locks.stats().waited.as_micros(), waited.as_micros());
        let mut next = pin!(locks.lock("k").acquire());
        assert!(poll(next.as_mut()).is_pending());
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(locks.stats().waited.as_micros(), waited.as_micros(), "it still waits");
        holder.release().await?;
        next.await?.release().await?;
        let all = locks.stats().waited;
        assert!((waited + 2 * SECOND..waited + 3 * SECOND).contains(&all), "{all:?}");
        assert_eq!(gauges(&locks), (0, 0));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_passes_from_call_to_call_is_held_by_one_of_them_at_a_time() -> Outcome {
        let locks = LockManager::builder("memory://").build()?;
        let first = locks.lock("k").acquire().await?;
        let mut second = pin!(locks.lock("k").acquire());
        let mut third = pin!(locks.lock("k").acquire());
        assert!(poll(second.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
        assert_eq!(gauges(&locks), (1, 2));
        first.release().await?;
        assert_eq!(
            gauges(&locks),
            (0, 2),
            "no call holds the lock until the next one takes it over"
        );
        let second = second.await?;
        assert_eq!((gauges(&locks), locks.stats().passed), ((1, 1), 1));
        second.release().await?;
        let third = third.await?;
        assert_eq!((gauges(&locks), locks.stats().passed), ((1, 0), 2));
        drop(third);
        assert_eq!(gauges(&locks), (0, 0));
        Ok(())
    }

    #[tokio::test]
    async fn a_nested_call_counts_neither_as_waiting_nor_as_another_lock() -> Outcome {
        let locks = LockManager::builder("memory://").build()?;
        let nested = locks.lock("k").run(async {
            assert_eq!(gauges(&locks), (1, 0));
            let again = locks.lock("k").reentrant(true).acquire().await?;
            assert_eq!(gauges(&locks), (1, 0));
            let other = locks.lock("other").acquire().await?;
            assert_eq!(gauges(&locks), (2, 0));
            other.release().await?;
            again.release().await?;
            assert_eq!(gauges(&locks), (1, 0), "the outer call still holds it");
            let refused = locks.lock("k").acquire().await;
            assert!(matches!(refused, Err(LockError::WouldDeadlock { .. })));
            Ok::<_, LockError>(())
        });
        nested.await??;
        assert_eq!(gauges(&locks), (0, 0));
        Ok(())
    }

    #[tokio::test]
    async fn a_dropped_body_and_a_cancelled_one_hold_no_lock() -> Outcome {
        let locks = LockManager::builder("memory://").build()?;
        {
            let mut call = pin!(locks.lock("k").run(std::future::pending::<()>()));
            assert!(poll(call.as_mut()).is_pending());
            assert_eq!(gauges(&locks), (1, 0));
        }
        assert_eq!(gauges(&locks), (0, 0));
        let call = locks.lock("k").run(async {
            assert!(locks.force_release("k").await.is_ok_and(|released| released));
            let lock = crate::current().ok_or("no lock")?;
            assert!(lock.verify().await.is_err());
            assert_eq!(gauges(&locks), (0, 0), "a lost lock is held");
            std::future::pending::<Result<(), &str>>().await
        });
        assert!(matches!(call.await, Err(LockError::Lost { .. })));
        assert_eq!(gauges(&locks), (0, 0));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_leaked_guard_counts_until_its_lease_is_over() -> Outcome {
        let locks = LockManager::builder("memory://").build()?;
        std::mem::forget(locks.lock("k").lease(SECOND).renew(false).acquire().await?);
        assert_eq!(gauges(&locks), (1, 0));
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(gauges(&locks), (0, 0));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_held_and_no_call_waits_after_a_shutdown() -> Outcome {
        let locks = LockManager::builder("memory://").build()?;
        let kept = locks.lock("k").acquire().await?;
        let waiting = tokio::spawn(locks.lock("k").wait(3600 * SECOND).acquire());
        while gauges(&locks) != (1, 1) {
            tokio::task::yield_now().await;
        }
        locks.shutdown().await;
        assert_eq!(gauges(&locks), (0, 0));
        assert!(matches!(waiting.await?, Err(LockError::Closed { .. })));
        let refused = locks.lock("other").acquire().await;
        assert!(matches!(refused, Err(LockError::Closed { .. })));
        drop(kept);
        assert_eq!(gauges(&locks), (0, 0));
        Ok(())
    }
}
