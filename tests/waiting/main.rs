//! Waiting well: the line inside the process, hand-overs, wake-ups, fairness and crowds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apart;
mod crowd;
mod dying;
mod fair;
mod local_queue;
mod queue;
mod storm;
mod traces;
mod wakeups;
