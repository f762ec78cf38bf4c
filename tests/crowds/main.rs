//! Thousands of calls of one process at once. The managers of a process share the lock thread, so each of these tests could make the others
//! late: they are apart from those of the other targets, and run one after another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod asking;
mod keys;
mod modes;

use tokio::sync::Mutex;

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::const_new(());
