//! Tests of the harness: a fault that does not happen, or a judge that never objects, would make
//! every other test worthless.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod children;
mod cluster;
mod door;
mod judge;
mod proxy;
mod sentinel;
mod server;
