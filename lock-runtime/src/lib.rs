//! Distributed locks for async Rust: one attribute, a watchdog that renews, and a body that is cancelled when
//! its lock is lost.
//!
//! ```
//! use lock_runtime::{LockError, distributed_lock};
//!
//! #[distributed_lock(key = "inventory:<item_id>", lease = 15, wait = 5)]
//! async fn reduce_stock(item_id: u64, quantity: u32) -> Result<u32, LockError> {
//!     Ok(quantity) // at most one caller per item runs this, in all processes
//! }
//!
//! # async fn example() -> Result<(), LockError> {
//! lock_runtime::init("memory://").await?; // in a service: redis://, rediss:// or unix://
//! reduce_stock(7, 1).await?;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! - [`distributed_lock`](macro@distributed_lock) is the attribute; its page has the arguments and the key language.
//! - [`LockManager`] takes locks in a store: Redis or Valkey, or this process's memory for examples and tests.
//!   [`init`] makes the global one, at start-up.
//! - [`LockManager::lock`] takes a lock by hand, as a guard or around a future.
//! - [`current`] is the lock that the calling code runs under.
//! - [`assert_locked!`] lets a function say that it must run under a lock. The feature `testing` adds a kit for unit tests.
//! - [`LockError`] is what all of them return.
//!
//! # What is guaranteed
//!
//! A lock is valid until the instant before its last acquiring or renewing command was sent, plus its lease,
//! less 1 % and 2 ms for clock drift, less the manager's [`skew`](LockManagerBuilder::skew). The body's task
//! looks at the clock before every poll, so no other holder can be granted the lock while a body that yields is
//! still running, whatever the network does. The clock counts the time that the host is suspended.
//!
//! # What is not
//!
//! - A body that keeps its thread beyond the deadline cannot be stopped; [`Stats::overruns`] counts it. Neither
//!   can requests that are already on their way, and tasks that the body has spawned. Where that must do no
//!   harm, let the store of record check the [fencing token](HeldLock::fence).
//! - A server that loses its data grants the lock again. The first holder is cancelled as soon as it is
//!   noticed: within a round trip or two where the server
//!   can report changed keys (any Redis from 6.0), and by the next renewal elsewhere.
//! - A server whose clock jumps ahead ends leases early.

#[doc(hidden)]
#[path = "attribute.rs"]
pub mod __private;
mod acquire;
mod all;
mod assert;
#[cfg(feature = "axum")]
mod axum;
mod backoff;
mod builder;
mod clock;
mod coalesce;
mod contend;
mod context;
mod engine;
mod error;
mod global;
mod guard;
mod held;
mod holder;
mod inspect;
mod key;
mod line;
mod manager;
mod order;
mod outcome;
mod releaser;
mod request;
mod run;
mod stats;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod watchdog;

pub use acquire::{MAX_LEASE, MIN_LEASE};
pub use backoff::Backoff;
pub use builder::LockManagerBuilder;
pub use clock::{BootClock, Clock, Moment, TokioClock};
pub use context::{HeldLock, current};
pub use error::{LockError, LostReason};
pub use global::{global, init, init_with};
pub use guard::LockGuard;
pub use held::OnLost;
pub use holder::Holder;
pub use inspect::{Holding, LockInfo};
pub use key::{KeyProblem, MAX_KEY};
pub use line::Handover;
pub use lock_macros::distributed_lock;
pub use manager::LockManager;
pub use request::LockRequest;
pub use stats::Stats;
pub use store::Mode;

/// README's examples compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
