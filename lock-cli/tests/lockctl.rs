//! `lockctl` against real servers, which the harness starts (`lock_tests`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "lockctl/dying.rs"]
mod dying;
#[path = "lockctl/operators.rs"]
mod operators;
#[path = "lockctl/running.rs"]
mod running;
#[path = "lockctl/stage.rs"]
mod stage;
#[path = "lockctl/terminal.rs"]
mod terminal;
#[path = "lockctl/topologies.rs"]
mod topologies;
