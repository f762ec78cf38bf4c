//! Promises that an earlier version broke, each under a combination of a feature and a fault.
//! `tests/planted` puts the faults back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod blocking;
mod call_tree;
mod freezing;
mod giving_back;
mod leaving;
mod outages;
mod passing;
mod permissions;
mod sharing;
mod strangers;
mod tasks;
mod waiting;
mod words;
mod yielding;
