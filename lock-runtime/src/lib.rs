#![cfg_attr(docsrs, feature(doc_cfg))]
// Only `host` asks the surroundings: see `clippy.toml`. The testing kit and tests may as well.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]
#![warn(clippy::iter_over_hash_type)]
//! Distributed locks for async Rust: an attribute that locks a function, a watchdog that renews the
//! lease, and cancellation of the body when its lock is lost.
//!
//! ```
//! use lock_runtime::{LockError, distributed_lock};
//!
//! #[distributed_lock(key = "inventory:<item_id>", lease = 15, wait = 5)]
//! async fn reduce_stock(item_id: u64, quantity: u32) -> Result<u32, LockError> {
//!     Ok(quantity) // at most one caller per item runs this, in all processes
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! lock_runtime::init("memory://").await?; // in a service: redis://, redis+sentinel://, redis+cluster://, redlock://, unix://
//! reduce_stock(7, 1).await?;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! [`distributed_lock`](macro@distributed_lock) is the attribute; its page describes the arguments and the syntax of keys. [`init`] creates the
//! global manager at start-up, and [`LockManager::connect`] lists the URLs: Redis or Valkey as one server, behind sentinels, as a cluster, or as
//! a quorum of independent masters (RedLock), or the memory of this process for examples and tests.
//!
//! The book, in `docs/` of the repository, begins with the first lock in five minutes (`docs/start.md`), and goes on to the choice of keys and
//! times, fencing with a database, jobs, web services, and what to do at 3 a.m.; `./docs/build` makes pages of it.
//!
//! # By subject
//!
//! | subject | items |
//! |---|---|
//! | the locked function | [`distributed_lock`](macro@distributed_lock), [`current`], [`HeldLock`], [`OnLost`], [`assert_locked!`] |
//! | locks without the attribute | [`LockManager::lock`], [`LockRequest`], [`LockGuard`], [`LockMode`], [`HandoverLimits`] |
//! | set-up | [`init`], [`init_with`], [`global`], [`LockManager`], [`LockManagerBuilder`], [`Config`], [`Credentials`], [`Backoff`], [`QuorumMaster`], [`clock`] |
//! | errors | [`LockError`], [`LostReason`], [`RequestProblem`], [`KeyProblem`], [`StoreError`]; of a manager that is not set up correctly, [`ConfigError`] |
//! | fencing | [`FencingToken`] |
//! | the state of a lock | [`LockManager::inspect`], [`LockPages`], [`LockInfo`], [`MasterInfo`], [`HolderInfo`], [`Holder`] |
//! | the state of a service | [`Health`], [`HealthChanges`], [`ServerHealth`], [`ServerRole`], [`ServerState`], [`Stats`] |
//! | limits | [`MIN_LEASE`], [`MAX_LEASE`], [`MAX_KEY_LEN`], [`MAX_KEYS`] |
//! | unit tests | the module `testing`, by the feature of this name: locks that another host holds, that are lost, or whose store is out of reach |
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `tls` | `rediss://`, `valkeys://`, `rediss+sentinel://`, `rediss+cluster://` and `redlocks://`, by rustls |
//! | `axum` | `IntoResponse` for [`LockError`]: 423 with `Retry-After` for a busy lock, 424 where the request may have been carried out in part, 503, 400 or 500 |
//! | `metrics` | counters, gauges and histograms by the crate `metrics`, labelled with the key's template |
//! | `serde` | `Deserialize` for [`Config`]; `Serialize` for [`Stats`], [`Health`], [`LockInfo`] and what they consist of |
//! | `legacy-setnx` | `LockManagerBuilder::legacy_setnx`: locks shared with services that use the pattern from before Redis 2.6.12 |
//! | `custom-store` | the module `store` and `LockManagerBuilder::store`: for authors of stores, and for managers that share a store |
//! | `testing` | the module `testing`: locks for unit tests that another host holds, that are lost, or whose store is out of reach. For `[dev-dependencies]` |
//!
//! None is on by default.
//!
//! # What is guaranteed
//!
//! A lock is valid for its lease, counted from just before the last successful acquire or renewal
//! was sent, minus 1 % and 2 ms for clock drift, and minus the manager's
//! [`skew`](LockManagerBuilder::skew). No poll of the body begins after that deadline, so no other
//! holder can be granted the lock while a body that yields is still running, whatever the network
//! does. The default clock, [`BootClock`](clock::BootClock), includes the time for which the host is suspended.
//!
//! # What is not guaranteed
//!
//! - A body that blocks its thread beyond the deadline cannot be stopped; [`Stats::overruns`]
//!   counts such polls. Requests that are already in flight, and tasks spawned by `tokio::spawn`
//!   (see [`HeldLock::spawn`]), cannot be stopped either. Where an overlap does harm, let the
//!   database check the [fencing token](HeldLock::fencing_token). Across a failover tokens grow only
//!   if the former master's clock was not ahead of the new one's by more than the outage.
//! - A server that loses its data grants the lock again. The first holder is cancelled within a second
//!   after the server answers again. A [quorum](LockManager::builder_quorum) of masters keeps a lock as
//!   long as a majority of them has it.
//! - A server whose clock jumps ahead ends leases early.

mod acquire;
mod attribute;
#[cfg(feature = "axum")]
mod axum;
mod diagnostics;
pub mod error;
mod hold;
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
mod host;
mod key;
mod manager;
mod stats;
#[cfg(feature = "custom-store")]
pub mod store;
#[cfg(not(feature = "custom-store"))]
mod store;
#[cfg(feature = "testing")]
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub mod testing;

#[doc(inline)]
pub use error::{ConfigError, LockError, LostReason, RequestProblem};
pub use hold::call_tree::{HeldLock, current};
pub use hold::guard::LockGuard;
pub use hold::{HandoverLimits, OnLost};
#[cfg(lock_simulation)]
#[doc(hidden)]
pub use host::world;
pub use host::{Backoff, clock};
pub use key::{KeyProblem, MAX_KEY_LEN, MAX_KEYS, encode_value};
pub use lock_macros::distributed_lock;
pub use manager::config::Config;
pub use manager::global::{global, init, init_with};
pub use manager::{LockManager, LockManagerBuilder, LockPages, LockRequest, QuorumMaster};
pub use stats::Stats;
pub use store::health::{Health, HealthChanges, ServerHealth, ServerRole, ServerState};
pub use store::holder::Holder;
pub use store::info::{HolderInfo, LockInfo, MasterInfo};
pub use store::limits::{MAX_LEASE, MIN_LEASE};
pub use store::redis::credentials::Credentials;
#[cfg(lock_simulation)]
#[doc(hidden)]
pub use store::redis::script_texts;
pub use store::{FencingToken, LockMode, StoreError};

/// Functions for the code that the attribute generates. Not a public interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::attribute::*;
}

/// The examples in README.md, compiled and run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
