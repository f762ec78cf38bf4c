//! One clock for everything a test compares: all processes of a host read the same values from it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment on the host's boot-time clock, in nanoseconds. It counts suspended time and never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// The present moment.
    #[must_use]
    pub fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let now = clock_gettime(ClockId::Boottime);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).expect("the boot-time clock starts at zero");
        let nanos = u64::try_from(now.tv_nsec).expect("nanoseconds are not negative");
        Self(seconds * 1_000_000_000 + nanos)
    }

    /// The moment `nanos` nanoseconds after the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The time from `earlier` to this moment, less the [pauses](watch_pauses) of the machine in between. A promise
    /// to be done within a second is about this time: no program can keep it while it does not run.
    #[must_use]
    pub fn calm_since(self, earlier: Self) -> Duration {
        self.since(earlier).saturating_sub(PAUSES.between(earlier, self))
    }
}

/// Returns the shortest time by this clock for which a server may keep something that it keeps for `span` by its own. Systems put a
/// wrong clock right by letting it run faster or slower; the library allows for 1 %. Servers count whole milliseconds.
#[must_use]
pub fn kept_for(span: Duration) -> Duration {
    span.mul_f64(0.99).saturating_sub(Duration::from_millis(1))
}

const TICK_NANOS: u64 = 5_000_000;
const TICK: Duration = Duration::from_nanos(TICK_NANOS);

static PAUSES: Pauses = Pauses {
    begin: Once::new(),
    record: Mutex::new(Record {
        ticked: Stamp(0),
        pauses: Vec::new(),
    }),
};

/// Notes from now on when the machine does not run this process. A thread sleeps for a few milliseconds again and
/// again, and counts as a pause by how much a sleep was longer. [`Server`](crate::Server) calls this as it starts.
pub fn watch_pauses() {
    PAUSES.begin.call_once(|| {
        PAUSES.tick();
        let watch = || {
            loop {
                std::thread::sleep(TICK);
                PAUSES.tick();
            }
        };
        std::thread::Builder::new()
            .name("pauses".into())
            .spawn(watch)
            .expect("a thread");
    });
}

struct Pauses {
    begin: Once,
    record: Mutex<Record>,
}

struct Record {
    ticked: Stamp,
    /// The end of each pause that is over, and its beginning.
    pauses: Vec<(Stamp, Stamp)>,
}

impl Record {
    /// The pause up to now, if there is one.
    fn present(&self) -> Option<(Stamp, Stamp)> {
        let (now, due) = (Stamp::now(), Stamp(self.ticked.0 + TICK_NANOS));
        (now.since(due) >= TICK).then_some((now, due))
    }
}

impl Pauses {
    fn tick(&self) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.ticked != Stamp::default() {
            let pause = record.present();
            record.pauses.extend(pause);
        }
        record.ticked = Stamp::now();
    }

    /// The pauses between two moments, added up.
    fn between(&self, from: Stamp, to: Stamp) -> Duration {
        assert!(
            self.begin.is_completed(),
            "no pauses are watched in a test without a server"
        );
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let pauses = record.pauses.iter().copied().chain(record.present());
        pauses.map(|(end, begin)| end.min(to).since(begin.max(from))).sum()
    }
}

/// How late the current runtime polls a task that another thread has woken. The library counts a call that is polled late as one that is
/// not polled: a test in which each call is polled is about runtimes that keep up.
pub struct Lag(Arc<Mutex<Duration>>);

impl Lag {
    /// Watches the current runtime until it ends.
    #[must_use]
    pub fn watch() -> Self {
        let (wakes, mut woken) = tokio::sync::mpsc::unbounded_channel();
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let seen = Arc::clone(&longest);
        tokio::spawn(async move {
            while let Some(at) = woken.recv().await {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                *seen = seen.max(Stamp::now().since(at));
            }
        });
        let wake = move || {
            // What this thread oversleeps counts as well.
            let mut due = Stamp::now();
            while wakes.send(due).is_ok() {
                due = Stamp(Stamp::now().0 + TICK_NANOS);
                std::thread::sleep(TICK);
            }
        };
        std::thread::Builder::new()
            .name("lag".into())
            .spawn(wake)
            .expect("a thread");
        Self(longest)
    }

    /// The longest time from a wake-up to the poll since the last such question.
    #[must_use]
    pub fn longest(&self) -> Duration {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Stamp {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A body that never ends and yields every millisecond; `last` is the end of its last poll.
pub async fn ticking(last: &AtomicU64) {
    let mut work = Box::pin(async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    poll_fn(|cx| {
        let polled = work.as_mut().poll(cx);
        last.store(Stamp::now().as_nanos(), Ordering::SeqCst);
        polled
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_that_is_blocked_is_late() {
        let lag = Lag::watch();
        let late = async || {
            while lag.longest() < Duration::from_millis(200) {
                std::thread::sleep(Duration::from_millis(300));
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(crate::PATIENCE, late()).await.unwrap();
    }

    #[test]
    fn what_a_tick_is_late_by_is_a_pause_and_counts_where_it_overlaps() {
        let now = Stamp::now();
        let later = |stamp: Stamp, millis: u64| Stamp::from_nanos(stamp.as_nanos() + millis * 1_000_000);
        let at = |millis| later(now, millis);
        let (begin, end) = (at(1000), at(3000));
        let pauses = Pauses {
            begin: Once::new(),
            record: Mutex::new(Record {
                ticked: at(1_000_000),
                pauses: vec![(end, begin)],
            }),
        };
        pauses.begin.call_once(|| {});
        assert_eq!(pauses.between(begin, end), Duration::from_secs(2));
        assert_eq!(pauses.between(at(0), later(end, 9)), Duration::from_secs(2));
        assert_eq!(pauses.between(later(begin, 500), end), Duration::from_millis(1500));
        assert_eq!(pauses.between(at(0), later(begin, 500)), Duration::from_millis(500));
        assert_eq!(pauses.between(end, later(end, 9)), Duration::ZERO);
        assert_eq!(pauses.between(at(0), begin), Duration::ZERO);
    }

    /// A tick that is late, before and after it has come.
    #[test]
    fn a_pause_counts_before_and_after_it_is_over() {
        let long_ago = Stamp::from_nanos(Stamp::now().as_nanos() - 50_000_000);
        let pauses = Pauses {
            begin: Once::new(),
            record: Mutex::new(Record {
                ticked: long_ago,
                pauses: Vec::new(),
            }),
        };
        pauses.begin.call_once(|| {});
        let least = Duration::from_millis(50).saturating_sub(TICK);
        assert!(pauses.between(long_ago, Stamp::now()) >= least.saturating_sub(TICK));
        pauses.tick();
        assert!(pauses.between(long_ago, Stamp::now()) >= least);
    }
}
