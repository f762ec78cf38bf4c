//! Transfers between accounts: both locks at once, or one after the other with retries.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager};
use lock_tests::server::Server;

use crate::plot::Panel;
use crate::report::{Number, Report, Verdict, count, progress, rate, ratio, time};
use crate::sample::{median, percentile};
use crate::worker::{self, Worker, argument};
use crate::{Result, Size, error};

const ACCOUNTS: usize = 10;
const PROCESSES: usize = 4;
const TASKS: usize = 4;
/// What an account has at first.
const BALANCE: i64 = 1_000;
const WAIT: Duration = Duration::from_secs(60);

/// How a transfer takes its locks.
const WAYS: [(&str, &str); 2] = [
    ("keys", "`keys`: both at once"),
    ("steps", "one after the other, with retries"),
];

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (rounds, transfers) = match size {
        Size::Full => (5, 1_000),
        Size::Smoke => (1, 32),
    };
    let mut report = Report::new(
        "transfers",
        "1,000 transfers among 10 accounts, drawn at random, by 16 tasks in 4 processes; both balances are read and then written under the two locks. \
         Medians of alternating rounds. The other way takes the first lock and tries the second one once; if that is busy, it \
         releases the first lock and starts again after a pause of up to 4 ms.",
        &["way", "transfers/s", "p50", "p99", "longest", "time-outs", "sum"],
    );
    let bar = progress("transfers", rounds * WAYS.len());
    let mut outcomes = [const { Vec::new() }; WAYS.len()];
    for _ in 0..rounds {
        for ((way, _), outcomes) in WAYS.into_iter().zip(&mut outcomes) {
            outcomes.push(measure(way, transfers).await?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut panel = Panel::linear("transfers per second");
    let mut rates = Vec::new();
    let (mut sums, mut failed) = (true, 0);
    for ((_, name), outcomes) in WAYS.into_iter().zip(&outcomes) {
        let per_second = median(&outcomes.iter().map(|outcome| outcome.rate).collect::<Vec<_>>());
        let mut times: Vec<Duration> = outcomes.iter().flat_map(|outcome| outcome.times.clone()).collect();
        times.sort_unstable();
        let exact = outcomes.iter().all(|outcome| outcome.sum == BALANCE * 10);
        let time_outs = outcomes.iter().map(|outcome| outcome.time_outs).sum::<u64>();
        if rates.is_empty() {
            (sums, failed) = (exact, time_outs);
        }
        rates.push(per_second);
        panel.bar(name, per_second);
        report.row(vec![
            name.to_owned(),
            rate(per_second),
            time(percentile(&times, 0.5)),
            time(percentile(&times, 0.99)),
            time(times.last().copied().unwrap_or_default()),
            count(time_outs),
            if exact { "exact" } else { "**wrong**" }.to_owned(),
        ]);
    }
    report.panels.push(panel);
    let [keys, steps] = rates.as_slice() else {
        return Err(error("there are two ways"));
    };
    report.verdicts.extend([
        Verdict::holds(4, "transfers by `keys`: the sum is exact", "", sums),
        Verdict::at_most(4, "transfers by `keys`: time-outs", 0.0, failed.float(), ""),
        Verdict::at_least(4, "transfers: `keys` / one after the other", 1.0, ratio(*keys, *steps)),
    ]);
    Ok(report)
}

struct Outcome {
    rate: f64,
    times: Vec<Duration>,
    time_outs: u64,
    sum: i64,
}

async fn measure(way: &str, transfers: usize) -> Result<Outcome> {
    let server = Server::start();
    for account in 0..ACCOUNTS {
        server.cmd(&["SET", &balance(account), &BALANCE.to_string()]);
    }
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        let each = transfers / PROCESSES / TASKS;
        workers.push(Worker::start("transfers", &[server.url(), way.to_owned(), each.to_string()]).await?);
    }
    let began = Instant::now();
    for worker in &mut workers {
        worker.say("go").await?;
    }
    let mut outcome = Outcome {
        rate: 0.0,
        times: Vec::new(),
        time_outs: 0,
        sum: 0,
    };
    for worker in &mut workers {
        outcome.time_outs += worker.hear_number("timeouts").await?;
        let times = worker.hear("times").await?;
        for micros in times.split_whitespace() {
            outcome.times.push(Duration::from_micros(micros.parse()?));
        }
    }
    outcome.rate = ratio(transfers, began.elapsed());
    for account in 0..ACCOUNTS {
        outcome.sum += server.ask::<i64>(&["GET", &balance(account)]);
    }
    Ok(outcome)
}

fn balance(account: usize) -> String {
    format!("balance:{account}")
}

/// The child's side.
pub(crate) fn child(arguments: &[String]) -> Result {
    let (url, way): (String, String) = (argument(arguments, 0)?, argument(arguments, 1)?);
    let each: usize = argument(arguments, 2)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = LockManager::builder(&url).default_wait(WAIT).build()?;
        locks.check_connection().await?;
        let client = redis::Client::open(url)?;
        worker::says("ready");
        worker::hears().ok_or("the parent has gone")?;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let connection = client.get_multiplexed_async_connection().await?;
            tasks.spawn(transfer(locks.clone(), connection, way == "keys", each));
        }
        let (mut times, mut time_outs) = (Vec::new(), 0_u64);
        while let Some(task) = tasks.join_next().await {
            let (took, failed) = task??;
            times.extend(took);
            time_outs += failed;
        }
        worker::says(format_args!("timeouts {time_outs}"));
        let times: Vec<_> = times
            .iter()
            .map(|took: &Duration| took.as_micros().to_string())
            .collect();
        worker::says(format_args!("times {}", times.join(" ")));
        locks.shutdown().await;
        Ok(())
    })
}

async fn transfer(
    locks: LockManager,
    mut connection: redis::aio::MultiplexedConnection,
    at_once: bool,
    number: usize,
) -> Result<(Vec<Duration>, u64)> {
    let (mut times, mut time_outs) = (Vec::with_capacity(number), 0);
    for _ in 0..number {
        let from = fastrand::usize(..ACCOUNTS);
        let to = (from + fastrand::usize(1..ACCOUNTS)) % ACCOUNTS;
        let asked = Instant::now();
        let guards = if at_once {
            both(&locks, from, to).await
        } else {
            in_steps(&locks, from, to).await
        };
        let guards = match guards {
            Ok(guards) => guards,
            Err(error) if error.is_busy() => {
                time_outs += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let (one, other): (i64, i64) = redis::cmd("MGET")
            .arg(balance(from))
            .arg(balance(to))
            .query_async(&mut connection)
            .await?;
        redis::cmd("MSET")
            .arg(balance(from))
            .arg(one - 1)
            .arg(balance(to))
            .arg(other + 1)
            .query_async::<()>(&mut connection)
            .await?;
        for guard in guards.into_iter().rev() {
            guard.release().await?;
        }
        times.push(asked.elapsed());
    }
    Ok((times, time_outs))
}

fn account(number: usize) -> String {
    format!("account:{number}")
}

async fn both(locks: &LockManager, from: usize, to: usize) -> std::result::Result<Vec<LockGuard>, LockError> {
    Ok(vec![locks.lock_all([account(from), account(to)]).acquire().await?])
}

/// What one does without: in the order of the call, so that holding the first while waiting for the second would be a deadlock.
async fn in_steps(locks: &LockManager, from: usize, to: usize) -> std::result::Result<Vec<LockGuard>, LockError> {
    let began = Instant::now();
    loop {
        let first = locks.lock(account(from)).acquire().await?;
        match locks.lock(account(to)).wait(Duration::ZERO).acquire().await {
            Ok(second) => return Ok(vec![first, second]),
            Err(error) if error.is_busy() && began.elapsed() < WAIT => {
                first.release().await?;
                tokio::time::sleep(Duration::from_micros(fastrand::u64(..4_000))).await;
            }
            Err(error) => return Err(error),
        }
    }
}
