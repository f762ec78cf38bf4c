//! What goes wrong, and what must then happen: one test per row of the project's list of faults, and the promises of
//! the watchdog, of early loss and of release, against a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod keys;
mod loss;
mod network;
mod release;
mod server;
mod stage;
mod telemetry;
mod watchdog;
