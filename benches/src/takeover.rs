//! What the scenarios of masters that another server takes over from have in common: a lock that the new master knows, one that it does not
//! know with its two holders, and what is reported of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, current};
use lock_tests::clock::Stamp;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::plot::Panel;
use crate::report::{Number, Report, Verdict, count, time};
use crate::sample::percentile;
use crate::{Result, error};

/// Long enough that no renewal can be what notices.
const LEASE: Duration = Duration::from_secs(60);
/// Longer than any failover.
const WAIT: Duration = Duration::from_secs(60);
/// The pause between two writes of a holder, and between two looks.
const PAUSE: Duration = Duration::from_millis(1);
/// What the project promises, both counted from the first write that the new master accepts.
const ACQUIRED: Duration = Duration::from_secs(2);
const CANCELLED: Duration = Duration::from_secs(1);

/// Returns an empty report that begins with how the locks of a round come about.
pub(crate) fn report(scenario: &'static str, setting: &str) -> Report {
    let about = format!(
        "{setting} The body of each holder writes to a resource every millisecond, with its token; the resource refuses a token smaller than \
         the largest that it has seen. Times begin with the first write that the new master accepts, which is tried every 5 ms; `after the \
         name` is the longest time since a sentinel named it to clients, before which no client knows it. Too late are rounds beyond the \
         limit below."
    );
    Report::new(
        scenario,
        about,
        &[
            "failover",
            "until",
            "rounds",
            "p50",
            "p99",
            "longest",
            "after the name",
            "too late",
        ],
    )
}

pub(crate) fn panel() -> Panel {
    Panel::cost("from the new master's first write, longest, milliseconds")
}

pub(crate) async fn connected(url: &str) -> Result<LockManager> {
    let locks = LockManager::builder(url)
        .default_lease(LEASE)
        .default_wait(WAIT)
        .build()?;
    locks.check_connection().await?;
    Ok(locks)
}

/// The calls of one round.
pub(crate) struct Calls<'a> {
    holder: &'a LockManager,
    other: &'a LockManager,
    kept: String,
    undisturbed: JoinHandle<std::result::Result<(), LockError>>,
    /// Ends the body under the lock that is kept.
    end: Arc<Notify>,
    resource: Arc<Resource>,
    losing: Option<Body>,
    winning: Option<Body>,
    asking: Option<JoinHandle<std::result::Result<Stamp, LockError>>>,
}

type Body = JoinHandle<std::result::Result<Result, LockError>>;

impl<'a> Calls<'a> {
    /// Begins a round with the call for the lock that the new master will know.
    pub(crate) fn keeping(kept: String, holder: &'a LockManager, other: &'a LockManager) -> Self {
        let end = Arc::new(Notify::new());
        let (request, ended) = (holder.lock(kept.clone()), Arc::clone(&end));
        Self {
            holder,
            other,
            kept,
            undisturbed: tokio::spawn(request.run(async move { ended.notified().await })),
            end,
            resource: Arc::default(),
            losing: None,
            winning: None,
            asking: None,
        }
    }

    /// Takes the lock that the new master will not know, and has another call wait for it.
    pub(crate) async fn hold(&mut self, gone: &str) -> Result {
        self.losing = Some(write(self.holder, gone, &self.resource, Who::Former));
        until("the first holder", || self.resource.began(Who::Former).is_some()).await?;
        self.winning = Some(write(self.other, gone, &self.resource, Who::Present));
        Ok(())
    }

    /// Asks for a free lock.
    pub(crate) fn ask(&mut self, free: String) {
        let request = self.other.lock(free);
        self.asking = Some(tokio::spawn(async move {
            let guard = request.acquire().await?;
            let taken = Stamp::now();
            guard.release().await?;
            Ok(taken)
        }));
    }

    /// Waits for all calls, after the first write to the new master. `is_known` tells whether that one knows the lock that is kept.
    pub(crate) async fn end(
        self,
        writable: Stamp,
        named: Option<Stamp>,
        is_known: impl FnOnce() -> bool,
    ) -> Result<Seen> {
        let (Some(losing), Some(winning)) = (self.losing, self.winning) else {
            return Err(error("a round without a lost lock"));
        };
        let lost = timeout(WAIT, losing).await??;
        if !lost.as_ref().is_err_and(LockError::is_lost) {
            return Err(error(format!("a lock that the new master cannot know: {lost:?}")));
        }
        timeout(WAIT, winning).await????;
        let stamp = |stamp: Option<Stamp>| stamp.ok_or_else(|| error("a body left no stamp"));
        let acquired = stamp(self.resource.began(Who::Present))?;
        let ended = stamp(self.resource.ended(Who::Former))?;
        let asked = match self.asking {
            Some(asking) => Some(asking.await??.since(writable)),
            None => None,
        };
        // Nobody else gets the lock that stayed, and its holder can still release it.
        let is_held = is_known() && !self.undisturbed.is_finished();
        let taken = self.other.lock(self.kept).wait(Duration::ZERO).acquire().await;
        self.end.notify_one();
        let is_lost = !is_held || taken.is_ok() || timeout(WAIT, self.undisturbed).await??.is_err();
        drop(taken);
        let (refused, stale, shut_out) = self.resource.counts();
        Ok(Seen {
            named: named.map(|named| named.since(writable)),
            acquired: acquired.since(writable),
            asked,
            cancelled: ended.since(writable),
            overlap: ended.since(acquired),
            refused,
            stale,
            shut_out,
            is_lost,
        })
    }
}

/// What was seen in a round. Times begin with the first write that the new master accepts.
pub(crate) struct Seen {
    /// A sentinel names the new master to clients.
    named: Option<Duration>,
    /// The call that waited for the lost lock has it.
    acquired: Duration,
    /// A call that asked while there was no master has its lock.
    asked: Option<Duration>,
    /// The body under the lost lock has ended.
    cancelled: Duration,
    /// The time for which both had the lost lock.
    overlap: Duration,
    /// Writes of the former holder that the resource refused.
    refused: usize,
    /// Writes of the former holder that the resource accepted after one of the present holder.
    stale: usize,
    /// Writes of the present holder that the resource refused.
    shut_out: usize,
    /// The lock that the new master knows was lost, or another call got it.
    is_lost: bool,
}

/// Writes to the resource under the lock: the former holder until it is cancelled, the present one until the former one has ended.
fn write(
    locks: &LockManager,
    key: &str,
    resource: &Arc<Resource>,
    who: Who,
) -> JoinHandle<std::result::Result<Result, LockError>> {
    let resource = Arc::clone(resource);
    let request = locks.lock(key.to_owned()).fencing(true);
    tokio::spawn(request.run(async move {
        let _ends = resource.begin(who);
        let lock = current().ok_or("a body without its lock")?;
        let token = lock.fencing_token().await?.get();
        loop {
            resource.write(who, token);
            if who == Who::Present && resource.ended(Who::Former).is_some() {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }))
}

/// Returns once `condition` is true.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) -> Result {
    let met = async {
        while !condition() {
            sleep(PAUSE).await;
        }
    };
    timeout(WAIT, met)
        .await
        .map_err(|_| error(format!("waited {WAIT:?} in vain for {what}")))
}

/// The holders of the lock that the new master does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Former,
    Present,
}

/// What the two write to. It accepts no token smaller than the largest that it has seen.
#[derive(Default)]
struct Resource(Mutex<Written>);

#[derive(Default)]
struct Written {
    largest: u64,
    began: [Option<Stamp>; 2],
    ended: [Option<Stamp>; 2],
    accepted: [usize; 2],
    refused: [usize; 2],
    stale: usize,
}

impl Resource {
    fn begin(self: &Arc<Self>, who: Who) -> Ends {
        self.with(|written| written.began[who as usize] = Some(Stamp::now()));
        Ends(Arc::clone(self), who)
    }

    fn write(&self, who: Who, token: u64) {
        self.with(|written| {
            if token < written.largest {
                written.refused[who as usize] += 1;
                return;
            }
            written.largest = token;
            written.accepted[who as usize] += 1;
            written.stale += usize::from(who == Who::Former && written.accepted[Who::Present as usize] > 0);
        });
    }

    fn began(&self, who: Who) -> Option<Stamp> {
        self.with(|written| written.began[who as usize])
    }

    fn ended(&self, who: Who) -> Option<Stamp> {
        self.with(|written| written.ended[who as usize])
    }

    /// Refused writes of the former holder, accepted ones after one of the present holder, refused ones of the present holder.
    fn counts(&self) -> (usize, usize, usize) {
        self.with(|written| {
            let [former, present] = written.refused;
            (former, written.stale, present)
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Written) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Stamps the moment at which it is dropped: the end of the body that owns it.
struct Ends(Arc<Resource>, Who);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0
            .with(|written| written.ended[self.1 as usize] = Some(Stamp::now()));
    }
}

pub(crate) fn summarize(report: &mut Report, panel: &mut Panel, line: u8, cause: &str, seen: &[Seen]) {
    let mut row = |until: &str, limit: Option<Duration>, of: fn(&Seen) -> Option<Duration>| {
        let mut times: Vec<_> = seen.iter().filter_map(of).collect();
        if times.is_empty() {
            return;
        }
        times.sort_unstable();
        let after = seen
            .iter()
            .filter_map(|seen| Some(of(seen)?.saturating_sub(seen.named?)));
        let at = |share| time(percentile(&times, share));
        report.row(vec![
            cause.to_owned(),
            until.to_owned(),
            times.len().to_string(),
            at(0.50),
            at(0.99),
            at(1.0),
            limit.and_then(|_| after.max()).map_or_else(|| "–".to_owned(), time),
            limit.map_or_else(
                || "–".to_owned(),
                |limit| times.iter().filter(|time| **time > limit).count().to_string(),
            ),
        ]);
        let [longest, limit] = [Some(percentile(&times, 1.0)), limit].map(|time| Some(time?.as_secs_f64() * 1e3));
        panel.bar(format!("{cause}: {until}"), longest.unwrap_or_default());
        if let (Some(longest), Some(limit)) = (longest, limit) {
            let what = format!("{cause}: {until}, longest");
            report.verdicts.push(Verdict::at_most(line, what, limit, longest, "ms"));
        }
    };
    row("a sentinel names the new master", None, |seen| seen.named);
    row("a call that asked meanwhile has its lock", Some(ACQUIRED), |seen| {
        seen.asked
    });
    row("a waiting call has the lost lock", Some(ACQUIRED), |seen| {
        Some(seen.acquired)
    });
    row("the body under the lost lock has ended", Some(CANCELLED), |seen| {
        Some(seen.cancelled)
    });
    row("(how long both had the lost lock)", None, |seen| Some(seen.overlap));

    let sum = |of: fn(&Seen) -> usize| seen.iter().map(of).sum::<usize>();
    let overlapping = sum(|seen| usize::from(!seen.overlap.is_zero()));
    report.note(format!(
        "{cause}: the former holder and the next one overlapped in {overlapping} of {} rounds, in which the resource refused {} writes of the \
         former one.",
        seen.len(),
        count(sum(|seen| seen.refused)),
    ));
    if seen.iter().any(|seen| seen.named.is_some()) {
        report.note("Sentinels ask a promoted replica once a second whether it is a master, and name it after that.");
    }
    let mut none = |what: &str, number: usize| {
        let verdict = Verdict::at_most(line, format!("{cause}: {what}"), 0.0, number.float(), "");
        report.verdicts.push(verdict);
    };
    none(
        "locks that the new master knew and that were lost or taken",
        sum(|seen| usize::from(seen.is_lost)),
    );
    none("stale writes that got through", sum(|seen| seen.stale));
    none("refused writes of the present holder", sum(|seen| seen.shut_out));
}
