//! Nothing but the examples in the documentation of the attribute: this package is its compile tests.

/// Not tests of `lock-macros`: what a procedural macro is tested with is built for the compiler, so the runtime would be built twice.
#[cfg(doctest)]
#[doc = include_str!("../../lock-macros/src/distributed_lock.md")]
mod attribute {}

#[cfg(doctest)]
#[doc = include_str!("../../lock-macros/README.md")]
mod readme {}
