//! Requests of many calls, which are sent together.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::{Action, Command, PATIENCE, Proxy, Server, eventually, patient};
use tokio::task::{JoinSet, unconstrained};

/// More than a runtime sends by themselves.
const MANY: usize = 40;

fn is_taken(command: &Command) -> bool {
    command.is("SET") && command.mentions("of-many:")
}

fn builder(url: &str) -> lock_runtime::LockManagerBuilder {
    LockManager::builder(url)
        .default_lease(PATIENCE * 4)
        .default_wait(PATIENCE)
}

fn keys(server: &Server) -> usize {
    let keys = server.keys().into_iter();
    keys.filter(|key| key.contains("of-many:")).count()
}

/// Takes many locks at once.
fn take_many(locks: &LockManager, fencing: bool) -> JoinSet<Result<lock_runtime::LockGuard, lock_runtime::LockError>> {
    let requests = (0..MANY).map(|number| locks.lock(format!("of-many:{number}")).fencing(fencing));
    requests.map(lock_runtime::LockRequest::acquire).collect()
}

async fn all<T: 'static>(tasks: JoinSet<Result<T, lock_runtime::LockError>>) -> Vec<T> {
    tasks.join_all().await.into_iter().collect::<Result<_, _>>().unwrap()
}

/// Returns the number of runs of a script for several locks, each with its queue.
fn runs_of_many(proxy: &Proxy) -> usize {
    let keys = |command: &Command| command.argument(2).and_then(|keys| keys.parse::<usize>().ok());
    proxy.count(|command| command.is_script() && keys(command) > Some(2))
}

#[tokio::test]
async fn calls_that_are_dropped_with_their_manager_leave_no_lock_and_no_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = builder(&proxy.url())
        .response_timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    eventually("the first lock", || async {
        locks.lock("first").run(async {}).await.is_ok()
    })
    .await;
    // On the connection of the calls, nothing is answered from here on.
    let unanswered = proxy.on_next(is_taken, Action::LoseReply);
    let mut taking = take_many(&locks, false);
    unanswered.done().await;
    eventually("all to be asked for", || async { proxy.count(is_taken) >= MANY }).await;
    taking.abort_all();
    while taking.join_next().await.is_some() {}
    drop(locks);
    eventually("the locks to be given back", || async { keys(&server) == 0 }).await;
    eventually("the connections to be closed", || async { proxy.connections() == 0 }).await;
}

#[tokio::test]
async fn scripts_that_the_server_has_forgotten_are_sent_again_for_each_of_many() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = patient(builder(&proxy.url())).await;
    for fencing in [false, true] {
        server.cmd(&["SCRIPT", "FLUSH"]);
        let guards = all(take_many(&locks, fencing)).await;
        assert_eq!((guards.len(), keys(&server)), (MANY, MANY), "fencing: {fencing}");
        server.cmd(&["SCRIPT", "FLUSH"]);
        let releases: JoinSet<_> = guards.into_iter().map(lock_runtime::LockGuard::release).collect();
        all(releases).await;
        assert_eq!(keys(&server), 0, "fencing: {fencing}");
    }
    assert!(runs_of_many(&proxy) > 0, "none of them were sent together");
}

#[tokio::test]
async fn pipelined_releases_whose_script_the_server_has_forgotten_are_sent_again_and_not_reported() {
    let server = Server::start();
    let locks = patient(builder(&server.url())).await;
    let taking = (0..MANY).map(|number| locks.lock(format!("of-many:{number}")).pipelined(true).acquire());
    let guards = all(taking.collect()).await;
    server.cmd(&["SCRIPT", "FLUSH"]);
    all(guards.into_iter().map(lock_runtime::LockGuard::release).collect()).await;
    eventually("the last releases", || async { keys(&server) == 0 }).await;
    locks.shutdown().await;
    assert_eq!(locks.stats().unconfirmed, 0);
}

#[tokio::test]
async fn a_connection_to_a_server_that_became_a_replica_is_given_up_in_a_crowd_as_well() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = patient(builder(&proxy.url())).await;
    let late = |command: &Command| is_taken(command) && command.mentions("of-many:35");
    let demoted = proxy.on_next(
        late,
        Action::error("READONLY You can't write against a read only replica."),
    );
    let guards = all(take_many(&locks, false)).await;
    demoted.done().await;
    let tries: Vec<u64> = proxy
        .commands()
        .iter()
        .filter(|command| late(command))
        .map(|command| command.connection)
        .collect();
    assert!(tries.len() == 2 && tries[0] < tries[1], "by the connections {tries:?}");
    drop(guards);
}

/// One run of a script hands over a limited number of locks.
#[tokio::test]
async fn every_lock_of_a_crowd_of_releases_is_handed_to_the_call_that_waits_for_it() {
    const CROWD: usize = 240;
    let server = Server::start();
    let (locks, others) = (
        patient(builder(&server.url())).await,
        patient(builder(&server.url())).await,
    );
    let key = |number| format!("of-many:{number}");
    let taking = (0..CROWD).map(|number| locks.lock(key(number)).acquire());
    let guards = all(taking.collect()).await;
    let waiting: JoinSet<_> = (0..CROWD).map(|number| others.lock(key(number)).acquire()).collect();
    let queue = |number| format!("dist_lock:%lock-queue:{{dist_lock:{}}}", key(number));
    eventually("all to wait", || async {
        let places = (0..CROWD).map(|number| server.ask::<usize>(&["ZCOUNT", &queue(number), "1", "+inf"]));
        places.sum::<usize>() == CROWD
    })
    .await;
    all(guards.into_iter().map(lock_runtime::LockGuard::release).collect()).await;
    let held = (0..CROWD).filter(|number| server.exists(&format!("dist_lock:{}", key(*number))));
    assert_eq!(held.count(), CROWD, "the others were freed, and nobody was told");
    drop(all(waiting).await);
}

/// Polled once, they are sent with others, and so may be what gives them back.
#[tokio::test]
async fn calls_that_are_dropped_before_their_batch_is_sent_leave_no_lock() {
    let server = Server::start();
    let locks = patient(builder(&server.url())).await;
    for _ in 0..20 {
        let mut context = Context::from_waker(Waker::noop());
        for number in 0..MANY {
            let call = locks.lock(format!("of-many:{number}")).acquire();
            assert!(pin!(unconstrained(call)).poll(&mut context).is_pending());
        }
        eventually("the locks to be given back", || async { keys(&server) == 0 }).await;
    }
}

/// The release and the attempt behind it are in one batch, where releases share a run of the script.
#[tokio::test]
async fn a_call_finds_the_lock_free_that_a_pipelined_release_in_the_same_batch_has_released() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = patient(builder(&proxy.url())).await;
    let again = |number| {
        let locks = locks.clone();
        async move {
            for round in 0..20 {
                let request = locks.lock(format!("of-many:{number}")).pipelined(true);
                // Once in a while it asks for the rest of the lease, too.
                let wait = if round % 5 == 0 { Duration::ZERO } else { PATIENCE };
                request.wait(wait).acquire().await?.release().await?;
            }
            Ok(())
        }
    };
    all((0..MANY).map(again).collect::<JoinSet<_>>()).await;
    eventually("the last releases", || async { keys(&server) == 0 }).await;
    let busy = |command: &Command| is_taken(command) && command.reply_text().is_some_and(|text| text.starts_with('$'));
    assert_eq!(proxy.count(busy), 0, "a lock was asked for before its release");
    assert!(runs_of_many(&proxy) > 0, "none of them were released together");
}

/// A failure in a run may be that of another lock.
#[tokio::test]
async fn a_key_of_another_kind_fails_its_own_call_and_no_other_of_the_batch() {
    let server = Server::start();
    let locks = patient(builder(&server.url())).await;
    for fencing in [false, true] {
        server.cmd(&["RPUSH", "dist_lock:of-many:7", "another program's"]);
        let taken = take_many(&locks, fencing).join_all().await;
        let (guards, errors): (Vec<_>, Vec<_>) = taken.into_iter().partition(Result::is_ok);
        assert_eq!(errors.len(), 1, "{errors:?}");
        let error = errors.into_iter().next().unwrap().unwrap_err().to_string();
        assert!(error.contains("of-many:7") && error.contains("another kind"), "{error}");
        let releases: JoinSet<_> = guards.into_iter().map(|guard| guard.unwrap().release()).collect();
        assert_eq!(all(releases).await.len(), MANY - 1);
        assert_eq!(keys(&server), 1, "the other program's is left alone");
        server.cmd(&["DEL", "dist_lock:of-many:7"]);
    }
}

/// One run of a script removes a limited number of holders whose leases are over.
#[tokio::test]
async fn a_crowd_that_has_died_makes_no_other_lock_of_the_batch_busy() {
    const DEAD: &str = "local time = redis.call('TIME')
        local now = time[1] * 1000 + math.floor(time[2] / 1000)
        for i = 1, 150 do
          redis.call('ZADD', KEYS[1], now - 1, string.format('oa:%032x:host:1:call', i))
        end
        redis.call('ZADD', KEYS[1], now + 60000, 'oa:ffffffffffffffffffffffffffffffff:host:1:call', 151, '#oa')
        redis.call('PEXPIRE', KEYS[1], 60000)";
    let server = Server::start();
    let locks = patient(builder(&server.url())).await;
    let dead = || server.cmd(&["EVAL", DEAD, "1", "dist_lock:of-many:0"]);
    let take = |number| {
        let request = locks.lock(format!("of-many:{number}")).owner("a");
        request.fencing(true).wait(Duration::ZERO).acquire()
    };
    for _ in 0..5 {
        dead();
        let taken: JoinSet<_> = (0..MANY).map(take).collect();
        drop(all(taken).await);
        eventually("the locks to be given back", || async { keys(&server) <= 1 }).await;
        server.cmd(&["DEL", "dist_lock:of-many:0"]);
    }
}
