//! One key, and processes of both builds that want it one after the other.

use std::time::Duration;

use lock_tests::judge::Hold;
use lock_tests::{Judge, PATIENCE, Server, Stamp, StoreJudge, cases, eventually};

use crate::Build;
use crate::queue::{CLAIM, DELAY, LONG, Other, nothing_is_left, queue, stand, stored};

/// A process that never gets a lock by trying again.
fn other(build: Build, server: &Server) -> Other {
    Other(build.child().arg("contend").arg(server.url()).arg("patiently").spawn())
}

/// A lease that is renewed several times within a test.
const SHORT: Duration = Duration::from_millis(900);

/// Processes of both builds in turn stand in the queue, and enter in its order: each hand-over goes from one build to the other. Nobody
/// waits for longer than a lost message may cost.
async fn the_lock_goes_round(flags: &str) {
    let server = Server::start();
    let judge = Judge::new();
    // Names beside the processes, in the order of arrival, each in a process of its own.
    let mut calls = Vec::new();
    let mut holder = other(Build::Present, &server);
    let asked = Stamp::now();
    holder.ask_with("holder", "round", LONG, flags);
    holder.got("holder").await;
    for number in 0..8 {
        let build = Build::BOTH[number % 2];
        let mut process = other(build, &server);
        let name = format!("{build:?}-{number}");
        let asked = Stamp::now();
        process.ask_with(&name, "round", LONG, flags);
        stand(&server, "round", number + 1).await;
        calls.push((name, process, asked));
    }
    calls.insert(0, ("holder".to_owned(), holder, asked));
    let mut freed = None;
    let mut last = None;
    for (name, mut process, asked) in calls {
        let entry = process.got(&name).await;
        if let Some(freed) = freed {
            let delay = entry.at.calm_since(freed);
            eprintln!("{name} came {delay:?} after the release");
            assert!(delay < DELAY, "{name} came only {delay:?} after the release");
        }
        assert!(entry.token > last, "{name} has token {:?} after {last:?}", entry.token);
        last = entry.token;
        freed = Some(Stamp::now());
        process.free(&name);
        let (outcome, left) = process.ended(&name).await;
        assert_eq!(outcome, "ok", "{name}");
        judge.hold(Hold {
            holder: name,
            asked,
            entered: entry.at,
            left,
            token: entry.token,
        });
    }
    judge.assert_clean(9);
    nothing_is_left(&server).await;
}

cases! {
    an_exclusive_lock_goes_from_build_to_build_in_the_order_of_the_queue: the_lock_goes_round("t");
    a_fair_lock_goes_from_build_to_build_in_the_order_of_the_queue: the_lock_goes_round("tf");
}

/// Each build keeps its lock against a waiter of the other one by renewals, and gives it up when it is over.
#[tokio::test]
async fn a_build_renews_its_lock_while_the_other_waits() {
    for build in Build::BOTH {
        let server = Server::start();
        let (mut holder, mut waiter) = (other(build, &server), other(build.other(), &server));
        holder.ask_with("holder", "renewed", SHORT, "t");
        let first = holder.got("holder").await;
        waiter.ask_with("waiter", "renewed", SHORT, "t");
        stand(&server, "renewed", 1).await;
        tokio::time::sleep(SHORT * 2).await;
        assert!(!waiter.has("waiter"), "it got in beside a lock of the {build:?} build");
        holder.free("holder");
        let (outcome, left) = holder.ended("holder").await;
        assert_eq!(outcome, "ok", "the {build:?} build");
        let second = waiter.got("waiter").await;
        assert!(
            second.at > left && second.token > first.token,
            "after the {build:?} build"
        );
        assert!(second.at.calm_since(left) < DELAY, "after the {build:?} build");
        // What was handed over is kept as well.
        tokio::time::sleep(CLAIM + SHORT).await;
        waiter.free("waiter");
        assert_eq!(waiter.ended("waiter").await.0, "ok", "after the {build:?} build");
        nothing_is_left(&server).await;
    }
}

/// A killed holder of one build blocks the other for its lease.
#[tokio::test]
async fn a_killed_holder_of_one_build_blocks_the_other_for_its_lease() {
    for build in Build::BOTH {
        let server = Server::start();
        let (mut holder, mut waiter) = (other(build, &server), other(build.other(), &server));
        holder.ask_with("holder", "dead", SHORT, "t");
        let first = holder.got("holder").await;
        waiter.ask_with("waiter", "dead", LONG, "t");
        stand(&server, "dead", 1).await;
        holder.0.kill();
        let left = Duration::from_millis(server.ask::<i64>(&["PTTL", &stored("dead")]).try_into().unwrap_or(0));
        let killed = Stamp::now();
        let second = waiter.got("waiter").await;
        assert!(second.token > first.token, "after the {build:?} build");
        let delay = second.at.calm_since(killed);
        assert!(delay < left + DELAY, "{delay:?} after the {build:?} build");
        waiter.free("waiter");
        assert_eq!(waiter.ended("waiter").await.0, "ok");
        nothing_is_left(&server).await;
    }
}

/// A process of one build that was killed while it waits is passed over at once by a release of the other, and one that stands still
/// after its claim.
#[tokio::test]
async fn dead_and_stopped_waiters_of_one_build_are_passed_over_by_the_other() {
    for build in Build::BOTH {
        for killed in [true, false] {
            let server = Server::start();
            let (mut holder, mut gone) = (other(build.other(), &server), other(build, &server));
            let mut waiter = other(build.other(), &server);
            holder.hold("holder", "gone").await;
            gone.ask_with("gone", "gone", LONG, "tf");
            stand(&server, "gone", 1).await;
            waiter.ask_with("waiter", "gone", LONG, "tf");
            stand(&server, "gone", 2).await;
            if killed {
                gone.0.kill();
            } else {
                gone.0.stop();
            }
            holder.free("holder");
            let freed = Stamp::now();
            let entry = waiter.got("waiter").await;
            let delay = entry.at.calm_since(freed);
            assert!(
                delay < DELAY,
                "{delay:?} behind a waiter of the {build:?} build, killed: {killed}"
            );
            if !killed {
                // It comes anew, and gets its turn.
                gone.0.cont();
                stand(&server, "gone", 1).await;
                assert!(!gone.has("gone"), "beside the waiter, of the {build:?} build");
            }
            waiter.free("waiter");
            assert_eq!(waiter.ended("waiter").await.0, "ok");
            if !killed {
                assert!(gone.got("gone").await.token > entry.token);
                gone.free("gone");
                assert_eq!(gone.ended("gone").await.0, "ok");
            }
            nothing_is_left(&server).await;
        }
    }
}

/// Whoever leaves the queue of the other build leaves no place in it.
#[tokio::test]
async fn a_waiter_that_gives_up_leaves_nothing_to_the_other_build() {
    for build in Build::BOTH {
        let server = Server::start();
        let (mut holder, mut leaver) = (other(build.other(), &server), other(build, &server));
        let mut waiter = other(build.other(), &server);
        holder.hold("holder", "left").await;
        leaver.ask_with("leaver", "left", LONG, "tf");
        stand(&server, "left", 1).await;
        waiter.ask_with("waiter", "left", LONG, "tf");
        stand(&server, "left", 2).await;
        leaver.cancel("leaver").await;
        stand(&server, "left", 1).await;
        holder.free("holder");
        let freed = Stamp::now();
        let delay = waiter.got("waiter").await.at.calm_since(freed);
        assert!(delay < DELAY, "{delay:?} after one of the {build:?} build had left");
        waiter.free("waiter");
        assert_eq!(waiter.ended("waiter").await.0, "ok");
        eventually("no queue", || async { !server.exists(&queue("left")) }).await;
        nothing_is_left(&server).await;
    }
}

/// Many calls of both builds that never stop, plain and fair ones, past a judge that sees each entry.
#[tokio::test]
async fn calls_of_both_builds_that_never_stop_meet_nobody_and_get_their_turns() {
    const TASKS: usize = 3;
    let (server, bench) = (Server::start(), Server::start());
    let judge = StoreJudge::on(&bench);
    let mut others = Vec::new();
    for (number, build) in Build::BOTH.into_iter().cycle().take(4).enumerate() {
        let mut process = other(build, &server);
        let lease = LONG.as_millis();
        process.0.say(&format!(
            "storm {build:?}{number} {TASKS} stormy {lease} {}",
            bench.url()
        ));
        process.0.line("raging").await;
        others.push((build, process));
    }
    eventually("entries", || async { judge.entries() >= 100 }).await;
    for (_, process) in &mut others {
        process.0.say("calm");
    }
    let mut longest = Duration::ZERO;
    let mut bodies = [0; 2];
    let records = Judge::new();
    for (build, process) in &mut others {
        let calm = process.0.line("calm").await;
        bodies[*build as usize] += calm.words()[0].parse::<usize>().unwrap();
        for hold in process
            .0
            .lines()
            .iter()
            .filter_map(|line| line.text.parse::<Hold>().ok())
        {
            longest = longest.max(hold.entered.calm_since(hold.asked));
            records.hold(hold);
        }
    }
    let [previous, present] = bodies;
    eprintln!("previous build: {previous} bodies, present: {present}; longest wait {longest:?}");
    judge.assert_clean(100);
    records.assert_clean(100);
    assert!(
        previous.min(present) >= 5,
        "previous build: {previous} bodies, present: {present}"
    );
    assert!(longest < PATIENCE / 3, "one waited for {longest:?}");
    nothing_is_left(&server).await;
}
