//! A manager on a quorum of five independent masters: real servers, some of which are killed, fall silent
//! or lose their data.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod empty;
mod losing;
mod modes;
mod refusing;
mod silent;
mod stage;
