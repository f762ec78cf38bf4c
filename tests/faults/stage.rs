//! The set-up of most of these tests, and their checks of the keys that are left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use lock_runtime::clock::{BootClock, Clock, Moment};
use lock_runtime::{ConfigError, LockError, LockManager, LockManagerBuilder, LostReason, current};
use lock_tests::{Command, PATIENCE, Proxy, Server, eventually};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A lease that cannot end during a test: a key that is gone was released.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// A lease that is renewed after four seconds and has two to spare then, for tests of the watchdog that all
/// managers with the usual clock share. A manager with another clock has a watchdog of its own.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// The response time-out of a [`hurried`] manager.
pub(crate) const ANSWER: Duration = Duration::from_millis(400);

/// A manager whose time-outs no busy machine meets.
pub(crate) fn builder(url: &str) -> LockManagerBuilder {
    LockManager::builder(url)
        .connect_timeout(PATIENCE)
        .response_timeout(PATIENCE)
}

/// Such a manager, connected beforehand.
pub(crate) async fn connected(url: &str) -> LockManager {
    connect(builder(url)).await
}

/// The same with a clock that a test has jump ahead.
pub(crate) async fn connected_by(url: &str, clock: &JumpingClock) -> LockManager {
    connect(builder(url).clock(clock.clone())).await
}

/// Such a manager if it can be connected.
pub(crate) async fn try_connected(url: &str) -> Result<LockManager, ConfigError> {
    let locks = builder(url).build()?;
    locks.check_connection().await?;
    Ok(locks)
}

/// A connected manager for answers that never come, with a short response time-out.
pub(crate) async fn hurried(url: &str) -> LockManager {
    answered_within(url, ANSWER).await
}

/// A connected manager with this response time-out.
pub(crate) async fn answered_within(url: &str, limit: Duration) -> LockManager {
    let locks = LockManager::builder(url).response_timeout(limit).build().unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    locks
}

async fn connect(builder: LockManagerBuilder) -> LockManager {
    let locks = builder.build().unwrap();
    locks.check_connection().await.unwrap();
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

/// Returns `true` for a renewal of a lock with this lease, alone or among others. A check has the lease 0.
pub(crate) fn renews(key: &str, lease: Duration) -> impl Fn(&Command) -> bool + Send + use<> {
    let (key, lease) = (stored(key), lease.as_millis().to_string());
    move |command| {
        let keys = command.argument(2).and_then(|keys| keys.parse::<usize>().ok());
        let Some(keys) = keys.filter(|_| command.is_script()) else {
            return false;
        };
        // The keys, and then for each of them the holder's value and the new lease.
        let is_batch = command.arguments.len() == 3 + 3 * keys;
        let mut renewed = (0..keys).filter(|nth| command.argument(3 + nth) == Some(&key));
        is_batch && renewed.any(|nth| command.argument(3 + keys + 2 * nth + 1) == Some(&lease))
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
            && (command.is("SET")
                || (command.is_script()
                    && matches!(
                        (command.argument(2), command.arguments.len()),
                        (Some("2"), 9) | (Some("3"), 10)
                    )))
            && command.arguments.iter().any(|argument| argument == lease.as_bytes())
    }
}

/// Whether a command gives this lock back.
pub(crate) fn releases(key: &str) -> impl Fn(&Command) -> bool + Send + use<> {
    let key = stored(key);
    move |command| {
        command.is_script()
            && command.argument(3) == Some(&key)
            && command.argument(5).is_some_and(|channels| channels.ends_with("wake:"))
            // With nothing but the value behind them, or with the time to keep the key.
            && [None, Some("0")].contains(&command.argument(7))
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

/// The boot clock plus a jump, as after a suspended host wakes.
///
/// A test that needs renewals takes a [`LONG`] lease and [jumps](JumpingClock::until_renewal) to its renewal. No
/// busy machine uses up the half minute that is left of the lease then.
#[derive(Clone, Debug)]
pub(crate) struct JumpingClock {
    ahead: Arc<AtomicU64>,
    /// The thread of the test.
    home: ThreadId,
    /// How often any other thread has read it: that of the watchdog.
    looks: Arc<AtomicU64>,
}

impl Default for JumpingClock {
    fn default() -> Self {
        Self {
            ahead: Arc::default(),
            home: std::thread::current().id(),
            looks: Arc::default(),
        }
    }
}

impl JumpingClock {
    pub(crate) fn jump(&self, span: Duration) {
        self.ahead
            .fetch_add(u64::try_from(span.as_nanos()).unwrap(), Ordering::SeqCst);
    }

    /// By how much it is ahead.
    pub(crate) fn jumped(&self) -> Duration {
        Duration::from_nanos(self.ahead.load(Ordering::SeqCst))
    }

    /// Jumps to when locks that were just taken or renewed for [`LONG`] are to be renewed.
    pub(crate) fn until_renewal(&self) {
        self.jump(LONG * 7 / 10);
    }

    /// Jumps to the renewal of the current lock, which fails, and then to 300 ms before the lock's deadline.
    pub(crate) async fn past_a_failed_renewal(&self) {
        let looks = || self.looks.load(Ordering::SeqCst);
        self.until_renewal();
        let before = looks();
        // The watchdog looks at the clock once a second, and reads it a few times as it does. A check that was under way reads it, too.
        eventually("the watchdog to begin the renewal", || async { looks() >= before + 8 }).await;
        // By then an attempt has failed: none takes longer than two seconds.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let left = current().unwrap().remaining();
        self.jump(left.saturating_sub(Duration::from_millis(300)));
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Moment {
        let now = BootClock.now().after(self.jumped());
        if std::thread::current().id() != self.home {
            self.looks.fetch_add(1, Ordering::SeqCst);
        }
        now
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
