//! Processes that take and release locks of each mode all the time, and are killed. A judge knows
//! which holders can share a lock.

use std::time::{Duration, Instant};

use lock_tests::{Child, Door, PATIENCE, Server, cases, eventually, lock_child};
use tokio::sync::Mutex;

const PROCESSES: usize = 8;
const TASKS: usize = 2;
const LEASE: Duration = Duration::from_millis(600);

/// One storm at a time is enough for a machine.
static ONE: Mutex<()> = Mutex::const_new(());

/// How long each storm lasts: a few seconds, or as many as the environment says.
fn lasts() -> Duration {
    let seconds = std::env::var("LOCK_STORM_SECONDS").ok();
    Duration::from_secs(seconds.map_or(4, |seconds| seconds.parse().expect("a number of seconds")))
}

struct Stage {
    mode: &'static str,
    server: Server,
    bench: Server,
    started: usize,
}

impl Stage {
    async fn start(&mut self) -> Child {
        self.started += 1;
        let mut child = lock_child!("modes", self.server.url()).spawn();
        let (name, mode, lease) = (self.started, self.mode, LEASE.as_millis());
        child.say(&format!("storm p{name} {TASKS} {mode} {lease} {}", self.bench.url()));
        child.line("raging").await;
        child
    }
}

/// Kills processes at random moments. `together`: some bodies meet others inside, as they may.
async fn nobody_meets_whom_it_may_not(mode: &'static str, together: bool) {
    let _turn = ONE.lock().await;
    let mut stage = Stage {
        mode,
        server: Server::start(),
        bench: Server::start(),
        started: 0,
    };
    let judge = Door::on(&stage.bench);
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        children.push(stage.start().await);
    }
    let began = Instant::now();
    let mut killed = 0;
    // For longer on a busy machine, where less happens in the same time.
    let is_enough = |killed| killed > 3 && judge.entries() > 60 && (judge.shared() > 0 || !together);
    while began.elapsed() < lasts() || !is_enough(killed) && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..600))).await;
        let index = fastrand::usize(..PROCESSES);
        children[index].kill();
        killed += 1;
        children[index] = stage.start().await;
    }
    let before = judge.entries();
    eventually("the last processes to get in", || async {
        judge.entries() > before + 3 * PROCESSES
    })
    .await;
    for child in &mut children {
        child.say("calm");
    }
    let (mut bodies, mut lost) = (0, 0);
    for child in &mut children {
        let calm = child.line("calm").await;
        let numbers: Vec<usize> = calm.words().iter().map(|word| word.parse().unwrap()).collect();
        bodies += numbers[0];
        assert_eq!(numbers[1], 0, "somebody waited in vain: {}", child.errors());
        lost += numbers[2];
        if numbers[2] > 0 {
            eprintln!("{}", child.errors());
        }
    }
    eprintln!(
        "{mode}: {} entries, {} shared, {} late, {killed} processes killed, {lost} calls of the last have lost their locks",
        judge.entries(),
        judge.shared(),
        judge.late()
    );
    judge.assert_clean(30);
    assert!(killed > 3, "only {killed} processes were killed");
    assert!(bodies > PROCESSES, "the last processes got in {bodies} times only");
    eventually("nothing to be left but the fencing counter", || async {
        stage.server.keys().iter().all(|key| key.ends_with("%lock-fence"))
    })
    .await;
    assert_eq!(judge.shared() > 0, together, "{} met others inside", judge.shared());
}

cases! {
    one_holder_of_an_exclusive_lock_is_in: nobody_meets_whom_it_may_not("exclusive", false);
    holders_for_one_owner_are_in: nobody_meets_whom_it_may_not("owner", true);
    readers_or_one_writer_are_in: nobody_meets_whom_it_may_not("read-write", true);
    no_more_than_there_are_permits_are_in: nobody_meets_whom_it_may_not("semaphore", true);
    one_holder_of_each_of_several_locks_is_in: nobody_meets_whom_it_may_not("several", false);
    those_of_different_modes_are_not_in_together: nobody_meets_whom_it_may_not("mixed", true);
}
