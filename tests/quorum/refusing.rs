//! What a manager on a quorum says that cannot work, or that works without some of its masters.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, Once};
use std::time::Duration;

use lock_runtime::{ConfigError, LockError, LockManager, LockRequest, distributed_lock};
use lock_tests::{PATIENCE, Server, chain, eventually};
use tracing::Level;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::stage::{Five, LEASE, LONG, queue_of, stored, url_of};

async fn check(builder: lock_runtime::LockManagerBuilder) -> Result<LockManager, ConfigError> {
    let locks = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE).build()?;
    locks.check_connection().await?;
    Ok(locks)
}

/// What is said of masters of which one cannot be one.
async fn refused<'a>(urls: impl IntoIterator<Item = &'a str>) -> String {
    match check(LockManager::builder_quorum(urls)).await {
        Ok(_) => panic!("a manager instead of an error"),
        Err(error) => chain(&error),
    }
}

/// The events of this process at INFO and above.
static LOG: Mutex<Vec<(Level, BTreeMap<&'static str, String>)>> = Mutex::new(Vec::new());

struct Log;

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        LOG.lock().unwrap().push((*event.metadata().level(), fields));
    }
}

/// Collects what is logged from now on.
///
/// For the whole process: another thread may meet the same event at that moment, and find no interest in it.
fn collect() {
    static COLLECTS: Once = Once::new();
    COLLECTS.call_once(|| {
        let log = tracing_subscriber::registry().with(Log.with_filter(LevelFilter::INFO));
        tracing::subscriber::set_global_default(log).unwrap();
    });
}

#[tokio::test]
async fn a_minority_out_of_reach_at_the_start_is_logged_and_the_others_do() {
    let five = Five::start();
    five[0].kill();
    five[2].kill();
    collect();
    let locks = check(LockManager::builder(&five.url())).await.unwrap();
    let addresses = five.each_ref().map(|master| master.addr().to_string());
    let is_about = |fields: &BTreeMap<_, _>| fields.get("master").is_some_and(|master| addresses.contains(master));
    let mut missing = LOG.lock().unwrap().clone();
    missing.retain(|(_, fields)| is_about(fields) && fields["message"] == "a master of the quorum is not reached");
    let killed = [0, 2].map(|nth: usize| addresses[nth].clone());
    let names: Vec<_> = missing.iter().map(|(_, fields)| fields["master"].clone()).collect();
    assert_eq!(names, killed, "{missing:?}");
    for (level, fields) in &missing {
        assert_eq!(*level, Level::WARN);
        assert!(fields["error"].contains("refused"), "{fields:?}");
    }
    locks.open_quorum().await.unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(five.votes("k"), 3);
    guard.release().await.unwrap();
    eventually("a manager with the usual time-outs", || async {
        LockManager::connect(&five.url()).await.is_ok()
    })
    .await;

    // It votes as soon as it is there.
    five[0].start_again();
    eventually("a vote of the master that has come", || async {
        let _ = locks.open_quorum().await;
        let guard = locks.lock("k").acquire().await.unwrap();
        let votes = five[0].exists(&stored("k"));
        guard.release().await.unwrap();
        votes
    })
    .await;
}

#[tokio::test]
async fn a_majority_out_of_reach_at_the_start_is_named() {
    let five = Five::start();
    let killed = [1, 2, 4];
    for nth in killed {
        five[nth].kill();
    }
    let said = chain(&check(LockManager::builder(&five.url())).await.map(drop).unwrap_err());
    assert!(said.contains("2 of 5 masters can vote, and 3 are needed"), "{said}");
    for nth in killed {
        assert!(said.contains(&format!("{}: ", five[nth].addr())), "{said}");
    }
    assert!(said.contains("refused"), "{said}");
    assert!(said.contains("check that the masters are up and reachable"), "{said}");
}

#[tokio::test]
async fn masters_that_take_no_writes_for_the_moment_are_told() {
    collect();
    let five = Five::start();
    if !five[0].version().is_7() {
        return; // 6.2 carries scripts out all the same.
    }
    let locks = five.connected().await;
    let _held = locks.lock("k").lease(LEASE).acquire().await.unwrap();
    for master in five.iter() {
        master.cmd(&["CONFIG", "SET", "min-replicas-to-write", "5"]);
    }
    let url = five.url();
    let is_told = |(level, fields): &(Level, BTreeMap<_, String>)| {
        let is_ours = fields.get("store") == Some(&url) && *level == Level::WARN;
        let error = fields.get("error");
        is_ours && error.is_some_and(|error| error.contains("NOREPLICAS"))
    };
    eventually("the refusal to be told", || async {
        LOG.lock().unwrap().iter().any(is_told)
    })
    .await;
}

/// Each of them still answers reads, and the last one gives locks that are free.
#[tokio::test]
async fn calls_that_wait_at_a_master_that_begins_to_refuse_go_on_at_the_next() {
    let refusals: [&[&str]; 3] = [
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        &["REPLICAOF", "127.0.0.1", "1"],
        &["ACL", "SETUSER", "default", "-eval", "-evalsha"],
    ];
    for refuses in refusals {
        let five = Five::start();
        let (holder, waiter) = (five.connected().await, five.connected().await);
        let guard = holder.lock("k").lease(LONG).acquire().await.unwrap();
        five.has_votes("k", 5).await;
        let waiting = tokio::spawn(waiter.lock("k").lease(LONG).acquire());
        eventually("the call to stand in the queue", || async {
            five[0].exists(&queue_of("k"))
        })
        .await;
        five[0].cmd(refuses);
        guard.release().await.unwrap();
        let next = waiting.await.unwrap();
        let next = next.unwrap_or_else(|error| panic!("{refuses:?}: {error}"));
        next.handle().verify().await.unwrap();
        // Neither does a new call wait there.
        drop(holder.lock("another").acquire().await.unwrap());
    }
}

/// A server that cannot be a master is named, with the reason and what to do.
#[tokio::test]
async fn a_server_that_cannot_be_a_master_is_named() {
    let masters: [Server; 4] = std::array::from_fn(|_| Server::start());
    let closed = Server::builder().password("s3cret").start();
    let following = format!("127.0.0.1 {}", masters[0].port());
    let replica = Server::builder().arg("replicaof", &following).start();
    let sentinel = Server::builder().sentinel().start();
    let node = Server::builder().arg("cluster-enabled", "yes").start();
    let own = "give servers of their own as the masters, which are no replicas, sentinels or nodes of a cluster";
    let [address, with_wrong] = ["", ":wr0ng@"].map(|user| format!("redis://{user}{}", closed.addr()));
    for (other, url, reason, advice) in [
        (&closed, address, "NOAUTH", "give a valid user and password"),
        (&closed, with_wrong, "WRONGPASS", "give a valid user and password"),
        (&replica, replica.url(), "READONLY", own),
        (&sentinel, sentinel.url(), "is a sentinel, which keeps no locks", own),
        (&node, node.url(), "is a node of a cluster", own),
    ] {
        // Wherever it stands.
        for at in [0, 4] {
            let mut urls: Vec<_> = masters.iter().map(Server::url).collect();
            urls.insert(at, url.clone());
            let said = refused(urls.iter().map(String::as_str)).await;
            let address = other.addr().to_string();
            assert!(said.contains(&address), "{address}: {said}");
            assert!(said.contains(reason), "{reason}: {said}");
            assert!(said.contains(advice), "{advice}: {said}");
            assert!(!said.contains("wr0ng") && !said.contains("s3cret"), "{said}");
        }
    }
}

/// It would vote twice.
#[tokio::test]
async fn a_server_with_two_names_is_named_by_both() {
    let masters: [Server; 2] = std::array::from_fn(|_| Server::start());
    let port = masters[0].port();
    let [one, other] = ["127.0.0.1", "localhost"].map(|host| format!("{host}:{port}"));
    let urls = [format!("redis://{one}"), masters[1].url(), format!("redis://{other}")];
    let said = refused(urls.iter().map(String::as_str)).await;
    let wanted = format!("`{one}` and `{other}` are the same server, which would vote twice");
    assert!(
        said.contains(&wanted) && said.contains("give each master once"),
        "{said}"
    );
}

#[tokio::test]
async fn a_server_that_may_drop_locks_is_named() {
    let masters: [Server; 2] = std::array::from_fn(|_| Server::start());
    let dropping = Server::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "volatile-lru");
    let dropping = dropping.start();
    let urls = [masters[0].url(), dropping.url(), masters[1].url()];
    let said = refused(urls.iter().map(String::as_str)).await;
    for says in [
        &*dropping.addr().to_string(),
        "volatile-lru",
        "set `maxmemory-policy noeviction` at each master",
    ] {
        assert!(said.contains(says), "{says}: {said}");
    }
    dropping.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    check(LockManager::builder_quorum(urls)).await.unwrap();
}

#[tokio::test]
async fn numbers_of_masters_that_make_no_quorum_are_refused() {
    let servers: [Server; 4] = std::array::from_fn(|_| Server::start());
    for (number, reason) in [
        (1, "a quorum of one master is no safer than that server alone"),
        (2, "a quorum of two masters stops when either of them does"),
        (4, "a quorum of an even number of masters"),
    ] {
        let some = &servers[..number];
        let urls: Vec<_> = some.iter().map(Server::url).collect();
        for said in [
            chain(&LockManager::builder(&url_of(some)).build().unwrap_err()),
            chain(&LockManager::builder_quorum(urls).build().unwrap_err()),
        ] {
            assert!(said.contains(reason), "{said}");
            assert!(said.contains("give 3 or 5 masters"), "{said}");
        }
    }
    let none: [&str; 0] = [];
    let said = chain(&LockManager::builder_quorum(none).build().unwrap_err());
    assert!(said.contains("it does not have the address of a master"), "{said}");
}

/// Two names of one server are told by what it says of itself: no test here.
#[tokio::test]
async fn urls_that_name_no_masters_are_refused() {
    for (masters, reason) in [
        (
            ["redis://one", "redis://two", "redis://one:6379"],
            "it names `one:6379` twice",
        ),
        (["redis://one", "redis://two", "redis+cluster://three"], "`three`"),
        (
            ["redis://one", "redis://two", "redis+cluster://three"],
            "a cluster cannot be a master of a quorum",
        ),
        (
            ["redis://one", "redis://two", "redis+sentinel://three/m"],
            "a master behind sentinels cannot be one of a quorum",
        ),
        (
            ["redis://one", "redis://two", "redlock://a,b,c"],
            "a quorum cannot be a master of another one",
        ),
        (["redis://one", "redis://two", "memory://x"], "memory://"),
        (["redis://one", "redis://two", "http://three"], "`three`"),
        (["redis://one", "redis://two", "three:6379"], "three:6379"),
    ] {
        let said = LockManager::builder_quorum(masters).build();
        let said = said.map_or_else(|error| chain(&error), |_| panic!("{masters:?} were not refused"));
        assert!(said.contains(reason), "{masters:?}: {said}");
    }
    let said = chain(&LockManager::builder("redlock://one,two,one").build().unwrap_err());
    assert!(said.contains("it names `one:6379` twice"), "{said}");
}

#[distributed_lock(key = "k", fair, manager = locks)]
async fn fair(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", mode = read, manager = locks)]
async fn read(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", mode = write, manager = locks)]
async fn write(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", mode = semaphore(3), manager = locks)]
async fn semaphore(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", owner = "me", manager = locks)]
async fn owner(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn modes_that_need_the_order_of_one_server_are_refused_at_the_request() {
    let five = Five::start();
    let locks = five.connected().await;
    let asked = |mode: fn(LockRequest) -> LockRequest| mode(locks.lock("k").wait(Duration::ZERO)).acquire();
    let ended = [
        ("fair", asked(|request| request.fair(true)).await.map(|_| ())),
        ("read", asked(LockRequest::read).await.map(|_| ())),
        ("write", asked(LockRequest::write).await.map(|_| ())),
        ("semaphore", asked(|request| request.semaphore(3)).await.map(|_| ())),
        ("owner", asked(|request| request.owner("me")).await.map(|_| ())),
        ("#[fair]", fair(&locks).await),
        ("#[read]", read(&locks).await),
        ("#[write]", write(&locks).await),
        ("#[semaphore]", semaphore(&locks).await),
        ("#[owner]", owner(&locks).await),
    ];
    for (what, ended) in ended {
        let Err(error @ LockError::InvalidRequest { .. }) = ended else {
            panic!("{what}: {ended:?}");
        };
        let said = error.to_string();
        assert!(
            said.contains("need one server that keeps the order, and a quorum has several"),
            "{said}"
        );
        assert!(
            said.contains("leave it out, or keep these locks on one server"),
            "{said}"
        );
    }
    assert_eq!(five.votes("k"), 0);
}
