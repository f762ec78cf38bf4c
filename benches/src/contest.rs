//! Several processes with several tasks each that want the same locks, and the results.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lock_tests::Stamp;
use lock_tests::server::Server;
use tokio::task::JoinSet;

use crate::contender::{Client, Contender};
use crate::report::{Number, ratio};
use crate::sample::jain;
use crate::worker::{self, PEER_PATIENCE, Record, Worker, argument};
use crate::{Result, error, process};

/// How often the server is pinged meanwhile, to know what a round trip took under this load.
const PING_EVERY: Duration = Duration::from_millis(20);

/// Who wants what for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contest {
    pub(crate) contender: Contender,
    pub(crate) processes: usize,
    /// In each process.
    pub(crate) tasks: usize,
    pub(crate) locks: usize,
    /// More than one are the masters of a quorum.
    pub(crate) servers: usize,
    /// How many of them, the first ones, are killed once all tasks run.
    pub(crate) killed: usize,
    pub(crate) hold: Duration,
    /// Between two sections of a task.
    pub(crate) rest: Duration,
    /// Until figures are taken.
    pub(crate) warm: Duration,
    pub(crate) window: Duration,
    /// How long the server's commands are watched after the figures were taken, to tell those of clients from those inside of scripts.
    pub(crate) watched: Duration,
}

impl Contest {
    /// On servers of its own, so that nothing is left from the contest before. What goes wrong with a peer is its outcome.
    pub(crate) async fn run(&self) -> Result<Outcome> {
        let outcome = self.hold().await;
        if !self.contender.is_peer() {
            return outcome;
        }
        Ok(match outcome {
            Ok(outcome) if outcome.sections() > 0 => outcome,
            Ok(outcome) => outcome.without(format!("no section in {:?}", self.window)),
            Err(error) => Outcome::default().without(error.to_string()),
        })
    }

    async fn hold(&self) -> Result<Outcome> {
        let servers: Vec<_> = (0..self.servers).map(|_| Server::start()).collect();
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        let mut workers = Vec::with_capacity(self.processes);
        for number in 0..self.processes {
            let arguments = [
                urls.join(","),
                self.contender.to_string(),
                self.tasks.to_string(),
                self.locks.to_string(),
                self.hold.as_micros().to_string(),
                number.to_string(),
                self.rest.as_micros().to_string(),
            ];
            workers.push(if self.contender.is_peer() {
                Worker::start_within(PEER_PATIENCE, "contest", &arguments).await?
            } else {
                Worker::start("contest", &arguments).await?
            });
        }
        for worker in &mut workers {
            worker.say("go").await?;
        }
        let (killed, alive) = servers.split_at(self.killed);
        killed.iter().for_each(Server::kill);
        tokio::time::sleep(self.warm).await;

        let first = alive.first().ok_or("no server is left")?;
        let pings = tokio::spawn(pings(first.connection().await, self.window));
        let (deleted, sent) = (deletions(alive)?, commands_of(alive)?);
        let (cpu_before, passed_before) = used(&mut workers).await?;
        let from = Stamp::now();
        tokio::time::sleep(self.window).await;
        let to = Stamp::now();
        let (cpu, passed) = used(&mut workers).await?;
        let round_trips = pings.await??;
        let own = (alive.len() + round_trips.len()) as u64;
        let commands = commands_of(alive)?.saturating_sub(sent + own);
        let votes_ended = deletions(alive)?.saturating_sub(deleted);

        let from_clients = share_from_clients(alive, self.watched).await?;
        for worker in &mut workers {
            worker.say("stop").await?;
        }
        let (mut records, mut errors) = (Vec::new(), 0);
        for (number, worker) in workers.iter_mut().enumerate() {
            errors += worker.hear_number("errors").await?;
            let first = u32::try_from(number * self.tasks)?;
            records.extend(worker.records().await?.into_iter().map(|record| Record {
                task: record.task + first,
                ..record
            }));
        }
        records.sort_unstable_by_key(|record| record.granted);
        Ok(Outcome {
            tasks: self.processes * self.tasks,
            tasks_per_process: self.tasks,
            records,
            from,
            to,
            commands,
            from_clients,
            cpu: cpu.saturating_sub(cpu_before),
            passed: passed.saturating_sub(passed_before),
            votes_ended,
            masters_behind: alive.len() - 1,
            errors,
            round_trips,
            absent: None,
        })
    }
}

/// What came of a [`Contest`].
#[derive(Default)]
pub(crate) struct Outcome {
    tasks: usize,
    tasks_per_process: usize,
    /// In the order of the grants.
    records: Vec<Record>,
    from: Stamp,
    to: Stamp,
    /// The servers' own count, those inside of scripts included.
    commands: u64,
    /// The share of them that was not inside of a script; sampled.
    from_clients: f64,
    /// Of all processes.
    pub(crate) cpu: Duration,
    /// The grants that came from the same process and not from a server.
    passed: u64,
    /// See [`deletions()`].
    votes_ended: u64,
    /// The servers that were counted for these.
    masters_behind: usize,
    /// Sections that ended in an error instead.
    pub(crate) errors: u64,
    /// Of one PING at a time, under this load; sorted.
    pub(crate) round_trips: Vec<Duration>,
    /// Why there are no figures of this peer.
    pub(crate) absent: Option<String>,
}

impl Outcome {
    fn without(self, why: String) -> Self {
        Self {
            absent: Some(why),
            ..self
        }
    }

    fn within(&self) -> impl Iterator<Item = &Record> {
        self.records
            .iter()
            .filter(|record| record.was_granted() && (self.from..self.to).contains(&record.granted))
    }

    pub(crate) fn sections(&self) -> usize {
        self.within().count()
    }

    /// Sections per second.
    pub(crate) fn rate(&self) -> f64 {
        ratio(self.sections(), self.to.since(self.from).as_secs_f64())
    }

    /// From the call to the grant, sorted.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        let mut waits: Vec<_> = self.within().map(|record| record.granted.since(record.asked)).collect();
        waits.sort_unstable();
        waits
    }

    /// Who was still waiting at the end counts with the time until then.
    pub(crate) fn longest_wait(&self) -> Duration {
        let unserved = self
            .records
            .iter()
            .filter(|record| !record.was_granted() || record.granted >= self.to);
        let unserved = unserved
            .map(|record| self.to.since(record.asked))
            .max()
            .unwrap_or_default();
        unserved.max(self.waits().last().copied().unwrap_or_default())
    }

    /// Over the sections of all tasks.
    pub(crate) fn jain(&self) -> f64 {
        let mut counts = vec![0.0; self.tasks];
        for record in self.within() {
            if let Some(count) = counts.get_mut(record.task as usize) {
                *count += 1.0;
            }
        }
        jain(&counts)
    }

    pub(crate) fn commands_per_section(&self) -> f64 {
        ratio(self.commands, self.sections())
    }

    /// Without those inside of scripts.
    pub(crate) fn calls_per_section(&self) -> f64 {
        self.commands_per_section() * self.from_clients
    }

    /// The votes per section that a call got and gave back, at the masters behind the first one: their releases beyond one each for a section.
    pub(crate) fn votes_given_back(&self) -> f64 {
        let granted = ratio(self.sections(), 1.0) - ratio(self.passed, 1.0);
        let spare = ratio(self.votes_ended, 1.0) - granted * ratio(self.masters_behind, 1.0);
        ratio(spare.max(0.0), self.sections())
    }

    /// Of all processes together, in microseconds.
    pub(crate) fn cpu_per_section(&self) -> f64 {
        ratio(self.cpu.as_secs_f64() * 1e6, self.sections())
    }

    /// How often a lock was granted while another task had it.
    pub(crate) fn overlaps(&self) -> usize {
        let mut last: std::collections::HashMap<u32, Stamp> = std::collections::HashMap::new();
        let mut overlaps = 0;
        for record in self.records.iter().filter(|record| record.was_granted()) {
            let left = last.entry(record.lock).or_default();
            overlaps += usize::from(*left > record.granted);
            *left = (*left).max(record.left);
        }
        overlaps
    }

    /// The longest time by which somebody who was served later had asked earlier.
    pub(crate) fn largest_inversion(&self) -> Duration {
        let mut latest = Stamp::default();
        let mut largest = Duration::ZERO;
        for record in self.within() {
            largest = largest.max(latest.since(record.asked));
            latest = latest.max(record.asked);
        }
        largest
    }

    /// From the end of a section in one process to the grant in another, sorted.
    pub(crate) fn handovers(&self) -> Vec<Duration> {
        let process = |record: &Record| record.task as usize / self.tasks_per_process.max(1);
        let within: Vec<_> = self.within().collect();
        let mut times: Vec<_> = within
            .windows(2)
            .filter_map(|pair| match pair {
                [one, next] if process(one) != process(next) => Some(next.granted.since(one.left)),
                _ => None,
            })
            .collect();
        times.sort_unstable();
        times
    }
}

/// The server's own counter. Reading it is a command, too.
pub(crate) fn commands(server: &Server) -> Result<u64> {
    Ok(server.info("total_commands_processed").parse()?)
}

/// Of all of them, which is a command to each, too.
pub(crate) fn commands_of(servers: &[Server]) -> Result<u64> {
    servers.iter().map(commands).sum()
}

/// How often a lock was released at the masters behind the first one. The first is left out, since there a lock is also handed over.
fn deletions(servers: &[Server]) -> Result<u64> {
    let of_server = |server: &Server| -> Result<u64> {
        // A release deletes the key once it has found its own value there.
        let stats: String = server.ask(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_del:calls="));
        let number = calls.and_then(|calls| calls.split(',').next()).unwrap_or("0");
        Ok(number.parse()?)
    };
    servers.iter().skip(1).map(of_server).sum()
}

/// The CPU time of all processes, and the grants that came from the same process.
async fn used(workers: &mut [Worker]) -> Result<(Duration, u64)> {
    for worker in &mut *workers {
        worker.say("used").await?;
    }
    let (mut cpu, mut passed) = (0, 0);
    for worker in workers {
        cpu += worker.hear_number("cpu").await?;
        passed += worker.hear_number("passed").await?;
    }
    Ok((Duration::from_nanos(cpu), passed))
}

async fn pings(mut connection: redis::aio::MultiplexedConnection, window: Duration) -> Result<Vec<Duration>> {
    let end = Instant::now() + window;
    let mut times = Vec::new();
    while Instant::now() + PING_EVERY < end {
        tokio::time::sleep(PING_EVERY).await;
        let began = Instant::now();
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

/// Watches the servers for a moment: their counters have no place for who sent a command, MONITOR has.
async fn share_from_clients(servers: &[Server], watched: Duration) -> Result<f64> {
    if watched.is_zero() {
        return Ok(1.0);
    }
    let watching: Vec<_> = servers
        .iter()
        .map(Server::addr)
        .map(|server| tokio::task::spawn_blocking(move || watch(server, watched)))
        .collect();
    let (mut all, mut inside) = (0, 0);
    for watching in watching {
        let (all_there, inside_there) = watching.await??;
        all += all_there;
        inside += inside_there;
    }
    Ok(if all == 0 { 1.0 } else { ratio(all - inside, all) })
}

/// The commands of a moment: all, and those inside of scripts.
fn watch(server: SocketAddr, watched: Duration) -> Result<(u64, u64)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(Duration::from_millis(20)))?;
    stream.write_all(b"MONITOR\r\n")?;
    let mut lines = BufReader::with_capacity(1 << 20, stream);
    let (mut all, mut inside) = (0_u64, 0_u64);
    let end = Instant::now() + watched;
    let mut line = Vec::new();
    while Instant::now() < end {
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => break,
            // `+1763716800.123456 [0 lua] "GET" …`, or an address instead of `lua`.
            Ok(_) if line.contains(&b'[') => {
                all += 1;
                let who = line.split(|byte| *byte == b']').next().unwrap_or_default();
                inside += u64::from(who.ends_with(b" lua"));
                line.clear();
            }
            Ok(_) => line.clear(),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((all, inside))
}

/// What a task of a child has done so far.
#[derive(Default)]
struct Log {
    records: Vec<Record>,
    waiting: Option<Record>,
}

/// The child's side.
pub(crate) fn child(arguments: &[String]) -> Result {
    let urls: String = argument(arguments, 0)?;
    let urls: Vec<_> = urls.split(',').map(str::to_owned).collect();
    let contender: Contender = argument(arguments, 1)?;
    let tasks: usize = argument(arguments, 2)?;
    let locks: usize = argument(arguments, 3)?;
    let hold = Duration::from_micros(argument(arguments, 4)?);
    let number: u64 = argument(arguments, 5)?;
    let rest = Duration::from_micros(argument(arguments, 6)?);

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The last one is the child's own, to warm up with.
    let mut names: Vec<String> = (0..locks).map(|lock| format!("bench:{lock}")).collect();
    names.push(format!("bench:warm:{}", std::process::id()));
    let client = runtime.block_on(async {
        let client = contender.connect(&urls, names.into()).await?;
        client.clone().section(locks, Duration::ZERO).await?;
        Ok::<_, crate::Error>(client)
    })?;
    worker::says("ready");
    if worker::hears().as_deref() != Some("go") {
        return Ok(());
    }

    let errors = Arc::new(AtomicU64::new(0));
    let draw = Arc::new(Zipf::new(locks));
    let mut logs = Vec::with_capacity(tasks);
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let log = Arc::new(Mutex::new(Log::default()));
        logs.push(Arc::clone(&log));
        let (client, draw, errors) = (client.clone(), Arc::clone(&draw), Arc::clone(&errors));
        let random = fastrand::Rng::with_seed(number << 32 | task as u64);
        running.spawn_on(
            compete(client, task, draw, random, (hold, rest), log, errors),
            runtime.handle(),
        );
    }
    loop {
        match worker::hears().as_deref() {
            Some("used") => {
                worker::says(format_args!("cpu {}", process::cpu().as_nanos()));
                worker::says(format_args!("passed {}", client.passed()));
            }
            Some("stop") => break,
            None => return Ok(()),
            Some(other) => return Err(error(format!("a child does not know {other:?}"))),
        }
    }
    running.abort_all();
    // A peer may keep a thread of the runtime for ever.
    let ended = async { while running.join_next().await.is_some() {} };
    let _ = runtime.block_on(async { tokio::time::timeout(PEER_PATIENCE / 2, ended).await });
    let mut records = Vec::new();
    for log in logs {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        records.append(&mut log.records);
        records.extend(log.waiting.take());
    }
    worker::says(format_args!("errors {}", errors.load(Ordering::Relaxed)));
    worker::write(&records)?;
    runtime.shutdown_background();
    Ok(())
}

async fn compete(
    mut client: Client,
    task: usize,
    draw: Arc<Zipf>,
    mut random: fastrand::Rng,
    (hold, rest): (Duration, Duration),
    log: Arc<Mutex<Log>>,
    errors: Arc<AtomicU64>,
) {
    let task = u32::try_from(task).unwrap_or_default();
    loop {
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
        let lock = draw.one(&mut random);
        let waiting = Record {
            task,
            lock: u32::try_from(lock).unwrap_or_default(),
            asked: Stamp::now(),
            granted: Stamp::default(),
            left: Stamp::default(),
        };
        log.lock().unwrap_or_else(PoisonError::into_inner).waiting = Some(waiting);
        let section = client.section(lock, hold).await;
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.waiting = None;
        match section {
            Ok(section) => log.records.push(Record {
                asked: section.asked,
                granted: section.granted,
                left: section.left,
                ..waiting
            }),
            Err(error) => {
                if errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    eprintln!("a section ended with: {error}");
                }
            }
        }
    }
}

/// Numbers of which the second is drawn half as often as the first, the third a third as often, and so on.
struct Zipf {
    /// The chance of a number or one below it.
    below: Vec<f64>,
}

impl Zipf {
    fn new(numbers: usize) -> Self {
        let mut sum = 0.0;
        let mut below: Vec<f64> = (1..=numbers)
            .map(|rank| {
                sum += 1.0 / rank.float();
                sum
            })
            .collect();
        for chance in &mut below {
            *chance /= sum;
        }
        Self { below }
    }

    fn one(&self, random: &mut fastrand::Rng) -> usize {
        if self.below.len() == 1 {
            return 0;
        }
        let drawn = random.f64();
        self.below
            .partition_point(|chance| *chance <= drawn)
            .min(self.below.len() - 1)
    }
}
