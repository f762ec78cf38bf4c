//! Crowds that ask for free locks.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::{Command, Flow, Lag, PATIENCE, Proxy, Server, eventually, patient};

use crate::ALONE;

/// Thousands ask at once. They wait before they are sent: what is sent is answered in time, and a release does not wait for all of them.
#[tokio::test]
async fn a_crowd_waits_before_it_is_sent_and_holds_up_no_release() {
    const CALLS: usize = 4_000;
    let _alone = ALONE.lock().await;
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = patient(LockManager::builder(&proxy.url())).await;
    let holder = locks.lock("held").acquire().await.unwrap();
    // Not the watchdog's checks.
    let asks = |command: &Command| {
        command.mentions("dist_lock:call:") && (command.is("SET") || command.mentions("%lock-queue"))
    };
    let lag = Lag::watch();
    proxy.replies(Flow::Hold);
    let mark = proxy.mark();
    let calls: Vec<_> = (0..CALLS)
        .map(|number| tokio::spawn(locks.lock(format!("call:{number}")).wait(PATIENCE).acquire()))
        .collect();
    eventually("the crowd", || async { proxy.count(asks) > 100 }).await;
    let release = tokio::spawn(holder.release());
    tokio::task::yield_now().await;
    proxy.heal();
    release.await.unwrap().unwrap();
    let sent = proxy.commands();
    let released = |command: &&Command| command.mentions("dist_lock:held") && command.mentions("%lock-queue");
    let before = sent[mark..].iter().take_while(|command| !released(command));
    let before = before.filter(|command| asks(command)).count();
    assert!(before < CALLS / 2, "{before} were sent before the release");
    for call in calls {
        std::mem::forget(call.await.unwrap().unwrap());
    }
    // A call that its runtime does not poll for 800 ms after a sign of life was asked for loses its grant, and asks again.
    let (asked, lag) = (proxy.count(asks), lag.longest());
    assert!(
        asked == CALLS || lag > Duration::from_millis(400),
        "{asked} requests of {CALLS} calls, as if some had not been answered, though the runtime polled each task within {lag:?}"
    );
}
