//! The operations on locks, by mode. The Lua scripts lie beside the Rust files.

mod dispatch;
mod exclusive;
pub(in crate::store::redis) mod inspect;
mod multi;
mod shared;

pub(super) use exclusive::renew_on;
