//! Slots that move while their locks are taken, held and waited for.

use std::time::{Duration, Instant};

use lock_runtime::{LockManager, LockManagerBuilder};
use lock_tests::{Child, ClusterGroup, Door, PATIENCE, Server, eventually, lock_child};

/// The keys of the locks that a storm of `each` mode takes.
const KEYS: [&str; 6] = ["exclusive", "fair", "read-write", "semaphore", "owner", "several"];
const PROCESSES: usize = 3;
/// A storm lasts for as many bodies at least.
pub(crate) const BODIES: usize = 150;

/// For clusters of which a node may fall silent.
pub(crate) async fn connected(cluster: &ClusterGroup) -> LockManager {
    connect(builder(cluster)).await
}

/// For clusters of which none does: a busy machine answers in time.
pub(crate) async fn patient(cluster: &ClusterGroup) -> LockManager {
    connect(builder(cluster).connect_timeout(PATIENCE).response_timeout(PATIENCE)).await
}

fn builder(cluster: &ClusterGroup) -> LockManagerBuilder {
    LockManager::builder(&cluster.url())
        .default_wait(PATIENCE)
        .default_lease(Duration::from_secs(60))
}

async fn connect(builder: LockManagerBuilder) -> LockManager {
    let locks = builder.build().unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    locks
}

/// The slot of a lock.
pub(crate) fn slot_of(cluster: &ClusterGroup, key: &str) -> u16 {
    cluster.slot_of(&format!("dist_lock:{key}"))
}

/// Processes that take locks of each mode all the time, past a judge.
pub(crate) struct Storm {
    children: Vec<Child>,
    judge: Door,
    _bench: Server,
}

impl Storm {
    pub(crate) async fn begin(cluster: &ClusterGroup, lease: Duration) -> Self {
        let bench = Server::start();
        let mut children = Vec::new();
        for nth in 0..PROCESSES {
            let mut child = lock_child!("modes", cluster.url()).spawn();
            let lease = lease.as_millis();
            child.say(&format!("storm p{nth} 4 each {lease} {}", bench.url()));
            child.line("raging").await;
            children.push(child);
        }
        Self {
            judge: Door::on(&bench),
            children,
            _bench: bench,
        }
    }

    /// Returns how many bodies have run so far.
    pub(crate) fn entries(&self) -> usize {
        self.judge.entries()
    }

    /// Returns `true` until this moment, and for some time more until enough bodies have run.
    pub(crate) fn goes_on(&self, until: Instant) -> bool {
        let now = Instant::now();
        now < until || self.entries() < BODIES && now < until + PATIENCE
    }

    /// Ends the storm. Returns the number of bodies, of calls that found a lock busy, and of those that failed.
    pub(crate) async fn end(mut self) -> [usize; 3] {
        for child in &mut self.children {
            child.say("calm");
        }
        let mut sums = [0; 3];
        for child in &mut self.children {
            let calm = child.line("calm").await;
            for (sum, word) in sums.iter_mut().zip(calm.words()) {
                *sum += word.parse::<usize>().unwrap();
            }
            if sums[1] + sums[2] > 0 {
                eprintln!("{}", child.errors());
            }
        }
        self.judge.assert_clean(50);
        sums
    }
}

#[tokio::test]
async fn nobody_meets_anybody_and_nothing_is_lost_while_slots_move() {
    let cluster = ClusterGroup::start_steady().await;
    // Short enough for renewals of those who stay long, and long enough for a process that gets no core for seconds.
    let storm = Storm::begin(&cluster, Duration::from_secs(8)).await;
    let masters: Vec<u16> = cluster.masters().iter().map(Server::port).collect();
    let until = Instant::now() + Duration::from_secs(8);
    let mut moves = 0;
    while storm.goes_on(until) || moves <= 10 && Instant::now() < until + PATIENCE {
        let slot = slot_of(&cluster, fastrand::choice(KEYS).unwrap());
        cluster.move_slot(slot, *fastrand::choice(&masters).unwrap()).await;
        moves += 1;
    }
    let entries = storm.entries();
    let [bodies, busy, errors] = storm.end().await;
    eprintln!("{moves} moves, {entries} entries, {bodies} bodies, {busy} busy, {errors} errors");
    assert_eq!((busy, errors), (0, 0));
    assert!(moves > 10 && bodies >= BODIES);
}
