//! Help for finding mistakes: locks taken in two orders, and data accessed without its lock.

mod assert_locked;
mod lock_order;

pub use self::assert_locked::assert_locked;
#[cfg(feature = "testing")]
pub(crate) use self::assert_locked::{ask, list};
pub(crate) use self::lock_order::note;
