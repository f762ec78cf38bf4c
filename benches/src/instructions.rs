//! The client's instructions, allocations and system calls in a section without contention, which do not depend on what else the machine does.
//!
//! Callgrind needs a build in which `rustix` asks the C library for the time:
//! `RUSTFLAGS="--cfg rustix_use_libc" cargo run --release --target-dir target/callgrind -p lock-benches --bin bench -- instructions`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lock_tests::server::Server;
use tokio::task::JoinSet;

use crate::contender::{Client, Contender};
use crate::plot::Panel;
use crate::report::{Report, Verdict, progress, ratio};
use crate::worker::{argument, says};
use crate::{Result, Size, error};

const TASKS: [usize; 3] = [1, 16, 64];
const CONTENDERS: [Contender; 3] = [Contender::OURS, Contender::PIPELINED, Contender::Raw];

/// What a tool counts in a child with so many sections.
#[derive(Clone, Copy)]
enum Count {
    Instructions,
    Allocations,
    SystemCalls,
}

pub(crate) async fn run(size: Size) -> Result<Report> {
    tokio::task::spawn_blocking(move || measure(size)).await?
}

fn measure(size: Size) -> Result<Report> {
    let mut report = Report::new(
        "instructions",
        "One process in which so many tasks, in a runtime of one thread, take and release a lock of their own: the instructions of all its \
         threads by callgrind, the allocations of the tasks' thread, and the system calls of all threads by strace, each per section and \
         without the start of the process.",
        &["tasks", "contender", "instructions", "allocations", "system calls"],
    );
    let sections = match size {
        Size::Full => 4_000,
        Size::Smoke => 64,
    };
    let server = Server::start();
    let bar = progress("instructions", TASKS.len() * CONTENDERS.len());
    for tasks in TASKS {
        let mut panel = Panel::cost(format!("instructions per section, {tasks} tasks"));
        let mut counted = Vec::new();
        for contender in CONTENDERS {
            bar.set_message(format!("{tasks} tasks, {contender}"));
            let per_section = |count| -> Result<Option<f64>> {
                let of = |sections| run_child(count, &server.url(), contender, tasks, sections);
                let (Some(few), Some(many)) = (of(sections)?, of(3 * sections)?) else {
                    return Ok(None);
                };
                Ok(Some(ratio(many.saturating_sub(few), 2 * sections)))
            };
            // The tools slow the process down by far, and need not be there.
            let is_full = size == Size::Full;
            let instructions = if is_full {
                per_section(Count::Instructions)?
            } else {
                None
            };
            let allocations = per_section(Count::Allocations)?;
            let calls = if is_full {
                per_section(Count::SystemCalls)?
            } else {
                None
            };
            let shown =
                |figure: Option<f64>, digits| figure.map_or("–".to_owned(), |figure| format!("{figure:.digits$}"));
            report.row(vec![
                tasks.to_string(),
                contender.to_string(),
                shown(instructions, 0),
                shown(allocations, 1),
                shown(calls, 2),
            ]);
            if let Some(instructions) = instructions {
                panel.bar(contender.to_string(), instructions);
            }
            counted.push((instructions, allocations));
            bar.inc(1);
        }
        report.panels.push(panel);
        if let [(Some(ours), _), _, (Some(raw), _)] = counted[..]
            && tasks > 1
        {
            let what = format!("uncontended, {tasks} tasks: instructions / raw commands");
            report.verdicts.push(Verdict::at_most(4, what, 1.0, ours / raw, ""));
        }
        if let [(_, Some(allocations)), ..] = counted[..]
            && tasks > 1
        {
            let what = format!("uncontended, {tasks} tasks: allocations");
            report.verdicts.push(Verdict::at_most(4, what, 13.0, allocations, ""));
        }
    }
    bar.finish_and_clear();
    Ok(report)
}

/// Returns what was counted in a child, or `None` without the tool.
fn run_child(count: Count, url: &str, contender: Contender, tasks: usize, sections: usize) -> Result<Option<u64>> {
    let this = std::env::current_exe()?;
    let summary = tempfile::NamedTempFile::new()?;
    let Some(mut tool) = count.tool(summary.path()) else {
        return Ok(None);
    };
    tool.arg(&this)
        .args(["child", "sections", url])
        .arg(contender.to_string())
        .args([tasks.to_string(), sections.to_string()]);
    let output = tool.output()?;
    let (said, failed) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if !output.status.success() {
        return Err(error(format!("{contender} with {tasks} tasks: {said}{failed}")));
    }
    let number = match count {
        Count::Allocations => said
            .lines()
            .find_map(|line| line.strip_prefix("allocations ")?.parse().ok()),
        Count::Instructions => failed
            .lines()
            .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok()),
        // The last line of its table: `100.00 <seconds> <usecs/call> <calls> … total`.
        Count::SystemCalls => {
            let table = std::fs::read_to_string(summary.path())?;
            let total = table.lines().rfind(|line| line.ends_with("total"));
            total.and_then(|line| line.split_whitespace().nth(3)?.parse().ok())
        }
    };
    number
        .map(Some)
        .ok_or_else(|| error(format!("nothing was counted: {said}{failed}")))
}

impl Count {
    /// Returns the command that counts, or `None` if this machine has none.
    fn tool(self, summary: &Path) -> Option<Command> {
        let is_there = |name: &str| Command::new(name).arg("--version").output().is_ok();
        match self {
            Self::Allocations => Some(Command::new("env")),
            Self::Instructions => is_there("valgrind").then(|| {
                let mut tool = Command::new("valgrind");
                tool.args(["--tool=callgrind", "--fair-sched=yes", "--callgrind-out-file=/dev/null"]);
                tool
            }),
            Self::SystemCalls => is_there("strace").then(|| {
                let mut tool = Command::new("strace");
                tool.args(["-f", "-c", "-o"]).arg(summary);
                tool
            }),
        }
    }
}

/// The job of a child: takes and releases locks, and tells how often it has allocated meanwhile.
pub(crate) fn child(arguments: &[String]) -> Result {
    let url: String = argument(arguments, 0)?;
    let contender: Contender = argument(arguments, 1)?;
    let (tasks, sections): (usize, usize) = (argument(arguments, 2)?, argument(arguments, 3)?);
    // For profilers.
    let runtime = match arguments.get(4).map(String::as_str) {
        Some("threads") => tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    let names: Arc<[String]> = (0..tasks).map(|task| format!("bench:{task}")).collect();
    let client = runtime.block_on(contender.connect(&[url], names))?;
    let mut done = Ok(());
    let counted = allocation_counter::measure(|| done = runtime.block_on(work(&client, tasks, sections)));
    done?;
    says(format_args!("allocations {}", counted.count_total));
    Ok(())
}

async fn work(client: &Client, tasks: usize, sections: usize) -> Result {
    let mut workers = JoinSet::new();
    for task in 0..tasks {
        let mut client = client.clone();
        workers.spawn(async move {
            for _ in 0..sections / tasks {
                client.section(task, Duration::ZERO).await?;
            }
            Ok::<_, crate::Error>(())
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}
