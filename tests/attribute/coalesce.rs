//! `coalesce`: calls that arrive while another one is under way get a clone of its result.

use std::cell::Cell;
use std::fmt::Debug;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LostReason, distributed_lock};
use tokio::sync::{Notify, Semaphore};

use crate::witness::start;

/// An error that every caller can have a copy of.
#[derive(Clone, Debug)]
enum ReportError {
    Lock(LockError),
    Empty,
}

impl From<LockError> for ReportError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

type Report = Result<u32, ReportError>;

/// Where a test and the bodies meet.
#[derive(Debug)]
struct Stage {
    /// Under a running clock, a call that waits loses its lead, or its turn, if it is not polled for a moment. Tests in which calls
    /// wait for the lock pause the clock.
    locks: LockManager,
    /// How many bodies have begun.
    runs: AtomicU32,
    /// How many arguments have ended.
    dropped: AtomicU32,
    /// A body has begun.
    began: Notify,
    /// A permit lets one body end.
    end: Semaphore,
}

impl Stage {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            locks: LockManager::builder("memory://").build().unwrap(),
            runs: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
            began: Notify::new(),
            end: Semaphore::new(0),
        })
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::Relaxed)
    }

    fn dropped(&self) -> u32 {
        self.dropped.load(Ordering::Relaxed)
    }

    async fn run(&self) -> u32 {
        let run = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        self.began.notify_one();
        self.end.acquire().await.unwrap().forget();
        run
    }

    fn argument(self: &Arc<Self>) -> Argument {
        Argument(Arc::clone(self))
    }
}

/// Counts its end.
struct Argument(Arc<Stage>);

impl Drop for Argument {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[distributed_lock(key = "report:<id>", wait = wait, coalesce, manager = stage.locks)]
async fn report(stage: &Stage, id: u64, wait: Duration, _argument: Argument) -> Report {
    Ok(stage.run().await)
}

const LONG: Duration = Duration::from_secs(60);

fn call(stage: &Arc<Stage>) -> impl Future<Output = Report> + Send + 'static {
    patient(stage, LONG)
}

fn patient(stage: &Arc<Stage>, wait: Duration) -> impl Future<Output = Report> + Send + 'static {
    let stage = Arc::clone(stage);
    async move { report(&stage, 7, wait, stage.argument()).await }
}

/// Polls a call once: from then on it has its place.
async fn has_come<F: Future<Output: Debug>>(mut call: Pin<&mut F>) {
    poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Pending => Poll::Ready(()),
        Poll::Ready(output) => panic!("it is over: {output:?}"),
    })
    .await;
}

/// Polls a call until its body has begun.
async fn has_begun<F: Future<Output: Debug>>(stage: &Stage, call: Pin<&mut F>) {
    tokio::select! {
        biased;
        output = call => panic!("it is over: {output:?}"),
        () = stage.began.notified() => {}
    }
}

#[tokio::test]
async fn calls_that_come_meanwhile_get_a_copy_and_do_not_run() {
    let stage = Stage::new();
    let mut leader = pin!(call(&stage));
    has_begun(&stage, leader.as_mut()).await;
    let (mut first, mut second) = (pin!(call(&stage)), pin!(call(&stage)));
    has_come(first.as_mut()).await;
    has_come(second.as_mut()).await;

    stage.end.add_permits(1);
    let (leader, first, second) = tokio::join!(leader, first, second);
    assert_eq!([leader.unwrap(), first.unwrap(), second.unwrap()], [1; 3]);
    assert_eq!(stage.runs(), 1);
    assert_eq!(stage.dropped(), 3);
    let stats = stage.locks.stats();
    assert_eq!((stats.acquired, stats.coalesced), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn calls_that_come_while_the_first_one_waits_get_its_result() {
    let stage = Stage::new();
    let guard = stage.locks.lock("report:7").acquire().await.unwrap();
    let (mut leader, mut follower) = (pin!(call(&stage)), pin!(call(&stage)));
    has_come(leader.as_mut()).await;
    has_come(follower.as_mut()).await;
    guard.release().await.unwrap();
    stage.end.add_permits(1);
    let (leader, follower) = tokio::join!(leader, follower);
    assert_eq!((leader.unwrap(), follower.unwrap(), stage.runs()), (1, 1, 1));
}

#[tokio::test]
async fn the_arguments_of_a_call_that_gets_a_copy_end_before_it_returns() {
    let stage = Stage::new();
    let mut leader = pin!(call(&stage));
    has_begun(&stage, leader.as_mut()).await;
    let mut follower = pin!(call(&stage));
    has_come(follower.as_mut()).await;
    stage.end.add_permits(1);
    leader.await.unwrap();
    assert_eq!(stage.dropped(), 1);
    follower.await.unwrap();
    assert_eq!((stage.dropped(), stage.runs()), (2, 1));
}

#[tokio::test]
async fn a_call_that_comes_after_the_result_runs_anew() {
    let stage = Stage::new();
    stage.end.add_permits(2);
    assert_eq!(call(&stage).await.unwrap(), 1);
    assert_eq!(call(&stage).await.unwrap(), 2);
    assert_eq!(stage.locks.stats().coalesced, 0);
}

#[tokio::test(start_paused = true)]
async fn when_the_leader_is_dropped_one_of_the_others_runs() {
    let stage = Stage::new();
    let mut leader = Box::pin(call(&stage));
    has_begun(&stage, leader.as_mut()).await;
    let (mut first, mut second, mut third) = (pin!(call(&stage)), pin!(call(&stage)), pin!(call(&stage)));
    has_come(first.as_mut()).await;
    has_come(second.as_mut()).await;
    has_come(third.as_mut()).await;
    drop(leader);
    has_begun(&stage, first.as_mut()).await;
    has_come(second.as_mut()).await;
    // One that comes now follows the new one.
    let mut late = pin!(call(&stage));
    has_come(late.as_mut()).await;
    stage.end.add_permits(1);
    let (first, second, third, late) = tokio::join!(first, second, third, late);
    assert_eq!([first.unwrap(), second.unwrap(), third.unwrap(), late.unwrap()], [2; 4]);
    assert_eq!(stage.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_has_left_does_not_take_the_lead_along() {
    let stage = Stage::new();
    let mut leader = Box::pin(call(&stage));
    has_begun(&stage, leader.as_mut()).await;
    let (mut first, mut second, mut third) = (Box::pin(call(&stage)), Box::pin(call(&stage)), pin!(call(&stage)));
    has_come(first.as_mut()).await;
    has_come(second.as_mut()).await;
    has_come(third.as_mut()).await;
    // Before it is called to lead, and after.
    drop(first);
    drop(leader);
    drop(second);
    stage.end.add_permits(1);
    assert_eq!(third.await.unwrap(), 2);
}

#[distributed_lock(key = "panics", coalesce, manager = stage.locks)]
async fn panics_once(stage: &Stage) -> Report {
    let run = stage.run().await;
    assert!(run > 1, "on purpose");
    Ok(run)
}

#[tokio::test(start_paused = true)]
async fn when_the_leader_panics_one_of_the_others_runs() {
    let stage = Stage::new();
    let task = || {
        let stage = Arc::clone(&stage);
        async move { panics_once(&stage).await }
    };
    let leader = tokio::spawn(task());
    stage.began.notified().await;
    let (mut first, mut second) = (pin!(task()), pin!(task()));
    has_come(first.as_mut()).await;
    has_come(second.as_mut()).await;
    stage.end.add_permits(2);
    assert!(leader.await.unwrap_err().is_panic());
    let (first, second) = tokio::join!(first, second);
    assert_eq!([first.unwrap(), second.unwrap()], [2; 2]);
}

#[tokio::test(start_paused = true)]
async fn when_the_leader_gets_no_lock_another_one_goes_on_with_the_rest_of_its_wait() {
    let stage = Stage::new();
    let guard = stage.locks.lock("report:7").acquire().await.unwrap();
    let began = tokio::time::Instant::now();
    let busy = async |wait| match patient(&stage, Duration::from_secs(wait)).await {
        Err(ReportError::Lock(LockError::Busy { .. })) => began.elapsed(),
        other => panic!("{other:?}"),
    };
    // They come in this order. The second one leads after the first, and the third after both.
    let (first, second, third) = tokio::join!(
        busy(1),
        async {
            let waited = busy(3).await;
            guard.release().await.unwrap();
            stage.end.add_permits(1);
            waited
        },
        call(&stage),
    );
    let within = |waited: Duration, second| {
        let exact = Duration::from_secs(second);
        waited >= exact && waited < exact + Duration::from_secs(1)
    };
    assert!(within(first, 1), "{first:?}");
    assert!(within(second, 3), "{second:?}");
    assert_eq!((third.unwrap(), stage.runs()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_result_within_its_own_wait() {
    let stage = Stage::new();
    let mut leader = pin!(call(&stage));
    has_begun(&stage, leader.as_mut()).await;
    let began = tokio::time::Instant::now();
    for seconds in [0, 5] {
        let wait = Duration::from_secs(seconds);
        match patient(&stage, wait).await {
            Err(ReportError::Lock(LockError::Busy {
                key, waited, holder, ..
            })) => {
                assert_eq!(&*key, "report:7");
                assert!(waited >= wait && waited < wait + Duration::from_secs(1), "{waited:?}");
                let holder = holder.expect("the leader holds the lock").to_string();
                assert!(holder.contains("report"), "{holder}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(began.elapsed() < Duration::from_secs(6));
    assert_eq!((stage.runs(), stage.dropped(), stage.locks.stats().busy), (1, 2, 2));
    stage.end.add_permits(1);
    assert_eq!(leader.await.unwrap(), 1);
}

#[tokio::test]
async fn the_wait_runs_on_the_hosts_clock_too() {
    let stage = Stage::new();
    let mut leader = pin!(call(&stage));
    has_begun(&stage, leader.as_mut()).await;
    let busy = patient(&stage, Duration::from_millis(20)).await;
    assert!(
        matches!(busy, Err(ReportError::Lock(LockError::Busy { .. }))),
        "{busy:?}"
    );
}

#[distributed_lock(key = "fails", coalesce, manager = stage.locks)]
async fn fails(stage: &Stage) -> Report {
    stage.run().await;
    Err(ReportError::Empty)
}

#[tokio::test]
async fn an_error_of_the_body_is_a_result_as_any() {
    let stage = Stage::new();
    let (mut leader, mut follower) = (pin!(fails(&stage)), pin!(fails(&stage)));
    has_begun(&stage, leader.as_mut()).await;
    has_come(follower.as_mut()).await;
    stage.end.add_permits(1);
    let (leader, follower) = tokio::join!(leader, follower);
    assert!(matches!(leader, Err(ReportError::Empty)), "{leader:?}");
    assert!(matches!(follower, Err(ReportError::Empty)), "{follower:?}");
    assert_eq!(stage.runs(), 1);
}

#[distributed_lock(key = "loses", lease = "1s", renew = false, coalesce, on_lost = cancel, manager = stage.locks)]
async fn loses(stage: &Stage) -> Report {
    Ok(stage.run().await)
}

#[distributed_lock(key = "told", lease = "1s", renew = false, coalesce, on_lost = signal, manager = stage.locks)]
async fn told(stage: &Stage) -> Report {
    let run = stage.runs.fetch_add(1, Ordering::Relaxed) + 1;
    if run == 1 {
        lock_runtime::current().expect("locked").lost().await;
    }
    Ok(run)
}

#[tokio::test(start_paused = true)]
async fn what_a_call_returns_whose_lock_was_lost_is_nobody_elses() {
    let stage = Stage::new();
    let (mut leader, mut follower) = (pin!(loses(&stage)), pin!(loses(&stage)));
    has_begun(&stage, leader.as_mut()).await;
    has_come(follower.as_mut()).await;
    let lost = leader.await;
    assert!(
        matches!(
            lost,
            Err(ReportError::Lock(LockError::Lost {
                reason: LostReason::Expired,
                ..
            }))
        ),
        "{lost:?}"
    );
    stage.end.add_permits(1);
    assert_eq!(follower.await.unwrap(), 2);

    let stage = Stage::new();
    let (mut leader, mut follower) = (pin!(told(&stage)), pin!(told(&stage)));
    has_come(leader.as_mut()).await;
    has_come(follower.as_mut()).await;
    let (leader, follower) = tokio::join!(leader, follower);
    assert_eq!((leader.unwrap(), follower.unwrap()), (1, 2));
}

#[distributed_lock(key = "nested:<id>", coalesce, manager = stage.locks)]
async fn nested(stage: &Stage, id: u32, inner: bool) -> Report {
    if inner {
        return Box::pin(nested(stage, id, false)).await;
    }
    Ok(id)
}

#[distributed_lock(key = "nested:<id>", reentrant, coalesce, manager = stage.locks)]
async fn nested_reentrant(stage: &Stage, id: u32, depth: u32) -> Report {
    if depth > 0 {
        return Box::pin(nested_reentrant(stage, id, depth - 1)).await;
    }
    Ok(lock_runtime::current().expect("locked").hold_count())
}

#[tokio::test]
async fn a_call_inside_its_own_leader_does_not_wait_for_itself() {
    let stage = Stage::new();
    let deadlock = nested(&stage, 1, true).await;
    assert!(
        matches!(deadlock, Err(ReportError::Lock(LockError::WouldDeadlock { .. }))),
        "{deadlock:?}"
    );
    assert_eq!(nested(&stage, 1, false).await.unwrap(), 1);
    assert_eq!(nested_reentrant(&stage, 1, 2).await.unwrap(), 3);
}

#[tokio::test]
async fn those_who_wait_are_told_of_a_shutdown_and_the_leader_ends() {
    let stage = Stage::new();
    let mut leader = pin!(call(&stage));
    has_begun(&stage, leader.as_mut()).await;
    let mut follower = pin!(call(&stage));
    has_come(follower.as_mut()).await;
    let mut shutdown = pin!(stage.locks.shutdown());
    has_come(shutdown.as_mut()).await;
    let closed = follower.await;
    assert!(
        matches!(closed, Err(ReportError::Lock(LockError::Closed { .. }))),
        "{closed:?}"
    );
    stage.end.add_permits(1);
    let (leader, ()) = tokio::join!(leader, shutdown);
    assert_eq!(leader.unwrap(), 1);
}

#[distributed_lock(key = "apart", coalesce, manager = stage.locks, fair)]
async fn generic<T>(stage: &Stage, _: PhantomData<fn(T)>) -> Report {
    Ok(stage.run().await)
}

#[distributed_lock(key = "apart", coalesce, manager = stage.locks, fair)]
async fn another(stage: &Stage) -> Report {
    Ok(stage.run().await)
}

struct One<'a>(&'a Stage);
struct Two<'a>(&'a Stage);

trait Counts {
    fn stage(&self) -> &Stage;

    #[distributed_lock(key = "apart", coalesce, manager = self.stage().locks, fair)]
    async fn provided(&self) -> Report {
        Ok(self.stage().run().await)
    }
}

impl Counts for One<'_> {
    fn stage(&self) -> &Stage {
        self.0
    }
}

impl Counts for Two<'_> {
    fn stage(&self) -> &Stage {
        self.0
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_not_the_same_function_with_the_same_key_run_themselves() {
    let stage = Stage::new();
    let (one, two) = (One(&stage), Two(&stage));
    let mut first = pin!(generic(&stage, PhantomData::<fn(u8)>));
    let mut second = pin!(generic(&stage, PhantomData::<fn(u16)>));
    let mut third = pin!(another(&stage));
    let (mut fourth, mut fifth) = (pin!(one.provided()), pin!(two.provided()));
    // All of them are under way, and wait for each other's lock, not for each other's result.
    has_begun(&stage, first.as_mut()).await;
    has_come(second.as_mut()).await;
    has_come(third.as_mut()).await;
    has_come(fourth.as_mut()).await;
    has_come(fifth.as_mut()).await;
    stage.end.add_permits(5);
    let reports = tokio::join!(first, second, third, fourth, fifth);
    let reports = [reports.0, reports.1, reports.2, reports.3, reports.4].map(Result::unwrap);
    assert_eq!(reports, [1, 2, 3, 4, 5]);
    assert_eq!(stage.locks.stats().coalesced, 0);

    let other = Stage::new();
    let mut leader = pin!(call(&stage));
    has_begun(&stage, leader.as_mut()).await;
    // Another key, and another manager.
    stage.end.add_permits(2);
    other.end.add_permits(1);
    assert_eq!(report(&stage, 8, LONG, stage.argument()).await.unwrap(), 7);
    assert_eq!(call(&other).await.unwrap(), 1);
    assert_eq!(leader.await.unwrap(), 6);
}

/// What the body returns is said by a value of the caller's, of any type.
#[distributed_lock(key = "said", coalesce, manager = stage.locks)]
async fn said<F: Fn() -> u32>(stage: &Stage, value: F) -> Report {
    stage.run().await;
    Ok(value())
}

#[tokio::test(start_paused = true)]
async fn types_with_the_same_name_are_not_the_same_function() {
    let stage = Stage::new();
    let seven = || 7;
    let (mut first, mut second, mut third) = (
        pin!(said(&stage, seven)),
        pin!(said(&stage, || 8)),
        pin!(said(&stage, seven)),
    );
    has_begun(&stage, first.as_mut()).await;
    has_come(second.as_mut()).await;
    has_come(third.as_mut()).await;
    stage.end.add_permits(2);
    let (first, second, third) = tokio::join!(first, second, third);
    assert_eq!([first.unwrap(), second.unwrap(), third.unwrap()], [7, 8, 7]);
    assert_eq!(stage.runs(), 2);
}

#[distributed_lock(key = "small", coalesce, manager = stage.locks)]
async fn small(stage: &Stage) -> Report {
    // What may go to another thread, and not be seen by two.
    let seen = Cell::new(1);
    stage.run().await;
    Ok(seen.get())
}

#[distributed_lock(key = "small", manager = stage.locks)]
async fn not_coalescing(stage: &Stage) -> Report {
    let seen = Cell::new(1);
    stage.run().await;
    Ok(seen.get())
}

#[tokio::test]
async fn a_coalescing_call_is_small_and_its_body_need_not_be_sync() {
    let stage = Stage::new();
    let (locked, coalescing) = (size_of_val(&not_coalescing(&stage)), size_of_val(&small(&stage)));
    println!("locked {locked}, coalescing {coalescing}");
    assert!(coalescing <= locked + 192, "locked {locked}, coalescing {coalescing}");

    stage.end.add_permits(1);
    let task = tokio::spawn(async move { small(&stage).await });
    assert_eq!(task.await.unwrap().unwrap(), 1);
}

#[distributed_lock(key = "optional", coalesce, on_busy = skip, wait = wait, manager = stage.locks)]
async fn optional(stage: &Stage, wait: Duration) -> Option<u32> {
    Some(stage.run().await)
}

#[tokio::test]
async fn a_coalescing_call_can_be_skipped() {
    let stage = Stage::new();
    let leader = {
        let stage = stage.clone();
        tokio::spawn(async move { optional(&stage, LONG).await })
    };
    stage.began.notified().await;
    // It waits for the result in vain.
    assert_eq!(optional(&stage, Duration::ZERO).await, None);
    stage.end.add_permits(1);
    let (first, second) = tokio::join!(leader, optional(&stage, LONG));
    assert_eq!((first.unwrap(), second), (Some(1), Some(1)));
}

/// How many bodies are running, and how many have ended.
#[derive(Debug, Default)]
struct Bodies {
    running: AtomicU32,
    ended: AtomicU32,
}

#[distributed_lock(key = "storm", coalesce)]
async fn storm(bodies: &Bodies) -> Result<u32, LockError> {
    assert_eq!(
        bodies.running.fetch_add(1, Ordering::SeqCst),
        0,
        "two bodies under one lock"
    );
    for _ in 0..fastrand::u32(..4) {
        tokio::task::yield_now().await;
    }
    bodies.running.fetch_sub(1, Ordering::SeqCst);
    Ok(bodies.ended.fetch_add(1, Ordering::SeqCst) + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_is_left_behind_whoever_leaves_whenever() {
    start().await;
    let bodies = Arc::new(Bodies::default());
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let bodies = Arc::clone(&bodies);
            tokio::spawn(async move {
                let mut returned = 0;
                for _ in 0..500 {
                    let before = bodies.ended.load(Ordering::SeqCst);
                    let mut call = pin!(storm(&bodies));
                    let mut polls = fastrand::u32(1..4);
                    let output = poll_fn(|cx| {
                        polls = polls.saturating_sub(1);
                        // Half of the calls leave while they wait; bodies run to their end.
                        let leaves = task % 2 == 0 && polls == 0;
                        match call.as_mut().poll(cx) {
                            Poll::Ready(output) => Poll::Ready(Some(output)),
                            Poll::Pending if leaves && bodies.running.load(Ordering::SeqCst) == 0 => Poll::Ready(None),
                            Poll::Pending => Poll::Pending,
                        }
                    })
                    .await;
                    if let Some(output) = output {
                        assert!(output.unwrap() >= before, "the result of a flight that had landed");
                        returned += 1;
                    }
                }
                returned
            })
        })
        .collect();
    let mut returned = 0;
    for task in tasks {
        let task = tokio::time::timeout(LONG, task).await;
        returned += task.expect("nobody waits for ever").unwrap();
    }
    assert!(returned >= 8 * 500, "{returned}");
}

/// Writes two functions of one name in one place: that of its call.
macro_rules! twins {
    ($stage:expr) => {
        (
            {
                #[distributed_lock(key = "twins", coalesce, manager = stage.locks)]
                async fn twin(stage: Arc<Stage>) -> Report {
                    stage.began.notify_one();
                    drop(stage.end.acquire().await.unwrap());
                    Ok(1)
                }
                twin(Arc::clone($stage))
            },
            {
                #[distributed_lock(key = "twins", coalesce, manager = stage.locks)]
                async fn twin(stage: Arc<Stage>) -> Report {
                    let _ = stage;
                    Ok(2)
                }
                twin(Arc::clone($stage))
            },
        )
    };
}

#[tokio::test]
async fn functions_that_one_macro_writes_share_no_result() {
    let stage = Stage::new();
    let (first, second) = twins!(&stage);
    let end = async {
        stage.began.notified().await;
        stage.end.add_permits(1);
    };
    let (first, second, ()) = tokio::join!(first, second, end);
    let results = (first.unwrap(), second.unwrap());
    assert_eq!(results, (1, 2), "each returns its own result");
}
