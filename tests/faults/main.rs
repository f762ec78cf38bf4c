//! Faults and their required effects: a test for each row of `docs/faults.md`, and the promises of
//! the watchdog, of early loss and of release, on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod credentials;
mod health;
mod keys;
mod loss;
mod network;
mod release;
mod replicas;
mod server;
mod setup;
mod stage;
mod telemetry;
mod watchdog;
