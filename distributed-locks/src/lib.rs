//! Distributed locks for async Rust: everything of [`lock_runtime`], under the name of its attribute.
//!
//! ```
//! use distributed_locks::{LockError, distributed_lock};
//!
//! #[distributed_lock(key = "inventory:<item_id>", lease = 15, wait = 5)]
//! async fn reduce_stock(item_id: u64, quantity: u32) -> Result<u32, LockError> {
//!     Ok(quantity) // at most one caller per item runs this, in all processes
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! distributed_locks::init("memory://").await?; // in a service: redis://, redis+sentinel://, redis+cluster://, redlock://, unix://
//! reduce_stock(7, 1).await?;
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! The features are those of [`lock_runtime`], and so is all documentation: read `distributed_locks` for `lock_runtime` there. A crate
//! depends on one of the two; types of both are the same.
#![forbid(unsafe_code)]

#[doc(inline)]
pub use lock_runtime::*;
