//! The harness proves itself: a fault that does not happen, or a judge that cannot say no, would make every other test worthless.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod children;
mod door;
mod judge;
mod proxy;
mod server;
