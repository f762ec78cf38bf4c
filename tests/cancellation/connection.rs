//! The connection on which a release is sent if the one that took the lock has fallen silent or is
//! gone.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager, LockManagerBuilder};
use lock_tests::proxy::Close;
use lock_tests::{Action, Command, Flow, PATIENCE, Proxy, Server, eventually};

const LEASE: Duration = Duration::from_secs(60);

fn builder(proxy: &Proxy) -> LockManagerBuilder {
    LockManager::builder(&proxy.url())
        .prefix("")
        .default_lease(LEASE)
        // Long enough for a request to be sent.
        .response_timeout(Duration::from_secs(5))
}

/// Connected, and with every script known to the server, so that the first command for a key is the one that counts.
async fn warm(builder: LockManagerBuilder) -> LockManager {
    let manager = builder.build().unwrap();
    eventually("the first lock", || async {
        manager.lock("warm").run(async {}).await.is_ok()
    })
    .await;
    manager
}

fn takes(command: &Command) -> bool {
    command.mentions("the-key") && command.arguments.iter().any(|argument| argument == b"60000")
}

fn gives_back(command: &Command) -> bool {
    command.is_script()
        && command.argument(3) == Some("the-key")
        && command.argument(5).is_some_and(|channels| channels.ends_with("wake:"))
        // With nothing but the value behind them, or with the time to keep the key.
        && [None, Some("0")].contains(&command.argument(7))
}

#[tokio::test]
async fn a_release_follows_its_acquire_on_the_same_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // No time-out of the release's own: one that was not even written by then would go elsewhere.
    let manager = warm(builder(&proxy).response_timeout(PATIENCE)).await;
    let reply = proxy.on_next(takes, Action::HoldReply);
    // The wait ends before the answer comes.
    let error = manager
        .lock("the-key")
        .wait(Duration::from_secs(3))
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, LockError::Store { .. }), "{error}");
    reply.done().await;
    let release = proxy.wait_for("the release", gives_back).await;
    let acquire = proxy.wait_for("the acquire", takes).await;
    assert_eq!(release.connection, acquire.connection);
    eventually("the key to be gone", || async { !server.exists("the-key") }).await;
}

#[tokio::test]
async fn a_release_is_repeated_on_a_new_connection_once_the_first_is_silent() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let manager = warm(builder(&proxy)).await;
    // The acquire is applied, and from then on nothing passes on its connection in either direction. No reset, no end: the peer's
    // kernel goes on acknowledging, as a proxy's does.
    let reply = proxy.on_next(takes, Action::LoseReply);
    let lost = proxy.on_next(gives_back, Action::LoseRequest);
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("the-key").wait(PATIENCE).acquire().await }
    });
    reply.done().await;
    let acquire = proxy.wait_for("the acquire", takes).await;
    lost.done().await;
    let release = proxy.wait_for("the release", gives_back).await;
    assert_eq!(release.connection, acquire.connection);
    let again = |command: &Command| gives_back(command) && command.connection != acquire.connection;
    proxy.wait_for("the release on another connection", again).await;
    // The same call gets the lock in the end: the connection was replaced, and its own first attempt taken back.
    let guard = waiting.await.unwrap().unwrap();
    guard.release().await.unwrap();
    eventually("the key to be gone", || async { !server.exists("the-key") }).await;
}

#[tokio::test]
async fn a_held_lock_is_released_though_the_connection_it_was_taken_on_is_silent() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let manager = warm(builder(&proxy)).await;
    for by_drop in [false, true] {
        let guard = manager.lock("the-key").wait(PATIENCE).acquire().await.unwrap();
        // Not the release of an attempt before, which was answered too late.
        let value = server.value("the-key").unwrap();
        let (releases, value) = (gives_back_on_commands(&proxy), value.into_bytes());
        let lost = proxy.on_next(
            move |command| releases(command) && command.arguments.contains(&value),
            Action::LoseRequest,
        );
        if by_drop {
            drop(guard);
        } else {
            let error = guard.release().await.unwrap_err();
            assert!(matches!(error, LockError::Store { .. }), "{error}");
        }
        lost.done().await;
        eventually("the key to be gone", || async { !server.exists("the-key") }).await;
    }
}

/// Releases and not checks: the latter come on the connection that asked for reports.
fn gives_back_on_commands(proxy: &Proxy) -> impl Fn(&Command) -> bool + Send + use<> {
    let renewals: Vec<_> = proxy
        .commands()
        .iter()
        .filter(|command| command.is("CLIENT TRACKING"))
        .map(|command| command.connection)
        .collect();
    move |command| gives_back(command) && !renewals.contains(&command.connection)
}

#[tokio::test]
async fn a_lock_whose_reply_was_lost_is_not_orphaned_while_the_network_is_down() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let manager = warm(builder(&proxy)).await;
    let cut = proxy.on_each(takes, Action::CloseAfter(Close::Reset));
    proxy.on_each(gives_back, Action::CloseBefore(Close::Reset));
    let error = manager
        .lock("the-key")
        .wait(Duration::from_secs(6))
        .acquire()
        .await
        .unwrap_err();
    assert!(!error.is_lost(), "{error}");
    cut.done().await;
    // For a while nobody is there, and then nothing passes.
    proxy.refuse(true);
    assert!(server.exists("the-key"));
    proxy.refuse(false);
    proxy.both(Flow::Lose);
    let before = proxy.accepted();
    eventually("an attempt to connect", || async { proxy.accepted() > before }).await;
    assert!(server.exists("the-key"));
    proxy.heal();
    eventually("the key to be gone", || async { !server.exists("the-key") }).await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_lease_that_was_taken_back() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let manager = warm(builder(&proxy).shutdown_grace(LEASE)).await;
    let cut = proxy.on_next(takes, Action::CloseAfter(Close::Reset));
    // Dropped while nobody knows whether it was granted.
    let acquire = manager.lock("the-key").acquire();
    tokio::select! {
        _ = acquire => {}
        () = cut.done() => {}
    }
    let began = Instant::now();
    tokio::time::timeout(PATIENCE, manager.shutdown())
        .await
        .expect("the lease is twice as long");
    // It waits for less than a second for what was not answered.
    if began.elapsed() < Duration::from_millis(800) {
        assert!(!server.exists("the-key"));
    }
    eventually("the key to be gone", || async { !server.exists("the-key") }).await;
}

#[tokio::test]
async fn a_waiting_call_that_is_dropped_asks_no_more() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let manager = warm(builder(&proxy).response_timeout(PATIENCE)).await;
    server.cmd(&["SET", "the-key", "another holder"]);
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("the-key").wait(Duration::from_secs(60)).acquire().await }
    });
    let attempts = || proxy.count(takes);
    eventually("a few attempts", || async { attempts() >= 3 }).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let mark = attempts();
    // Another waiter of the same manager makes several attempts meanwhile.
    let other = manager.lock("other").acquire().await.unwrap();
    let error = manager
        .lock("other")
        .wait(Duration::from_secs(4))
        .acquire()
        .await
        .unwrap_err();
    assert!(error.is_busy(), "{error}");
    drop(other);
    // One may have been on its way.
    assert!(attempts() <= mark + 1);
    assert_eq!(server.value("the-key").as_deref(), Some("another holder"));
}

#[tokio::test]
async fn a_dropped_lock_is_renewed_no_more() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let manager = warm(builder(&proxy).response_timeout(PATIENCE)).await;
    // Five seconds of it to spare at each renewal.
    let lock = |key: &str| manager.lock(key).lease(Duration::from_secs(15)).acquire();
    let dropped = lock("dropped").await.unwrap();
    let kept = lock("kept").await.unwrap();
    eventually("both to be renewed", || async {
        let handles = [dropped.handle(), kept.handle()];
        for handle in &handles {
            assert!(handle.is_held(), "{handle:?} {:#?}", proxy.commands());
        }
        handles.iter().all(|handle| handle.renewals() >= 1)
    })
    .await;
    let renewals = kept.handle().renewals();
    // The next renewals are ten seconds away, so none is on its way now. And no push tells the watchdog that the key is gone.
    proxy.pushes(false);
    let mark = proxy.mark();
    drop(dropped);
    eventually("the key to be gone", || async { !server.exists("dropped") }).await;
    // Both would be due together.
    eventually("another renewal of the other lock", || async {
        kept.handle().renewals() > renewals
    })
    .await;
    let renews = |command: &Command, key: &str| {
        let extends = command.arguments.iter().any(|argument| argument == b"15000");
        command.is_script() && command.mentions(key) && extends
    };
    let commands = &proxy.commands()[mark..];
    assert!(commands.iter().any(|command| renews(command, "kept")));
    for command in commands {
        assert!(!renews(command, "dropped"), "{command}");
    }
    kept.release().await.unwrap();
}
