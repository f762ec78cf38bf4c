//! The test harness: real servers, a faulty network, other processes, and a judge of mutual exclusion.
//!
//! - [`server`]: a Redis or Valkey of the version under test, started on a free port, stopped when dropped.
//! - [`sentinel`]: a master, two replicas and three sentinels, as real processes, with failovers at a word.
//! - [`cluster`]: three masters with a third of the slots each, and a replica of each, with slots moved and failovers at a word.
//! - [`proxy`]: a TCP proxy that speaks RESP and loses, delays, holds, doubles or forges what passes through it.
//! - [`children`]: a second process with a line protocol, to be stopped and killed.
//! - [`old_client`]: a service that still takes locks as before Redis 2.6.12.
//! - [`judge`]: says from records whether two holders overlapped and whether tokens grew.
//! - [`door`]: the same for locks that several may hold at once, as it happens.
//! - [`cases`], [`on_each`]: make tests of a table.
//! - [`Alone`], [`assert_free`]: bodies that must be alone, and locks that must be free.
//! - [`clock`]: one clock for all processes, and the pauses in which the machine did not run this one.
//! - [`permissions`]: what the documents list for the server's user.
//! - [`chain`]: an error and its sources, in one line.
//! - [`eventually`]: waits for a condition instead of sleeping.
//!
//! Everything here panics with one sentence when it cannot do its work: a test that cannot run has failed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every function here may panic, for the reason above; a section in each would say nothing.
#![allow(clippy::missing_panics_doc)]

pub mod alone;
pub mod certificates;
pub mod children;
pub mod clock;
pub mod cluster;
pub mod door;
pub mod judge;
pub mod old_client;
pub mod patience;
pub mod permissions;
pub mod proxy;
mod reaper;
pub mod report;
pub mod resp;
pub mod sentinel;
pub mod server;
mod table;

pub use alone::{Alone, assert_free};
pub use children::Child;
pub use clock::{Lag, Stamp};
pub use cluster::ClusterGroup;
pub use door::Door;
pub use judge::{Judge, StoreJudge};
pub use old_client::OldClient;
pub use patience::{PATIENCE, PATIENT, eventually, eventually_some, patient};
pub use proxy::{Action, Command, Flow, Proxy};
pub use report::chain;
pub use sentinel::SentinelGroup;
pub use server::Server;
