//! The cost of a lock without contention: 1 to 256 tasks of one process, each with a lock of its
//! own.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lock_tests::Stamp;
use lock_tests::server::Server;
use tokio::task::JoinSet;

use crate::contender::{Client, Contender};
use crate::contest::commands_of;
use crate::plot::Panel;
use crate::process::Apart;
use crate::report::{Report, Verdict, count, progress, ratio, time};
use crate::sample::{median, percentile};
use crate::worker::{PEER_PATIENCE, no_answer};
use crate::{Error, Result, Size, error, process};

/// How many tasks in which of tokio's runtimes: with one task, the runtime decides more than the library.
const GROUPS: [(usize, Flavor); 10] = [
    (1, Flavor::MultiThread),
    (4, Flavor::MultiThread),
    (16, Flavor::MultiThread),
    (64, Flavor::MultiThread),
    (256, Flavor::MultiThread),
    (1, Flavor::CurrentThread),
    (4, Flavor::CurrentThread),
    (16, Flavor::CurrentThread),
    (64, Flavor::CurrentThread),
    (256, Flavor::CurrentThread),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    MultiThread,
    CurrentThread,
}

impl Flavor {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MultiThread => "multi_thread",
            Self::CurrentThread => "current_thread",
        }
    }

    fn build(self) -> std::io::Result<tokio::runtime::Runtime> {
        match self {
            Self::MultiThread => tokio::runtime::Builder::new_multi_thread(),
            Self::CurrentThread => tokio::runtime::Builder::new_current_thread(),
        }
        .enable_all()
        .build()
    }
}

/// What one contender did in all rounds of a group.
#[derive(Default)]
pub(crate) struct Row {
    /// Sections per second, by round.
    pub(crate) rates: Vec<f64>,
    /// From the call to its end; sorted.
    pub(crate) cycles: Vec<Duration>,
    pub(crate) commands: u64,
    cpu: Duration,
    /// Sections that ended in an error instead.
    pub(crate) errors: usize,
}

/// By the index of the group.
type Rows = HashMap<(usize, Contender), Row>;

/// Those without figures, and why.
type Absent = HashMap<Contender, String>;

/// A contender at work in a thread and a runtime of its own, so that one that hangs, with or without the thread, is left behind.
struct AtWork {
    orders: mpsc::Sender<Duration>,
    answers: mpsc::Receiver<Result<Work>>,
}

/// How long each section took, and how many ended in an error instead.
type Work = (Vec<Duration>, usize);

impl AtWork {
    /// Begins to connect; the first [answer](Self::answer) tells when it is done.
    fn start(contender: Contender, urls: Vec<String>, tasks: usize, flavor: Flavor) -> Self {
        let (orders, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        std::thread::spawn(move || {
            let ended = Self::serve(contender, &urls, tasks, flavor, &asked, &answer);
            // Nobody listens to one that was left behind.
            let _ = ended.or_else(|error| answer.send(Err(error)));
        });
        Self { orders, answers }
    }

    fn serve(
        contender: Contender,
        urls: &[String],
        tasks: usize,
        flavor: Flavor,
        asked: &mpsc::Receiver<Duration>,
        answer: &mpsc::Sender<Result<Work>>,
    ) -> Result {
        let runtime = flavor.build()?;
        let names: Arc<[String]> = (0..tasks).map(|task| format!("bench:{task}")).collect();
        let client = runtime.block_on(contender.connect(urls, names))?;
        answer.send(Ok(Work::default())).map_err(|_| "nobody listens")?;
        while let Ok(window) = asked.recv() {
            let done = runtime.block_on(work(&client, tasks, window));
            answer.send(done).map_err(|_| "nobody listens")?;
        }
        runtime.shutdown_background();
        Ok(())
    }

    fn answer(&self, contender: Contender, window: Duration) -> Result<Work> {
        // One of ours that hangs is to be seen in a debugger.
        let patience = if contender.is_peer() {
            PEER_PATIENCE
        } else {
            Duration::from_secs(60)
        };
        self.answers
            .recv_timeout(window + patience)
            .unwrap_or_else(|_| Err(no_answer(patience)))
    }

    fn work(&self, contender: Contender, window: Duration) -> Result<Work> {
        self.orders.send(window).map_err(|_| error("has ended"))?;
        self.answer(contender, window)
    }
}

pub(crate) async fn run(size: Size) -> Result<Report> {
    // A runtime of its own for every group; this one is not to be blocked.
    tokio::task::spawn_blocking(move || {
        let contenders = Contender::uncontended(size);
        let (rows, absent) = measure("uncontended", &contenders, &GROUPS, 1, size)?;
        Ok(report(&contenders, &rows, &absent))
    })
    .await?
}

/// Measures contenders in groups of so many tasks in such a runtime. More than one server are the masters of a quorum. Blocks its thread.
pub(crate) fn measure(
    what: &'static str,
    contenders: &[Contender],
    groups: &[(usize, Flavor)],
    servers: usize,
    size: Size,
) -> Result<(Rows, Absent)> {
    let (rounds, window) = match size {
        Size::Full => (7, Duration::from_millis(120)),
        Size::Smoke => (1, Duration::from_millis(4)),
    };
    let mut absent = Absent::new();
    let bar = progress(what, groups.len() * (rounds + 1) * contenders.len());
    let mut rows = Rows::new();
    for (group, (tasks, flavor)) in groups.iter().copied().enumerate() {
        let servers: Vec<_> = (0..servers).map(|_| Server::start()).collect();
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        let pids: Vec<_> = servers.iter().map(Server::pid).collect();
        // With one task a round trip is mostly the waking of an idle core, and where the two sides happen to run decides.
        let _apart = (tasks == 1).then(|| Apart::from(&pids)).transpose()?;
        let starting: Vec<_> = contenders
            .iter()
            .filter(|contender| !absent.contains_key(contender))
            .map(|contender| (*contender, AtWork::start(*contender, urls.clone(), tasks, flavor)))
            .collect();
        let mut working = Vec::new();
        for (contender, at_work) in starting {
            match at_work.answer(contender, Duration::ZERO) {
                Ok(_) => working.push((contender, at_work)),
                Err(error) => leave_out(&mut absent, contender, error)?,
            }
        }
        // The first round warms up.
        for round in 0..=rounds {
            // One after the other in short rounds, so that noise of the machine meets all alike.
            let mut gone = Vec::new();
            for (contender, at_work) in &working {
                bar.set_message(format!("{tasks} tasks, {}: {contender}", flavor.name()));
                let (before, cpu) = (commands_of(&servers)?, process::cpu());
                let began = Instant::now();
                let (mut cycles, failed) = match at_work.work(*contender, window) {
                    Ok(done) => done,
                    Err(error) => {
                        leave_out(&mut absent, *contender, error)?;
                        gone.push(*contender);
                        continue;
                    }
                };
                let (took, cpu) = (began.elapsed(), process::cpu().saturating_sub(cpu));
                if round > 0 {
                    let row = rows.entry((group, *contender)).or_default();
                    row.rates.push(ratio(cycles.len(), took));
                    row.cycles.append(&mut cycles);
                    row.commands += commands_of(&servers)?.saturating_sub(before + servers.len() as u64);
                    row.cpu += cpu;
                    row.errors += failed;
                }
                bar.inc(1);
            }
            working.retain(|(contender, _)| !gone.contains(contender));
        }
    }
    for row in rows.values_mut() {
        row.cycles.sort_unstable();
    }
    bar.finish_and_clear();
    Ok((rows, absent))
}

/// The median of the rounds' own ratios.
pub(crate) fn against(rows: &Rows, group: usize, one: Contender, other: Contender) -> f64 {
    let ratios: Vec<_> = rates(rows, group, one)
        .iter()
        .zip(rates(rows, group, other))
        .map(|(one, other)| ratio(*one, *other))
        .collect();
    median(&ratios)
}

fn rates(rows: &Rows, group: usize, contender: Contender) -> &[f64] {
    rows.get(&(group, contender)).map_or(&[], |row| &row.rates)
}

/// A peer that fails or hangs is left out from then on.
fn leave_out(absent: &mut Absent, contender: Contender, error: Error) -> Result {
    if !contender.is_peer() {
        return Err(error);
    }
    absent.insert(contender, error.to_string());
    Ok(())
}

/// Every task takes and gives back its own lock until the time is over.
async fn work(client: &Client, tasks: usize, window: Duration) -> Result<Work> {
    let end = Instant::now() + window;
    let mut workers = JoinSet::new();
    for task in 0..tasks {
        let mut client = client.clone();
        workers.spawn(async move {
            let (mut cycles, mut failed) = (Vec::with_capacity(4_096), 0);
            while Instant::now() < end {
                match client.section(task, Duration::ZERO).await {
                    Ok(section) => cycles.push(Stamp::now().since(section.asked)),
                    // A time-out, say, on a machine that has other work.
                    Err(_) => failed += 1,
                }
            }
            (cycles, failed)
        });
    }
    let (mut cycles, mut failed) = (Vec::new(), 0);
    while let Some(worker) = workers.join_next().await {
        let (of_worker, failed_there) = worker?;
        cycles.extend(of_worker);
        failed += failed_there;
    }
    Ok((cycles, failed))
}

fn report(contenders: &[Contender], rows: &Rows, absent: &Absent) -> Report {
    let mut report = Report::new(
        "uncontended",
        "Tasks of one process, each with a lock of its own; medians of short alternating rounds. With one task, the server is \
         pinned to one core and the process to the others, since the rate otherwise depends on the cores on which the two \
         happen to run. Commands are the server's own count, including those inside scripts. Ratios are medians of the rounds' \
         own ratios.",
        &[
            "tasks",
            "runtime",
            "contender",
            "sections/s",
            "p50",
            "p99",
            "commands",
            "client CPU",
        ],
    );
    for (group, (tasks, flavor)) in GROUPS.into_iter().enumerate() {
        let mut panel = Panel::logarithmic(format!("sections per second, {tasks} tasks, {}", flavor.name()));
        for contender in contenders {
            let Some(row) = rows.get(&(group, *contender)) else {
                let why = absent.get(contender).map_or("not measured", String::as_str);
                let before = vec![tasks.to_string(), flavor.name().to_owned()];
                report.absent(before, *contender, why);
                continue;
            };
            let sections = row.cycles.len();
            if row.errors > 0 {
                report.note(format!(
                    "{contender}: {} sections with {tasks} tasks ended in an error",
                    row.errors
                ));
            }
            panel.contender(*contender, median(&row.rates));
            report.row(vec![
                tasks.to_string(),
                flavor.name().to_owned(),
                contender.to_string(),
                count(median(&row.rates)),
                time(percentile(&row.cycles, 0.50)),
                time(percentile(&row.cycles, 0.99)),
                format!("{:.2}", ratio(row.commands, sections)),
                format!("{:.1} µs", ratio(row.cpu.as_secs_f64() * 1e6, sections)),
            ]);
        }
        report.panels.push(panel);
        report.verdicts.extend(verdicts(rows, group, tasks, flavor));
    }
    for contender in contenders {
        if let Some(note) = contender.note() {
            report.note(note);
        }
    }
    report
}

fn verdicts(rows: &Rows, group: usize, tasks: usize, flavor: Flavor) -> Vec<Verdict> {
    let rates = |contender| rates(rows, group, contender);
    let is_measured = |contender: Contender| !rates(contender).is_empty();
    let at_least = |who: &str, one: Contender, other: Contender, beside: String, limit| {
        let what = format!("uncontended, {tasks} tasks, {}: {who} / {beside}", flavor.name());
        let figure = || against(rows, group, one, other);
        (is_measured(one) && is_measured(other)).then(|| Verdict::at_least(4, what, limit, figure()))
    };
    let raw = |who, one, limit| at_least(who, one, Contender::Raw, Contender::Raw.to_string(), limit);
    let kind = |who, one, limit| at_least(who, one, Contender::OURS, Contender::OURS.to_string(), limit);
    let peers = Contender::peers().filter(|peer| is_measured(*peer));
    let best = peers.max_by(|one, other| median(rates(*one)).total_cmp(&median(rates(*other))));
    let mut verdicts = vec![
        raw("rate", Contender::OURS, 0.95),
        best.and_then(|best| at_least("rate", Contender::OURS, best, format!("best peer ({best})"), 1.0)),
        kind("fencing", Contender::FENCING, 0.8),
        kind("fair", Contender::FAIR, 0.7),
        kind("read", Contender::READ, 0.7),
        kind("semaphore", Contender::SEMAPHORE, 0.7),
        kind("pipelined", Contender::PIPELINED, 1.0),
    ];
    if tasks == 1 {
        verdicts.push(raw("pipelined", Contender::PIPELINED, 1.6));
    }
    verdicts.into_iter().flatten().collect()
}
