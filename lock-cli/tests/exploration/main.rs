//! `lockctl run` under drawn faults: the store dies, stalls, forgets or comes back, and lockctl itself is stopped or killed, with pipes and on
//! a pseudo-terminal. `./tests/explore lockctl` runs it; `LOCKCTL_RUNS` says how often, and `LOCKCTL_SEED` repeats one draw, and
//! `LOCKCTL_FAULT`, such as `Stall`, leaves out the others.
//!
//! Each run checks that no process of the command lived longer than its lease by the store's clock, that none was left over, and that the exit
//! code is right.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_docs_in_private_items
)]

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use lock_tests::Server;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

const STORED: &str = "dist_lock:job";
/// The code of a command that ends by itself.
const OWN: i32 = 7;
const LOST: i32 = 76;
/// How long a process that must end may take where no deadline is promised.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Nothing,
    /// The server stands still to the end.
    Stall,
    /// The server stands still for a time.
    Pause,
    Kill,
    /// The server is killed and comes back without its data.
    RestartEmpty,
    Delete,
    Steal,
    KillLockctl,
    StopLockctl,
    /// lockctl is stopped for a time.
    PauseLockctl,
    KillWatcher,
    Terminate,
}

const FAULTS: [Fault; 12] = [
    Fault::Nothing,
    Fault::Stall,
    Fault::Pause,
    Fault::Kill,
    Fault::RestartEmpty,
    Fault::Delete,
    Fault::Steal,
    Fault::KillLockctl,
    Fault::StopLockctl,
    Fault::PauseLockctl,
    Fault::KillWatcher,
    Fault::Terminate,
];

#[derive(Clone, Copy, Debug)]
struct Plan {
    fault: Fault,
    /// From the command's begin.
    after: Duration,
    lasts: Duration,
    lease: Duration,
    kill_after: Duration,
    /// The command ends by itself after this time.
    ends_after: Option<Duration>,
    ignores_term: bool,
    on_terminal: bool,
}

impl Plan {
    fn draw(rng: &mut Rng) -> Self {
        let mut time = |from: u64, to: u64| Duration::from_millis(rng.u64(from..=to));
        let lease = time(1000, 4000);
        let (after, lasts, kill_after, ends) = (time(0, 4000), time(50, 3000), time(0, 2000), time(100, 5000));
        let fault = FAULTS[rng.usize(..FAULTS.len())];
        Self {
            fault,
            after,
            lasts,
            lease,
            kill_after,
            ends_after: (fault == Fault::Nothing || rng.u8(..3) == 0).then_some(ends),
            ignores_term: rng.bool(),
            on_terminal: rng.bool(),
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A command of two processes that write the time into files until they are ended, or until the first one ends by itself.
fn script(plan: &Plan, folder: &Path) -> String {
    let at = folder.display();
    let trap = if plan.ignores_term { "trap '' TERM HUP INT;" } else { "" };
    let end = plan
        .ends_after
        .map_or("1000000".to_owned(), |end| end.as_millis().to_string());
    format!(
        "{trap} echo $$ > {at}/pids; (while :; do echo $EPOCHREALTIME; read -t 0.01 _ <&3; done >> {at}/child) 3< <(exec sleep 1000) &
        echo $! >> {at}/pids; began=${{EPOCHREALTIME/./}}
        while [ $(( ${{EPOCHREALTIME/./}} - began )) -lt {end}000 ]; do echo $EPOCHREALTIME; read -t 0.01 _ <&4; done >> {at}/leader 4< <(exec sleep 1000)
        echo $EPOCHREALTIME > {at}/ended; exit {OWN}"
    )
}

/// The last time in a file.
fn last(file: &Path) -> Option<Duration> {
    let text = fs::read_to_string(file).ok()?;
    let line = text[..=text.rfind('\n')?].lines().last()?;
    let (seconds, fraction) = line.split_once('.')?;
    Some(Duration::new(
        seconds.parse().ok()?,
        fraction.parse::<u32>().ok()? * 1000,
    ))
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// The processes of a group, and those that were started as lockctl's watcher by `parent`.
fn processes(parent: u32, group: Option<i32>) -> (Vec<i32>, Option<i32>) {
    let (mut members, mut watcher) = (Vec::new(), None);
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(')') else {
            continue;
        };
        let fields: Vec<_> = rest.split_whitespace().collect();
        if group.is_some_and(|group| fields[2] == group.to_string()) && !"ZX".contains(fields[0]) {
            members.push(pid);
        }
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if fields[1] == parent.to_string() && arguments.split(|byte| *byte == 0).nth(1) == Some(b"__watch") {
            watcher = Some(pid);
        }
    }
    (members, watcher)
}

fn wait_for<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = ask() {
            return Some(found);
        }
        if began.elapsed() > limit {
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn start(plan: &Plan, server: &Server, folder: &Path) -> (Child, Option<Box<dyn Send>>) {
    let lockctl = env!("CARGO_BIN_EXE_lockctl");
    let mut command = if plan.on_terminal {
        let mut command = Command::new("setsid");
        command.args(["--ctty", lockctl]);
        command
    } else {
        Command::new(lockctl)
    };
    let milliseconds = |time: Duration| format!("{}ms", time.as_millis());
    command.env("LOCK_URL", server.url());
    command.args([
        "run",
        "--key",
        "job",
        "--lease",
        &milliseconds(plan.lease),
        "--kill-after",
        &milliseconds(plan.kill_after),
    ]);
    command.args(["--", "bash", "-c", &script(plan, folder)]);
    let errors = fs::File::create(folder.join("errors")).unwrap();
    if !plan.on_terminal {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .unwrap();
        return (child, None);
    }
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    let output = terminal.try_clone().unwrap();
    let child = command.stdin(terminal).stdout(output).stderr(errors).spawn().unwrap();
    (child, Some(Box::new(master)))
}

/// What a run found.
#[derive(Default)]
struct Found {
    wrong: Vec<String>,
    /// How long before the end of its lease a command was gone that had to be ended.
    spare: Option<Duration>,
    /// How long processes lived after lockctl was killed.
    outlived: Option<Duration>,
    /// The command was ended since a short lease was renewed too late on a busy machine, which is no fault of lockctl.
    is_late: bool,
}

fn explore(plan: &Plan) -> Found {
    let mut found = Found::default();
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let (mut lockctl, terminal) = start(plan, &server, folder.path());
    let lockctl_pid = Pid::from_raw(lockctl.id().try_into().unwrap()).unwrap();
    let (leader, child) = (folder.path().join("leader"), folder.path().join("child"));
    let Some(pids) = wait_for(PATIENCE, || {
        let pids = fs::read_to_string(folder.path().join("pids")).ok()?;
        let pids: Vec<i32> = pids.lines().filter_map(|pid| pid.parse().ok()).collect();
        (pids.len() == 2 && last(&leader).is_some()).then_some(pids)
    }) else {
        found.wrong.push(format!(
            "the command did not begin: {:?}",
            fs::read_to_string(folder.path().join("errors"))
        ));
        let _ = lockctl.kill();
        let _ = lockctl.wait();
        return found;
    };
    let began = Instant::now();

    // Until when the server has promised the lock, up to the fault.
    let promised = Cell::new(Duration::ZERO);
    let look = || {
        if let Some(left) = server.time_left(STORED) {
            promised.set(promised.get().max(now() + left + Duration::from_millis(1)));
        }
    };
    let mut ended = None;
    while began.elapsed() < plan.after && ended.is_none() {
        look();
        ended = lockctl.try_wait().unwrap();
        thread::sleep(Duration::from_millis(3));
    }
    let (_, watcher) = processes(lockctl.id(), None);
    if ended.is_none() {
        look();
    }
    let fault_at = now();
    let signal = |signal| {
        let _ = kill_process(lockctl_pid, signal);
    };
    let is_over = ended.is_some();
    match plan.fault {
        _ if is_over => {}
        Fault::Nothing => {}
        Fault::Stall | Fault::Pause => server.pause(),
        Fault::Kill => server.kill(),
        Fault::RestartEmpty => server.restart_empty(),
        Fault::Delete => drop(server.cmd(&["DEL", STORED])),
        Fault::Steal => drop(server.cmd(&["SET", STORED, "another", "PX", "600000"])),
        Fault::KillLockctl => signal(Signal::KILL),
        Fault::StopLockctl | Fault::PauseLockctl => signal(Signal::STOP),
        Fault::KillWatcher => {
            if let Some(watcher) = watcher.and_then(Pid::from_raw) {
                let _ = kill_process(watcher, Signal::KILL);
            }
        }
        Fault::Terminate => signal(Signal::TERM),
    }
    // A renewal may have come between the last look and the stop of the server. One is due when a third of the lease is left.
    let due = promised.get().saturating_sub(plan.lease / 3);
    let stopped_at = now();
    let late = Duration::from_millis(500);
    if matches!(plan.fault, Fault::Stall | Fault::Pause | Fault::Kill)
        && due + late > fault_at
        && due < stopped_at + late / 5
    {
        promised.set(promised.get().max(stopped_at + plan.lease));
    }
    // The server can go on promising while it is asked.
    let server_answers = matches!(
        plan.fault,
        Fault::Nothing
            | Fault::KillWatcher
            | Fault::Terminate
            | Fault::KillLockctl
            | Fault::StopLockctl
            | Fault::PauseLockctl
    );
    let mut paused_again = false;
    let limit = plan.ends_after.unwrap_or_default() + plan.lease * 3 + PATIENCE;
    while ended.is_none() && began.elapsed() < limit {
        if server_answers || (plan.fault == Fault::Pause && paused_again) {
            look();
        }
        if !is_over && !paused_again && now() > fault_at + plan.lasts {
            match plan.fault {
                Fault::Pause => {
                    server.resume();
                    paused_again = true;
                }
                Fault::PauseLockctl => {
                    signal(Signal::CONT);
                    paused_again = true;
                }
                _ => {}
            }
        }
        // A lockctl that stands still ends when all that it must end is gone.
        if plan.fault == Fault::StopLockctl && !is_over && !pids.iter().any(|pid| is_alive(*pid)) {
            signal(Signal::CONT);
        }
        // Nothing else ends this run.
        if plan.ends_after.is_none()
            && matches!(plan.fault, Fault::Pause | Fault::PauseLockctl | Fault::Terminate)
            && now() > fault_at + plan.lasts + plan.lease * 2
        {
            let _ = kill_process(Pid::from_raw(pids[0]).unwrap(), Signal::KILL);
        }
        ended = lockctl.try_wait().unwrap();
        thread::sleep(Duration::from_millis(3));
    }
    let Some(status) = ended else {
        found.wrong.push("lockctl did not end".into());
        let _ = lockctl.kill();
        let _ = lockctl.wait();
        return found;
    };
    check(
        plan,
        status,
        fault_at,
        promised.get(),
        &pids,
        folder.path(),
        &server,
        &mut found,
    );
    let (last_leader, last_child) = (last(&leader), last(&child));
    if plan.fault == Fault::KillLockctl && !is_over {
        found.outlived = last_leader.max(last_child).map(|last| last.saturating_sub(fault_at));
    }
    drop(terminal);
    found
}

#[allow(clippy::too_many_arguments)]
fn check(
    plan: &Plan,
    status: ExitStatus,
    fault_at: Duration,
    promised: Duration,
    pids: &[i32],
    folder: &Path,
    server: &Server,
    found: &mut Found,
) {
    // No orphan: at once if lockctl has ended by itself, and soon if it was killed.
    let patience = if plan.fault == Fault::KillLockctl {
        PATIENCE
    } else {
        Duration::ZERO
    };
    let left = wait_for(patience, || {
        let (members, _) = processes(0, Some(pids[0]));
        members.is_empty().then_some(())
    });
    if left.is_none() {
        found
            .wrong
            .push(format!("processes were left: {:?}", processes(0, Some(pids[0])).0));
    }
    // No beat after the lease.
    let beat = ["leader", "child"]
        .iter()
        .filter_map(|name| last(&folder.join(name)))
        .max()
        .unwrap_or_default();
    let lost = matches!(plan.fault, Fault::Delete | Fault::Steal | Fault::RestartEmpty);
    // Without a look at the lock, on a machine that stood still, nothing is known.
    if !lost && !promised.is_zero() && beat > promised {
        found
            .wrong
            .push(format!("the command lived {:?} longer than its lease", beat - promised));
    }
    let own_end = last(&folder.join("ended"));
    if status.code() == Some(LOST) && !lost {
        found.spare = promised.checked_sub(beat);
    }
    // The exit code.
    let by_itself = own_end.is_some();
    let allowed: Vec<i32> = match (plan.fault, own_end) {
        // It had ended before.
        (_, Some(end)) if end + Duration::from_millis(400) < fault_at => vec![OWN],
        (Fault::Nothing, _) => vec![OWN],
        (Fault::KillLockctl, Some(_)) => vec![OWN, 128 + 9],
        (Fault::KillLockctl, None) => vec![128 + 9],
        (Fault::Terminate, Some(_)) => vec![OWN, 128 + 15],
        // The run has killed what did not end by SIGTERM.
        (Fault::Terminate, None) => vec![128 + 15, 128 + 9],
        (Fault::Pause | Fault::PauseLockctl, None) => vec![LOST, 128 + 9],
        (_, Some(_)) => vec![OWN, LOST],
        (_, None) => vec![LOST],
    };
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
    let errors = fs::read_to_string(folder.join("errors")).unwrap_or_default();
    // Between the time of a renewal and the end of the command lies a twelfth of the lease.
    found.is_late =
        code == LOST && errors.contains("could not be renewed") && plan.lease / 12 < Duration::from_millis(200);
    if !allowed.contains(&code) && !found.is_late {
        found.wrong.push(format!(
            "exit code {code}, and not one of {allowed:?} (ended by itself: {by_itself}): {errors}"
        ));
    }
    // A command whose lock was kept to its end leaves it free.
    if code == OWN && !server.is_paused() && server.is_running() && plan.fault != Fault::Steal && server.exists(STORED)
    {
        found.wrong.push("the lock was not released".into());
    }
}

#[test]
fn no_command_outlives_its_lease_or_its_lockctl() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|number| number.parse::<u64>().expect("a number"))
    };
    let runs = number("LOCKCTL_RUNS").unwrap_or(300);
    let threads = number("LOCKCTL_THREADS").unwrap_or(6);
    let seed = number("LOCKCTL_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("{runs} runs from seed {seed}: LOCKCTL_SEED={seed} LOCKCTL_RUNS={runs} repeats the draw");
    let next = Arc::new(AtomicU64::new(0));
    let all = Arc::new(Mutex::new(Vec::new()));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (next, all) = (Arc::clone(&next), Arc::clone(&all));
            thread::spawn(move || {
                loop {
                    let run = next.fetch_add(1, Ordering::SeqCst);
                    if run >= runs {
                        return;
                    }
                    let plan = Plan::draw(&mut Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(run)));
                    if std::env::var("LOCKCTL_FAULT").is_ok_and(|fault| fault != format!("{:?}", plan.fault)) {
                        continue;
                    }
                    let found = explore(&plan);
                    for wrong in &found.wrong {
                        println!("run {run}: {wrong}\n  {plan:?}");
                    }
                    all.lock().unwrap().push((plan, found));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    let all = all.lock().unwrap();
    let mut summary = String::new();
    for fault in FAULTS {
        let runs: Vec<_> = all.iter().filter(|(plan, _)| plan.fault == fault).collect();
        let wrong = runs.iter().filter(|(_, found)| !found.wrong.is_empty()).count();
        let has_answered = !matches!(fault, Fault::Stall | Fault::Pause | Fault::Kill);
        let late = runs.iter().filter(|(_, found)| found.is_late && has_answered).count();
        let spare = runs.iter().filter_map(|(_, found)| found.spare).min();
        let outlived = runs.iter().filter_map(|(_, found)| found.outlived).max();
        write!(
            summary,
            "| {fault:?} | {} runs | {wrong} wrong | {late} renewed late |",
            runs.len()
        )
        .unwrap();
        if let Some(spare) = spare {
            write!(summary, " at least {spare:.0?} before the lease's end |").unwrap();
        }
        if let Some(outlived) = outlived {
            write!(summary, " at most {outlived:.0?} after lockctl |").unwrap();
        }
        summary.push('\n');
    }
    println!("{summary}");
    let terminals = all.iter().filter(|(plan, _)| plan.on_terminal).count();
    println!("{terminals} of {} on a terminal", all.len());
    assert!(all.iter().all(|(_, found)| found.wrong.is_empty()), "see above");
}
