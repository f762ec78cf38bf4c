//! Runs many seeds, and says what came of them.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::arguments::Limits;
use crate::coverage::Coverage;
use crate::drive::{self, Ended};
use crate::judge::Violation;
use crate::plan::{Plan, Shape, Without};
use crate::shrink;

/// A seed that takes longer than this in real time, without the time for which it waits for a core, has left virtual time.
const STUCK: Duration = Duration::from_secs(120);

/// Runs one seed. Returns `true` if nothing was wrong.
pub fn one(seed: u64, shape: Shape, without: &Without, trace: bool) -> bool {
    let began = Instant::now();
    let ended = drive::run(seed, shape, without, true);
    if trace {
        let mut out = std::io::stdout().lock();
        for line in &ended.story {
            if writeln!(out, "{line}").is_err() {
                return true;
            }
        }
    }
    println!(
        "seed {seed}: {} sections, {} commands ({} in a script at most), {} connections, {:.0} s simulated in {:.2?}, trace {:016x}",
        ended.verdict.sections,
        ended.commands,
        ended.verdict.longest_script,
        ended.dials,
        ended.length.as_secs_f64(),
        began.elapsed(),
        ended.trace
    );
    for violation in &ended.verdict.violations {
        println!("  {violation}");
    }
    if !ended.verdict.violations.is_empty() && !trace {
        println!("\nThe story up to the first violation, without commands:\n");
        println!("{:?}", Plan::draw(seed, shape, without).faults);
        shrink::tell(&ended);
    }
    ended.verdict.violations.is_empty()
}

/// Runs each seed twice. Returns `true` if both runs always did the same.
pub fn twice(seeds: Range<u64>, shape: Shape, jobs: usize) -> bool {
    let began = Instant::now();
    let (mut count, mut different, mut events) = (0, 0, 0);
    let run = |seed| {
        let without = Without::default();
        let (one, other) = (
            drive::run(seed, shape, &without, false),
            drive::run(seed, shape, &without, false),
        );
        (one.trace == other.trace, one.commands)
    };
    each(seeds, jobs, run, |seed, (is_same, commands)| {
        count += 1;
        events += commands;
        if !is_same {
            different += 1;
            println!("seed {seed}: the two runs differ; compare two traces of it");
        }
        true
    });
    println!(
        "{count} seeds, each twice: {different} differ; {events} commands in {:?}",
        began.elapsed()
    );
    different == 0
}

/// Runs the seeds of a file. Returns `true` if nothing was wrong.
pub fn kept(file: &Path, jobs: usize) -> bool {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{} cannot be read: {error}", file.display());
            return false;
        }
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let kept = |line: &str| {
        let (seed, argument) = line
            .split_once(' ')
            .map_or((line, None), |(seed, argument)| (seed, Some(argument)));
        let mut shapes = [
            Shape::Drawn,
            Shape::Crowd,
            Shape::Dense,
            Shape::Sentinel,
            Shape::Cluster,
        ]
        .into_iter();
        let shape = shapes.find(|shape| shape.argument() == argument);
        seed.parse::<u64>().ok().zip(shape).ok_or_else(|| line.to_owned())
    };
    let seeds: Vec<(u64, Shape)> = match lines.map(kept).collect::<Result<_, _>>() {
        Ok(seeds) => seeds,
        Err(line) => {
            eprintln!(
                "`{line}` in {} is not a seed, alone or with `--crowd`, `--dense`, `--sentinel` or `--cluster`",
                file.display()
            );
            return false;
        }
    };
    let count = u64::try_from(seeds.len()).unwrap_or_default();
    let at = |number: u64| {
        usize::try_from(number)
            .ok()
            .and_then(|at| seeds.get(at))
            .copied()
            .unwrap_or_default()
    };
    let mut bad = Vec::new();
    let run = |number| {
        let (seed, shape) = at(number);
        drive::run(seed, shape, &Without::default(), false)
    };
    each(0..count, jobs, run, |number, ended| {
        if let Some(violation) = ended.verdict.violations.first() {
            println!("seed {}, which is kept: {violation}", at(number).0);
            bad.push(at(number));
        }
        true
    });
    println!("{count} kept seeds, {} with violations", bad.len());
    if let Some((seed, shape)) = bad.first() {
        shrink::shrink(*seed, *shape);
    }
    bad.is_empty() && count > 0
}

/// What the seeds of a campaign have done together.
#[derive(Default)]
struct Sum {
    seeds: u64,
    bad: Vec<u64>,
    sections: u64,
    contended: u64,
    commands: u64,
    simulated: Duration,
    rules: BTreeMap<String, u64>,
    coverage: Coverage,
}

/// Runs seeds until a limit is reached. Returns `true` if nothing was wrong.
pub fn many(limits: &Limits, jobs: usize) -> bool {
    let began = Instant::now();
    let first = limits.seeds.start;
    println!("seeds from {first} on, {jobs} at once");
    let mut sum = Sum::default();
    let mut told = Instant::now();
    let run = |seed| {
        let mut ended = drive::run(seed, limits.shape, &Without::default(), false);
        if let Some(rule) = &limits.rule {
            let is_of = |violation: &Violation| format!("{:?}", violation.rule) == *rule;
            ended.verdict.violations.retain(is_of);
        }
        ended
    };
    each(limits.seeds.clone(), jobs, run, |seed, ended| {
        sum.add(seed, &ended);
        if let Some(violation) = ended.verdict.violations.first() {
            println!(
                "seed {seed}: {} violations, the first {violation}",
                ended.verdict.violations.len()
            );
        }
        let pause = if std::io::stdout().is_terminal() { 2 } else { 30 };
        if told.elapsed() > Duration::from_secs(pause) {
            told = Instant::now();
            println!("{}", sum.line(began.elapsed()));
        }
        let is_over = limits.time.is_some_and(|time| began.elapsed() >= time)
            || limits.simulated.is_some_and(|most| sum.simulated >= most)
            || (limits.stops && !sum.bad.is_empty());
        !is_over
    });
    println!("{}", sum.coverage.table(limits.shape));
    println!("{}", sum.line(began.elapsed()));
    for (rule, count) in &sum.rules {
        println!("{rule}: {count} seeds");
    }
    let uncovered = sum.coverage.missing(limits.shape);
    if limits.must_cover && !uncovered.is_empty() {
        println!("not covered: {}", uncovered.join(", "));
    }
    if let Some(file) = &limits.append
        && let Err(error) = sum.append(file, first, began.elapsed())
    {
        eprintln!("{} cannot be written: {error}", file.display());
        return false;
    }
    if let Some(seed) = sum.bad.first().filter(|_| limits.tells) {
        shrink::shrink(*seed, limits.shape);
    }
    sum.bad.is_empty() && (!limits.must_cover || uncovered.is_empty())
}

impl Sum {
    fn add(&mut self, seed: u64, ended: &Ended) {
        self.seeds += 1;
        self.sections += ended.verdict.sections;
        self.contended += ended.verdict.contended;
        self.commands += ended.commands;
        self.simulated += ended.length;
        self.coverage.add(&ended.verdict.coverage);
        if !ended.verdict.violations.is_empty() {
            self.bad.push(seed);
        }
        let mut rules: Vec<String> = ended
            .verdict
            .violations
            .iter()
            .map(|one| format!("{:?}", one.rule))
            .collect();
        rules.sort();
        rules.dedup();
        for rule in rules {
            *self.rules.entry(rule).or_default() += 1;
        }
    }

    fn line(&self, took: Duration) -> String {
        let (took, simulated) = (took.as_secs_f64().max(1e-9), self.simulated.as_secs_f64());
        format!(
            "{} seeds, {:.2} h simulated, {:.0} times real time, {} sections ({:.0}/s; {:.1} contended a simulated second), \
             {:.0} commands/s, {} seeds with violations",
            self.seeds,
            simulated / 3_600.0,
            simulated / took,
            self.sections,
            ratio(self.sections, took),
            ratio(self.contended, simulated),
            ratio(self.commands, took),
            self.bad.len()
        )
    }

    fn append(&self, file: &Path, first: u64, took: Duration) -> std::io::Result<()> {
        let git = |arguments: &[&str]| -> std::io::Result<_> {
            let output = Command::new("git").args(arguments).output()?;
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Ok((output.status.success(), text))
        };
        let (_, commit) = git(&["rev-parse", "--short=12", "HEAD"])?;
        let (_, mut sources) = git(&["rev-parse", "--short=12", "HEAD:lock-runtime/src"])?;
        if !git(&["diff", "--quiet", "HEAD", "--", "lock-runtime/src"])?.0 {
            sources += " with changes";
        }
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file)?;
        writeln!(
            file,
            "| {commit} | {sources} | {first}..{} | {:.1} | {:.2} | {} | {} |",
            first + self.seeds,
            took.as_secs_f64() / 60.0,
            self.simulated.as_secs_f64() / 3_600.0,
            self.sections,
            self.bad.len()
        )
    }
}

fn ratio(count: u64, of: f64) -> f64 {
    // Far from where a `f64` has gaps.
    #[allow(clippy::cast_precision_loss)]
    let count = count as f64;
    count / of.max(1e-9)
}

/// Runs something for each seed on several threads, until `receive` returns `false`.
fn each<T: Send>(
    seeds: Range<u64>,
    jobs: usize,
    run: impl Fn(u64) -> T + Sync,
    mut receive: impl FnMut(u64, T) -> bool,
) {
    let next = AtomicU64::new(seeds.start);
    let is_over = AtomicBool::new(false);
    let (sender, results) = mpsc::channel();
    let (next, is_over, run, end) = (&next, &is_over, &run, seeds.end);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let sender = sender.clone();
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || sender.send((seed, run(seed))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut last = (Instant::now(), waited_for_a_core());
        loop {
            match results.recv_timeout(Duration::from_secs(1)) {
                Ok((seed, result)) => {
                    last = (Instant::now(), waited_for_a_core());
                    if !receive(seed, result) {
                        is_over.store(true, Ordering::Relaxed);
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let (answered, waited) = last;
                    if answered.elapsed() < STUCK + waited_for_a_core().saturating_sub(waited) {
                        continue;
                    }
                    let seed = next.load(Ordering::Relaxed);
                    eprintln!(
                        "one of the seeds before {seed} takes longer than {STUCK:?}: it has left virtual time, or never ends"
                    );
                    std::process::exit(3);
                }
            }
        }
    });
}

/// How long the threads of this process that still run have waited for a core, all in all. Zero where the system does not tell.
fn waited_for_a_core() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let waits = threads.filter_map(|thread| {
        let all = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        all.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    });
    waits.sum()
}
