//! Old clients and calls of this crate contend for one lock for many rounds, and a judge decides
//! for every overlap if the old pattern permits it.
//!
//! Every holder records the time for which it was inside, on one host's clock: from after it
//! learned that it has the lock until before it began the release. A body of this crate is inside
//! until it is polled for the last time: a cancelled body may be dropped later, but runs no more
//! code. Two holders may have been inside at once only if one of them had lost the lock by the
//! pattern's own rules when the second one entered:
//! - **It had ended.** An old client does not stop when its time is over. A body of this crate
//!   does, so this rule never excuses one.
//! - **It was overwritten, and the new time had ended.** An old client that is late with `GETSET`
//!   replaces the winner's time by its own, and gets the winner's as the answer; so do further late
//!   clients. From then on, the last of their times decides when the lock ends, also for the next
//!   winner.
//!
//! Clocks that differ would permit more overlaps. Here there is one clock, so there is no further
//! excuse.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lock_runtime::{Backoff, LockError, LockManager, current};
use lock_tests::{OldClient, PATIENCE, Server};
use redis::aio::MultiplexedConnection;

/// What the lock is called here.
const NAME: &str = "inventory:7";
/// Of each kind.
const CLIENTS: usize = 3;
/// In all, unless `CONTEST_ROUNDS` says otherwise.
const ROUNDS: u64 = 400;
const COUNTER: &str = "rounds";
/// Of ours.
const LEASE: Duration = Duration::from_millis(300);

/// One stay inside. Times are in µs since 1970.
#[derive(Clone, Debug)]
struct Stay {
    /// Not after the store gave the lock. A busy host may let much time pass until the holder is inside.
    given: u64,
    from: u64,
    to: u64,
    /// When the lock was to end, in ms. `None` for ours.
    ends: Option<u64>,
}

/// A `GETSET` that came late.
#[derive(Clone, Debug)]
struct Overwrite {
    sent: u64,
    answered: u64,
    /// The time that was there, in ms.
    found: u64,
    /// The one that came in its place.
    written: u64,
}

/// What both have noted.
#[derive(Debug, Default)]
struct Record {
    stays: Vec<Stay>,
    overwrites: Vec<Overwrite>,
}

/// How often two were inside at once, by why.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ruling {
    ended: u64,
    overwritten: u64,
    violations: Vec<String>,
}

impl fmt::Display for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} overlaps with an old client whose time was over, {} after an overwrite, {} violations",
            self.ended,
            self.overwritten,
            self.violations.len()
        )
    }
}

impl Record {
    fn judge(&self) -> Ruling {
        let mut stays = self.stays.clone();
        stays.sort_by_key(|stay| stay.from);
        let mut ruling = Ruling::default();
        for (nth, first) in stays.iter().enumerate() {
            // Nobody stays for as long as a second.
            let later = stays[nth + 1..]
                .iter()
                .take_while(|next| next.from < first.from + 1_000_000);
            for second in later.filter(|second| second.from < first.to) {
                let at = second.from;
                let both = [first, second];
                if both.iter().any(|stay| Self::had_ended(stay, at)) {
                    ruling.ended += 1;
                } else if both.iter().any(|stay| self.was_overwritten(stay, at)) {
                    ruling.overwritten += 1;
                } else {
                    ruling.violations.push(format!("{first:?} and {second:?}"));
                }
            }
        }
        ruling
    }

    fn had_ended(stay: &Stay, at: u64) -> bool {
        stay.ends.is_some_and(|ends| ends < at / 1000)
    }

    /// Whether the lock under this stay was overwritten, and with a time that was over at that moment.
    fn was_overwritten(&self, stay: &Stay, at: u64) -> bool {
        let written_by_old: HashSet<u64> = self
            .stays
            .iter()
            .filter_map(|stay| stay.ends)
            .chain(self.overwrites.iter().map(|overwrite| overwrite.written))
            .collect();
        // What ours wrote, also when it was renewed, nobody else has.
        let was_ours = |overwrite: &Overwrite| {
            !written_by_old.contains(&overwrite.found) && overwrite.answered >= stay.given && overwrite.sent <= stay.to
        };
        // In place of the stay's own time, and then in place of those.
        let mut written = Vec::new();
        while let Some(next) = self.overwrites.iter().find(|overwrite| {
            let was_own = stay
                .ends
                .map_or_else(|| was_ours(overwrite), |ends| overwrite.found == ends);
            (was_own || written.contains(&overwrite.found))
                && overwrite.sent <= at
                && !written.contains(&overwrite.written)
        }) {
            written.push(next.written);
        }
        written.iter().any(|written| *written < at / 1000)
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

/// How the calls of ours ended.
#[derive(Debug, Default)]
struct Ends {
    done: u64,
    cancelled: u64,
    timed_out: u64,
}

/// Returns the time, or `None` if this call has no time left: a busy host may stop a thread between the library's look at the clock and this
/// one.
fn now_inside() -> Option<u64> {
    let at = now();
    current().filter(|lock| !lock.remaining().is_zero()).map(|_| at)
}

/// One of ours, inside. It notes at each poll that it is still there.
async fn stay_inside(record: &Mutex<Record>, stay: Duration) {
    let (Some(lock), Some(from)) = (current(), now_inside()) else {
        return;
    };
    let since_asked = LEASE.saturating_sub(lock.remaining());
    let nth = {
        let mut record = record.lock().unwrap();
        record.stays.push(Stay {
            given: from - u64::try_from(since_asked.as_micros()).unwrap(),
            from,
            to: from,
            ends: None,
        });
        record.stays.len() - 1
    };
    let mut body = pin!(tokio::time::sleep(stay));
    poll_fn(|cx| {
        if let Some(now) = now_inside() {
            record.lock().unwrap().stays[nth].to = now;
        }
        body.as_mut().poll(cx)
    })
    .await;
}

/// Takes the lock again and again: mostly for a moment, now and then for longer than the lease, with and without renewal, or with a
/// minimum hold.
async fn contend(
    locks: LockManager,
    mut connection: MultiplexedConnection,
    rounds: u64,
    record: Arc<Mutex<Record>>,
) -> Ends {
    let mut ends = Ends::default();
    loop {
        let kind = fastrand::f64();
        let request = locks.lock(NAME).lease(LEASE).wait(PATIENCE);
        let (request, stay) = match kind {
            ..0.04 => (request.renew(false), 400),
            ..0.08 => (request, 400),
            ..0.12 => (request.at_least(Duration::from_millis(6)), 1),
            _ => (request, fastrand::u64(0..3)),
        };
        let inside = stay_inside(&record, Duration::from_millis(stay));
        match request.run(inside).await {
            Ok(()) => ends.done += 1,
            Err(LockError::Lost { .. }) => ends.cancelled += 1,
            Err(LockError::Busy { .. }) => ends.timed_out += 1,
            Err(other) => panic!("{other}"),
        }
        let count: u64 = redis::cmd("INCR")
            .arg(COUNTER)
            .query_async(&mut connection)
            .await
            .unwrap();
        if count >= rounds {
            return ends;
        }
    }
}

/// The events that a neighbour has told.
fn read(line: &str, record: &mut Record) -> bool {
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match (line.split_whitespace().next(), numbers.as_slice()) {
        (Some("hold"), &[from, to, ends]) => record.stays.push(Stay {
            given: from,
            from,
            to,
            ends: Some(ends),
        }),
        (Some("overwrote"), &[sent, answered, found, written]) => record.overwrites.push(Overwrite {
            sent,
            answered,
            found,
            written,
        }),
        (Some("done"), _) => return true,
        _ => panic!("a neighbour said {line}"),
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_clients_and_ours_overlap_no_more_than_the_old_pattern_permits() {
    let rounds = std::env::var("CONTEST_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let server = Server::start();
    let record = Arc::<Mutex<Record>>::default();
    let mut neighbours = Vec::new();
    for _ in 0..CLIENTS {
        neighbours.push(OldClient::start(&server, NAME).await);
    }
    let mut ours = Vec::new();
    for _ in 0..CLIENTS {
        // A manager each, as if each were a process.
        let locks = LockManager::builder(&server.url())
            .prefix("")
            .legacy_setnx()
            .connect_timeout(PATIENCE)
            .response_timeout(PATIENCE)
            .backoff(Backoff::new(Duration::from_millis(1), Duration::from_millis(3)))
            .skew(Duration::from_millis(15))
            .build()
            .unwrap();
        locks.check_connection().await.unwrap();
        let connection = server.connection().await;
        ours.push(tokio::spawn(contend(locks, connection, rounds, Arc::clone(&record))));
    }
    for neighbour in &mut neighbours {
        neighbour.0.say(&format!("contend {COUNTER} {rounds}"));
    }
    for mut neighbour in neighbours {
        loop {
            let line = neighbour.0.line("").await.text;
            if read(&line, &mut record.lock().unwrap()) {
                break;
            }
        }
    }
    let mut ends = Ends::default();
    for ours in ours {
        let one = ours.await.unwrap();
        ends.done += one.done;
        ends.cancelled += one.cancelled;
        ends.timed_out += one.timed_out;
    }
    let record = std::mem::take(&mut *record.lock().unwrap());
    let ours = record.stays.iter().filter(|stay| stay.ends.is_none()).count();
    let theirs = record.stays.len() - ours;
    let ruling = record.judge();
    println!(
        "{ours} stays of ours ({ends:?}), {theirs} of old clients, {} overwrites; {ruling}",
        record.overwrites.len()
    );
    assert_eq!(ruling.violations, Vec::<String>::new());
    assert!(record.stays.len() as u64 >= rounds, "{} stays", record.stays.len());
    // Otherwise there was no contention to judge.
    assert!(ours.min(theirs) >= 10, "{ours} and {theirs}");
    assert_eq!(ends.timed_out, 0, "some of ours never had their turn");
}

/// The judge can tell what is permitted from what is not.
mod judge {
    use super::{Overwrite, Record, Ruling, Stay};

    /// Times in ms.
    fn stay(ours: bool, from: u64, to: u64, ends: u64) -> Stay {
        let (from, to) = (from * 1000, to * 1000);
        Stay {
            given: from,
            from,
            to,
            ends: (!ours).then_some(ends),
        }
    }

    fn overwrite(at: u64, found: u64, written: u64) -> Overwrite {
        let (sent, answered) = (at * 1000, at * 1000 + 100);
        Overwrite {
            sent,
            answered,
            found,
            written,
        }
    }

    fn of(stays: &[Stay], overwrites: &[Overwrite]) -> Ruling {
        let record = Record {
            stays: stays.to_vec(),
            overwrites: overwrites.to_vec(),
        };
        record.judge()
    }

    #[test]
    fn stays_one_after_the_other_are_no_overlap() {
        let ruling = of(&[stay(true, 100, 200, 300), stay(false, 200, 250, 400)], &[]);
        assert_eq!(ruling, Ruling::default());
    }

    #[test]
    fn an_old_client_may_be_overlapped_once_its_time_is_over() {
        let one = stay(false, 100, 300, 199);
        assert_eq!(of(&[one.clone(), stay(true, 200, 400, 500)], &[]).ended, 1);
        assert_eq!(of(&[one, stay(true, 199, 400, 500)], &[]).violations.len(), 1);
        // Also one that comes in when its time is over.
        assert_eq!(
            of(&[stay(true, 200, 300, 400), stay(false, 250, 260, 249)], &[]).ended,
            1
        );
    }

    #[test]
    fn ours_may_not_be_inside_when_its_time_is_over() {
        let ruling = of(&[stay(true, 100, 300, 199), stay(false, 200, 400, 500)], &[]);
        assert_eq!(ruling.violations.len(), 1);
    }

    #[test]
    fn whoever_was_overwritten_may_be_overlapped_once_that_time_is_over() {
        for ours in [true, false] {
            let another = stay(false, 10, 20, 3000);
            let stays = [another, stay(ours, 100, 300, 1000), stay(false, 200, 400, 2000)];
            assert_eq!(of(&stays, &[overwrite(110, 1000, 199)]).overwritten, 1);
            assert_eq!(
                of(&stays, &[overwrite(110, 1000, 150), overwrite(120, 150, 199)]).overwritten,
                1
            );
            // It was another's, or is not over yet, or came too late.
            assert_eq!(of(&stays, &[overwrite(110, 3000, 199)]).violations.len(), 1);
            assert_eq!(of(&stays, &[overwrite(110, 1000, 200)]).violations.len(), 1);
            assert_eq!(of(&stays, &[overwrite(201, 1000, 199)]).violations.len(), 1);
        }
    }

    #[test]
    fn what_ours_wrote_when_it_was_renewed_counts_as_its_own() {
        let stays = [stay(true, 100, 300, 1000), stay(false, 200, 400, 2000)];
        assert_eq!(of(&stays, &[overwrite(150, 1234, 199)]).overwritten, 1);
        assert_eq!(of(&stays, &[overwrite(50, 1234, 199)]).violations.len(), 1);
        // It was given the lock before that, and was not inside yet.
        let [one, another] = stays;
        let given = 40_000;
        assert_eq!(
            of(&[Stay { given, ..one }, another], &[overwrite(50, 1234, 199)]).overwritten,
            1
        );
    }
}
