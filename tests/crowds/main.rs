//! Thousands of calls of one process at once. The managers of a process share the lock thread, so each of these tests could make the others
//! late: they are apart from those of the other targets, and run one after another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod asking;
mod keys;
mod modes;

use lock_runtime::LockManager;
use lock_tests::PATIENCE;
use tokio::sync::Mutex;

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A connected manager whose time-outs no busy machine meets.
async fn patient(url: &str) -> LockManager {
    let locks = LockManager::builder(url)
        .connect_timeout(PATIENCE)
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    locks.check_connection().await.unwrap();
    locks
}
