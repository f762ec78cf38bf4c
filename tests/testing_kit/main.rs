//! The tools for users' own tests: the testing kit, `assert_locked!`, and the warning about locks
//! in different orders.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod asserted;
mod lock_order;
mod lost;
mod others;
mod record;
mod replies;
mod unreachable;
mod witness;
