//! Draws the pictures of the documentation from what happens: real processes, a real server, a real `kill -9`.
//!
//! `cargo run -p lock-examples --example pictures` writes `docs/pictures/*.svg`. `./tests/install-servers` comes first.

use std::env;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use lock_examples::Failure;
use lock_examples::svg::{Doing, Picture};
use lock_runtime::{LockError, LockManager};
use lock_tests::Server;
use lock_tests::children::{Builder, Child};
use tokio::task::JoinSet;
use tokio::time::sleep;

const KEY: &str = "dist_lock:order:7";
/// The lease of the pictures that show one.
const LEASE: Duration = Duration::from_secs(3);
/// How often the rest of the lease is read.
const STEP: Duration = Duration::from_millis(20);
/// The examples that show one mode each, and what their pictures are called.
const MODES: [(&str, &str); 7] = [
    ("read_write", "mode = read, mode = write"),
    ("semaphore", "mode = semaphore(2)"),
    ("reentrant", "reentrant"),
    ("owner", "owner"),
    ("transfers", "keys = [\"account:<from>\", \"account:<to>\"]"),
    ("coalesce", "coalesce"),
    ("lock_delay", "lock_delay"),
];

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["callers", url, calls, work] => return callers(url, calls.parse()?, work.parse()?).await,
        [] => {}
        _ => return Err("it takes no arguments".into()),
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures");
    std::fs::create_dir_all(&folder)?;
    let write = |name: &str, picture: &Picture| std::fs::write(folder.join(name), picture.svg());
    write("lease.svg", &lease().await?)?;
    write("lost.svg", &lost().await?)?;
    write("queues.svg", &queues().await?)?;
    let programs = env::current_exe()?;
    let programs = programs.ancestors().nth(2).ok_or("the programs' folder")?;
    for (name, title) in MODES {
        let mut mode = tokio::process::Command::new(programs.join(name));
        mode.env("TIMELINE_SVG", folder.join(format!("{name}.svg")));
        mode.env("TIMELINE_TITLE", title).env_remove("REDIS_URL");
        let status = mode.status().await?;
        if !status.success() {
            return Err(format!("{name}: {status}; build it by `cargo build -p lock-examples`").into());
        }
    }
    println!("the pictures are in docs/pictures");
    Ok(())
}

/// Takes the lock in so many calls at once, holds it for so many milliseconds in each, and says by the wall clock what happens.
async fn callers(url: &str, calls: u32, work: u64) -> Result<(), Failure> {
    let locks = LockManager::builder(url).default_lease(LEASE).build()?;
    locks.check_connection().await?;
    let mut all = JoinSet::new();
    for call in 1..=calls {
        let locks = locks.clone();
        all.spawn(async move {
            says(call, "asks");
            let body = async {
                says(call, "enters");
                sleep(Duration::from_millis(work)).await;
                Ok::<_, LockError>(())
            };
            let ended = locks.lock("order:7").wait(Duration::from_secs(60)).run(body).await;
            says(
                call,
                if ended.is_ok_and(|done| done.is_ok()) {
                    "leaves"
                } else {
                    "ends"
                },
            );
        });
        // One after the other.
        sleep(Duration::from_millis(3)).await;
    }
    all.join_all().await;
    locks.shutdown().await;
    Ok(())
}

fn says(call: u32, what: &str) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    println!("{what} {call} {}", now.as_micros());
}

/// A process whose calls take the lock.
struct Callers(Child);

impl Callers {
    fn start(server: &Server, calls: u32, work: u64) -> Result<Self, Failure> {
        let process = Builder::new(env::current_exe()?);
        let process = process.arg("callers").arg(server.url());
        Ok(Self(process.arg(calls.to_string()).arg(work.to_string()).spawn()))
    }

    /// Returns when a call has done something for the first time, counted from `start`, if it has.
    fn when(&self, call: u32, what: &str, start: SystemTime) -> Option<Duration> {
        let beginning = format!("{what} {call} ");
        let lines = self.0.lines();
        let at = lines
            .iter()
            .find_map(|line| line.text.strip_prefix(&beginning)?.parse().ok())?;
        (SystemTime::UNIX_EPOCH + Duration::from_micros(at))
            .duration_since(start)
            .ok()
    }

    /// Returns the waiting and the stay of its first call until `end`.
    fn spans(&self, start: SystemTime, end: Duration) -> Vec<(Duration, Duration, Doing)> {
        let at = |what| self.when(1, what, start);
        let asked = at("asks").unwrap_or_default();
        let entered = at("enters").unwrap_or(end);
        let left = at("leaves").or_else(|| at("ends")).unwrap_or(end);
        vec![(asked, entered, Doing::Queues), (entered, left, Doing::Inside)]
    }
}

/// Reads the rest of the lease again and again.
async fn watch(server: &Server, start: Instant, span: Duration) -> Vec<(Duration, Option<Duration>)> {
    let mut samples = Vec::new();
    while start.elapsed() < span {
        samples.push((start.elapsed(), server.time_left(KEY)));
        sleep(STEP).await;
    }
    samples
}

/// A renewed lock whose holder is killed, and the next holder.
async fn lease() -> Result<Picture, Failure> {
    let server = Server::start();
    let (start, clock) = (Instant::now(), SystemTime::now());
    let end = Duration::from_secs(9);
    let mut first = Callers::start(&server, 1, 60_000)?;
    let act = async {
        sleep(Duration::from_secs(1)).await;
        let second = Callers::start(&server, 1, 60_000)?;
        sleep(Duration::from_secs(5).saturating_sub(start.elapsed())).await;
        first.0.kill();
        let killed = start.elapsed();
        Ok::<_, Failure>((second, killed))
    };
    let (samples, act) = tokio::join!(watch(&server, start, end), act);
    let (second, killed) = act?;
    let mut picture = Picture::new("A lease of 3 s, and a holder that is killed", end);
    let renewals = samples.windows(2).filter_map(|pair| {
        let renewed = pair[1].1? > pair[0].1? + LEASE / 4;
        renewed.then_some(pair[1].0)
    });
    let renewals: Vec<_> = renewals.filter(|at| *at < killed).collect();
    for at in renewals {
        picture.mark(at, "renewed");
    }
    picture.mark(killed, "kill -9");
    picture.lease(samples);
    let spans = first.spans(clock, killed);
    picture.row("process A", spans);
    picture.row("process B", second.spans(clock, end));
    legend(&mut picture);
    Ok(picture)
}

/// A lock that somebody deletes.
async fn lost() -> Result<Picture, Failure> {
    let server = Server::start();
    let (start, clock) = (Instant::now(), SystemTime::now());
    let end = Duration::from_secs(6);
    let first = Callers::start(&server, 1, 60_000)?;
    let act = async {
        sleep(Duration::from_millis(800)).await;
        let second = Callers::start(&server, 1, 60_000)?;
        sleep(Duration::from_millis(3_500).saturating_sub(start.elapsed())).await;
        server.cmd(&["DEL", KEY]);
        Ok::<_, Failure>((second, start.elapsed()))
    };
    let (samples, act) = tokio::join!(watch(&server, start, end), act);
    let (second, deleted) = act?;
    let mut picture = Picture::new("A lock that somebody deletes", end);
    picture.mark(deleted, "DEL");
    if let Some(cancelled) = first.when(1, "ends", clock) {
        let later = cancelled.saturating_sub(deleted).as_micros();
        picture.mark(cancelled, &format!("A's body is cancelled, {later} µs later"));
    }
    picture.lease(samples);
    picture.row("process A", first.spans(clock, end));
    picture.row("process B", second.spans(clock, end));
    legend(&mut picture);
    Ok(picture)
}

fn legend(picture: &mut Picture) {
    picture.legend(Doing::Queues, "waits in the store's queue");
    picture.legend(Doing::Inside, "is inside");
}

/// Three calls in each of two processes.
async fn queues() -> Result<Picture, Failure> {
    const WORK: u64 = 40;
    let server = Server::start();
    let holder = Callers::start(&server, 1, 300)?;
    sleep(Duration::from_millis(150)).await;
    let clock = SystemTime::now();
    let mut both = [Callers::start(&server, 3, WORK)?, Callers::start(&server, 3, WORK)?];
    for callers in &mut both {
        callers.0.exit().await;
    }
    drop(holder);
    let calls = || (1..=3).flat_map(|call| both.iter().map(move |callers| (callers, call)));
    let first = calls()
        .filter_map(|(callers, call)| callers.when(call, "asks", clock))
        .min();
    let clock = clock + first.unwrap_or_default();
    let left = calls()
        .filter_map(|(callers, call)| callers.when(call, "leaves", clock))
        .max();
    let mut picture = Picture::new("Six calls of two processes, one key", left.unwrap_or_default());
    for (name, callers) in ["A", "B"].into_iter().zip(&both) {
        // The calls enter in the order in which they asked. Behind a call of their process they wait in its line, and after that in the
        // store's queue, unless the lock is handed to them.
        let mut in_front = Duration::ZERO;
        for call in 1..=3 {
            let at = |what| callers.when(call, what, clock).unwrap_or_default();
            let (asked, entered, left) = (at("asks"), at("enters"), at("leaves"));
            let turned = in_front.clamp(asked, entered);
            let spans = vec![
                (asked, turned, Doing::Waits),
                (turned, entered, Doing::Queues),
                (entered, left, Doing::Inside),
            ];
            picture.row(&format!("{name}, call {call}"), spans);
            in_front = left;
        }
    }
    picture.legend(Doing::Waits, "waits behind a call of its process");
    legend(&mut picture);
    Ok(picture)
}
