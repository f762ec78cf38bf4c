//! Five masters, and managers on them.

use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockManagerBuilder};
use lock_tests::server::Persistence;
use lock_tests::{PATIENCE, Server, eventually};

/// A lease that cannot end during a test: a key that is gone was released.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A lease that is renewed after ten seconds and has five to spare then.
pub(crate) const LEASE: Duration = Duration::from_secs(15);

/// The longest lease of all tests.
pub(crate) const LONGEST: Duration = Duration::from_secs(480);

pub(crate) fn stored(key: &str) -> String {
    format!("dist_lock:{key}")
}

pub(crate) fn queue_of(key: &str) -> String {
    format!("dist_lock:%lock-queue:{{{}}}", stored(key))
}

/// The URL of a quorum of these servers.
pub(crate) fn url_of<'a>(masters: impl IntoIterator<Item = &'a Server>) -> String {
    let addresses: Vec<_> = masters.into_iter().map(|master| master.addr().to_string()).collect();
    format!("redlock://{}", addresses.join(","))
}

/// Five masters.
pub(crate) struct Five([Server; 5]);

impl std::ops::Deref for Five {
    type Target = [Server; 5];

    fn deref(&self) -> &[Server; 5] {
        &self.0
    }
}

impl Five {
    pub(crate) fn start() -> Self {
        Self(std::array::from_fn(|_| Server::start()))
    }

    /// Five masters that have their data after a restart.
    pub(crate) fn start_durable() -> Self {
        let durable = Server::builder().persistence(Persistence::AofAlways);
        Self(std::array::from_fn(|_| durable.clone().start()))
    }

    pub(crate) fn url(&self) -> String {
        url_of(&self.0)
    }

    /// A builder of a manager whose time-outs no busy machine meets.
    pub(crate) fn builder(&self) -> LockManagerBuilder {
        LockManager::builder(&self.url())
            .longest_lease(LONGEST)
            .default_wait(PATIENCE)
            .connect_timeout(PATIENCE)
            .response_timeout(PATIENCE)
    }

    /// Such a manager, connected to all masters.
    pub(crate) async fn connected(&self) -> LockManager {
        connected(self.builder()).await
    }

    /// The number of masters that have a lock, of those that run.
    pub(crate) fn votes(&self, key: &str) -> usize {
        let key = stored(key);
        let up = self
            .0
            .iter()
            .filter(|master| master.is_running() && !master.is_paused());
        up.filter(|master| master.exists(&key)).count()
    }

    /// Waits until so many masters have a lock, and says meanwhile that those which were restarted or flushed
    /// have forgotten nothing.
    pub(crate) async fn opens_and_has_votes(&self, locks: &LockManager, key: &str, votes: usize) {
        eventually(&format!("{votes} votes for `{key}`"), || async {
            // Some may be out of reach so far.
            let _ = locks.open_quorum().await;
            self.votes(key) == votes
        })
        .await;
    }

    /// Waits until so many masters have a lock.
    pub(crate) async fn has_votes(&self, key: &str, votes: usize) {
        eventually(&format!("{votes} votes for `{key}`"), || async {
            self.votes(key) == votes
        })
        .await;
    }

    /// Waits until no master that runs has any key. Only with [`LONG`] leases does that prove that everything
    /// was released.
    pub(crate) async fn nothing_is_left(&self) {
        for master in &self.0 {
            if master.is_running() && !master.is_paused() {
                let left = || {
                    let mut keys = master.keys();
                    keys.retain(|key| !key.contains("%lock-fence") && !key.contains("%lock-mark"));
                    keys
                };
                eventually("all locks to be released", || async { left().is_empty() }).await;
            }
        }
    }
}

pub(crate) async fn connected(builder: LockManagerBuilder) -> LockManager {
    let locks = builder.build().unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    locks.open_quorum().await.unwrap();
    locks
}

/// Returns the message of a call that failed since the store did.
#[track_caller]
pub(crate) fn store_error<T>(ended: Result<T, LockError>) -> String {
    match ended {
        Err(error @ LockError::Store { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the call succeeded"),
    }
}
