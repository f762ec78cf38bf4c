//! The guard of a held lock, which releases the lock when it ends. It leaves the watchdog's
//! schedule before it releases: the watchdog must not judge a lock that is being released, and a
//! renewal still under way finds the key gone or, after a release with a minimum hold, under a
//! changed value.

mod branch;
mod replicas;
mod run;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use atomic_waker::AtomicWaker;
use futures_util::future::join_all;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::EndCause;
use crate::error::LockError;
use crate::hold::call_tree::HeldLock;
pub(crate) use crate::hold::guard::run::Run;
use crate::hold::guard::run::{Ended, Seen};
use crate::hold::options::OnLost;
use crate::hold::queue_head::QueueHead;
use crate::hold::tasks::Tasks;
use crate::hold::{Hold, outcome_of};
use crate::host::{self, contained};
use crate::store::{Ownership, Receipt, StoreError};

/// The owner of a held lock inside the runtime. Dropping it releases the lock in the background.
pub(crate) struct Guard {
    held: Arc<Hold>,
    /// The effect of a lost lock on the guard's body.
    on_lost: OnLost,
    /// The observations made while its body was polled.
    seen: Seen,
    /// The way in which its body ended.
    ended: Ended,
    /// `true` for the guard of the call that took the lock, whose end also ends the lock's tasks.
    first: bool,
    /// The waker of the task that runs the body of a call that re-enters the lock: it may be another one
    /// than that of the first call.
    waker: Option<Arc<AtomicWaker>>,
    /// `true` once this guard has ended as the last one of its lock.
    last: bool,
    /// `true` once the release is confirmed or not needed.
    done: bool,
    /// Lets `shutdown` wait for this lock.
    _tracked: TaskTrackerToken,
}

impl Guard {
    /// Creates the first guard of a lock. Until it is dropped, `tracked` lets `shutdown` wait for the lock.
    pub(crate) fn new(held: Arc<Hold>, tracked: TaskTrackerToken) -> Self {
        let on_lost = held.options.on_lost;
        Self::of(held, on_lost, true, tracked)
    }

    /// Creates one more guard of a held lock. Returns `None` if its last guard has ended.
    pub(crate) fn nested(held: Arc<Hold>, on_lost: OnLost) -> Option<Self> {
        // Before the guard is counted: the other ones may end meanwhile, and `shutdown` must find either.
        let tracked = held.tenure.manager.held.token();
        held.add_guard().then(|| Self::of(held, on_lost, false, tracked))
    }

    fn of(held: Arc<Hold>, on_lost: OnLost, first: bool, tracked: TaskTrackerToken) -> Self {
        Self {
            on_lost,
            seen: Seen::default(),
            ended: Ended::InTime,
            first,
            waker: None,
            last: false,
            done: false,
            _tracked: tracked,
            held,
        }
    }

    pub(crate) fn held(&self) -> &Arc<Hold> {
        &self.held
    }

    /// Registers the task that polls the body, which is woken when the lock ends.
    fn register(&mut self, waker: &Waker) {
        // In a forked child, a thread of the parent may have locked the tasks.
        let own = if self.first || self.held.tenure.manager.host().is_forked() {
            &self.held.runner
        } else {
            let held = &self.held;
            self.waker.get_or_insert_with(|| held.tasks().new_waker())
        };
        own.register(waker);
    }

    /// Returns `true` if the lock was still held when the body ended.
    pub(crate) fn has_ended_in_time(&self) -> bool {
        self.ended == Ended::InTime
    }

    /// Releases the lock, and returns an error if it was lost before.
    ///
    /// Cancel safe: if dropped before the store has confirmed, the release continues in the
    /// background.
    async fn release(self) -> Result<(), LockError> {
        match self.release_now() {
            Released::Done(result) => result,
            Released::InStore(guard, place) => guard.release_in_store(place).await,
            Released::AfterTasks(guard, tasks) => guard.release_after(tasks).await,
        }
    }

    /// Releases the lock after the body is gone, and returns an error if the lock ended before the
    /// body.
    pub(crate) fn leave(self) -> Leave {
        let (ended, held) = (self.ended, Arc::clone(&self.held));
        match self.release_now() {
            Released::Done(released) => Leave::Done(in_time(&held, ended, released)),
            // Boxed, since it is much larger than the rest.
            Released::InStore(guard, place) => Leave::InStore(Box::pin(async move {
                let released = guard.release_in_store(place).await;
                in_time(&held, ended, released)
            })),
            Released::AfterTasks(guard, tasks) => Leave::InStore(Box::pin(async move {
                let released = guard.release_after(tasks).await;
                in_time(&held, ended, released)
            })),
        }
    }

    /// Waits for the lock's tasks, then releases the lock.
    // Boxed, since `release` may call this function again.
    fn release_after(self, tasks: Arc<Tasks>) -> Releasing {
        Box::pin(async move {
            tasks.gone().await;
            self.release().await
        })
    }

    /// Does the part of the release that needs no waiting.
    fn release_now(mut self) -> Released {
        // Tasks of the lock may still be running, and have to end before the release.
        if self.first
            && !self.held.tenure.manager.host().is_forked()
            && let Some(tasks) = self.held.stop_tasks()
        {
            return Released::AfterTasks(self, tasks);
        }
        let cause = self.held.check_deadline();
        let lost = match cause {
            Some(cause @ EndCause::Lost(_)) => Some(self.held.error(cause, true)),
            _ => None,
        };
        self.last = self.held.drop_guard();
        if !self.last {
            // A call around this one holds the lock.
            self.done = true;
            return Released::Done(lost.map_or(Ok(()), Err));
        }
        self.end(Hold::outcome(cause));
        if let Some(lost) = lost {
            // Dropping this guard releases the lock in the background, since the store may be
            // unreachable.
            return Released::Done(Err(lost));
        }
        // The place is kept until the release has been tried, unless the lock is passed on.
        let place = match self.pass() {
            Ok(()) => return Released::Done(Ok(())),
            Err(place) => place,
        };
        self.held.tenure.forget();
        if self.held.options.pipelined && self.send() {
            return Released::Done(Ok(()));
        }
        match self.give_back_now() {
            Some(verdict) => {
                self.done = true;
                Released::Done(outcome_of(&self.held, Ok(verdict)))
            }
            None => Released::InStore(self, place),
        }
    }

    /// Releases in a store that can do so without waiting. Returns `None` if the store cannot.
    fn give_back_now(&self) -> Option<Ownership> {
        let mut worst = Ownership::Owned;
        for key in self.held.tenure.keys().iter() {
            let receipt = Receipt::default();
            let request = self.held.release_request(key, &receipt);
            worst = worst.or(self.held.tenure.manager.store().release_now(&request)?);
        }
        Some(worst)
    }

    /// Releases the lock in the store and waits for the answer.
    async fn release_in_store(mut self, place: Option<QueueHead>) -> Result<(), LockError> {
        let held = Arc::clone(&self.held);
        let answer = if held.tenure.keys().others.is_empty() {
            give_back(&held, &held.tenure.key, place).await
        } else {
            Box::pin(give_back_all(&held)).await
        };
        let outcome = outcome_of(&held, answer);
        // Otherwise the release continues in the background.
        self.done = !matches!(outcome, Err(LockError::Store { .. }));
        outcome
    }

    /// Sends the release without waiting for its outcome. Returns `false` if it was not sent and
    /// has to be waited for.
    fn send(&mut self) -> bool {
        let mut keys = self.held.tenure.keys().iter();
        self.done = keys
            .next()
            .is_some_and(|first| Arc::clone(&self.held.tenure.watchdog).release_in_order(&self.held, first));
        if self.done && !keys.all(|key| Arc::clone(&self.held.tenure.watchdog).release_in_order(&self.held, key)) {
            // The connection was lost in between. Releasing again what was already sent has no
            // effect.
            self.held.tenure.watchdog.release_later(&self.held);
        }
        self.done
    }

    /// Passes the lock to the next call in line, if there is one and the lock may be passed on.
    /// Returns `Err` if the lock has to be released. The caller then drops the place at the front
    /// of the line once the release has been tried.
    fn pass(&mut self) -> Result<(), Option<QueueHead>> {
        let passed = match self.held.leave_place() {
            // Checked before the lock is passed on: a loss that the watchdog finds afterwards does
            // not concern this call.
            Some(place) if place.is_followed() && self.held.may_pass() => place.pass(&self.held).map_err(Some),
            place => Err(place),
        };
        match &passed {
            Ok(()) => self.done = true,
            Err(place) => self.held.may_be_left_free(place.as_ref()),
        }
        passed
    }

    /// Ends the guard: from here on the call does not learn of a loss. Unless the lock is passed
    /// on, the caller next makes the watchdog forget it.
    fn end(&self, outcome: &str) {
        self.held.end_guard();
        self.held.span.record("outcome", outcome);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if self.first && !self.held.tenure.manager.host().is_forked() {
            // Each task has a guard, and the last guard to go releases the lock.
            self.held.stop_tasks();
        }
        // What is to become of a lock whose guard has ended was decided then.
        let decided = self.last;
        if !(decided || self.held.drop_guard()) {
            return;
        }
        // A recorder or a subscriber that panics must not keep the lock held: nobody would release it, and the watchdog
        // would go on to renew it.
        if !self.held.has_ended() {
            contained(|| self.end("dropped"));
        }
        // The next call in line asks the store once the release is on its way.
        let passed = if decided { None } else { contained(|| self.pass()) };
        let passed = passed.unwrap_or_else(|| Err(self.held.leave_place()));
        if let Err(_place) = passed {
            self.held.tenure.forget();
            self.held.tenure.watchdog.release_later(&self.held);
        }
    }
}

/// Combines the end of a body with the result of the release.
fn in_time(held: &Hold, ended: Ended, released: Result<(), LockError>) -> Result<(), Box<LockError>> {
    match (ended, released) {
        (Ended::Late(cause), _) => Err(Box::new(held.error(cause, true))),
        // An unconfirmed release is no error of a body that ran under the lock to its end.
        (Ended::InTime, Err(error)) if !matches!(error, LockError::Store { .. }) => Err(Box::new(error)),
        (Ended::InTime | Ended::Notified, _) => Ok(()),
    }
}

/// The release of a lock after its body.
#[must_use = "futures do nothing unless awaited"]
pub enum Leave {
    /// The store was not asked, or has answered.
    Done(Result<(), Box<LockError>>),
    /// The store is being asked.
    InStore(Pin<Box<dyn Future<Output = Result<(), Box<LockError>>> + Send>>),
}

impl Future for Leave {
    type Output = Result<(), Box<LockError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Done(result) => Poll::Ready(std::mem::replace(result, Ok(()))),
            Self::InStore(release) => release.as_mut().poll(cx),
        }
    }
}

/// The progress of a release without waiting.
enum Released {
    Done(Result<(), LockError>),
    /// The store has to be asked. The place at the front of the line is dropped once that has been
    /// tried.
    InStore(Guard, Option<QueueHead>),
    /// Tasks of the lock have to end first.
    AfterTasks(Guard, Arc<Tasks>),
}

/// A release that the caller waits for.
type Releasing = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

/// Releases one key in the store.
async fn give_back(held: &Hold, key: &Arc<str>, place: Option<QueueHead>) -> Result<Ownership, StoreError> {
    let receipt = Receipt::default();
    let request = held.release_request(key, &receipt);
    let mut answer = pin!(
        held.tenure
            .manager
            .access
            .release(held.tenure.watchdog.timer(), &request)
    );
    let mut place = place;
    poll_fn(|cx| {
        let polled = answer.as_mut().poll(cx);
        // Usually the release is sent now, and the next call in line may ask: on the same connection
        // its request stays behind. If there is no connection yet, that call waits in the store's
        // queue: this one may never be polled again.
        drop(place.take());
        polled
    })
    .await
}

/// Releases all keys in the store at once. Returns the worst answer.
async fn give_back_all(held: &Hold) -> Result<Ownership, StoreError> {
    let answers = join_all(held.tenure.keys().iter().map(|key| give_back(held, key, None))).await;
    let mut answers = answers.into_iter();
    answers.try_fold(Ownership::Owned, |worst, answer| Ok(worst.or(answer?)))
}

/// A held lock. Dropping the guard releases the lock in the background; [`release`](Self::release)
/// waits for the release and returns an error if the lock was not held to the end.
///
/// The watchdog renews the lock while the guard lives. Code under a bare guard is **not** cancelled
/// when the lock is lost: call [`ensure`](HeldLock::ensure) before each step that needs it, await
/// [`lost`](HeldLock::lost) beside the work, or let [`LockRequest::run`](crate::LockRequest::run) or
/// the attribute do so.
///
/// A guard cannot be cloned, and only releases the lock. All else about the lock is asked of its
/// [`handle`](Self::handle), a [`HeldLock`], which can be cloned and does not keep the lock held.
///
/// ```
/// # use lock_runtime::LockManager;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::connect("memory://").await?;
/// let guard = locks.lock("inventory:7").acquire().await?;
/// guard.handle().ensure(std::time::Duration::from_secs(1))?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    lock: HeldLock,
    guard: Guard,
}

impl LockGuard {
    pub(crate) fn new(guard: Guard) -> Self {
        Self {
            lock: HeldLock::new(Arc::clone(guard.held())),
            guard,
        }
    }

    pub(crate) fn into_guard(self) -> Guard {
        self.guard
    }

    /// Returns a handle to the lock, with all that can be asked about it. The handle and its clones,
    /// for tasks that must know about the lock, do not keep it held.
    #[must_use]
    pub fn handle(&self) -> &HeldLock {
        &self.lock
    }

    /// Releases the lock and waits for the store to confirm.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock had been lost before, and [`LockError::Hung`] or [`LockError::Closed`]
    /// if it had ended in this way and the store has no longer kept it: the work done under it may have
    /// overlapped another holder's. [`LockError::Store`] if the store did not confirm; the release then
    /// continues in the background.
    ///
    /// # Cancel safety
    /// If dropped before it is done, the release continues in the background.
    pub async fn release(self) -> Result<(), LockError> {
        self.guard.release().await
    }

    /// Releases the lock, while this thread waits for the store to confirm: for code without a runtime. See
    /// [`LockRequest::acquire_blocking`](crate::LockRequest::acquire_blocking).
    ///
    /// # Errors
    /// Fails like [`release`](Self::release).
    /// [`RequestProblem::InRuntime`](crate::RequestProblem::InRuntime) on a thread of a tokio runtime; the lock
    /// is then released in the background.
    pub fn release_blocking(self) -> Result<(), LockError> {
        let key = self.lock.key().into();
        host::block_on(self.release()).unwrap_or_else(|| Err(LockError::in_runtime(key)))
    }
}

impl std::fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LockGuard").field(self.guard.held()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::future::ready;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use crate::error::LockError;
    use crate::store::{
        AcquireRequest, Attempt, Fence, HolderValue, LockStore, Ownership, ReleaseRequest, RenewRequest, StoreError,
        StoreFuture,
    };
    use crate::{LockManager, current};

    /// A store that grants every lock and is gone after that.
    #[derive(Debug)]
    struct GoneAfterTheGrant;

    fn gone<T: Send + 'static>() -> StoreFuture<'static, T> {
        Box::pin(ready(Err(StoreError::unknown("no answer"))))
    }

    impl LockStore for GoneAfterTheGrant {
        fn acquire<'a>(&'a self, _: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
            Box::pin(ready(Ok(Attempt::Granted { fence: None })))
        }

        fn renew<'a>(&'a self, _: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
            gone()
        }

        fn release<'a>(&'a self, _: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
            gone()
        }

        fn fence<'a>(&'a self, _: &'a str, _: &'a HolderValue) -> StoreFuture<'a, Fence> {
            gone()
        }
    }

    #[tokio::test]
    async fn a_store_that_fails_after_the_grant_asks_nobody_to_repeat_the_work() -> Result<(), Box<dyn Error>> {
        let locks = LockManager::builder("gone")
            .with_store(Arc::new(GoneAfterTheGrant))
            .build()?;
        let body = async {
            let lock = current().ok_or("no lock")?;
            Ok::<_, &str>([lock.verify().await.err(), lock.fencing_token().await.err()])
        };
        let inside = locks.lock("k").run(body).await??;
        let released = locks.lock("k").acquire().await?.release().await.err();
        for error in inside.into_iter().chain([released]) {
            let error = error.ok_or("the store has answered")?;
            let text = error.to_string();
            assert!(matches!(error, LockError::Store { .. }), "{text}");
            assert!(!error.is_retryable() && error.retry_after().is_none(), "{text}");
            assert!(!text.contains("try again"), "{text}");
            assert!(text.contains("may have been carried out in part"), "{text}");
        }
        Ok(())
    }

    /// A subscriber that panics at what a span is told, once it is to.
    #[derive(Clone, Default)]
    struct Panicking(Arc<AtomicBool>);

    impl Subscriber for Panicking {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {
            if self.0.load(Ordering::SeqCst) {
                resume_unwind(Box::new("the log is full"));
            }
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {}

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscriber_that_panics_does_not_keep_a_lock_held_whose_guard_is_dropped() -> Result<(), Box<dyn Error>> {
        let subscriber = Panicking::default();
        let _logging = tracing::subscriber::set_default(subscriber.clone());
        let locks = LockManager::builder("memory://").build()?;
        let guard = locks.lock("k").acquire().await?;
        subscriber.0.store(true, Ordering::SeqCst);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(guard)));
        subscriber.0.store(false, Ordering::SeqCst);
        locks
            .lock("k")
            .wait(Duration::from_secs(5))
            .acquire()
            .await?
            .release()
            .await?;
        assert!(dropped.is_ok(), "dropping the guard has panicked");
        Ok(())
    }
}
