//! The main thread while the command runs: ends it before its lease does, and passes on signals, stops
//! and the terminal.

use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use lock_runtime::LockError;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::args::Run;
use crate::exit::{Failure, LOST};
use crate::run::group::{self, Change, Group};
use crate::run::lease::{Held, Lease};
use crate::run::signals::Mask;
use crate::run::terminal::{self, Terminal};
use crate::run::watcher::{self, Watcher};
use crate::run::{Event, clock, next};
use crate::warn;

/// The longest time between two looks at the clock: time-outs do not count the time for which the machine is suspended.
const LOOK: Duration = Duration::from_millis(500);
/// The least part of a lease in which a command that was killed must be gone.
const SHORTEST_MARGIN: Duration = Duration::from_millis(200);
/// How long background processes of the command may take to end by themselves after it.
const LINGER: Duration = Duration::from_millis(250);
/// How long a group that was killed is waited for.
const DYING: Duration = Duration::from_secs(2);

/// Runs the command and releases the lock. Returns the exit code.
pub(super) fn run(
    options: &Run,
    mask: &Mask,
    inbox: &Receiver<Event>,
    events: Sender<Event>,
    lease: &Lease,
    held: Held,
) -> Result<u8, Failure> {
    let started = Supervisor::start(options, mask, inbox, events, lease, held);
    let mut supervisor = match started {
        Ok(supervisor) => supervisor,
        Err(failure) => {
            lease.release();
            return Err(failure);
        }
    };
    let ended = supervisor.supervise();
    let code = supervisor.finish(ended);
    if supervisor.is_interrupted && code == ended {
        // A script that has run lockctl would have got the signal as well, and goes by how lockctl ends.
        terminal::interrupt_own_group();
    }
    Ok(code)
}

struct Supervisor<'a> {
    options: &'a Run,
    inbox: &'a Receiver<Event>,
    lease: &'a Lease,
    held: Held,
    group: Group,
    /// `None` once it has ended or was let go.
    watcher: Option<Watcher>,
    terminal: Option<Terminal>,
    /// Until when the lock was last known to be held.
    deadline: Duration,
    /// The command was stopped by a signal.
    is_stopped: bool,
    /// The command is being ended.
    ending: Option<Ending>,
    /// SIGTERM was sent for background processes.
    said_term: bool,
    /// The command was ended by Ctrl-C.
    is_interrupted: bool,
}

/// The end of a command whose lock is lost or cannot be kept.
#[derive(Clone, Copy)]
struct Ending {
    kill_at: Duration,
    is_killed: bool,
}

impl<'a> Supervisor<'a> {
    fn start(
        options: &'a Run,
        mask: &Mask,
        inbox: &'a Receiver<Event>,
        events: Sender<Event>,
        lease: &'a Lease,
        held: Held,
    ) -> Result<Self, Failure> {
        let mut environment = vec![("LOCK_KEY", options.key.clone())];
        environment.extend(held.fence.map(|fence| ("LOCK_FENCE", fence.get().to_string())));
        let group = Group::start(mask, &options.command, environment)?;
        let watcher = Watcher::start(group.leader).inspect_err(|_| {
            group.signal(Signal::SIGKILL);
        })?;
        let mut supervisor = Self {
            options,
            inbox,
            lease,
            held,
            group,
            watcher: Some(watcher),
            terminal: Terminal::of_stdin(group.leader),
            deadline: Duration::ZERO,
            is_stopped: false,
            ending: None,
            said_term: false,
            is_interrupted: false,
        };
        supervisor.read_deadline();
        // lockctl may have been stopped, or the machine suspended, since the lock was taken.
        let left = supervisor.deadline.saturating_sub(clock::now());
        if !supervisor.held.lock.is_held() || left < supervisor.least() {
            supervisor.group.signal(Signal::SIGKILL);
            let reason = if supervisor.held.lock.is_held() {
                format!(
                    "lock `{}` could not be renewed before the command was started; see that the store is up and takes writes",
                    options.key
                )
            } else {
                supervisor.loss()
            };
            return Err(Failure::new(LOST, format!("the command was not run: {reason}")));
        }
        group::wait_for_children(events).inspect_err(|_| {
            supervisor.group.signal(Signal::SIGKILL);
        })?;
        if let Some(terminal) = &mut supervisor.terminal
            && !terminal::is_in_pipeline()
        {
            terminal.give();
        }
        group.go();
        Ok(supervisor)
    }

    /// Returns when the command has ended, with its exit code.
    fn supervise(&mut self) -> u8 {
        loop {
            self.check_lease();
            let Some(event) = next(self.inbox, self.pause()) else {
                continue;
            };
            match event {
                Event::Child(pid, Change::Ended { code, by_signal }) if pid == self.group.leader => {
                    if let Some(terminal) = &mut self.terminal {
                        let had_terminal = terminal.take_back();
                        if by_signal {
                            terminal.restore_modes();
                        }
                        self.is_interrupted =
                            by_signal && had_terminal && code == group::code_of_signal(Signal::SIGINT as i32);
                    }
                    return code;
                }
                Event::Child(pid, Change::Stopped(signal)) if pid == self.group.leader => self.stopped(signal),
                Event::Child(pid, Change::Continued) if pid == self.group.leader => self.is_stopped = false,
                Event::Child(pid, Change::Ended { .. }) => self.other_ended(pid),
                Event::Lost(error) => self.end(&error.to_string()),
                Event::Signal(Signal::SIGCONT) if self.is_stopped && self.ending.is_none() => self.go_on(),
                Event::Signal(signal) => {
                    self.group.signal(signal);
                }
                Event::LockThreadEnded => {
                    self.end("the lock thread has ended, and with it the renewals; report the panic above");
                }
                Event::Child(..) | Event::Answered(_) => {}
            }
        }
    }

    /// Ends what the command has left over, releases the lock, and returns lockctl's exit code.
    fn finish(&mut self, code: u8) -> u8 {
        self.read_deadline();
        // The lock was held up to here unless it is being lost already.
        if self.ending.is_none() && !self.held.lock.is_held() {
            self.end(&self.loss());
        }
        let was_kept = self.ending.is_none();
        self.end_left_over();
        // What it kills after the command's own end are processes that were left over.
        let was_killed = self.dismiss_watcher() && code == group::code_of_signal(Signal::SIGKILL as i32);
        let was_kept = was_kept && !was_killed;
        let released = self.lease.release();
        if !was_kept {
            return LOST;
        }
        match released {
            Some(Ok(())) => code,
            // The store no longer had it. When that began is not known.
            Some(Err(error @ LockError::Lost { .. })) if self.ending.is_none() => {
                warn(&error.to_string());
                LOST
            }
            Some(Err(error)) => {
                warn(&format!(
                    "the command has ended, and its lock may stay until its lease ends: {error}"
                ));
                code
            }
            None => {
                warn(&format!(
                    "the command has ended, and lock `{}` may stay until its lease ends: the store did not confirm the release; see that the store is up",
                    self.options.key
                ));
                code
            }
        }
    }

    /// Ends the watcher. Returns `true` if it has killed the command, whose lease was over before lockctl saw that.
    fn dismiss_watcher(&mut self) -> bool {
        let Some(watcher) = self.watcher.take() else {
            return false;
        };
        let pid = watcher.pid;
        watcher.done();
        let limit = clock::now() + DYING;
        while clock::now() < limit {
            if let Some(Event::Child(ended, Change::Ended { code, .. })) = next(self.inbox, LOOK)
                && ended == pid
            {
                let has_killed = code == watcher::KILLED;
                if has_killed && self.ending.is_none() {
                    warn(&format!(
                        "the command was killed, since the lease of lock `{}` was not renewed in time; see what stopped lockctl",
                        self.options.key
                    ));
                }
                return has_killed;
            }
        }
        false
    }

    /// Reads until when the lock is held, and lets the group live until shortly before.
    fn read_deadline(&mut self) {
        let now = clock::now();
        let remaining = self.held.lock.remaining();
        // A lost lock has nothing left, and its last deadline still counts.
        if remaining.is_zero() || now + remaining <= self.deadline + Duration::from_millis(1) {
            return;
        }
        self.deadline = now + remaining;
        let until = self.deadline.saturating_sub(self.margin() / 2);
        if let Some(watcher) = &mut self.watcher {
            watcher.until(until);
        }
    }

    /// Returns the part of the lease in which a command that was killed has to be gone.
    fn margin(&self) -> Duration {
        (self.options.lease / 10).max(SHORTEST_MARGIN)
    }

    /// Returns the rest of the lease below which it counts as not renewed. A renewal is due at a third.
    fn least(&self) -> Duration {
        self.options.lease / 4
    }

    /// Ends the command if the lock is lost or not renewed, and kills it when it is time.
    fn check_lease(&mut self) {
        self.read_deadline();
        let now = clock::now();
        let left = self.deadline.saturating_sub(now);
        match self.ending {
            Some(ending) if !ending.is_killed && now >= ending.kill_at => self.kill_now(),
            None if !self.held.lock.is_held() => self.end(&self.loss()),
            None if left < self.least() => self.end(&format!(
                "lock `{}` could not be renewed, and {left:.1?} of its lease are left; see that the store is up and reachable, and takes writes",
                self.options.key
            )),
            _ => {}
        }
    }

    /// Returns the reason why the lock is no longer held.
    fn loss(&self) -> String {
        let held = self.held.lock.ensure(Duration::ZERO);
        held.err().map_or_else(
            || format!("lock `{}` was lost", self.options.key),
            |error| error.to_string(),
        )
    }

    /// Returns the time until the next look at the clock.
    fn pause(&self) -> Duration {
        let now = clock::now();
        let next = match &self.ending {
            None => self.deadline.saturating_sub(self.least()),
            Some(ending) if !ending.is_killed => ending.kill_at,
            Some(_) => now + LOOK,
        };
        next.saturating_sub(now).clamp(Duration::from_millis(1), LOOK)
    }

    /// Begins to end the command: SIGTERM now, and SIGKILL after a time that ends before the lease.
    fn end(&mut self, reason: &str) {
        if self.ending.is_some() {
            return;
        }
        let now = clock::now();
        let latest = self.deadline.saturating_sub(self.margin());
        let mut kill_at = latest.min(now + self.options.kill_after);
        // What is stopped does not get SIGTERM, and must not go on.
        if self.is_stopped {
            kill_at = now;
        }
        let is_killed = kill_at <= now;
        // First the signal: stderr may be a pipe that is full.
        self.group
            .signal(if is_killed { Signal::SIGKILL } else { Signal::SIGTERM });
        self.ending = Some(Ending { kill_at, is_killed });
        warn(&format!("the command is ended: {reason}"));
    }

    /// Notices the end of another child: of the watcher, or of a process that was left to lockctl.
    fn other_ended(&mut self, pid: Pid) {
        if self.watcher.as_ref().is_some_and(|watcher| watcher.pid == pid) {
            self.watcher = None;
            self.end("its watcher was killed, without which it might outlive lockctl; see what kills processes here");
        }
    }

    /// The command was stopped: gives the terminal back and stops as well, so that the shell goes on.
    fn stopped(&mut self, signal: i32) {
        let for_terminal = [Signal::SIGTTIN as i32, Signal::SIGTTOU as i32].contains(&signal);
        if let Some(terminal) = &mut self.terminal
            && for_terminal
            && terminal::is_own()
            && self.ending.is_none()
        {
            terminal.give();
            self.group.signal(Signal::SIGCONT);
            return;
        }
        self.is_stopped = true;
        let had_terminal = self.terminal.as_mut().is_some_and(Terminal::take_back);
        if self.ending.is_some() {
            self.kill_now();
            return;
        }
        let is_suspended = signal == Signal::SIGTSTP as i32;
        let is_for_shell = had_terminal || for_terminal || is_suspended;
        // Otherwise another process has stopped the command, and will let it go on. The lock is renewed meanwhile.
        let has_stopped = is_for_shell && terminal::stop_with_own_group();
        // The system does not obey Ctrl-Z where no shell is there either.
        if is_suspended && !has_stopped {
            self.go_on();
        }
    }

    /// Lets a command that was stopped go on, if it still has its lock.
    fn go_on(&mut self) {
        // Also a message of the loss, and a renewal, may have been stopped.
        while self.held.lock.is_held() {
            self.read_deadline();
            let left = self.deadline.saturating_sub(clock::now());
            let Some(rest) = left.checked_sub(self.margin()).filter(|rest| !rest.is_zero()) else {
                break;
            };
            let answer = self.lease.verify(rest.min(Duration::from_secs(1)));
            self.read_deadline();
            if matches!(answer, Some(Ok(_))) && self.deadline.saturating_sub(clock::now()) >= self.least() {
                self.is_stopped = false;
                if let Some(terminal) = &mut self.terminal
                    && !terminal::is_in_pipeline()
                {
                    terminal.give();
                }
                self.group.signal(Signal::SIGCONT);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let reason = if self.held.lock.is_held() {
            format!(
                "lock `{}` was not renewed while lockctl was stopped; see that the store is up, or allow a longer `--lease`",
                self.options.key
            )
        } else {
            self.loss()
        };
        self.end(&reason);
    }

    fn kill_now(&mut self) {
        self.group.signal(Signal::SIGKILL);
        if let Some(ending) = &mut self.ending {
            ending.is_killed = true;
        }
    }

    /// Ends the processes of the group that have outlived the command.
    fn end_left_over(&mut self) {
        let began = clock::now();
        let term_at = began + LINGER;
        let kill_at = term_at + self.options.kill_after;
        let mut killed_at = None;
        while self.group.exists() {
            self.check_lease();
            let now = clock::now();
            let is_killed = self.ending.is_some_and(|ending| ending.is_killed);
            if killed_at.is_none() && (is_killed || (now >= kill_at && self.ending.is_none())) {
                self.group.signal(Signal::SIGKILL);
                killed_at = Some(now);
            } else if now >= term_at && !self.said_term && self.ending.is_none() {
                self.said_term = true;
                self.group.signal(Signal::SIGTERM);
            }
            if killed_at.is_some_and(|at| now >= at + DYING) {
                warn(
                    "processes of the command's group do not end after SIGKILL; see what they wait for (state D in `ps`)",
                );
                return;
            }
            match next(self.inbox, Duration::from_millis(5)) {
                Some(Event::Lost(error)) => self.end(&error.to_string()),
                Some(Event::Child(pid, Change::Ended { .. })) => self.other_ended(pid),
                Some(Event::Signal(signal)) => {
                    self.group.signal(signal);
                }
                _ => {}
            }
        }
    }
}
