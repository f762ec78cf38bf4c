//! Processes of both builds that take locks of each mode all the time. A judge knows which holders
//! can share a lock.

use std::time::Duration;

use lock_tests::{Child, Door, Server, cases, eventually};
use redis::AsyncCommands;
use tokio::sync::Mutex;

use crate::Build;

const PROCESSES: usize = 4;
const TASKS: usize = 2;
const LEASE: Duration = Duration::from_millis(600);
/// Between two deaths.
const BETWEEN: Duration = Duration::from_millis(500);

/// One storm at a time is enough for a machine.
static ONE: Mutex<()> = Mutex::const_new(());

async fn storm(build: Build, mode: &str, server: &Server, bench: &Server, number: usize) -> Child {
    let mut child = build.child().arg("family").arg(server.url()).spawn();
    let lease = LEASE.as_millis();
    child.say(&format!(
        "storm {build:?}{number} {TASKS} {mode} {lease} {}",
        bench.url()
    ));
    child.line("raging").await;
    child
}

/// One process of each build is killed meanwhile. `together`: some bodies meet others inside, as they may.
async fn both_builds_keep_to_the_mode(mode: &str, together: bool) {
    let _turn = ONE.lock().await;
    let (server, bench) = (Server::start(), Server::start());
    let judge = Door::on(&bench);
    let mut children = Vec::new();
    for (number, build) in Build::BOTH.into_iter().cycle().take(PROCESSES).enumerate() {
        children.push((build, storm(build, mode, &server, &bench, number).await));
    }
    for (number, (build, child)) in children.iter_mut().enumerate().take(2) {
        tokio::time::sleep(BETWEEN).await;
        child.kill();
        *child = storm(*build, mode, &server, &bench, PROCESSES + number).await;
    }
    // Until all have had the time for some, however busy the machine is.
    let enough = judge.entries() + 40;
    eventually("more entries", || async { judge.entries() >= enough }).await;
    for (_, child) in &mut children {
        child.say("calm");
    }
    let mut bodies = [0; 2];
    for (build, child) in &mut children {
        let calm = child.line("calm").await;
        let numbers: Vec<usize> = calm.words().iter().map(|word| word.parse().unwrap()).collect();
        assert_eq!(numbers[1], 0, "the {build:?} build waited in vain: {}", child.errors());
        bodies[*build as usize] += numbers[0];
    }
    let [previous, present] = bodies;
    eprintln!(
        "{mode}: previous build {previous} bodies, present {present}; {} entries, {} shared, {} late",
        judge.entries(),
        judge.shared(),
        judge.late()
    );
    judge.assert_clean(40);
    assert!(
        previous.min(present) > 0,
        "{mode}: previous build {previous} bodies, present {present}"
    );
    eventually("nothing to be left but the fencing counter", || async {
        server.keys().iter().all(|key| key.ends_with("%lock-fence"))
    })
    .await;
    assert_eq!(judge.shared() > 0, together, "{} met others inside", judge.shared());
}

cases! {
    both_builds_exclude_each_other: both_builds_keep_to_the_mode("exclusive", false);
    readers_and_writers_of_both_builds_keep_to_the_rule: both_builds_keep_to_the_mode("read-write", true);
    permits_of_both_builds_are_counted_together: both_builds_keep_to_the_mode("semaphore", true);
    an_owner_holds_its_lock_in_both_builds: both_builds_keep_to_the_mode("owner", true);
    several_keys_are_taken_by_both_builds_without_an_overlap: both_builds_keep_to_the_mode("several", false);
    different_modes_of_both_builds_exclude_each_other: both_builds_keep_to_the_mode("mixed", true);
}

#[tokio::test]
async fn transfers_of_both_builds_are_exact() {
    const ACCOUNTS: usize = 5;
    const ROUNDS: usize = 60;
    let _turn = ONE.lock().await;
    let (server, bank) = (Server::start(), Server::start());
    let mut accounts = bank.connection().await;
    for account in 0..ACCOUNTS {
        accounts
            .set::<_, _, ()>(format!("account:{account}"), 1_000)
            .await
            .unwrap();
    }
    let mut children = Vec::new();
    for build in Build::BOTH.into_iter().cycle().take(PROCESSES) {
        let mut child = build.child().arg("family").arg(server.url()).spawn();
        child.say(&format!("transfer {TASKS} {ROUNDS} {ACCOUNTS} {}", bank.url()));
        children.push((build, child));
    }
    for (build, child) in &mut children {
        let transferred = child.line("transferred").await.text;
        let all = TASKS * ROUNDS;
        assert_eq!(
            transferred,
            format!("transferred {all} 0"),
            "{build:?}: {}",
            child.errors()
        );
    }
    let mut sum = 0;
    for account in 0..ACCOUNTS {
        sum += accounts.get::<_, i64>(format!("account:{account}")).await.unwrap();
    }
    assert_eq!(sum, 5_000);
    eventually("nothing to be left but the fencing counter", || async {
        server.keys().iter().all(|key| key.ends_with("%lock-fence"))
    })
    .await;
}
