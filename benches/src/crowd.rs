//! 5,000 waiters for one lock: the contenders that the server sees, their memory, and the keys that
//! they leave behind.

use std::time::{Duration, Instant};

use lock_runtime::{LockGuard, LockManager};
use lock_tests::server::Server;
use tokio::task::JoinSet;

use crate::contest::commands;
use crate::plot::Panel;
use crate::report::{Number, Report, Verdict, count, progress, ratio, time};
use crate::worker::{self, Worker, argument};
use crate::{Result, Size, error, process};

const PROCESSES: usize = 4;
const KEY: &str = "bench:crowd";
/// Nobody here gives up by itself.
const WAIT: Duration = Duration::from_secs(600);
/// How often the server is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What a waiter's first commands take at most.
const SETTLED: Duration = Duration::from_millis(500);
/// Until which everything must be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was seen of the crowd.
struct Seen {
    /// Resident memory of all children that came with the waiters, in bytes.
    memory: u64,
    /// The most that stood in the store's queue at a time.
    most: u64,
    /// Commands per second of all of them while they waited.
    commands: f64,
    /// Whether no more than one stood in the queue once the others had left.
    left_one: bool,
    /// From the release to the grant of the last one.
    granted: Duration,
    /// Until nothing was left, if ever.
    cleaned: Option<Duration>,
    remains: Vec<String>,
}

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (waiters, watched) = match size {
        Size::Full => (5_000, Duration::from_secs(3)),
        Size::Smoke => (40, Duration::from_millis(100)),
    };
    let seen = watch(waiters, watched).await?;
    let mut report = Report::new(
        "crowd",
        "Waiters for one lock in 4 processes while a fifth holds it; then all but one are cancelled, the lock is released, and the last waiter gets it.",
        &["what", "figure"],
    );
    let per_waiter = ratio(seen.memory, waiters);
    let clean = seen.cleaned.map_or_else(|| "never".to_owned(), time);
    let remains = if seen.remains.is_empty() {
        "nothing".to_owned()
    } else {
        seen.remains.join(", ")
    };
    for (what, figure) in [
        ("waiters", count(waiters)),
        ("contenders that the server saw at most", seen.most.to_string()),
        (
            "commands per second of all while they waited",
            format!("{:.1}", seen.commands),
        ),
        (
            "client memory per waiter, its task included",
            format!("{} bytes", count(per_waiter)),
        ),
        ("from the release to the grant of the last one", time(seen.granted)),
        ("until no key, channel or subscription was left", clean.clone()),
        ("left behind", remains.clone()),
    ] {
        report.row(vec![what.to_owned(), figure]);
    }
    let mut panel = Panel::cost("client memory per waiter, bytes");
    panel.bar("limit", 2_048.0);
    panel.bar("ours", per_waiter);
    report.panels.push(panel);
    report.verdicts.extend([
        Verdict::at_most(5, "crowd: contenders that the server sees", 4.0, seen.most.float(), ""),
        Verdict::below(5, "crowd: memory per waiter", 2_048.0, per_waiter, "bytes"),
        Verdict::holds(
            5,
            "crowd: all but one cancelled, and it gets the lock",
            time(seen.granted),
            seen.left_one,
        ),
        Verdict::holds(
            5,
            "crowd: no key, channel or subscription left",
            clean,
            seen.remains.is_empty(),
        ),
    ]);
    Ok(report)
}

async fn watch(waiters: usize, watched: Duration) -> Result<Seen> {
    let bar = progress(format!("crowd: {waiters} waiters come"), 4);
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).await?;
    let held = locks.lock(KEY).acquire().await?;
    let queue = format!("{prefix}%lock-queue:{{{prefix}{KEY}}}", prefix = locks.prefix());
    let mut crowd = Vec::new();
    for _ in 0..PROCESSES {
        let arguments = [server.url(), (waiters / PROCESSES).to_string()];
        crowd.push(Worker::start("crowd", &arguments).await?);
    }
    for worker in &mut crowd {
        worker.say("come").await?;
    }
    let mut memory = 0;
    for worker in &mut crowd {
        memory += worker.hear_number("waiting").await?;
    }

    bar.set_message("crowd: watching");
    bar.inc(1);
    let (before, began) = (commands(&server)?, Instant::now());
    let (mut glances, mut most) = (0_u64, 0);
    while began.elapsed() < watched {
        tokio::time::sleep(LOOK_EVERY).await;
        most = most.max(contenders(&server, &queue));
        glances += 1;
    }
    let commands = ratio(commands(&server)?.saturating_sub(before + glances + 1), began.elapsed());

    bar.set_message("crowd: all but one leave");
    bar.inc(1);
    for (number, worker) in crowd.iter_mut().enumerate() {
        let order = if number == 0 { "leave but one" } else { "leave" };
        worker.say(order).await?;
    }
    for worker in &mut crowd {
        worker.hear("left").await?;
    }
    let left_one = wait_until(|| contenders(&server, &queue) <= 1).await.is_some();

    bar.set_message("crowd: the last one");
    bar.inc(1);
    let began = Instant::now();
    held.release().await?;
    let last = crowd.first_mut().ok_or("there is no crowd")?;
    last.hear("granted").await?;
    let granted = began.elapsed();
    last.say("release").await?;
    last.hear("released").await?;
    let cleaned = wait_until(|| remains(&server).is_empty()).await;
    bar.finish_and_clear();
    Ok(Seen {
        memory,
        most,
        commands,
        left_one,
        granted,
        cleaned,
        remains: remains(&server),
    })
}

/// Who stands in the store's queue; its other members have no ticket.
fn contenders(server: &Server, queue: &str) -> u64 {
    server.ask(&["ZCOUNT", queue, "(0", "+inf"])
}

/// Keys, channels and subscribed clients.
fn remains(server: &Server) -> Vec<String> {
    let mut found: Vec<String> = server.keys().into_iter().map(|key| format!("key {key}")).collect();
    let channels: Vec<String> = server.ask(&["PUBSUB", "CHANNELS"]);
    found.extend(channels.into_iter().map(|channel| format!("channel {channel}")));
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    let subscribed = clients
        .split_whitespace()
        .filter(|field| {
            ["sub=", "psub=", "ssub="]
                .iter()
                .any(|name| field.strip_prefix(name).is_some_and(|number| number != "0"))
        })
        .map(|field| format!("client with {field}"));
    found.extend(subscribed);
    found
}

/// How long it took until that was so.
async fn wait_until(condition: impl Fn() -> bool) -> Option<Duration> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if condition() {
            return Some(began.elapsed());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    None
}

/// The child's side.
pub(crate) fn child(arguments: &[String]) -> Result {
    let url: String = argument(arguments, 0)?;
    let number: usize = argument(arguments, 1)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let locks = runtime.block_on(async {
        let locks = LockManager::builder(&url).default_wait(WAIT).build()?;
        let warm = locks.lock(format!("bench:warm:{}", std::process::id()));
        warm.acquire().await?.release().await?;
        Ok::<_, crate::Error>(locks)
    })?;
    worker::says("ready");
    let mut waiters: JoinSet<Result<LockGuard>> = JoinSet::new();
    let mut handles = Vec::with_capacity(number);
    while let Some(order) = worker::hears() {
        match order.as_str() {
            "come" => {
                let before = process::memory()?;
                for _ in 0..number {
                    let locks = locks.clone();
                    let waiter = async move { Ok(locks.lock(KEY).acquire().await?) };
                    handles.push(waiters.spawn_on(waiter, runtime.handle()));
                }
                runtime.block_on(async { tokio::time::sleep(SETTLED).await });
                worker::says(format_args!("waiting {}", process::memory()?.saturating_sub(before)));
            }
            "leave" | "leave but one" => {
                let stays = (order == "leave but one").then_some(number / 2);
                let leave = handles.iter().enumerate().filter(|(at, _)| Some(*at) != stays);
                leave.for_each(|(_, handle)| handle.abort());
                runtime.block_on(async {
                    while waiters.len() > usize::from(stays.is_some()) {
                        waiters.join_next().await;
                    }
                });
                worker::says("left");
                if let Some(last) = runtime.block_on(waiters.join_next()) {
                    let guard = last??;
                    worker::says("granted");
                    if worker::hears().as_deref() == Some("release") {
                        runtime.block_on(guard.release())?;
                        worker::says("released");
                    }
                }
            }
            other => return Err(error(format!("a child does not know {other:?}"))),
        }
    }
    Ok(())
}
