//! Releases that are sent without waiting for their outcome: `release = pipelined`.
//!
//! Such a release is queued behind everything that the caller's runtime has sent, and that runtime
//! sends it. But a runtime runs no tasks after its `block_on` has returned. The lock thread
//! therefore watches these releases, and sends a release itself if the runtime no longer runs
//! tasks. A value is used only once, so the second release has no effect.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::LockError;
use crate::hold::Hold;
use crate::hold::outcome_of;
use crate::hold::upkeep::releaser::release_later;
use crate::hold::upkeep::watchdog::Watchdog;
use crate::host::{Host, Mutex, Runtime, RuntimeId, Timer};
use crate::stats::Event;
use crate::store::{Effect, Ownership, Receipt, StoreError};

/// The interval at which the lock thread looks at the releases. A runtime that runs no task for
/// this long counts as stopped.
const LOOK: Duration = Duration::from_millis(25);

type Answer = Result<Ownership, StoreError>;

/// Sends a release without waiting for its outcome. Returns `false` if it was not sent and has to
/// be waited for.
pub(super) fn send(watchdog: &Arc<Watchdog>, held: &Arc<Hold>, key: &Arc<str>) -> bool {
    let manager = &held.tenure.manager;
    let sent = Arc::new(Sent {
        held: Arc::clone(held),
        key: Arc::clone(key),
        runtime: manager.host().runtime(),
        looks: AtomicU32::new(0),
        outcome: Mutex::new(Outcome {
            help: Help::None,
            late: None,
            over: false,
            tracked: Some(manager.held.token()),
        }),
    });
    let receipt = Receipt::default();
    let request = held.release_request(key, &receipt);
    let report = {
        let sent = Arc::clone(&sent);
        Box::new(move |answer| sent.answered(answer))
    };
    let is_sent = manager.store().release_in_order(&request, report).is_ok();
    if is_sent {
        watchdog.pipelined.look_after(watchdog, sent);
    }
    is_sent
}

/// The releases under way.
#[derive(Debug, Default)]
pub(super) struct Pipelined(Mutex<OnTheWay>);

#[derive(Debug, Default)]
struct OnTheWay {
    /// The releases in the order in which they were sent. Each new one removes up to two finished
    /// ones.
    sent: VecDeque<Arc<Sent>>,
    /// `true` while the lock thread watches them.
    watched: bool,
}

impl Pipelined {
    fn on_the_way(&self) -> MutexGuard<'_, OnTheWay> {
        self.0.lock()
    }

    fn look_after(&self, watchdog: &Arc<Watchdog>, sent: Arc<Sent>) {
        // Dropped after unlocking: it may hold the last reference to its `Hold`.
        let mut over = Vec::new();
        let mut on_the_way = self.on_the_way();
        while over.len() < 2 && on_the_way.sent.front().is_some_and(|sent| !sent.is_open()) {
            over.extend(on_the_way.sent.pop_front());
        }
        let host = sent.held.tenure.manager.host().clone();
        on_the_way.sent.push_back(sent);
        let is_watched = std::mem::replace(&mut on_the_way.watched, true);
        drop(on_the_way);
        drop(over);
        if !is_watched {
            drop(host.clone().spawn(watch(host, Arc::clone(watchdog))));
        }
    }

    /// Returns the releases still under way. If there are none, the lock thread stops watching.
    fn open(&self) -> Vec<Arc<Sent>> {
        let mut on_the_way = self.on_the_way();
        let all = std::mem::take(&mut on_the_way.sent);
        let (open, over): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(|sent| sent.is_open());
        let copies = open.iter().cloned().collect();
        on_the_way.watched = !open.is_empty();
        on_the_way.sent = open;
        drop(on_the_way);
        drop(over);
        copies
    }
}

/// Watches the releases until none is under way.
async fn watch(host: Host, watchdog: Arc<Watchdog>) {
    let mut probes = Vec::new();
    loop {
        host.sleep(Timer::LockThread, LOOK).await;
        let open = watchdog.pipelined.open();
        if open.is_empty() {
            return;
        }
        probe(&host, &mut probes, &open);
        for sent in open {
            let looks = sent.looks.fetch_add(1, Ordering::Relaxed) + 1;
            // The runtime may still send a release that is younger than the probe, so that one gets
            // a second look.
            let is_stuck = looks > 1 && sent.runtime.as_ref().is_some_and(|runtime| is_stuck(&probes, runtime));
            let is_overdue = LOOK.saturating_mul(looks) > sent.held.tenure.manager.access.response_timeout;
            if (is_stuck || is_overdue) && sent.begin_to_help() {
                drop(host.spawn_here(sent.help()));
            }
        }
    }
}

/// A task that is spawned into a runtime to find out if the runtime still runs tasks.
struct Probe {
    runtime: RuntimeId,
    has_run: Arc<AtomicBool>,
    /// `true` if it had not run when the lock thread last looked.
    is_stuck: bool,
}

/// Checks the probes, and spawns one in each runtime of an open release that has none.
fn probe(host: &Host, probes: &mut Vec<Probe>, open: &[Arc<Sent>]) {
    probes.retain(|probe| !probe.has_run.load(Ordering::Acquire));
    for probe in probes.iter_mut() {
        probe.is_stuck = true;
    }
    for runtime in open.iter().filter_map(|sent| sent.runtime.as_ref()) {
        if probes.iter().any(|probe| probe.runtime == runtime.id()) {
            continue;
        }
        let has_run = Arc::new(AtomicBool::new(false));
        probes.push(Probe {
            runtime: runtime.id(),
            has_run: Arc::clone(&has_run),
            is_stuck: false,
        });
        host.spawn_on(runtime, async move { has_run.store(true, Ordering::Release) });
    }
}

fn is_stuck(probes: &[Probe], runtime: &Runtime) -> bool {
    let mut probes = probes.iter();
    probes.any(|probe| probe.is_stuck && probe.runtime == runtime.id())
}

/// One release under way.
struct Sent {
    held: Arc<Hold>,
    key: Arc<str>,
    /// The runtime that sends it; `None` for that of the lock thread.
    runtime: Option<Runtime>,
    /// The number of times that the lock thread has looked.
    looks: AtomicU32,
    outcome: Mutex<Outcome>,
}

struct Outcome {
    help: Help,
    /// The runtime's answer, kept while the lock thread releases as well: the release that found
    /// the lock held decides the outcome.
    late: Option<Answer>,
    /// `true` once the outcome is known.
    over: bool,
    /// Makes `shutdown` wait for the outcome.
    tracked: Option<TaskTrackerToken>,
}

/// The state of the second release, by the lock thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Help {
    None,
    UnderWay,
    Done,
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sent").field(&self.held).finish()
    }
}

impl Sent {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock()
    }

    /// Returns `true` if the lock thread has to watch it.
    fn is_open(&self) -> bool {
        let outcome = self.outcome();
        !outcome.over && outcome.help == Help::None
    }

    fn begin_to_help(&self) -> bool {
        let mut outcome = self.outcome();
        let begins = !outcome.over && outcome.help == Help::None;
        if begins {
            outcome.help = Help::UnderWay;
        }
        begins
    }

    /// Takes the runtime's answer. What was not carried out, for example because the server does not have the script,
    /// is sent again by the lock thread.
    fn answered(self: Arc<Self>, answer: Answer) {
        let mut outcome = self.outcome();
        match (outcome.help, &answer) {
            (Help::None, Err(error)) if error.effect() == Effect::None => {
                outcome.help = Help::UnderWay;
                outcome.late = Some(answer);
                drop(outcome);
                let host = self.held.tenure.manager.host().clone();
                drop(host.spawn(self.help()));
            }
            (Help::UnderWay, Ok(Ownership::Gone | Ownership::Foreign) | Err(_)) => outcome.late = Some(answer),
            // The lock thread has already found that the store no longer has the lock.
            (Help::Done, Err(_)) => outcome.over = true,
            _ => self.end(outcome, answer),
        }
    }

    /// Releases from the lock thread.
    async fn help(self: Arc<Self>) {
        let receipt = Receipt::default();
        let request = self.held.release_request(&self.key, &receipt);
        let answer = self
            .held
            .tenure
            .manager
            .access
            .release(Timer::LockThread, &request)
            .await;
        let mut outcome = self.outcome();
        outcome.help = Help::Done;
        let late = outcome.late.take();
        match answer {
            Ok(Ownership::Owned) => self.end(outcome, answer),
            Err(_) => self.end(outcome, late.unwrap_or(answer)),
            // The runtime's release may have been carried out before. Does not wait for its answer,
            // since the runtime may never run tasks again.
            Ok(_) => match late {
                Some(late @ Ok(_)) => self.end(outcome, late),
                // The runtime's release had no effect, so that this answer counts.
                Some(Err(error)) if error.effect() == Effect::None => self.end(outcome, answer),
                Some(Err(_)) | None => drop(outcome.tracked.take()),
            },
        }
    }

    /// Ends the release with a known outcome.
    fn end(&self, mut outcome: MutexGuard<'_, Outcome>, answer: Answer) {
        if std::mem::replace(&mut outcome.over, true) {
            return;
        }
        let tracked = outcome.tracked.take();
        drop(outcome);
        let held = &self.held;
        if let Err(error) = outcome_of(held, answer) {
            held.tenure.manager.stats.count(Event::Unconfirmed, held.options.site);
            if matches!(error, LockError::Store { .. }) {
                release_later(held);
            }
        }
        drop(tracked);
    }
}
