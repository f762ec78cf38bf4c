//! Every form of function that `#[distributed_lock]` accepts, each run under its lock in the embedded store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unused_async,
    missing_docs
)]

mod arguments;
mod coalesce;
mod compensation;
mod defaults;
mod drop_order;
mod future_size;
mod keys;
mod lists;
mod metrics;
mod modes;
mod other_macros;
mod parameters;
mod receivers;
mod return_types;
mod traits;
mod witness;
