//! A server or a group of them, the way there, and processes.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockManagerBuilder};
use lock_simulation::cluster::{Cluster, NODES};
use lock_simulation::group::{Group, SENTINELS, SERVERS};
use lock_simulation::network::Network;
use lock_simulation::process::Process;
use lock_simulation::server::Server;
use lock_simulation::server::version::Version;
use lock_simulation::servers::Servers;
use lock_simulation::trace::Trace;
use tokio::runtime::{Builder, RngSeed};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::log::Log;

#[path = "../../src/chance.rs"]
mod chance;

/// The time that each packet takes.
pub const TRIP: Duration = Duration::from_millis(1);

pub const fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub struct World {
    pub server: Server,
    pub network: Network,
    pub trace: Trace,
    servers: Servers,
    began: Instant,
}

/// A process with a manager, and one runtime. Dropping it does not end the process.
pub struct Caller {
    pub process: Process,
    pub locks: LockManager,
}

/// Plays a scenario on a thread of its own, in virtual time, from the same random numbers each time.
pub fn play<F>(scenario: impl FnOnce(World) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    play_with(|trace| Servers::One(Server::new(Version::Redis8, trace)), scenario);
}

/// The same with three servers, the first of which is the master, and three sentinels.
pub fn play_behind_sentinels<F>(scenario: impl FnOnce(World, Group) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    let group = |trace: &Trace| Servers::Group(Group::new(Version::Redis8, trace, &[Duration::ZERO; SERVERS]));
    play_with(group, |world| {
        let Servers::Group(group) = world.servers.clone() else {
            unreachable!("the world has a group")
        };
        scenario(world, group)
    });
}

/// The same with a cluster of three masters, each with a replica.
pub fn play_in_a_cluster<F>(scenario: impl FnOnce(World, Cluster) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    let cluster = |trace: &Trace| Servers::Cluster(Cluster::new(Version::Redis8, trace, &[Duration::ZERO; NODES], &[]));
    play_with(cluster, |world| {
        let Servers::Cluster(cluster) = world.servers.clone() else {
            unreachable!("the world has a cluster")
        };
        scenario(world, cluster)
    });
}

fn play_with<F>(
    servers: impl FnOnce(&Trace) -> Servers + Send + 'static,
    scenario: impl FnOnce(World) -> F + Send + 'static,
) where
    F: Future<Output = ()>,
{
    let played = std::thread::spawn(|| {
        let _logging = Log::discard();
        chance::seed(1);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .rng_seed(RngSeed::from_bytes(&[1]))
            .build()
            .unwrap();
        let play = async {
            let trace = Trace::new(true);
            let servers = servers(&trace);
            let server = servers.server_of(b"");
            let network = Network::new(servers.places(), 1);
            let began = Instant::now();
            let world = World {
                server,
                network,
                trace,
                servers,
                began,
            };
            scenario(world).await;
        };
        let played = catch_unwind(AssertUnwindSafe(|| runtime.block_on(play)));
        if let Err(panic) = played {
            // Dropping it ends tasks in the middle, and some of those begin anew.
            std::mem::forget(runtime);
            resume_unwind(panic);
        }
    });
    if let Err(panic) = played.join() {
        resume_unwind(panic);
    }
}

impl World {
    /// Starts a process, whose connections take [`TRIP`] in each direction.
    pub fn process(&self, number: u32) -> Caller {
        self.process_with(number, |builder| builder)
    }

    pub fn process_with(&self, number: u32, build: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder) -> Caller {
        let process = Process::new(number, 0, 0.0, fastrand::Rng::with_seed(u64::from(number)));
        self.network.change(number, |way| way.latency = (TRIP, TRIP));
        let (network, home) = (self.network.clone(), process.clone());
        // All sentinels, if there are some.
        let builder = LockManager::builder(&self.servers.url(number.try_into().unwrap(), SENTINELS))
            .world(process.world())
            .dial(move |info, config| network.clone().dial(home.clone(), info, config));
        let locks = build(builder).build().unwrap();
        Caller { process, locks }
    }

    /// Returns the time since the beginning.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until this time after the beginning.
    pub async fn at(&self, time: Duration) {
        assert!(self.now() <= time, "{time:?} is over, it is {:?}", self.now());
        sleep_until(self.began + time).await;
    }
}

impl Caller {
    /// Runs a task in the runtime of the process.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.process.spawn(0, task)
    }
}

/// Begins so many calls in the store's queue for one lock, of the processes in turn, with bodies that take so long. Returns them, and the
/// numbers of those that have got in, in order.
pub async fn queue_up(
    callers: &[Caller],
    count: usize,
    body: Duration,
) -> (Vec<JoinHandle<Result<(), LockError>>>, Arc<Mutex<Vec<usize>>>) {
    let order = Arc::<Mutex<Vec<usize>>>::default();
    let mut calls = Vec::new();
    for (nth, caller) in (0..count).zip(callers.iter().cycle()) {
        let entered = Arc::clone(&order);
        let request = caller.locks.lock("stock").fair(true).wait(Duration::from_secs(60));
        calls.push(caller.spawn(request.run(async move {
            entered.lock().unwrap().push(nth);
            sleep(body).await;
        })));
        // Each process connects first.
        sleep(ms(100)).await;
    }
    (calls, order)
}
