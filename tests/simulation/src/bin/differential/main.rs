//! Compares the engine with real servers: random sequences of commands, by several connections, must get the same answers
//! and the same pushes from both. The real server's clock is the test's own, so that even times are equal.
//!
//! `differential --count 1000 --seed 7 --version redis-8` runs 1,000 sequences from the seed 7 on. Without `--version`
//! it does so for all of them at once, and `--seconds` bounds the time. With `--lines` it fails if there is a line of a
//! script that was never executed.

mod commands;
mod draw;
mod item;
mod lines;
mod real;
mod table;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_simulation::server::engine::Engine;
use lock_simulation::server::script::{Lines, Scripts};
use lock_simulation::server::version::Version;

use draw::{CONNECTIONS, Step};
use item::Item;
use real::{Real, Wire};

/// The time at which every sequence begins, in ms since 1970.
const BEGIN: i64 = 1_700_000_000_000;

/// How often a sequence that differs is run in all.
const RUNS: usize = 3;

struct Settings {
    seed: u64,
    count: u64,
    until: Option<Instant>,
}

/// What a version has shown.
#[derive(Default)]
struct Outcome {
    sequences: u64,
    commands: u64,
    mismatches: u64,
    /// Sequences that differed once, and not again.
    blurred: u64,
    seen: BTreeMap<String, BTreeSet<usize>>,
}

/// One difference: the step, the connection, and what either said.
type Mismatch = (usize, usize, String, String);

/// What several runs of a sequence have shown.
enum Verdict {
    Same,
    /// It differed once, and not again.
    Blurred,
    Differs,
}

struct Pair {
    version: Version,
    real: Real,
    scripts: Scripts,
    texts: Vec<(&'static str, &'static str)>,
    /// The real server knows all scripts.
    is_loaded: bool,
    commands: u64,
}

impl Pair {
    fn new(version: Version, servers: &Path, lines: &Arc<Lines>) -> io::Result<Self> {
        let texts = lock_runtime::script_texts().into_iter();
        let mut scripts = Scripts::new(version, Some(Arc::clone(lines))).map_err(io::Error::other)?;
        let texts: Vec<_> = texts
            .map(|(name, [flagged, plain])| (name, if version.is_7() { flagged } else { plain }))
            .collect();
        for (name, text) in &texts {
            scripts
                .load(text.as_bytes(), version)
                .map_err(|error| io::Error::other(format!("{name}: {error:?}")))?;
        }
        Ok(Self {
            version,
            real: Real::start(version, servers)?,
            scripts,
            texts,
            is_loaded: false,
            commands: 0,
        })
    }

    /// Runs a sequence on a fresh engine and on an empty server.
    fn run(&mut self, steps: &[Step]) -> io::Result<Option<Mismatch>> {
        let mut now = BEGIN;
        self.real.set_clock(now * 1000)?;
        self.real.ask_all(&[
            &["REPLICAOF", "NO", "ONE"],
            &["CLIENT", "KILL", "SKIPME", "yes"],
            &["CONFIG", "SET", "maxmemory", "0"],
            &["CONFIG", "SET", "replica-serve-stale-data", "yes"],
            &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
            &[
                "CONFIG",
                "SET",
                "client-output-buffer-limit",
                "pubsub 33554432 8388608 60",
            ],
            &["ACL", "DELUSER", "app"],
            &["FLUSHALL"],
        ])?;
        if !self.is_loaded {
            self.real.ask(&["SCRIPT", "FLUSH"])?;
            for (_, text) in &self.texts {
                self.real.ask(&["SCRIPT", "LOAD", text])?;
            }
            self.is_loaded = true;
        }
        let mut engine = Engine::new(self.version, self.scripts.clone());
        engine.seeks_expired = false;
        let mut wires = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut wire = self.real.open()?;
            wire.send(&[b"CLIENT", b"ID"])?;
            let id = wire
                .item()?
                .and_then(|id| String::from_utf8_lossy(&id.text).parse().ok());
            engine.number_from(id.ok_or_else(|| io::Error::other("a connection has no number"))?);
            wires.push((engine.open(), wire));
        }
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Wait(ms) => {
                    now += ms;
                    self.real.set_clock(now * 1000)?;
                }
                Step::Send(connection, words) => {
                    if let Some((connection, ours, theirs)) =
                        self.send(&mut engine, &mut wires, *connection, words, now)?
                    {
                        self.is_loaded = false;
                        return Ok(Some((at, connection, ours, theirs)));
                    }
                }
            }
        }
        Ok(None)
    }

    fn send(
        &mut self,
        engine: &mut Engine,
        wires: &mut [(u64, Wire)],
        connection: usize,
        words: &[Vec<u8>],
        now: i64,
    ) -> io::Result<Option<(usize, String, String)>> {
        let ids: Vec<String> = wires.iter().map(|(id, _)| id.to_string()).collect();
        let words: Vec<&[u8]> = words
            .iter()
            .map(|word| match word.as_slice() {
                b"$0" => ids[0].as_bytes(),
                b"$1" => ids[1].as_bytes(),
                word => word,
            })
            .collect();
        let (id, wire) = &mut wires[connection];
        if !engine.sessions.contains_key(id) {
            return Ok(None);
        }
        self.commands += 1;
        if words[0] == b"SCRIPT" && words.get(1) == Some(&b"FLUSH".as_slice()) {
            self.is_loaded = false;
        }
        wire.send(&words)?;
        let span = Duration::from_millis(u64::try_from(now).unwrap_or_default());
        engine.execute(*id, &words, span);
        for (at, (id, wire)) in wires.iter_mut().enumerate() {
            let mut ours = Vec::new();
            let mut ended = false;
            loop {
                match engine.take_out(*id, usize::MAX) {
                    Some(more) if more.is_empty() => break,
                    Some(more) => ours.extend(more),
                    None => {
                        ended = true;
                        break;
                    }
                }
            }
            let is_scan = words[0] == b"SCAN";
            let (mut from, mut all) = (0, [Vec::new(), Vec::new()]);
            while let Some(item) = Item::read(&ours, &mut from) {
                let told = match wire.item() {
                    Ok(told) => told,
                    Err(error) => return Ok(Some((at, format!("{item:?}"), format!("nothing: {error}")))),
                };
                let alike = |mut item: Item| {
                    if is_scan && at == connection {
                        item.sort_keys();
                    }
                    if self.version.is_recent() {
                        item.shorten_fractions();
                    }
                    item
                };
                all[0].push(format!("{:?}", alike(item)));
                all[1].push(
                    told.map(alike)
                        .map_or_else(|| "the end".to_owned(), |told| format!("{told:?}")),
                );
                // A scan finds the keys in any order, and with it those whose time is over.
                if !is_scan && all[0].last() != all[1].last() {
                    break;
                }
            }
            all.iter_mut().filter(|_| is_scan).for_each(|items| items.sort());
            if all[0] != all[1] {
                let [ours, theirs] = all.map(|items| items.last().cloned().unwrap_or_default());
                return Ok(Some((at, ours, theirs)));
            }
            if ended {
                // It stays at its end.
                let told = match wire.item() {
                    Ok(None) => continue,
                    Ok(Some(told)) => format!("{told:?}"),
                    Err(error) => format!("nothing: {error}"),
                };
                return Ok(Some((at, "the end".to_owned(), told)));
            }
        }
        Ok(None)
    }

    /// Runs a sequence again if it differs: a machine that stood still in between is no mismatch.
    fn differs(&mut self, steps: &[Step], servers: &Path) -> io::Result<Verdict> {
        for run in 0..RUNS {
            match self.run(steps) {
                Ok(None) if run == 0 => return Ok(Verdict::Same),
                Ok(None) => return Ok(Verdict::Blurred),
                Ok(Some(_)) => {}
                Err(error) if run + 1 == RUNS => return Err(error),
                // What it has not answered in time it may answer at any time.
                Err(_) => {
                    self.real = Real::start(self.version, servers)?;
                    self.is_loaded = false;
                }
            }
        }
        Ok(Verdict::Differs)
    }

    /// Leaves steps out as long as what is left differs.
    fn shrink(&mut self, mut steps: Vec<Step>) -> io::Result<Vec<Step>> {
        let mut size = steps.len() / 2;
        while size > 0 {
            let mut at = 0;
            while at < steps.len() {
                let mut fewer = steps.clone();
                fewer.drain(at..(at + size).min(steps.len()));
                if self.run(&fewer)?.is_some() {
                    steps = fewer;
                } else {
                    at += size;
                }
            }
            size /= 2;
        }
        Ok(steps)
    }

    fn print(&self, seed: u64, steps: &[Step], (at, connection, ours, theirs): &Mismatch) {
        let name = |hash: &str| {
            let hash_of = |text: &str| lock_simulation::server::script::hash(text.as_bytes());
            self.texts
                .iter()
                .find(|(_, text)| hash_of(text) == hash || *text == hash)
                .map(|(name, _)| *name)
        };
        let mut told = format!("{}: seed {seed} differs\n", self.version.name());
        // All but the last of the engine's answers are the server's as well.
        let (mut engine, mut now) = (Engine::new(self.version, self.scripts.clone()), BEGIN);
        engine.seeks_expired = false;
        let ids: Vec<u64> = (0..CONNECTIONS).map(|_| engine.open()).collect();
        for step in &steps[..=*at] {
            match step {
                Step::Wait(ms) => {
                    now += ms;
                    told += &format!("  wait {ms} ms\n");
                }
                Step::Send(connection, words) => {
                    let sent: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                    let at = Duration::from_millis(u64::try_from(now).unwrap_or_default());
                    let answer = engine.execute(ids[*connection], &sent, at);
                    let words: Vec<String> = words
                        .iter()
                        .take(40)
                        .map(|word| String::from_utf8_lossy(word).into_owned())
                        .collect();
                    let words: Vec<String> = words
                        .iter()
                        .map(|word| name(word).map_or_else(|| format!("{word:?}"), |name| format!("<{name}>")))
                        .collect();
                    told += &format!("  {connection}: {} -> {answer:?}\n", words.join(" "));
                }
            }
        }
        println!("{told}  on connection {connection}\n  the engine: {ours}\n  the server: {theirs}\n");
    }
}

fn compare(version: Version, servers: &Path, settings: &Settings) -> io::Result<Outcome> {
    let lines = Arc::new(Lines::default());
    let mut pair = Pair::new(version, servers, &lines)?;
    let mut outcome = Outcome {
        mismatches: table::differences(version, &mut pair.real)?,
        ..Outcome::default()
    };
    for seed in settings.seed..settings.seed.saturating_add(settings.count) {
        if settings.until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let steps = draw::draw(seed, version, &pair.texts, BEGIN);
        outcome.sequences += 1;
        match pair.differs(&steps, servers)? {
            Verdict::Same => continue,
            Verdict::Blurred => {
                outcome.blurred += 1;
                continue;
            }
            Verdict::Differs => {}
        }
        outcome.mismatches += 1;
        let steps = pair.shrink(steps)?;
        if let Some(mismatch) = pair.run(&steps)? {
            pair.print(seed, &steps, &mismatch);
        }
        if outcome.mismatches == 10 {
            println!("{}: enough", version.name());
            break;
        }
    }
    outcome.commands = pair.commands;
    outcome.seen = lines.seen();
    Ok(outcome)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        arguments
            .iter()
            .position(|one| one == name)
            .and_then(|at| arguments.get(at + 1))
    };
    let number = |name: &str| value(name).and_then(|text| text.parse::<u64>().ok());
    let seconds = number("--seconds");
    let settings = Settings {
        seed: number("--seed").unwrap_or_else(|| fastrand::u64(..1 << 32)),
        count: number("--count").unwrap_or(if seconds.is_some() { u64::MAX } else { 1000 }),
        until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
    };
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let servers = root.join("tests/.servers");
    let there = |version: &Version| servers.join(version.name()).join("server").exists();
    let wanted = |version: &Version| value("--version").is_none_or(|name| name == version.name());
    let versions: Vec<Version> = Version::ALL.into_iter().filter(wanted).filter(there).collect();
    if versions.is_empty() {
        println!("differential: no server to compare with; tests/install-servers installs them");
        return ExitCode::SUCCESS;
    }
    println!("differential: from seed {}", settings.seed);
    let began = Instant::now();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let (servers, settings) = (&servers, &settings);
        let running: Vec<_> = versions
            .iter()
            .map(|version| scope.spawn(move || compare(*version, servers, settings)))
            .collect();
        running
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err(io::Error::other("panicked"))))
            .collect()
    });
    let mut seen: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let (mut sequences, mut mismatches) = (0, 0);
    for (version, outcome) in versions.iter().zip(outcomes) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                println!("{}: {error}", version.name());
                mismatches += 1;
                continue;
            }
        };
        println!(
            "{}: {} sequences, {} commands, {} mismatches, {} blurred",
            version.name(),
            outcome.sequences,
            outcome.commands,
            outcome.mismatches,
            outcome.blurred
        );
        sequences += outcome.sequences;
        mismatches += outcome.mismatches;
        for (script, lines) in outcome.seen {
            seen.entry(script).or_default().extend(lines);
        }
    }
    let texts: Vec<&str> = lock_runtime::script_texts()
        .into_iter()
        .flat_map(|(_, texts)| texts)
        .collect();
    let shows_lines = arguments.iter().any(|one| one == "--lines");
    let mut is_complete = true;
    if shows_lines {
        match lines::report(&root.join("lock-runtime/src/store/redis"), &texts, &seen) {
            Ok((never, all)) => {
                println!("differential: {} of {all} lines of scripts were executed", all - never);
                is_complete = never == 0;
            }
            Err(error) => {
                println!("differential: {error}");
                is_complete = false;
            }
        }
    }
    println!(
        "differential: {sequences} sequences, {mismatches} mismatches, in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    if mismatches == 0 && is_complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
