//! Locks and places that a call has left behind are given back by any connection that works.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use lock_runtime::{LockGuard, LockManager};
use lock_tests::proxy::Close;
use lock_tests::{Action, Command, Proxy, Server, Stamp, eventually, patient};

use crate::outages::JumpingClock;
use crate::waiting::{members, stand};

/// A lease that cannot end during a test.
const LONG: Duration = Duration::from_secs(120);

/// For how long a connection is silent before it is replaced: longer than a busy machine is.
const SILENCE: Duration = Duration::from_secs(3);

fn manager(url: &str) -> LockManager {
    LockManager::builder(url)
        .response_timeout(SILENCE)
        .default_lease(LONG)
        .default_wait(LONG)
        .build()
        .unwrap()
}

async fn held(server: &Server, key: &str) -> LockGuard {
    let builder = LockManager::builder(&server.url()).default_lease(LONG);
    patient(builder).await.lock(key).acquire().await.unwrap()
}

/// Waits until this runtime's connection has answered everything that was sent before.
async fn answered(locks: &LockManager) {
    locks.lock("mine").run(async {}).await.unwrap();
}

/// Returns the number of this runtime's connection.
async fn connection_of_this_runtime(proxy: &Proxy, locks: &LockManager) -> u64 {
    answered(locks).await;
    let commands = proxy.commands();
    let last = commands.iter().rfind(|command| command.mentions("dist_lock:mine"));
    last.unwrap().connection
}

/// Loses what goes out on every connection but that of this runtime.
pub(super) async fn leave_only_this_runtime(proxy: &Proxy, locks: &LockManager) {
    let this = connection_of_this_runtime(proxy, locks).await;
    proxy.on_each(move |command| command.connection != this, Action::LoseRequest);
}

#[tokio::test]
async fn keys_that_a_call_for_several_keeps_are_given_back_though_the_lock_thread_reaches_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (second, _third) = (held(&server, "b").await, held(&server, "c").await);
    let locks = manager(&proxy.url());
    let call = tokio::spawn(locks.lock_all(["a", "b", "c"]).acquire());
    stand(&server, "b", 1).await;
    second.release().await.unwrap();
    stand(&server, "c", 1).await;
    let kept = || ["dist_lock:a", "dist_lock:b"].map(|key| server.exists(key));
    eventually("two kept keys", || async { kept() == [true; 2] }).await;
    leave_only_this_runtime(&proxy, &locks).await;
    call.abort();
    eventually("the kept keys to be free", || async { kept() == [false; 2] }).await;
    eventually("no place for the third one", || async {
        members(&server, "c").is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_dropped_lock_is_released_though_the_server_takes_no_more_connections() {
    let server = Server::start();
    let locks = manager(&server.url());
    let guard = locks.lock("k").acquire().await.unwrap();
    let clients = server.info("connected_clients");
    server.cmd(&["CONFIG", "SET", "maxclients", &clients]);
    drop(guard);
    eventually("the lock to be free", || async { !server.exists("dist_lock:k") }).await;
}

#[tokio::test]
async fn a_lock_whose_grant_was_not_answered_is_released_by_the_next_connection_of_the_runtime() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = manager(&proxy.url());
    answered(&locks).await;
    let ours = Mutex::new(HashSet::new());
    let is_lost = move |command: &Command| {
        let mut ours = ours.lock().unwrap();
        if command.mentions("dist_lock:mine") {
            ours.insert(command.connection);
        }
        command.is_script() && command.mentions("dist_lock:k") && !ours.contains(&command.connection)
    };
    let unanswered = proxy.on_next(
        |command| command.mentions("dist_lock:k"),
        Action::CloseAfter(Close::Reset),
    );
    proxy.on_each(is_lost, Action::LoseRequest);
    let refused = locks.lock("k").wait(Duration::ZERO).acquire().await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(unanswered.times(), 1);
    assert!(server.exists("dist_lock:k"), "the lock was not granted");
    answered(&locks).await;
    eventually("the lock to be free", || async { !server.exists("dist_lock:k") }).await;
}

/// Returns whether a command gives a place back.
fn gives_back(place: &str) -> impl Fn(&Command) -> bool + Send + 'static {
    let token = place.split(':').nth(3).unwrap_or_default().to_owned();
    move |command| command.is_script() && command.mentions(&token) && command.mentions("%lock-wake")
}

/// Another call of the process keeps the place alive.
#[tokio::test]
async fn a_place_is_given_back_soon_after_its_user_is_allowed_it_again() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = held(&server, "k").await;
    let clock = JumpingClock::going();
    let locks = patient(LockManager::builder(&proxy.url()).clock(clock.clone())).await;
    let fair = || locks.lock("k").lease(Duration::from_secs(6)).wait(LONG).fair(true);
    let call = tokio::spawn(fair().run(async {}));
    let left = stand(&server, "k", 1).await;
    let other = tokio::spawn(fair().run(async {}));
    stand(&server, "k", 2).await;
    answered(&locks).await;
    let refusal = Action::error("NOPERM User app has no permissions to run the 'zrem' command");
    let refused = proxy.on_each(gives_back(&left[0]), refusal);
    call.abort();
    refused.done_times(2).await;
    clock.jump(Duration::from_secs(30));
    refused.done_times(4).await;
    proxy.heal();
    eventually("one place", || async { !members(&server, "k").contains(&left[0]) }).await;
    holder.release().await.unwrap();
    other.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_place_is_given_up_after_ten_minutes_however_long_its_lease() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let _holder = held(&server, "k").await;
    let clock = JumpingClock::going();
    let locks = patient(LockManager::builder(&proxy.url()).clock(clock.clone())).await;
    let day = Duration::from_secs(86_400);
    let call = tokio::spawn(locks.lock("k").lease(day).wait(day).run(async {}));
    let left = stand(&server, "k", 1).await;
    answered(&locks).await;
    let busy = Action::error("LOADING Redis is loading the dataset in memory");
    let refused = proxy.on_each(gives_back(&left[0]), busy);
    call.abort();
    drop(locks);
    refused.done_times(2).await;
    clock.jump(Duration::from_secs(601));
    eventually("the connections to be closed", || async { proxy.connections() == 0 }).await;
}

/// Such a server's answers end the connection, as another server may be behind the next one.
#[tokio::test]
async fn a_server_that_takes_no_writes_is_asked_to_take_a_place_back_a_few_times_a_second() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let _holder = held(&server, "k").await;
    let locks = manager(&proxy.url());
    let call = tokio::spawn(locks.lock("k").fair(true).run(async {}));
    let left = stand(&server, "k", 1).await;
    answered(&locks).await;
    let gives_back = gives_back(&left[0]);
    server.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
    call.abort();
    let tries = || proxy.count(&gives_back);
    eventually("a first pause", || async { tries() >= 6 }).await;
    let (began, before) = (Stamp::now(), tries());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (tries, took) = (tries() - before, Stamp::now().since(began));
    assert!(
        tries <= 6 * usize::try_from(took.as_secs() + 1).unwrap(),
        "{tries} tries in {took:?}"
    );
    server.cmd(&["REPLICAOF", "NO", "ONE"]);
    eventually("no place", || async { members(&server, "k").is_empty() }).await;
}
