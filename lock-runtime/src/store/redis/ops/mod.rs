//! The operations on locks, by mode. The Lua scripts lie beside the Rust files.

pub(in crate::store::redis) mod apart;
mod dispatch;
mod exclusive;
pub(in crate::store::redis) mod inspect;
mod multi;
mod shared;

pub(super) use exclusive::renew_on;
