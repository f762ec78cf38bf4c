//! The second process of the tests. Its first argument names its task; see `children.rs` for the
//! protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "lock-child/contend.rs"]
mod contend;
#[path = "lock-child/modes.rs"]
mod modes;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fork::{Fork, fork, waitpid};
use lock_runtime::{
    HandoverLimits, LockError, LockGuard, LockManager, LockManagerBuilder, LostReason, current, distributed_lock,
};
use lock_tests::children::{child_hears, child_says};
use lock_tests::{PATIENCE, Stamp, StoreJudge, eventually_some};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tracing_subscriber::layer::SubscriberExt;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["echo"] => echo(),
        ["fail", why] => panic!("{why}"),
        ["serve"] => serve(),
        ["visit", url, holder, token] => visit(url, holder, token),
        ["hold", url, key, lease] => block_on(hold(url, key, millis(lease))),
        ["delay", url, key] => block_on(delay(url, key)),
        ["crowd", url, lease] => block_on(crowd(url, millis(lease))),
        ["queue", url] => block_on(queue(url)),
        ["many", url, count, lease] => block_on(many(url, count.parse().unwrap(), millis(lease))),
        ["lose-many", url, count, lease] => block_on(lose_many(url, count.parse().unwrap(), millis(lease))),
        ["contend", url, how] => block_on(contend::contend(url, how == "patiently")),
        // The second word is that of the build that `tests/previous` runs beside this one.
        ["modes" | "family", url] => block_on(modes::modes(url)),
        ["fork", url, key] => fork_inside(url, key),
        ["fork-in-line", url, key] => fork_in_line(url, key),
        ["fork-among-nested"] => fork_among_nested(),
        ["log", url] => block_on(log(url)),
        ref unknown => panic!("lock-child does not know {unknown:?}"),
    }
}

/// For managers whose server is not to fall silent: its answers are in time on a machine that does other work, too. Not longer, since a
/// request may get lost while the masters of a cluster change.
fn patient(url: &str) -> LockManagerBuilder {
    const ANSWER: Duration = Duration::from_secs(10);
    LockManager::builder(url)
        .connect_timeout(ANSWER)
        .response_timeout(ANSWER)
        .default_wait(PATIENCE)
}

/// Such a manager, connected beforehand.
async fn connected(url: &str) -> LockManager {
    let locks = patient(url).build().unwrap();
    locks.check_connection().await.unwrap();
    locks
}

/// Waits for a lock that is to stay taken for a while after this process has been killed.
async fn delay(url: &str, key: &str) {
    let locks = connected(url).await;
    child_says("asking");
    let request = locks.lock(key).lease(Duration::from_secs(1)).renew(false);
    let _guard = request.lock_delay(Duration::from_secs(3)).acquire().await.unwrap();
    child_says("holding");
    child_hears();
}

/// Says everything twice.
fn echo() {
    child_says("ready");
    loop {
        let line = child_hears();
        child_says(format_args!("echo {line}"));
    }
}

/// Starts a server, and waits to be killed together with it.
fn serve() {
    let server = lock_tests::Server::start();
    child_says(format_args!("serving {} {}", server.pid(), server.folder().display()));
    child_hears();
}

/// Stays inside the judge's critical section until told to leave.
fn visit(url: &str, holder: &str, token: &str) {
    let judge = StoreJudge::connect(url);
    let visit = judge.enter(holder, token.parse().ok());
    child_says("inside");
    child_hears();
    drop(visit);
    child_says("outside");
    child_hears();
}

/// Holds one fenced lock around a body that never stops working. Orders: `release`, `shutdown` (and end the process),
/// `write <judge's url>` with the token it had.
async fn hold(url: &str, key: &str, lease: Duration) {
    let grace = Duration::from_millis(100);
    let locks = patient(url).shutdown_grace(grace).build().unwrap();
    let mut orders = orders();
    let token = Arc::new(AtomicU64::new(0));
    let last_poll = Arc::new(AtomicU64::new(0));
    let enough = Arc::new(Notify::new());

    let request = locks
        .lock(key)
        .lease(lease)
        .max_renewals(u32::MAX)
        .fencing(true)
        .label("lock-child::hold");
    let call = {
        let (token, enough) = (Arc::clone(&token), Arc::clone(&enough));
        let work = async move {
            let lock = current().unwrap();
            token.store(lock.fencing_token().await.unwrap().get(), Ordering::SeqCst);
            child_says(format_args!("holding {}", lock.fencing_token().await.unwrap().get()));
            let enough = enough.notified();
            let mut enough = std::pin::pin!(enough);
            while tokio::time::timeout(Duration::from_millis(1), &mut enough)
                .await
                .is_err()
            {}
        };
        tokio::spawn(request.run(stamped(&last_poll, Stamp::as_nanos, Stamp::now, work)))
    };
    let ended = locks.clone();
    tokio::spawn(async move {
        let outcome = outcome(&call.await.unwrap());
        let overruns = ended.stats().overruns;
        child_says(format_args!(
            "ended {outcome} {} {overruns}",
            last_poll.load(Ordering::SeqCst)
        ));
    });
    while let Some(order) = orders.recv().await {
        match order.split_once(' ').unwrap_or((&order, "")) {
            ("release", _) => enough.notify_one(),
            ("shutdown", _) => {
                locks.shutdown().await;
                child_says("down");
                std::process::exit(0);
            }
            ("write", judge) => {
                let written = StoreJudge::connect(judge).write("child", token.load(Ordering::SeqCst));
                child_says(format_args!("wrote {written}"));
            }
            unknown => panic!("unknown order {unknown:?}"),
        }
    }
}

/// The first holders of the exclusion test. Order: `round <name> <count> <renew>`. Says `holding` when all bodies have
/// begun, one `run <number> <wall clock of the last poll's end> <outcome>` for each, and `over <overruns>`.
async fn crowd(url: &str, lease: Duration) {
    let locks = LockManager::builder(url).build().unwrap();
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        let words: Vec<&str> = order.split(' ').collect();
        let ["round", name, count, renew] = words[..] else {
            panic!("unknown order {order:?}")
        };
        let (count, renew): (usize, bool) = (count.parse().unwrap(), renew.parse().unwrap());
        let begun = Arc::new(AtomicUsize::new(0));
        let before = locks.stats().overruns;
        let mut calls = JoinSet::new();
        for number in 0..count {
            let request = locks
                .lock(format!("{name}:{number}"))
                .lease(lease)
                .renew(renew)
                .wait(Duration::from_secs(20));
            let last_poll = Arc::new(AtomicU64::new(0));
            let begun = Arc::clone(&begun);
            let work = async move {
                if begun.fetch_add(1, Ordering::SeqCst) + 1 == count {
                    child_says("holding");
                }
                loop {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let body = stamped(&last_poll, |micros| micros, wall_micros, work);
            calls.spawn(async move {
                let outcome: Result<(), LockError> = request.run(body).await;
                (number, last_poll.load(Ordering::SeqCst), outcome)
            });
        }
        while let Some(call) = calls.join_next().await {
            let (number, last_poll, ended) = call.unwrap();
            child_says(format_args!("run {number} {last_poll} {}", outcome(&ended)));
        }
        child_says(format_args!("over {}", locks.stats().overruns - before));
    }
}

/// The second holders of the exclusion test. Order: `round <name> <count>`. Says `waiting`, one `got <number> <fence>`
/// for each, where the fence is the server's clock in the very step that granted the lock, and `over`.
async fn queue(url: &str) {
    let locks = connected(url).await;
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        let words: Vec<&str> = order.split(' ').collect();
        let ["round", name, count] = words[..] else {
            panic!("unknown order {order:?}")
        };
        let mut calls = JoinSet::new();
        for number in 0..count.parse().unwrap() {
            let request = locks
                .lock(format!("{name}:{number}"))
                .wait(Duration::from_secs(30))
                .fencing(true);
            calls.spawn(async move {
                let guard = request.acquire().await.unwrap();
                (number, guard.handle().fencing_token().await.unwrap().get())
            });
        }
        child_says("waiting");
        while let Some(call) = calls.join_next().await {
            let (number, fence): (usize, u64) = call.unwrap();
            child_says(format_args!("got {number} {fence}"));
        }
        child_says("over");
    }
}

/// Holds many locks at once and watches how close each comes to its end.
///
/// Says `held` with the numbers of threads and of tasks, each before and after most of the locks were taken; and when every lock
/// has been renewed, or after two leases, `watched <least time left in ms> <renewals of the lock with the fewest> <locks lost>`.
async fn many(url: &str, count: usize, lease: Duration) {
    let locks = patient(url).build().unwrap();
    // A few first, so that every thread there will ever be has been started.
    let mut guards: Vec<LockGuard> = Vec::with_capacity(count);
    while guards.len() < 100 {
        guards.push(
            locks
                .lock(format!("many:{}", guards.len()))
                .lease(lease)
                .acquire()
                .await
                .unwrap(),
        );
    }
    let (threads, tasks) = (threads(), tokio::runtime::Handle::current().metrics().num_alive_tasks());
    let started = Instant::now();
    take_many(&locks, count, lease, &mut guards).await;
    child_says(format_args!("took {}", started.elapsed().as_millis()));
    // A task that has ended may be counted for a moment longer.
    let metrics = tokio::runtime::Handle::current().metrics();
    let settled = Instant::now();
    while metrics.num_alive_tasks() > tasks && settled.elapsed() < PATIENCE / 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child_says(format_args!(
        "held {threads} {} {tasks} {}",
        self::threads(),
        metrics.num_alive_tasks()
    ));
    let (mut left, mut renewals, watched) = (lease, 0, Instant::now());
    while renewals == 0 && watched.elapsed() < lease * 2 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        left = guards
            .iter()
            .map(|guard| guard.handle().remaining())
            .min()
            .unwrap()
            .min(left);
        renewals = guards.iter().map(|guard| guard.handle().renewals()).min().unwrap();
    }
    let lost = guards.iter().filter(|guard| !guard.handle().is_held()).count();
    child_says(format_args!("watched {} {renewals} {lost}", left.as_millis()));
    child_hears();
}

/// Takes locks of different keys, 200 at once, until there are `count` guards, and says so after each tenth of them.
async fn take_many(locks: &LockManager, count: usize, lease: Duration, guards: &mut Vec<LockGuard>) {
    let (mut calls, first) = (JoinSet::new(), guards.len());
    let mut taken = |guard: LockGuard| {
        guards.push(guard);
        if guards.len().is_multiple_of(count / 10) {
            child_says(format_args!("taken {} locks", guards.len()));
        }
    };
    for number in first..count {
        if calls.len() == 200 {
            taken(calls.join_next().await.unwrap().unwrap());
        }
        let request = locks.lock(format!("many:{number}")).lease(lease);
        calls.spawn(async move { request.acquire().await.unwrap() });
    }
    while let Some(guard) = calls.join_next().await {
        taken(guard.unwrap());
    }
}

/// Holds so many locks, says `held`, and when all are lost `lost <when>`.
async fn lose_many(url: &str, count: usize, lease: Duration) {
    let locks = connected(url).await;
    let mut guards: Vec<LockGuard> = Vec::with_capacity(count);
    take_many(&locks, count, lease, &mut guards).await;
    child_says("held");
    for guard in &guards {
        guard.handle().lost().await;
    }
    child_says(format_args!("lost {}", Stamp::now()));
    child_hears();
}

/// Forks inside a body, on one thread. Says `holding`, waits for a line, forks; the fork shuts the manager down and says `shut down`, `other …` for a lock it asks for
/// itself, `built …` for a manager and `fork …`, waits for a line and ends; then the parent says `parent …`, each with the outcome of its call.
fn fork_inside(url: &str, key: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let parent = std::process::id();
    let ended = runtime.block_on(async {
        let locks = connected(url).await;
        let body = async {
            child_says("holding");
            let _ = child_hears();
            match fork().unwrap() {
                Fork::Parent(fork) => {
                    let status = waitpid(fork).unwrap();
                    child_says(format_args!("waited {status}"));
                }
                Fork::Child => {
                    locks.shutdown().await;
                    child_says("shut down");
                    loop {
                        tokio::task::yield_now().await;
                    }
                }
            }
        };
        let ended = locks.lock(key).lease(Duration::from_secs(60)).run(body).await;
        if std::process::id() != parent {
            let other = locks.lock("another").wait(Duration::ZERO).acquire().await;
            child_says(format_args!(
                "other {}",
                other.err().map_or_else(|| "ok".to_owned(), |error| error.to_string())
            ));
            let built = LockManager::builder(url).build();
            child_says(format_args!(
                "built {}",
                built.err().map_or_else(|| "ok".to_owned(), |error| error.to_string())
            ));
            child_says(format_args!("fork {}", outcome(&ended)));
            // The parent waits until this process is gone.
            let _ = child_hears();
            std::process::exit(0);
        }
        ended
    });
    child_says(format_args!("parent {}", outcome(&ended)));
    child_hears();
}

#[distributed_lock(key = "outer:<name>", manager = locks)]
async fn outer(locks: &LockManager, name: &str) -> Result<(), LockError> {
    inner(locks, name).await
}

#[distributed_lock(key = "inner:<name>", manager = locks)]
async fn inner(locks: &LockManager, name: &str) -> Result<(), LockError> {
    tokio::task::yield_now().await;
    let _ = name;
    Ok(())
}

/// Forks under a lock, again and again, while another thread takes locks under locks. Each child asks for a lock as well, in vain, and
/// ends.
fn fork_among_nested() {
    #[distributed_lock(key = "forking", manager = locks)]
    async fn forks(locks: &LockManager) -> Result<u32, LockError> {
        let mut ended = 0;
        while ended < 200 {
            match fork().unwrap() {
                Fork::Child => std::process::exit(i32::from(inner(locks, "child").await.is_ok())),
                Fork::Parent(child) => ended += u32::from(waitpid(child).unwrap() == 0),
            }
        }
        Ok(ended)
    }
    let locks = LockManager::builder("memory://").build().unwrap();
    let theirs = locks.clone();
    std::thread::spawn(move || {
        block_on(async {
            loop {
                outer(&theirs, "parent").await.unwrap();
            }
        });
    });
    block_on(async {
        let ended = forks(&locks).await.unwrap();
        child_says(format_args!("ended {ended}"));
        std::process::exit(0);
    });
}

/// As [`fork_inside`], while two calls stand in line behind the body. Each process says how its call has ended, which of those in line
/// got the lock, and how often it was passed on.
fn fork_in_line(url: &str, key: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let parent = std::process::id();
    runtime.block_on(async {
        let ever = HandoverLimits::new(u32::MAX, Duration::from_secs(60));
        let locks = patient(url).handover(ever).build().unwrap();
        let request = || locks.lock(key).lease(Duration::from_secs(60));
        let mut line = Vec::new();
        let body = async {
            for _ in 0..2 {
                line.push(tokio::spawn(request().run(async {})));
                tokio::task::yield_now().await;
            }
            child_says("holding");
            let _ = child_hears();
            match fork().unwrap() {
                Fork::Parent(fork) => drop(waitpid(fork).unwrap()),
                Fork::Child => loop {
                    tokio::task::yield_now().await;
                },
            }
        };
        let ended = outcome(&request().run(body).await);
        let passed = || locks.stats().passed;
        if std::process::id() == parent {
            for call in line {
                call.await.unwrap().unwrap();
            }
            child_says(format_args!("parent {ended} both {}", passed()));
            let _ = child_hears();
            return;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let got = if line.iter().any(tokio::task::JoinHandle::is_finished) {
            "some"
        } else {
            "none"
        };
        for call in line {
            call.abort();
            let _ = call.await;
        }
        child_says(format_args!("fork {ended} {got} {}", passed()));
        // The parent waits until this process is gone.
        let _ = child_hears();
        std::process::exit(0);
    });
}

/// Takes, renews, waits for and gives back locks, and says `logged <events up to debug> <events above>` of all threads.
async fn log(url: &str) {
    let counts: &'static Levels = Box::leak(Box::default());
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(counts)).unwrap();
    // What this says of the server's settings counts, too.
    drop(eventually_some("a connection", || async { LockManager::connect(url).await.ok() }).await);
    let locks = connected(url).await;
    let lease = Duration::from_secs(9);
    let first = locks.lock("logged").lease(lease).acquire().await.unwrap();
    // Long enough for an answer.
    let busy = locks.lock("logged").wait(Duration::from_secs(3)).acquire().await;
    assert!(busy.is_err_and(|error| error.is_busy()));
    let waiter = tokio::spawn(
        locks
            .lock("logged")
            .lease(lease)
            .fencing(true)
            .run(async { current().unwrap().verify().await }),
    );
    while first.handle().renewals() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.handle().verify().await.unwrap();
    first.handle().fencing_token().await.unwrap();
    first.release().await.unwrap();
    waiter.await.unwrap().unwrap().unwrap();
    drop(locks.lock("logged").acquire().await.unwrap());
    locks.shutdown().await;
    let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
    child_says(format_args!("logged {} {}", read(&counts.quiet), read(&counts.loud)));
    child_hears();
}

#[derive(Default)]
struct Levels {
    quiet: AtomicU64,
    loud: AtomicU64,
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for &'static Levels {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let metadata = event.metadata();
        if !metadata.target().starts_with("lock_runtime") {
            return;
        }
        // The most verbose level is the greatest.
        if *metadata.level() >= tracing::Level::DEBUG {
            self.quiet.fetch_add(1, Ordering::SeqCst);
        } else {
            eprintln!("{event:?}");
            self.loud.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work);
}

/// What the test says, for code that must not block.
fn orders() -> mpsc::UnboundedReceiver<String> {
    let (orders, received) = mpsc::unbounded_channel();
    std::thread::spawn(move || while orders.send(child_hears()).is_ok() {});
    received
}

/// A body that notes the time at the end of each of its polls.
fn stamped<F: Future, T>(
    last: &Arc<AtomicU64>,
    number: fn(T) -> u64,
    now: fn() -> T,
    body: F,
) -> impl Future<Output = F::Output> + use<F, T> {
    let (mut body, last) = (Box::pin(body), Arc::clone(last));
    poll_fn(move |cx| {
        let polled = body.as_mut().poll(cx);
        last.store(number(now()), Ordering::SeqCst);
        polled
    })
}

/// In one word, such as `lost:Expired`.
fn outcome<T>(ended: &Result<T, LockError>) -> String {
    match ended {
        Ok(_) => "ok".to_owned(),
        Err(LockError::Lost {
            reason,
            completed: false,
            ..
        }) => format!("lost:{}", name(*reason)),
        Err(LockError::Lost { reason, .. }) => format!("late:{}", name(*reason)),
        Err(error) => error.kind().to_owned(),
    }
}

fn name(reason: LostReason) -> String {
    format!("{reason:?}")
}

/// The clock that the server stamps its tokens with: the same host's.
fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, std::iter::Iterator::count)
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}
