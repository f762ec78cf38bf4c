//! Time-outs of one length. Nearly all are over before their time, since an answer arrives. In a timer wheel
//! each would be entered and removed at a price; those of one length end in the order in which they began, so
//! that here they stand in a row, and the lock thread has one timer for the first of them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::host::{Host, Timer};

/// Time-outs that are longer, such as one of `Duration::MAX`, have no end that a clock can tell.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The capacity up to which an empty row keeps its memory.
const KEPT: usize = 1024;

/// Time-outs of one length, which the lock thread ends.
#[derive(Debug)]
pub(crate) struct TimeOuts {
    host: Host,
    length: Duration,
    row: Mutex<Row>,
}

#[derive(Debug, Default)]
struct Row {
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

impl Row {
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
            row: Mutex::default(),
        })
    }

    fn row(&self) -> MutexGuard<'_, Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a future that completes after the length of these time-outs, counted from its first poll. Any
    /// runtime may drive it. Cancel safe.
    pub(crate) fn begin(self: &Arc<Self>) -> TimeOut<'_> {
        TimeOut {
            row: self,
            number: None,
        }
    }

    /// Enters a time-out, and returns its number.
    fn enter(self: &Arc<Self>, waker: &Waker) -> u64 {
        let waker = waker.clone();
        let mut row = self.row();
        // Read while the row is locked, so that the ends are in order.
        let ends = Instant::now() + self.length;
        let number = row.first + row.waiting.len() as u64;
        row.waiting.push_back(Some(Waiting { ends, waker }));
        let is_watched = std::mem::replace(&mut row.is_watched, true);
        drop(row);
        if !is_watched && self.host.spawn(watch(Arc::downgrade(self), self.host.clone())).is_err() {
            // The next one tries again. A call that asks a store has started the lock thread before.
            self.row().is_watched = false;
        }
        number
    }

    /// Ends the time-outs whose time has come. Returns the time until the next one, or `None` if there is none.
    fn end_due(&self, now: Instant) -> Option<Duration> {
        let mut due = Vec::new();
        let mut row = self.row();
        let next = loop {
            row.close_up();
            match row.waiting.front_mut() {
                Some(first) if first.as_ref().is_some_and(|first| first.ends <= now) => due.extend(first.take()),
                Some(first) => break first.as_ref().map(|first| first.ends - now),
                None => break None,
            }
        };
        row.is_watched = next.is_some();
        drop(row);
        for Waiting { waker, .. } in due {
            waker.wake();
        }
        next
    }
}

async fn watch(row: Weak<TimeOuts>, host: Host) {
    while let Some(next) = row.upgrade().and_then(|row| row.end_due(Instant::now())) {
        host.sleep(Timer::LockThread, next).await;
    }
}

/// One time-out. See [`TimeOuts::begin`].
pub(crate) struct TimeOut<'a> {
    row: &'a Arc<TimeOuts>,
    number: Option<u64>,
}

impl Future for TimeOut<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // In a forked child, the row may have been locked by a thread that does not exist here.
        if self.row.host.is_forked() {
            return Poll::Pending;
        }
        let Some(number) = self.number else {
            self.number = Some(self.row.enter(cx.waker()));
            return Poll::Pending;
        };
        let mut row = self.row.row();
        let Some(Some(waiting)) = row.get(number) else {
            return Poll::Ready(());
        };
        let before =
            (!waiting.waker.will_wake(cx.waker())).then(|| std::mem::replace(&mut waiting.waker, cx.waker().clone()));
        drop(row);
        // Dropping a waker may drop a task, which may have a time-out of its own.
        drop(before);
        Poll::Pending
    }
}

impl Drop for TimeOut<'_> {
    fn drop(&mut self) {
        // In a forked child, the row may have been locked by a thread that does not exist here.
        let Some(number) = self.number.filter(|_| !self.row.host.is_forked()) else {
            return;
        };
        let mut row = self.row.row();
        let own = row.get(number).and_then(Option::take);
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
        assert_eq!(row.row().waiting.len(), 3, "the second one is the first");
        let end_of = |at: usize| row.row().waiting[at].as_ref().map(|one| one.ends).unwrap();
        let (first, last) = (end_of(0), end_of(2));
        row.end_due(first);
        assert!(is_over(&mut all[0], waker));
        assert_eq!(is_over(&mut all[1], waker), first == last);
        assert_eq!(row.end_due(last), None);
        assert!(all.iter_mut().all(|one| is_over(one, waker)));
        drop(all);
        assert!(row.row().waiting.is_empty() && !row.row().is_watched);
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
        row.end_due(Instant::now() + LENGTH);
        assert!(
            woken.0.load(std::sync::atomic::Ordering::SeqCst),
            "the one that polled first"
        );
        assert!(is_over(&mut one, Waker::noop()));
    }
}
