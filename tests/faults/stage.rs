//! What most of these tests start with, and how they look at what is left.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{BootClock, Clock, LockError, LockManager, LostReason, Moment};
use lock_tests::{Command, Proxy, Server, Stamp, eventually};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A lease that cannot end during a test: a key that is gone was released.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// A lease that is renewed several times during a test, with a third of it to spare on a busy machine.
pub(crate) const SHORT: Duration = Duration::from_millis(1500);
/// What the managers here give a server to answer.
pub(crate) const ANSWER: Duration = Duration::from_millis(400);

/// A manager with a short response time-out.
pub(crate) fn manager(url: &str) -> LockManager {
    LockManager::builder(url).response_timeout(ANSWER).build().unwrap()
}

/// [`manager`], connected: what follows is not the first command.
pub(crate) async fn connected(url: &str) -> LockManager {
    let locks = manager(url);
    locks.check().await.unwrap();
    locks
}

/// A lock's key as the server has it.
pub(crate) fn stored(key: &str) -> String {
    format!("dist_lock:{key}")
}

/// Waits until a lock's key is gone. Only with [`LONG`] leases does that prove a release.
pub(crate) async fn gone(server: &Server, key: &str) {
    eventually(&format!("`{key}` to be released"), || {
        let gone = !server.exists(&stored(key));
        async move { gone }
    })
    .await;
}

/// Whether a command is a renewal of a lock with this lease: a check has no lease, a release of it neither. For rules that are made
/// when the lock is held, since the acquire of an older server looks the same.
pub(crate) fn renews(key: &str, lease: Duration) -> impl Fn(&Command) -> bool + Send + use<> {
    let (key, lease) = (stored(key), lease.as_millis().to_string());
    move |command| {
        let words = &command.arguments;
        command.is_script()
            && words.len() >= 6
            && words.iter().any(|word| word == key.as_bytes())
            && words.last().is_some_and(|last| last == lease.as_bytes())
    }
}

/// The renewals of a lock so far. They never go over the connection that its acquire went over.
pub(crate) fn renewals(proxy: &Proxy, key: &str, lease: Duration) -> Vec<Command> {
    let mut commands = proxy.commands();
    let Some(acquire) = commands.iter().find(|command| command.mentions(&stored(key))) else {
        return Vec::new();
    };
    let acquired_on = acquire.connection;
    let renews = renews(key, lease);
    commands.retain(|command| renews(command) && command.connection != acquired_on);
    commands
}

/// Whether a command takes this lock in one `SET` or by the script of older servers.
pub(crate) fn acquires(key: &str, lease: Duration) -> impl Fn(&Command) -> bool + Send + use<> {
    let (key, lease) = (stored(key), lease.as_millis().to_string());
    move |command| {
        command.argument(if command.is_script() { 3 } else { 1 }) == Some(&key)
            && (command.is("SET") || (command.is_script() && command.arguments.len() == 10))
            && command.arguments.iter().any(|argument| argument == lease.as_bytes())
    }
}

/// Whether a command gives this lock back.
pub(crate) fn releases(key: &str) -> impl Fn(&Command) -> bool + Send + use<> {
    let key = stored(key);
    move |command| {
        command.is_script()
            && command.argument(4) == Some(&key)
            && command.argument(6).is_some_and(|channels| channels.ends_with("wake:"))
            && command.argument(8) == Some("0")
    }
}

/// How a call lost its lock, and whether its body had ended; panics when it did not.
pub(crate) fn lost<T>(ended: Result<T, LockError>) -> (LostReason, bool) {
    match ended {
        Ok(_) => panic!("the call succeeded"),
        Err(LockError::Lost { reason, completed, .. }) => (reason, completed),
        Err(other) => panic!("not lost but: {other}"),
    }
}

/// A lock lost before its body had ended.
pub(crate) const fn cancelled(reason: LostReason) -> (LostReason, bool) {
    (reason, false)
}

/// A body that never ends and yields every millisecond; `last` is the end of its last poll.
pub(crate) async fn ticking(last: &AtomicU64) {
    let mut work = Box::pin(async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    poll_fn(|cx| {
        let polled = work.as_mut().poll(cx);
        last.store(Stamp::now().as_nanos(), Ordering::SeqCst);
        polled
    })
    .await;
}

/// The boot clock plus a jump, as after a suspended host wakes.
#[derive(Clone, Debug, Default)]
pub(crate) struct JumpingClock(Arc<AtomicU64>);

impl JumpingClock {
    pub(crate) fn jump(&self, span: Duration) {
        self.0
            .fetch_add(u64::try_from(span.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Moment {
        BootClock
            .now()
            .after(Duration::from_nanos(self.0.load(Ordering::SeqCst)))
    }
}

/// A clock that stands still unless it is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandClock(Arc<AtomicU64>);

impl HandClock {
    pub(crate) fn set(&self, now: Moment) {
        self.0.store(now.as_nanos(), Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Keeps the test that needs the whole machine away while this one runs.
pub(crate) async fn share() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// Waits until every test that [`share`]s the machine is done, and keeps them away.
pub(crate) fn hog() -> RwLockWriteGuard<'static, ()> {
    MACHINE.blocking_write()
}
