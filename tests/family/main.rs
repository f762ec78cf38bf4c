//! The modes of locks through managers: who may be in together, whatever breaks, and that nobody waits for ever.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod modes;
mod storm;
mod transfers;
mod writers;
