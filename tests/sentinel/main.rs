//! A manager on a master that sentinels watch: real sentinels, a real master and real replicas.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crossings;
mod failover;
mod finding;
mod secured;
