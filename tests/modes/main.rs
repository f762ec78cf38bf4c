//! What a call makes of its lock beyond taking it alone: passing through one that its call tree has, several keys at once,
//! sharing it with other holders, and a delay after a holder that has expired.
//!
//! - [`sharing`]: the modes in which several may hold a lock, and what each does for the code under it.
//! - [`owner`]: transfers under locks of two owners.
//! - [`writers`]: a crowd of readers starves no writer.
//! - [`storm`]: processes that are killed, past a judge that knows which holders can share the lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod delay;
mod multi;
mod nested;
mod owner;
mod sharing;
mod storm;
mod writers;
