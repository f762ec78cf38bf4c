//! The connections to one server: a slot for each runtime that takes or releases locks, and one for
//! the lock thread.

mod batcher;
pub(in crate::store::redis) mod dial;
mod endpoint;
mod eval;
pub(in crate::store::redis) mod failure;
mod handshake;
mod health;
mod idle;
pub(in crate::store::redis) mod mark;
mod released;
mod runtime_connections;
mod slot;
#[cfg(feature = "tls")]
mod tls;
mod traffic;
mod transcript;

pub(in crate::store::redis) use batcher::{
    Acquire, AcquireMode, Release, Reply, Report, Request, SHARED_TOGETHER, Take, Terms, What, the_one,
};
pub(in crate::store::redis) use endpoint::{CurrentMaster, Endpoint};
pub(in crate::store::redis) use eval::{eval, eval_about, eval_for_lock};
pub(in crate::store::redis) use handshake::Capabilities;
pub(in crate::store::redis) use health::Board;
pub(in crate::store::redis) use mark::Mark;
pub(in crate::store::redis) use released::{REPEAT_PAUSE, REPEATED_FOR, Unacknowledged};
pub(in crate::store::redis) use runtime_connections::{Noting, RuntimeConnections, Way};
pub(in crate::store::redis) use slot::{Connection, ConnectionSlot, Purpose, Push, PushReceiver, Server};
