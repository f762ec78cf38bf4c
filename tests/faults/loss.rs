//! Lost locks: the holder notices the loss early if the server reports it, at the local deadline at
//! the latest, with the right reason, and always before another holder is granted the lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LostReason, OnLost, current};
use lock_tests::clock::ticking;
use lock_tests::proxy::Close;
use lock_tests::{Action, Child, Command, Flow, PATIENCE, Proxy, Server, Stamp, eventually, lock_child};

use crate::stage::{JumpingClock, LONG, cancelled, connected, connected_by, gone, lost, renews, share, stored};

/// Holds a lock, lets `cause` happen, and returns the reason that the body was cancelled for, and how it went.
/// A given `clock` jumps after the cause: to the renewal, which fails, and then to a moment before the deadline.
async fn lose(locks: &LockManager, key: &str, clock: Option<&JumpingClock>, cause: impl AsyncFnOnce()) -> Lost {
    let (last_poll, deadline) = (AtomicU64::new(0), AtomicU64::new(0));
    let caused = AtomicU64::new(0);
    let call = locks.lock(key).lease(LONG).run(async {
        caused.store(Stamp::now().as_nanos(), Ordering::SeqCst);
        cause().await;
        // No renewal comes after the cause, so that this is the last deadline.
        let mut ends = current().unwrap().deadline().as_nanos();
        if let Some(clock) = clock {
            clock.past_a_failed_renewal().await;
            ends -= u64::try_from(clock.jumped().as_nanos()).unwrap();
        }
        deadline.store(ends, Ordering::SeqCst);
        ticking(&last_poll).await;
    });
    let ended = tokio::time::timeout(PATIENCE, call)
        .await
        .expect("long before the end of a long lease");
    let known = Stamp::now();
    let (reason, completed) = lost(ended);
    assert!(!completed);
    let stamp = |nanos: &AtomicU64| Stamp::from_nanos(nanos.load(Ordering::SeqCst));
    Lost {
        reason,
        known,
        caused: stamp(&caused),
        last_poll: stamp(&last_poll),
        deadline: stamp(&deadline),
    }
}

struct Lost {
    reason: LostReason,
    known: Stamp,
    caused: Stamp,
    last_poll: Stamp,
    deadline: Stamp,
}

impl Lost {
    /// The body was not polled after its deadline, nor cancelled long after.
    #[track_caller]
    fn assert_at_deadline(&self, locks: &LockManager) {
        let late = self.last_poll.since(self.deadline);
        assert!(
            late.is_zero() || locks.stats().overruns > 0,
            "polled {late:?} after the deadline"
        );
        let late = self.known.calm_since(self.deadline);
        // Nothing else would end it before the answers come back.
        assert!(late < Duration::from_secs(10), "known only {late:?} after the deadline");
        assert!(
            self.known >= self.deadline,
            "lost {:?} too soon",
            self.deadline.since(self.known)
        );
    }
}

#[tokio::test]
async fn a_deleted_key_cancels_the_body_long_before_its_renewal() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let deleted = lose(&locks, "deleted", None, async || {
        drop(server.cmd(&["DEL", &stored("deleted")]));
    })
    .await;
    assert_eq!(deleted.reason, LostReason::Deleted);
    assert!(deleted.known.since(deleted.caused) < LONG / 6);
    assert_eq!(locks.stats().lost_deleted, 1);
}

#[tokio::test]
async fn a_flushed_server_cancels_every_body_long_before_its_renewal() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let mut calls = tokio::task::JoinSet::new();
    let begun = std::sync::Arc::new(tokio::sync::Barrier::new(21));
    for number in 0..20 {
        let begun = std::sync::Arc::clone(&begun);
        calls.spawn(locks.lock(format!("flushed:{number}")).lease(LONG).run(async move {
            begun.wait().await;
            std::future::pending::<()>().await;
        }));
    }
    begun.wait().await;
    server.cmd(&["FLUSHALL"]);
    let all = async {
        while let Some(ended) = calls.join_next().await {
            assert_eq!(lost(ended.unwrap()), cancelled(LostReason::Deleted));
        }
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("noticed within seconds");
}

#[tokio::test]
async fn an_overwritten_key_cancels_the_body_long_before_its_renewal() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let taken = lose(&locks, "taken", None, async || {
        drop(server.cmd(&["SET", &stored("taken"), "another", "PX", "60000"]));
    })
    .await;
    assert_eq!(taken.reason, LostReason::Taken);
    assert!(taken.known.since(taken.caused) < LONG / 6);
    assert_eq!(
        server.value(&stored("taken")).as_deref(),
        Some("another"),
        "the new holder's key was touched"
    );
}

#[tokio::test]
async fn a_loss_after_many_quiet_renewals_is_noticed_early_too() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = connected_by(&server.url(), &clock).await;
    let deleted = lose(&locks, "renewed", None, async || {
        let lock = current().unwrap();
        for renewals in 1..=2 {
            clock.until_renewal();
            eventually("a renewal", || async { lock.renewals() >= renewals }).await;
        }
        // Right after a renewal, so that the next one is far away.
        server.cmd(&["DEL", &stored("renewed")]);
    })
    .await;
    assert_eq!(deleted.reason, LostReason::Deleted);
    assert_eq!(locks.stats().renewals, 2, "noticed by the next renewal only");
}

#[tokio::test]
async fn without_reports_the_next_renewal_notices_a_deleted_and_an_overwritten_key() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    proxy.pushes(false);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    for (command, reason) in [
        (vec!["DEL"], LostReason::Deleted),
        (vec!["SET", "another"], LostReason::Taken),
    ] {
        let key = stored("unreported");
        let mut words = command.clone();
        words.insert(1, &key);
        let checks = |command: &Command| command.is_script() && command.mentions(&key) && command.reply.is_some();
        let mark = proxy.mark();
        let ended = lose(&locks, "unreported", None, async || {
            // After the first check, which would notice it as well.
            proxy.wait_after(mark, "the first check", checks).await;
            server.cmd(&words);
            clock.until_renewal();
        })
        .await;
        assert_eq!(ended.reason, reason);
        server.cmd(&["DEL", &key]);
    }
}

#[tokio::test]
async fn a_killed_server_cancels_the_body_at_its_deadline() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = connected_by(&server.url(), &clock).await;
    let killed = lose(&locks, "killed", Some(&clock), async || server.kill()).await;
    assert_eq!(killed.reason, LostReason::Unreachable);
    killed.assert_at_deadline(&locks);
    assert_eq!(locks.stats().lost_unreachable, 1);
}

#[tokio::test]
async fn a_stopped_server_cancels_the_body_at_its_deadline() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = connected_by(&server.url(), &clock).await;
    let stopped = lose(&locks, "stopped", Some(&clock), async || server.pause()).await;
    assert_eq!(stopped.reason, LostReason::Unreachable);
    stopped.assert_at_deadline(&locks);
    server.resume();
}

// docs/faults.md, rows 33 and 34: nothing arrives, and no connection is closed.
#[tokio::test]
async fn a_partition_in_either_direction_cancels_the_body_at_its_deadline() {
    let server = Server::start();
    for direction in [Proxy::requests, Proxy::replies, Proxy::both] {
        let proxy = Proxy::to(&server);
        let clock = JumpingClock::default();
        let locks = connected_by(&proxy.url(), &clock).await;
        // A renewal whose reply is lost lengthens the key in the store, not the deadline.
        let cut = lose(&locks, "partition", Some(&clock), async || {
            direction(&proxy, Flow::Lose);
        })
        .await;
        assert_eq!(cut.reason, LostReason::Unreachable);
        cut.assert_at_deadline(&locks);
        proxy.cut(Close::Reset);
        server.cmd(&["DEL", &stored("partition")]);
    }
}

// docs/faults.md, row 36.
#[tokio::test]
async fn a_flapping_network_costs_no_lock() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let call = locks.lock("flapping").lease(LONG).run(async {
        let lock = current().unwrap();
        let (mut renewals, mut up) = (u32::MAX, Duration::from_millis(120));
        while lock.renewals() < 2 {
            if renewals != lock.renewals() {
                renewals = lock.renewals();
                clock.until_renewal();
            }
            proxy.refuse(true);
            proxy.cut(Close::Reset);
            tokio::time::sleep(Duration::from_millis(60)).await;
            proxy.refuse(false);
            tokio::time::sleep(up).await;
            // A busy machine needs longer to connect.
            up = up * 11 / 10;
        }
    });
    call.await.expect("the lock was held throughout");
}

#[tokio::test]
async fn a_body_that_wants_to_be_told_goes_on_and_is_told() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let call = locks.lock("signal").lease(LONG).on_lost(OnLost::Signal).run(async {
        server.cmd(&["DEL", &stored("signal")]);
        let why = current().unwrap().lost().await;
        tokio::task::yield_now().await;
        why
    });
    let why = tokio::time::timeout(PATIENCE, call)
        .await
        .unwrap()
        .expect("such a body returns what it likes");
    assert!(
        matches!(
            why,
            LockError::Lost {
                reason: LostReason::Deleted,
                ..
            }
        ),
        "{why:?}"
    );
}

#[tokio::test]
async fn a_shielded_step_is_not_cut_in_half() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let (committed, went_on) = (AtomicU64::new(0), AtomicU64::new(0));
    let call = locks.lock("shielded").lease(LONG).run(async {
        let lock = current().unwrap();
        let step = async {
            server.cmd(&["DEL", &stored("shielded")]);
            let _ = lock.lost().await;
            tokio::task::yield_now().await;
            committed.store(1, Ordering::SeqCst);
        };
        lock.shielded(step).await.unwrap();
        tokio::task::yield_now().await;
        went_on.store(1, Ordering::SeqCst);
    });
    assert_eq!(
        lost(tokio::time::timeout(PATIENCE, call).await.unwrap()),
        cancelled(LostReason::Deleted)
    );
    assert_eq!((committed.into_inner(), went_on.into_inner()), (1, 0));
}

// --- Exclusion ---------------------------------------------------------------------------------------------------------

/// What takes the locks away from the first holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// They are not to be renewed.
    NoRenewal,
    /// As before, and each grant was a fifth of a lease on its way.
    SlowGrant,
    /// Every renewal's reply is an eighth of a lease on its way, until no request arrives any more.
    SlowRenewals,
    /// No request arrives any more.
    LostRequests,
    /// Renewals arrive, but their replies do not.
    LostReplies,
    /// Renewals arrive when the next holders have the locks.
    HeldRequests,
    /// Connections break, and no new one is made.
    Refused,
    /// The first holders' process stands still.
    StoppedProcess,
    /// The server stands still.
    StoppedServer,
}

const CAUSES: [Cause; 9] = [
    Cause::NoRenewal,
    Cause::SlowGrant,
    Cause::SlowRenewals,
    Cause::LostRequests,
    Cause::LostReplies,
    Cause::HeldRequests,
    Cause::Refused,
    Cause::StoppedProcess,
    Cause::StoppedServer,
];
/// Locks per round.
const CROWD: usize = 20;
const ROUNDS: usize = 2 * CAUSES.len();
const LEASE: Duration = Duration::from_secs(1);

/// Two processes, hundreds of locks: the last poll of each first body is before the grant of the second. The grant's
/// time is the server's own, taken in the script that granted it; both processes and the server share the host's clock.
#[tokio::test]
async fn the_first_body_has_stopped_before_the_second_is_let_in() {
    let _share = share().await;
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut first = lock_child!("crowd", proxy.url(), LEASE.as_millis().to_string()).spawn();
    let mut second = lock_child!("queue", server.url()).spawn();
    let (mut runs, mut overruns) = (0, 0);
    for round in 0..ROUNDS {
        let cause = CAUSES[round % CAUSES.len()];
        let (polls, excused) = crowd_and_queue(&server, &proxy, &mut first, &mut second, round, cause).await;
        let late = polls.iter().filter(|(last_poll, grant)| last_poll >= grant);
        let late: Vec<_> = late
            .map(|(last_poll, grant)| format!("{} µs after the grant", last_poll - grant))
            .collect();
        // A poll that the system stopped half-way is one that nobody can stop in time: the holder counts these itself.
        assert!(
            late.len() <= excused,
            "round {round}, {cause:?}: bodies were polled {late:#?}"
        );
        runs += polls.len();
        overruns += excused;
    }
    assert!(runs >= 300);
    assert!(
        overruns * 20 <= runs,
        "{overruns} of {runs} bodies were polled over their deadline"
    );
}

/// One round: for each lock the end of the first body's last poll, and the grant of the second, in microseconds; and
/// the number of polls that lasted over a deadline.
async fn crowd_and_queue(
    server: &Server,
    proxy: &Proxy,
    first: &mut Child,
    second: &mut Child,
    round: usize,
    cause: Cause,
) -> (Vec<(u64, u64)>, usize) {
    let renew = !matches!(cause, Cause::NoRenewal | Cause::SlowGrant);
    if cause == Cause::SlowGrant {
        proxy.replies(Flow::Delay(LEASE / 5));
    }
    first.say(&format!("round r{round} {CROWD} {renew}"));
    first.line("holding").await;
    second.say(&format!("round r{round} {CROWD}"));
    second.line("waiting").await;
    match cause {
        Cause::NoRenewal | Cause::SlowGrant => {}
        Cause::SlowRenewals => {
            proxy.replies(Flow::Delay(LEASE / 8));
            // Long enough for a renewal, and no time for the next one.
            tokio::time::sleep(LEASE).await;
            proxy.requests(Flow::Lose);
        }
        Cause::LostRequests => proxy.requests(Flow::Lose),
        Cause::LostReplies => proxy.replies(Flow::Lose),
        Cause::HeldRequests => proxy.requests(Flow::Hold),
        Cause::Refused => {
            proxy.refuse(true);
            proxy.cut(Close::Reset);
        }
        Cause::StoppedProcess => first.stop(),
        Cause::StoppedServer => {
            server.pause();
            tokio::time::sleep(LEASE * 3 / 2).await;
            server.resume();
        }
    }
    let mut grants = HashMap::new();
    for _ in 0..CROWD {
        let got = second.line("got").await;
        let [number, fence] = got.words()[..] else {
            panic!("{got:?}")
        };
        grants.insert(number.parse::<usize>().unwrap(), fence.parse::<u64>().unwrap());
    }
    if cause == Cause::StoppedProcess {
        first.cont();
    }
    proxy.heal();
    if matches!(cause, Cause::SlowRenewals | Cause::LostRequests | Cause::LostReplies) {
        // These connections stay silent for good.
        proxy.cut(Close::Reset);
    }
    let mut polls = Vec::new();
    for _ in 0..CROWD {
        let run = first.line("run").await;
        let [number, last_poll, outcome] = run.words()[..] else {
            panic!("{run:?}")
        };
        assert!(outcome.starts_with("lost:"), "{cause:?}: {outcome}");
        let number: usize = number.parse().unwrap();
        polls.push((last_poll.parse().unwrap(), grants[&number]));
    }
    let over = first.line("over").await;
    second.line("over").await;
    (polls, over.words()[0].parse().unwrap())
}

// --- What ended, and for whom ----------------------------------------------------------------------------------------

#[tokio::test]
async fn a_loss_is_noticed_early_after_the_renewals_got_another_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let long = locks.lock("long").lease(LONG).acquire().await.unwrap();
    let checked = proxy
        .wait_for("the check that has the server watch the key", |command| {
            command.is_script() && command.mentions(&stored("long")) && command.reply.is_some()
        })
        .await;
    // By the clock it is due for its renewal long before the other one.
    let lease = LONG / 4;
    let short = locks.lock("short").lease(lease).acquire().await.unwrap();
    // The client itself gives the connection up.
    let demoted = proxy.on_next(
        renews("short", lease),
        Action::error("READONLY You can't write against a read only replica."),
    );
    clock.jump(lease * 7 / 10);
    demoted.done().await;
    let renewed = |command: &Command| {
        renews("short", lease)(command) && command.connection > checked.connection && command.reply.is_some()
    };
    proxy.wait_for("the renewal on another connection", renewed).await;
    assert!(short.handle().is_held() && long.handle().is_held());
    server.cmd(&["DEL", &stored("long")]);
    let lost = tokio::time::timeout(PATIENCE, long.handle().lost()).await;
    let lost = lost.expect("long before its next renewal");
    assert!(
        matches!(
            lost,
            LockError::Lost {
                reason: LostReason::Deleted,
                ..
            }
        ),
        "{lost:?}"
    );
}

#[tokio::test]
async fn a_shielded_step_of_a_nested_lock_is_not_cut_by_the_loss_of_the_outer_lock() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let (committed, went_on) = (AtomicU64::new(0), AtomicU64::new(0));
    let call = locks.lock("outer").lease(LONG).run(async {
        let outer = current().unwrap();
        let nested = locks.lock("inner").lease(LONG).run(async {
            let step = async {
                server.cmd(&["DEL", &stored("outer")]);
                let _ = outer.lost().await;
                tokio::task::yield_now().await;
                committed.store(1, Ordering::SeqCst);
            };
            current().unwrap().shielded(step).await.unwrap();
            tokio::task::yield_now().await;
            went_on.store(1, Ordering::SeqCst);
        });
        nested.await.unwrap();
    });
    assert_eq!(
        lost(tokio::time::timeout(PATIENCE, call).await.unwrap()),
        cancelled(LostReason::Deleted)
    );
    assert_eq!((committed.into_inner(), went_on.into_inner()), (1, 0));
    gone(&server, "inner").await;
}

#[tokio::test]
async fn a_fixed_lease_that_ends_is_expired_whatever_its_server_does() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = connected_by(&server.url(), &clock).await;
    let request = locks.lock("fixed").lease(LONG).renew(false);
    let guard = request.acquire().await.unwrap();
    server.pause();
    clock.jump(LONG);
    let lost = tokio::time::timeout(PATIENCE, guard.handle().lost()).await.unwrap();
    server.resume();
    assert!(
        matches!(
            lost,
            LockError::Lost {
                reason: LostReason::Expired,
                ..
            }
        ),
        "{lost:?}"
    );
    assert_eq!(locks.stats().lost_unreachable, 0);
}
