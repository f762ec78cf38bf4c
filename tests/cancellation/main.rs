//! Cancellation safety: a call that takes a lock is dropped after each of its polls, and nothing may be left behind.
//!
//! - [`on_a_server`]: real calls on a real server, combined with every fate of their requests and
//!   replies.
//! - [`batches`]: calls whose requests are sent together.
//! - [`scripted`]: a store whose every step is under the test's control, and which says exactly what was sent and released.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batches;
mod connection;
mod dropping;
mod on_a_server;
mod scripted;
