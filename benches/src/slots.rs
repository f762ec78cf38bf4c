//! All slots of a cluster move while locks of all modes are taken: nobody may meet anybody inside, lose a lock, or wait for longer than it said.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockGuard, LockManager, LockRequest};
use lock_tests::cluster::{ClusterGroup, MASTERS, SLOTS, third};
use lock_tests::server::Server;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::report::{Number, Report, Verdict, count, progress, rate, ratio, time};
use crate::sample::percentile;
use crate::{Result, Size, error};

const MANAGERS: usize = 3;
/// The tasks of a manager for each mode.
const TASKS: usize = 2;
/// The locks lie in this many slots, of which the first is to move next: few enough that calls wait for each other.
const NEAR: u16 = 6;
/// How long bodies hold a lock at most, in milliseconds.
const HELD: u64 = 5;
/// The locks that a manager holds meanwhile, over all slots, and their lease.
const KEPT: usize = 10_000;
const KEPT_LEASE: Duration = Duration::from_secs(30);
/// Longer than all slots take to move.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// So short that renewals are due while slots move.
const LEASE: Duration = Duration::from_millis(900);
const WAIT: Duration = Duration::from_secs(10);
/// How long a call may take beyond its `wait`.
const BEYOND: Duration = Duration::from_secs(1);
/// The slots that move in one step, where the version can.
const TOGETHER: u16 = 64;
/// The slots that move one by one between two looks at what the masters think.
const IN_TURN: u16 = 16;

/// Who may be inside together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Share {
    Alone,
    /// Readers together.
    Read,
    /// This many.
    Two,
    /// All of one owner, by the parity of the call.
    Owner(u64),
}

struct Mode {
    name: &'static str,
    share: Share,
    ask: fn(&LockManager, &str, &str, u64) -> LockRequest,
}

const fn mode(name: &'static str, share: Share, ask: fn(&LockManager, &str, &str, u64) -> LockRequest) -> Mode {
    Mode { name, share, ask }
}

const MODES: [Mode; 10] = [
    mode("exclusive", Share::Alone, |locks, key, _, _| locks.lock(key)),
    mode("fencing", Share::Alone, |locks, key, _, _| {
        locks.lock(key).fencing(true)
    }),
    mode("fair", Share::Alone, |locks, key, _, _| locks.lock(key).fair(true)),
    mode("pipelined", Share::Alone, |locks, key, _, _| {
        locks.lock(key).pipelined(true)
    }),
    mode("reentrant", Share::Alone, |locks, key, _, _| {
        locks.lock(key).reentrant(true)
    }),
    mode("write", Share::Alone, |locks, key, _, _| locks.lock(key).write()),
    mode("read", Share::Read, |locks, key, _, _| locks.lock(key).read()),
    mode("semaphore", Share::Two, |locks, key, _, _| locks.lock(key).semaphore(2)),
    mode("owner", Share::Owner(0), |locks, key, _, call| {
        locks.lock(key).owner(if call % 2 == 0 { "even" } else { "odd" })
    }),
    mode("several", Share::Alone, |locks, key, beside, _| {
        locks.lock_all([key, beside])
    }),
];

pub(crate) async fn run(size: Size, slots: Option<usize>) -> Result<Report> {
    let kept = match size {
        Size::Full => KEPT,
        Size::Smoke => 20,
    };
    let slots = match (slots.map(u16::try_from), size) {
        (Some(Ok(slots)), _) => slots.clamp(1, SLOTS),
        (Some(Err(_)), _) | (None, Size::Full) => SLOTS,
        (None, Size::Smoke) => 4,
    };
    let mut report = Report::new(
        "slots",
        "Three masters and a replica of each. Slots move to the next master, one after the other, and back again, while 60 tasks of three managers \
         take locks of all modes in the slots that are about to move, and one of the managers holds 10,000 locks over all slots. Leases are so \
         short that renewals are due meanwhile.",
        &[
            "moved",
            "slots",
            "moves a second",
            "locks a second",
            "p99 of a call",
            "longest call",
            "overlaps",
            "lost",
            "beyond `wait`",
            "errors",
        ],
    );
    // By default a master that has given its last slot away becomes a replica.
    let cluster = if slots == SLOTS {
        ClusterGroup::start_uneven(third(0).end).await
    } else {
        ClusterGroup::start_steady().await
    };
    let cluster = Arc::new(cluster);
    let tags = Arc::new(tags(cluster.masters(), slots).await?);
    for is_atomic in [false, true] {
        let what = if is_atomic { "in one step" } else { "key by key" };
        let storm = Storm::begin(&cluster, &tags, kept).await?;
        let began = Instant::now();
        let moved = move_all(&cluster, slots, is_atomic, &storm.place).await?;
        let took = began.elapsed().as_secs_f64();
        let seen = storm.end().await?;
        if moved == 0 {
            report.note("Slots that move in one step: this version cannot.");
            continue;
        }
        let mut calls = seen.took;
        calls.sort_unstable();
        let longest = percentile(&calls, 1.0);
        report.row(vec![
            what.to_owned(),
            count(moved),
            rate(ratio(moved, took)),
            rate(ratio(calls.len(), took)),
            time(percentile(&calls, 0.99)),
            time(longest),
            seen.overlaps.to_string(),
            seen.lost.to_string(),
            seen.busy.to_string(),
            seen.failed.to_string(),
        ]);
        let mut none = |of: &str, number: usize| {
            let verdict = Verdict::at_most(2, format!("slots that move {what}: {of}"), 0.0, number.float(), "");
            report.verdicts.push(verdict);
        };
        none("overlaps", seen.overlaps);
        none("lost locks", seen.lost);
        none("calls that got no lock within `wait`", seen.busy);
        none("failed calls", seen.failed);
        let limit = (WAIT + BEYOND).as_secs_f64() * 1e3;
        let what = format!("slots that move {what}: longest call");
        report
            .verdicts
            .push(Verdict::at_most(2, what, limit, longest.as_secs_f64() * 1e3, "ms"));
    }
    Ok(report)
}

/// Moves all slots to the next master and back again. Returns how many that were, or 0 if the version cannot. `place` follows.
async fn move_all(cluster: &Arc<ClusterGroup>, slots: u16, is_atomic: bool, place: &AtomicU16) -> Result<usize> {
    let masters: Vec<u16> = cluster.masters().iter().map(Server::port).collect();
    let (what, step) = if is_atomic {
        ("in one step", TOGETHER)
    } else {
        ("key by key", IN_TURN)
    };
    let bar = progress(format!("slots: {what}"), 2 * usize::from(slots));
    let mut moved = 0;
    for away in [1, 0] {
        let mut first = 0;
        while first < slots {
            let home = home_of(first);
            let to = masters[(home + away) % masters.len()];
            let end = slots.min(third(home).end).min(first + step);
            place.store(first, Ordering::Relaxed);
            if !move_some(cluster, first..=end - 1, to, is_atomic).await? {
                return Ok(0);
            }
            moved += usize::from(end - first);
            bar.inc(u64::from(end - first));
            first = end;
        }
    }
    bar.finish_and_clear();
    Ok(moved)
}

/// Moves slots from a thread of its own, since the cluster's client blocks. Returns `false` if the version cannot.
async fn move_some(cluster: &Arc<ClusterGroup>, slots: RangeInclusive<u16>, to: u16, is_atomic: bool) -> Result<bool> {
    let (cluster, runtime) = (Arc::clone(cluster), Handle::current());
    let moving = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            if is_atomic {
                return cluster.move_atomically(slots, to).await;
            }
            cluster.move_slots(slots, to).await;
            true
        })
    });
    Ok(moving.await?)
}

/// Returns a tag of each slot.
async fn tags(masters: &[Server], slots: u16) -> Result<Vec<String>> {
    let mut connection = masters.first().ok_or_else(|| error("no masters"))?.connection().await;
    let mut tags: BTreeMap<u16, String> = BTreeMap::new();
    let mut number = 0;
    while tags.len() < usize::from(slots) {
        let mut together = redis::pipe();
        let some: Vec<String> = (number..number + 10_000)
            .map(|number: u32| format!("t{number}"))
            .collect();
        for tag in &some {
            together.cmd("CLUSTER").arg("KEYSLOT").arg(tag);
        }
        let found: Vec<u16> = together.query_async(&mut connection).await?;
        let found = found.into_iter().zip(some);
        tags.extend(found.filter(|(slot, _)| *slot < slots));
        number += 10_000;
    }
    Ok(tags.into_values().collect())
}

/// The number of the master that has a slot at the beginning.
fn home_of(slot: u16) -> usize {
    (0..MASTERS).find(|nth| third(*nth).contains(&slot)).unwrap_or_default()
}

/// What the tasks of a storm have seen.
#[derive(Default)]
struct Seen {
    took: Vec<Duration>,
    overlaps: usize,
    lost: usize,
    busy: usize,
    failed: usize,
}

/// Tasks that take locks all the time.
struct Storm {
    tasks: JoinSet<Result>,
    seen: Arc<Mutex<Seen>>,
    is_over: Arc<AtomicBool>,
    /// The first of the slots that move.
    place: Arc<AtomicU16>,
    kept: Vec<LockGuard>,
}

impl Storm {
    async fn begin(cluster: &ClusterGroup, tags: &Arc<Vec<String>>, kept: usize) -> Result<Self> {
        let mut storm = Self {
            tasks: JoinSet::new(),
            seen: Arc::default(),
            is_over: Arc::default(),
            place: Arc::default(),
            kept: Vec::new(),
        };
        let inside = Arc::<Inside>::default();
        for _ in 0..MANAGERS {
            let builder = LockManager::builder(&cluster.url())
                .default_lease(LEASE)
                .default_wait(WAIT);
            let locks = builder.build()?;
            locks.check_connection().await?;
            if storm.kept.is_empty() {
                let mut keeping = JoinSet::new();
                for number in 0..kept {
                    let request = locks
                        .lock(format!("slots:kept:{number}"))
                        .lease(KEPT_LEASE)
                        .max_hold(KEPT_FOR);
                    keeping.spawn(async move { request.acquire().await });
                }
                while let Some(guard) = keeping.join_next().await {
                    storm.kept.push(guard??);
                }
            }
            for mode in &MODES {
                for _ in 0..TASKS {
                    let (locks, seen, inside) = (locks.clone(), Arc::clone(&storm.seen), Arc::clone(&inside));
                    let (is_over, place) = (Arc::clone(&storm.is_over), Arc::clone(&storm.place));
                    let tags = Arc::clone(tags);
                    storm.tasks.spawn(async move {
                        while !is_over.load(Ordering::Relaxed) {
                            let near = usize::from(place.load(Ordering::Relaxed) + fastrand::u16(..NEAR));
                            call(&locks, mode, &tags[near % tags.len()], &inside, &seen).await;
                        }
                        Ok(())
                    });
                }
            }
        }
        Ok(storm)
    }

    async fn end(mut self) -> Result<Seen> {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let lost = self.kept.iter().filter(|guard| !guard.handle().is_held()).count();
        for guard in self.kept.into_iter().filter(|guard| guard.handle().is_held()) {
            guard.release().await?;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.lost += lost;
        if seen.took.is_empty() {
            return Err(error("no call got its lock"));
        }
        Ok(std::mem::take(&mut seen))
    }
}

async fn call(locks: &LockManager, mode: &Mode, tag: &str, inside: &Arc<Inside>, seen: &Mutex<Seen>) {
    let call = fastrand::u64(..2);
    // Readers and writers want the same locks.
    let of = if mode.name == "read" { "write" } else { mode.name };
    let key = format!("slots:{{{tag}}}:{of}");
    // In any slot.
    let beside = format!("slots:beside:{tag}");
    let share = match mode.share {
        Share::Owner(_) => Share::Owner(call % 2),
        share => share,
    };
    let mut keys = vec![key.clone()];
    if mode.name == "several" {
        keys.push(beside.clone());
    }
    let asked = Instant::now();
    let body = {
        let inside = Arc::clone(inside);
        async move {
            let waited = asked.elapsed();
            let visits: Vec<Visit> = keys.into_iter().map(|key| Inside::enter(&inside, key, share)).collect();
            sleep(Duration::from_millis(fastrand::u64(..HELD))).await;
            (waited, visits.iter().filter(|visit| visit.meets).count())
        }
    };
    let outcome = (mode.ask)(locks, &key, &beside, call).run(body).await;
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    match outcome {
        Ok((waited, overlaps)) => {
            seen.took.push(waited);
            seen.overlaps += overlaps;
        }
        Err(error) => {
            eprintln!("{}: {error}", mode.name);
            match error {
                LockError::Lost { .. } => seen.lost += 1,
                LockError::Busy { .. } => seen.busy += 1,
                _ => seen.failed += 1,
            }
        }
    }
}

/// Who is inside, by key.
#[derive(Default)]
struct Inside(Mutex<BTreeMap<String, BTreeMap<Share, usize>>>);

/// Somebody who is inside, until this is dropped.
struct Visit {
    inside: Arc<Inside>,
    key: String,
    share: Share,
    /// `true` if somebody was there who should not have been.
    meets: bool,
}

impl Inside {
    fn enter(inside: &Arc<Self>, key: String, share: Share) -> Visit {
        let mut all = inside.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = all.entry(key.clone()).or_default();
        let others: usize = here.values().sum();
        let alike = here.get(&share).copied().unwrap_or_default();
        let meets = match share {
            Share::Alone => others > 0,
            Share::Read | Share::Owner(_) => others > alike,
            Share::Two => others > 1,
        };
        *here.entry(share).or_default() += 1;
        Visit {
            inside: Arc::clone(inside),
            key,
            share,
            meets,
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut all = self.inside.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = all.get_mut(&self.key).and_then(|here| here.get_mut(&self.share)) {
            *number = number.saturating_sub(1);
        }
    }
}
