//! Measurements against real servers that the bench starts itself: `cargo run --release -p lock-benches --bin bench -- [scenario …] [--save]`.
//!
//! Without a scenario, all of them are run. Every one shows a table and, where the project has promised a figure, whether it was reached, and draws
//! `benches/plots/<scenario>.svg`; `--save` also writes `benches/RESULTS.md`. `--smoke` runs as little as possible, to see that a scenario still works.
//! `soak` is no scenario: it measures no time, but what is left after a long one.

mod against;
mod attribute;
mod cluster;
mod compile;
mod contender;
mod contest;
mod crowd;
mod failover;
mod handover;
mod hot;
mod inside;
mod instructions;
mod loss;
mod memory;
mod node;
mod plot;
mod process;
mod promotion;
mod quorum;
mod readers;
mod replicas;
mod report;
mod results;
mod sample;
mod silent;
mod slots;
mod soak;
mod takeover;
mod transfers;
mod uncontended;
mod watchdog;
mod worker;
mod zipf;

use std::process::ExitCode;

use report::{Report, Verdict};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T = ()> = std::result::Result<T, Error>;

/// All that can be run, in this order.
const SCENARIOS: [(&str, &str); 22] = [
    (
        "uncontended",
        "rate, latency, commands and CPU of locks that nobody else wants, with 1 to 256 tasks",
    ),
    (
        "instructions",
        "instructions, allocations and system calls of such locks, which do not depend on other load; needs valgrind and strace",
    ),
    (
        "hot",
        "one lock that 4 processes with 8 tasks want all the time, held for 0, 1, 5 and 50 ms",
    ),
    (
        "handover",
        "time from the release in one process to the grant in another",
    ),
    ("inside", "one lock that 16 tasks of one process want all the time"),
    ("zipf", "10,000 locks of which few are popular"),
    (
        "crowd",
        "5,000 waiters for one lock: contenders, memory, and what they leave behind",
    ),
    (
        "watchdog",
        "CPU, memory and timeliness of renewing 1,000, 10,000 and 100,000 held locks; or as many as the numbers behind it say",
    ),
    (
        "attribute",
        "nanoseconds and allocations of the attribute on the memory store",
    ),
    ("compile", "compile time of 500 annotated functions"),
    (
        "loss",
        "time from the loss of a lock to the end of its body, per cause, in 200 rounds or the number behind it",
    ),
    (
        "silent",
        "how soon connections that fall silent are replaced, in 50 rounds, or the number behind it",
    ),
    (
        "failover",
        "how soon locks follow the master behind sentinels, in 50 rounds of SIGKILL and of a manual failover each, or the number behind it",
    ),
    (
        "replicas",
        "rate and latency of locks that one or two replicas must have, beside those that none must have",
    ),
    (
        "cluster",
        "locks in a cluster of three masters beside one server, with raw commands in both",
    ),
    (
        "slots",
        "all slots of a cluster moved back and forth under locks of all modes, or as many as the number behind it",
    ),
    (
        "promotion",
        "how soon locks follow the replica of a killed master of a cluster, in 25 rounds, or the number behind it",
    ),
    (
        "node",
        "calls for the keys of two nodes of a cluster while the third is silent, beside those while it is not",
    ),
    (
        "quorum",
        "locks on five masters, wanted by 32 tasks and by nobody else, beside redsync's way, rslock and raw commands",
    ),
    ("readers", "how long a writer waits among 32 readers that never stop"),
    (
        "transfers",
        "1,000 transfers among 10 accounts: both locks at once, or one after the other",
    ),
    ("memory", "bytes in the server of a held lock, per mode"),
];

/// An error of these words.
fn error(words: impl Into<String>) -> Error {
    words.into().into()
}

/// How much of a scenario is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// What the figures are taken from.
    Full,
    /// Just enough to see that it runs.
    Smoke,
}

/// What the command line asks for.
struct Wanted {
    size: Size,
    save: bool,
    /// Prints the figures for [`against`], and draws nothing.
    figures: bool,
    /// Each with the numbers behind it.
    scenarios: Vec<(&'static str, Vec<usize>)>,
}

impl Wanted {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut wanted = Self {
            size: Size::Full,
            save: false,
            figures: false,
            scenarios: Vec::new(),
        };
        for argument in arguments {
            let scenario = SCENARIOS.iter().find(|(name, _)| *name == argument);
            match (
                argument.as_str(),
                scenario,
                argument.parse(),
                wanted.scenarios.last_mut(),
            ) {
                ("--save", ..) => wanted.save = true,
                ("--figures", ..) => wanted.figures = true,
                ("--smoke", ..) => wanted.size = Size::Smoke,
                (_, Some((name, _)), ..) => wanted.scenarios.push((*name, Vec::new())),
                (_, None, Ok(number), Some((_, numbers))) => numbers.push(number),
                _ => {
                    let known: Vec<_> = SCENARIOS
                        .iter()
                        .map(|(name, about)| format!("  {name:12} {about}"))
                        .collect();
                    return Err(error(format!(
                        "there is no scenario {argument:?}; these are there:\n{}",
                        known.join("\n")
                    )));
                }
            }
        }
        if wanted.scenarios.is_empty() {
            wanted.scenarios = SCENARIOS.iter().map(|(name, _)| (*name, Vec::new())).collect();
        }
        if wanted.save && (wanted.size == Size::Smoke || cfg!(debug_assertions)) {
            return Err(error("only figures of a full run and a release build are kept"));
        }
        Ok(wanted)
    }
}

fn main() -> ExitCode {
    match start(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Vec<String>) -> Result {
    if let [child, job, rest @ ..] = arguments.as_slice()
        && child == "child"
    {
        return match job.as_str() {
            "contest" => contest::child(rest),
            "crowd" => crowd::child(rest),
            "sections" => instructions::child(rest),
            "transfers" => transfers::child(rest),
            other => Err(error(format!("there is no job {other:?}"))),
        };
    }
    if let [against, rest @ ..] = arguments.as_slice()
        && against == "against"
    {
        return against::run(rest);
    }
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    if let [soak, rest @ ..] = arguments.as_slice()
        && soak == "soak"
    {
        return runtime()?.block_on(soak::run(rest));
    }
    let wanted = Wanted::read(arguments.into_iter())?;
    runtime()?.block_on(run(wanted))
}

async fn run(wanted: Wanted) -> Result {
    let elsewhere = tempfile::tempdir()?;
    let plots = (wanted.size == Size::Smoke).then_some(elsewhere.path());
    let mut reports = Vec::new();
    for (scenario, numbers) in &wanted.scenarios {
        let report = one(scenario, numbers, wanted.size).await?;
        if wanted.figures {
            against::print(scenario, &report.panels);
            continue;
        }
        println!("## `{scenario}`\n\n{}", report.markdown());
        results::draw(&report, plots)?;
        reports.push(report);
    }
    if wanted.save {
        results::save(&reports)?;
    }
    let verdicts: Vec<Verdict> = reports.iter().flat_map(|report| report.verdicts.clone()).collect();
    if reports.len() > 1 && !verdicts.is_empty() {
        println!("## Verdicts\n\n{}", Verdict::table(&verdicts));
    }
    Ok(())
}

async fn one(scenario: &str, numbers: &[usize], size: Size) -> Result<Report> {
    match scenario {
        "uncontended" => uncontended::run(size).await,
        "instructions" => instructions::run(size).await,
        "hot" => hot::run(size).await,
        "handover" => handover::run(size).await,
        "inside" => inside::run(size).await,
        "zipf" => zipf::run(size).await,
        "crowd" => crowd::run(size).await,
        "watchdog" => watchdog::run(size, numbers).await,
        "attribute" => attribute::run(size).await,
        "compile" => compile::run(size).await,
        "loss" => loss::run(size, numbers.first().copied()).await,
        "silent" => silent::run(size, numbers.first().copied()).await,
        "failover" => failover::run(size, numbers.first().copied()).await,
        "cluster" => cluster::run(size).await,
        "slots" => slots::run(size, numbers.first().copied()).await,
        "promotion" => promotion::run(size, numbers.first().copied()).await,
        "node" => node::run(size).await,
        "quorum" => quorum::run(size).await,
        "readers" => readers::run(size).await,
        "replicas" => replicas::run(size).await,
        "transfers" => transfers::run(size).await,
        "memory" => memory::run(size).await,
        other => Err(error(format!("there is no scenario {other:?}"))),
    }
}
