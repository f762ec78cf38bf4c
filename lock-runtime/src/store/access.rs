//! A store, with what its user has learnt of its answers.

use std::cell::OnceCell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;

use crate::host::{self, Clock, Host, Moment, Sleep, TimeOut, TimeOuts, Timer, TokioClock};
use crate::store::responder::{Awaited, Responder};
use crate::store::{
    self, AcquireRequest, Attempt, Dispatch, Effect, Limited, LockStore, Ownership, Receipt, ReleaseRequest, StoreError,
};

/// The number of response time-outs for which a release waits for earlier ones.
const PATIENCE: u32 = 10;

/// A store, and what its user has learnt of its answers.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) host: Host,
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) clock: Arc<dyn Clock>,
    /// `true` if waits follow the clock of the caller's runtime while that clock is paused.
    pub(crate) follows_paused_clocks: bool,
    pub(crate) response_timeout: Duration,
    time_outs: Arc<TimeOuts>,
    trip: Trip,
    /// Notified when the store answers again.
    pub(crate) back: Notify,
}

impl Access {
    /// Without a `clock`, locks run by that of the host, and locks in memory by that of tokio.
    pub(crate) fn new(
        host: Host,
        store: Arc<dyn LockStore>,
        clock: Option<Arc<dyn Clock>>,
        response_timeout: Duration,
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
            time_outs: TimeOuts::new(&host, response_timeout),
            host,
            store,
            clock,
            follows_paused_clocks,
            response_timeout,
            trip: Trip::default(),
            back: Notify::new(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns the timer for a wait that begins now.
    pub(crate) fn timer(&self) -> Timer {
        if self.follows_paused_clocks {
            Timer::of_tokio()
        } else {
            Timer::LockThread
        }
    }

    /// Returns the duration of an undelayed round trip to the store.
    pub(crate) fn usual_round_trip(&self) -> Duration {
        self.trip.usual()
    }

    /// Records a round trip to the store that took this long.
    pub(crate) fn note_round_trip(&self, took: Duration) {
        self.trip.note(took);
    }

    /// Sends one attempt as soon as the store takes it, and waits for the answer without a limit.
    pub(crate) async fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        let sent = dispatch(|responder| self.store.send_acquire(request, responder));
        if let Some(answer) = self.answer(sent, request.receipt).await {
            return answer;
        }
        if let Some(ready) = self.store.ready(Limited::Acquires, request.key, Duration::MAX) {
            ready.await?;
        }
        self.store.acquire(request).await
    }

    /// Sends one release, and waits for the answer without a limit.
    pub(crate) async fn give_back(&self, request: &ReleaseRequest<'_>) -> Result<Ownership, StoreError> {
        let sent = dispatch(|responder| self.store.send_release(request, responder));
        match self.answer(sent, request.receipt).await {
            Some(answer) => answer,
            None => self.store.release(request).await,
        }
    }

    /// Waits for the answer to a request that was sent at once. Returns `None` if it is to be asked again.
    async fn answer<T: Send>(&self, (sent, answer): Sent<T>, receipt: &Receipt) -> Option<Result<T, StoreError>> {
        let answer = match (sent, answer) {
            (Dispatch::ByItself(answer), _) => return Some(answer.await),
            (Dispatch::Tried(answer), _) => answer.await,
            (Dispatch::InBatch, Some(answer)) => {
                let awaited = InBatch::sent(self, receipt);
                awaited.until((&*answer).await)
            }
            (Dispatch::InBatch | Dispatch::Declined, _) => return None,
        };
        let is_undone = matches!(&answer, Err(error) if error.effect() == Effect::None);
        (!is_undone).then_some(answer)
    }

    /// Waits until the store takes it, sends one release, and waits for the answer until the response time-out.
    pub(crate) async fn release(&self, timer: Timer, request: &ReleaseRequest<'_>) -> Result<Ownership, StoreError> {
        let sent = dispatch(|responder| self.store.send_release(request, responder));
        if !matches!(sent, (Dispatch::Declined, _)) {
            let answer = pin!(self.answer(sent, request.receipt));
            match self.in_time(timer, self.response_timeout, answer).await {
                Some(Some(answer)) => return answer,
                Some(None) => {}
                None => return store::no_answer(),
            }
        }
        self.release_when_ready(timer, request).await
    }

    /// Waits until the store takes a release, and sends it then.
    async fn release_when_ready(&self, timer: Timer, request: &ReleaseRequest<'_>) -> Result<Ownership, StoreError> {
        let patience = self.response_timeout.saturating_mul(PATIENCE);
        // The one asked is that of this thread's connection.
        if !request.elsewhere
            && let Some(ready) = self.store.ready(Limited::Releases, request.key, patience)
        {
            // If no room comes in time, the release is sent nevertheless.
            drop(ready.await);
        }
        let answer = self.store.release(request);
        let answer = self.timeout(timer, self.response_timeout, answer).await;
        answer.unwrap_or_else(store::no_answer)
    }

    /// Returns the output of `future`, or `None` once `span` has passed.
    pub(crate) async fn timeout<F: Future>(&self, timer: Timer, span: Duration, future: F) -> Option<F::Output> {
        self.in_time(timer, span, pin!(future)).await
    }

    /// Does the same for a future that may be moved.
    pub(crate) fn in_time<F: Future + Unpin>(
        &self,
        timer: Timer,
        span: Duration,
        future: F,
    ) -> host::Before<End<'_>, F> {
        host::Before::new(self.end(timer, span), future)
    }

    fn end(&self, timer: Timer, span: Duration) -> End<'_> {
        let is_usual = timer == Timer::LockThread && span == self.response_timeout && !self.host.is_simulated();
        if is_usual {
            End::InRow(self.time_outs.begin())
        } else {
            // Boxed, since it is larger, and less frequent.
            End::Alone(Box::pin(self.host.sleep(timer, span)))
        }
    }
}

/// The way in which a request was sent, and the place for the answer, if that comes from a batch.
type Sent<T> = (Dispatch<T>, Option<Arc<Awaited<T>>>);

/// Has the store send a request at once, if it can.
fn dispatch<T: Send + 'static>(send: impl FnOnce(&dyn Fn() -> Responder<T>) -> Dispatch<T>) -> Sent<T> {
    let answer = OnceCell::<Arc<Awaited<T>>>::new();
    let responder = || Responder::to(Arc::clone(answer.get_or_init(Arc::default)) as _);
    let dispatch = send(&responder);
    (dispatch, answer.into_inner())
}

/// A request that was sent in a batch, while its answer is awaited.
struct InBatch<'a> {
    access: &'a Access,
    receipt: &'a Receipt,
    sent: Moment,
    answered: bool,
}

impl<'a> InBatch<'a> {
    fn sent(access: &'a Access, receipt: &'a Receipt) -> Self {
        Self {
            access,
            receipt,
            sent: access.host.now(),
            answered: false,
        }
    }

    /// Ends the wait with an answer.
    fn until<T>(mut self, answer: T) -> T {
        self.answered = true;
        answer
    }
}

impl Drop for InBatch<'_> {
    fn drop(&mut self) {
        if !self.answered && !self.access.host.is_forked() {
            let waited = self.access.host.now().since(self.sent);
            self.access.store.gave_up(self.receipt, waited);
        }
    }
}

/// The end of a time-out.
pub(crate) enum End<'a> {
    InRow(TimeOut<'a>),
    Alone(Pin<Box<Sleep>>),
}

impl Future for End<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self {
            Self::InRow(time_out) => Pin::new(time_out).poll(cx),
            Self::Alone(sleep) => sleep.as_mut().poll(cx),
        }
    }
}

/// The duration of an undelayed round trip to the store. Each answer to a request for a lock, and to
/// a batch of checks or renewals, is measured.
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
