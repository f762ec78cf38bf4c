//! Time-outs of one length. Nearly all are over before their time, since an answer arrives. In a timer wheel
//! each would be entered and removed at a price; those of one length end in the order in which they began, so
//! that here they stand in a row, and the lock thread has one timer for the first of them. Threads that have
//! nothing to do with each other use different rows.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::host::{Host, Mutex, Sharded, Timer, contained};

/// Time-outs that are longer, such as one of `Duration::MAX`, have no end that a clock can tell.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The capacity up to which an empty row keeps its memory.
const KEPT: usize = 1024;

/// Time-outs of one length, which the lock thread ends.
#[derive(Debug)]
pub(crate) struct TimeOuts {
    host: Host,
    length: Duration,
    rows: Sharded<Row>,
}

#[derive(Debug, Default)]
struct Row {
    /// The number below which all have ended, by their time or by being dropped. May be out of date for those
    /// that were dropped.
    ended: AtomicU64,
    standing: Mutex<Standing>,
}

#[derive(Debug, Default)]
struct Standing {
    /// The number of the first. Those with smaller ones are over.
    first: u64,
    /// In the order of their ends. `None` for one that was dropped.
    waiting: VecDeque<Option<Waiting>>,
    /// `true` while a task of the lock thread waits for the end of the first.
    is_watched: bool,
}

#[derive(Debug)]
struct Waiting {
    ends: Instant,
    waker: Waker,
}

impl Standing {
    /// Forgets those at the front that were dropped.
    fn close_up(&mut self) {
        while let Some(None) = self.waiting.front() {
            self.waiting.pop_front();
            self.first += 1;
        }
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT {
            self.waiting.shrink_to(KEPT);
        }
    }

    fn get(&mut self, number: u64) -> Option<&mut Option<Waiting>> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.waiting.get_mut(place)
    }
}

impl TimeOuts {
    pub(crate) fn new(host: &Host, length: Duration) -> Arc<Self> {
        Arc::new(Self {
            host: host.clone(),
            length: length.min(LONGEST),
            rows: Sharded::default(),
        })
    }

    /// Returns a future that completes after the length of these time-outs, counted from its first poll. Any
    /// runtime may drive it. Cancel safe.
    pub(crate) fn begin(self: &Arc<Self>) -> TimeOut<'_> {
        TimeOut {
            all: self,
            entered: None,
        }
    }

    /// Enters a time-out.
    fn enter(self: &Arc<Self>, waker: &Waker) -> Entered {
        let (id, waker) = (id_of(waker), waker.clone());
        let at = self.rows.here();
        let mut row = self.rows.at(at).standing.lock();
        // Read while the row is locked, so that the ends are in order.
        let ends = Instant::now() + self.length;
        let number = row.first + row.waiting.len() as u64;
        row.waiting.push_back(Some(Waiting { ends, waker }));
        let is_watched = std::mem::replace(&mut row.is_watched, true);
        drop(row);
        if !is_watched
            && self
                .host
                .spawn(watch(Arc::downgrade(self), at, self.host.clone()))
                .is_err()
        {
            // The next one tries again. A call that asks a store has started the lock thread before.
            self.rows.at(at).standing.lock().is_watched = false;
        }
        Entered {
            row: at,
            number,
            waker: id,
        }
    }

    /// Ends the time-outs of a row whose time has come. Returns the time until the next one, or `None` if there is
    /// none.
    fn end_due(&self, at: usize, now: Instant) -> Option<Duration> {
        let mut due = Vec::new();
        let of_row = self.rows.at(at);
        let mut row = of_row.standing.lock();
        let next = loop {
            row.close_up();
            match row.waiting.front_mut() {
                Some(first) if first.as_ref().is_some_and(|first| first.ends <= now) => due.extend(first.take()),
                Some(first) => break first.as_ref().map(|first| first.ends - now),
                None => break None,
            }
        };
        row.is_watched = next.is_some();
        of_row.ended.store(row.first, Ordering::Release);
        drop(row);
        for Waiting { waker, .. } in due {
            contained(|| waker.wake());
        }
        next
    }
}

async fn watch(all: Weak<TimeOuts>, row: usize, host: Host) {
    while let Some(next) = all.upgrade().and_then(|all| all.end_due(row, Instant::now())) {
        host.sleep(Timer::LockThread, next).await;
    }
}

/// One time-out. See [`TimeOuts::begin`].
pub(crate) struct TimeOut<'a> {
    all: &'a Arc<TimeOuts>,
    entered: Option<Entered>,
}

/// A time-out's place in a row. Small, since each waiting call has one.
struct Entered {
    row: usize,
    number: u64,
    waker: WakerId,
}

/// Identifies a waker, as [`Waker::will_wake`] does.
type WakerId = (usize, NonZeroUsize);

fn id_of(waker: &Waker) -> WakerId {
    (waker.data().addr(), NonNull::from(waker.vtable()).addr())
}

impl Future for TimeOut<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // In a forked child, the row may have been locked by a thread that does not exist here.
        if self.all.host.is_forked() {
            return Poll::Pending;
        }
        let all = self.all;
        let Some(entered) = &mut self.entered else {
            self.entered = Some(all.enter(cx.waker()));
            return Poll::Pending;
        };
        let row = all.rows.at(entered.row);
        if entered.number < row.ended.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if entered.waker == id_of(cx.waker()) {
            return Poll::Pending;
        }
        let mut row = row.standing.lock();
        let Some(Some(waiting)) = row.get(entered.number) else {
            return Poll::Ready(());
        };
        let before = std::mem::replace(&mut waiting.waker, cx.waker().clone());
        drop(row);
        entered.waker = id_of(cx.waker());
        // Dropping a waker may drop a task, which may have a time-out of its own.
        drop(before);
        Poll::Pending
    }
}

impl Drop for TimeOut<'_> {
    fn drop(&mut self) {
        // In a forked child, the row may have been locked by a thread that does not exist here.
        let Some(entered) = self.entered.as_ref().filter(|_| !self.all.host.is_forked()) else {
            return;
        };
        let mut row = self.all.rows.at(entered.row).standing.lock();
        let own = row.get(entered.number).and_then(Option::take);
        row.close_up();
        drop(row);
        drop(own);
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    /// Longer than any test: the lock thread ends none of these.
    const LENGTH: Duration = Duration::from_secs(3600);

    fn time_outs(length: Duration) -> Arc<TimeOuts> {
        let host = Host::process();
        host.start().unwrap();
        TimeOuts::new(&host, length)
    }

    /// Returns the time-outs of this thread.
    fn standing(row: &TimeOuts) -> std::sync::MutexGuard<'_, Standing> {
        row.rows.own().standing.lock()
    }

    fn is_over(time_out: &mut TimeOut<'_>, waker: &Waker) -> bool {
        Pin::new(time_out).poll(&mut Context::from_waker(waker)).is_ready()
    }

    #[tokio::test]
    async fn a_time_out_ends_after_its_time_and_not_before() {
        let length = Duration::from_millis(20);
        let row = time_outs(length);
        let began = Instant::now();
        row.begin().await;
        assert!(began.elapsed() >= length);
        row.begin().await;
        assert!(began.elapsed() >= 2 * length, "the second one, in a row that was empty");
    }

    #[test]
    fn those_that_were_dropped_leave_the_row_and_the_others_end_in_order() {
        let (row, waker) = (time_outs(LENGTH), Waker::noop());
        let mut all: Vec<_> = (0..4).map(|_| row.begin()).collect();
        for one in &mut all {
            assert!(!is_over(one, waker));
        }
        drop(all.remove(2));
        drop(all.remove(0));
        assert_eq!(standing(&row).waiting.len(), 3, "the second one is the first");
        let end_of = |at: usize| standing(&row).waiting[at].as_ref().map(|one| one.ends).unwrap();
        let (first, last) = (end_of(0), end_of(2));
        row.end_due(row.rows.here(), first);
        assert!(is_over(&mut all[0], waker));
        assert_eq!(is_over(&mut all[1], waker), first == last);
        assert_eq!(row.end_due(row.rows.here(), last), None);
        assert!(all.iter_mut().all(|one| is_over(one, waker)));
        drop(all);
        assert!(standing(&row).waiting.is_empty() && !standing(&row).is_watched);
    }

    #[test]
    fn one_that_is_dropped_in_another_thread_leaves_its_row() {
        let row = time_outs(LENGTH);
        std::thread::scope(|scope| {
            let mut one = row.begin();
            assert!(!is_over(&mut one, Waker::noop()));
            scope.spawn(move || drop(one));
        });
        assert!(standing(&row).waiting.is_empty());
    }

    #[test]
    fn the_task_that_polled_last_is_woken() {
        struct Woken(std::sync::atomic::AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let row = time_outs(LENGTH);
        let woken = Arc::new(Woken(false.into()));
        let mut one = row.begin();
        assert!(!is_over(&mut one, Waker::noop()));
        assert!(!is_over(&mut one, &Arc::clone(&woken).into()));
        row.end_due(row.rows.here(), Instant::now() + LENGTH);
        assert!(
            woken.0.load(std::sync::atomic::Ordering::SeqCst),
            "the one that polled first"
        );
        assert!(is_over(&mut one, Waker::noop()));
    }
}
