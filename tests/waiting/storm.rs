//! All faults at once, and no two holders are inside together.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use lock_tests::judge::Violation;
use lock_tests::proxy::Close;
use lock_tests::{Flow, Judge, PATIENCE, Proxy, Server, Stamp, StoreJudge, eventually};

use crate::queue::{Other, nothing_is_left, subscribers};

const PROCESSES: usize = 4;
const TASKS: usize = 4;
const STORM: Duration = Duration::from_secs(6);

/// Lost connections, killed connections, killed processes, and processes that stand still for less than a claim.
#[tokio::test]
async fn nobody_meets_anybody_inside_whatever_breaks() {
    let (server, bench) = (Server::start(), Server::start());
    let judge = StoreJudge::on(&bench);
    let proxy = Proxy::to(&server);
    let lease = Duration::from_secs(3);
    let start = |name: &str| {
        // Half of them by a network that breaks.
        let url = if fastrand::bool() { proxy.url() } else { server.url() };
        let mut other = Other::on(&url);
        let lease = lease.as_millis();
        other
            .0
            .say(&format!("storm {name} {TASKS} stormy {lease} {}", bench.url()));
        other
    };
    let mut others: Vec<(String, Other)> = (0..PROCESSES)
        .map(|number| {
            let name = format!("p{number}");
            let other = start(&name);
            (name, other)
        })
        .collect();
    for (_, other) in &mut others {
        other.0.line("raging").await;
    }
    let began = Instant::now();
    let mut round = 0;
    // For longer on a busy machine, where less happens in the same time.
    while began.elapsed() < STORM || judge.entries() < 100 && began.elapsed() < PATIENCE {
        round += 1;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..200))).await;
        let index = fastrand::usize(..PROCESSES);
        match fastrand::u8(..12) {
            0 => {
                let (name, other) = &mut others[index];
                let clients = || bench.ask::<String>(&["CLIENT", "LIST"]).lines().count();
                let before = clients();
                other.0.kill();
                // What it said last has been heard when its connection is gone. Nobody else gets in before its lease or claim is over.
                eventually("the judge to notice", || async { clients() < before }).await;
                for task in 0..TASKS {
                    judge.abandon(&format!("{name}-{task}"));
                }
                let name = format!("p{index}r{round}");
                let mut other = start(&name);
                // By then it is at the judge as well.
                other.0.line("raging").await;
                others[index] = (name, other);
            }
            1..=3 => {
                others[index].1.0.stop();
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..400))).await;
                others[index].1.0.cont();
            }
            4..=6 => proxy.cut(if fastrand::bool() { Close::Reset } else { Close::Fin }),
            7 => {
                proxy.pushes(false);
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..300))).await;
                proxy.pushes(true);
                // A subscription that was never confirmed is for the client to give up.
                proxy.cut(Close::Reset);
            }
            8 | 9 => {
                proxy.both(Flow::Hold);
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..300))).await;
                proxy.release();
            }
            _ => {
                if let Some(id) = subscribers(&server).first() {
                    let _ = server.try_cmd(&["CLIENT", "KILL", "ID", id]);
                }
            }
        }
    }
    proxy.heal();
    let before = judge.entries();
    eventually("the last processes to get in", || async {
        judge.entries() > before + 4 * PROCESSES
    })
    .await;
    for (_, other) in &mut others {
        other.0.say("calm");
    }
    let mut last = 0;
    for (_, other) in &mut others {
        let calm = other.0.line("calm").await;
        last += calm.words()[0].parse::<usize>().unwrap();
    }
    assert!(last > PROCESSES, "the last processes got in {last} times only");
    judge.assert_clean(50);
    nothing_is_left(&server).await;
}

/// Standing still for longer than claims and leases last. What is compared is when bodies were polled: one that was stopped inside
/// is not polled again.
#[tokio::test]
async fn nobody_is_polled_beside_anybody_whoever_stands_still() {
    let server = Server::start();
    let mut others: Vec<_> = (0..PROCESSES).map(|_| Other::on(&server.url())).collect();
    let lease = Duration::from_millis(600).as_millis();
    for (number, other) in others.iter_mut().enumerate() {
        other.0.say(&format!("storm p{number} {TASKS} still {lease} -"));
        other.0.line("raging").await;
    }
    let began = Instant::now();
    let holds = |others: &[Other]| {
        let lines = others.iter().flat_map(|other| other.0.lines());
        lines.filter(|line| line.text.starts_with("hold ")).count()
    };
    // For longer on a busy machine, where less happens in the same time.
    while began.elapsed() < STORM || holds(&others) <= 30 && began.elapsed() < PATIENCE {
        let (first, second) = (fastrand::usize(..PROCESSES), fastrand::usize(..PROCESSES));
        others[first].0.stop();
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..1000))).await;
        others[second].0.stop();
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..1000))).await;
        others[first].0.cont();
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..300))).await;
        others[second].0.cont();
    }
    let judge = Judge::new();
    let mut overruns = 0;
    for other in &mut others {
        other.0.say("calm");
        overruns += other.0.line("calm").await.words()[1].parse::<usize>().unwrap();
    }
    for line in others.iter().flat_map(|other| other.0.lines()) {
        if line.text.starts_with("hold ") {
            judge.hold(line.text.parse().unwrap());
        }
    }
    // A poll that the system stopped half-way is one that nobody can end in time: its process counts these itself. While it stands
    // still, any number of others may come and go, and the judge reports each of them together with it.
    match judge.check() {
        Ok(summary) => assert!(summary.holds > 30, "{summary:?}"),
        Err(violations) => {
            let overrun: HashSet<_> = violations.iter().map(overstayed).collect();
            assert!(
                !overrun.contains(&None) && overrun.len() <= overruns,
                "{overruns} overruns, {violations:#?}"
            );
        }
    }
    nothing_is_left(&server).await;
}

/// The hold that went on for too long, by its holder and the moment when it began; `None` for violations of another kind.
fn overstayed(violation: &Violation) -> Option<(String, Stamp)> {
    match violation {
        Violation::Overlap(first, _) => Some((first.holder.clone(), first.entered)),
        _ => None,
    }
}
