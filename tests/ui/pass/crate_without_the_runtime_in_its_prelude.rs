//! The names that the generated code uses cannot be shadowed, and the runtime can be found elsewhere.

#![deny(warnings)]
#![no_implicit_prelude]

mod platform {
    pub use ::lock_runtime as locks;
}

use platform::locks::{LockError, distributed_lock};

// Everything that careless generated code would stumble on.
#[allow(dead_code)]
mod core {}
#[allow(dead_code)]
mod std {}
#[allow(dead_code)]
mod lock_runtime {}
#[allow(dead_code, non_camel_case_types)]
struct Result;
#[allow(dead_code)]
struct Option;
#[allow(dead_code)]
struct Duration;
#[allow(unused_macros)]
macro_rules! concat {
    () => {};
}
#[allow(unused_macros)]
macro_rules! pin {
    () => {};
}

#[distributed_lock(key = "a:<id>", lease = 5, on_lost = signal, crate = crate::platform::locks)]
async fn shadowed(id: ::std::primitive::u64) -> ::std::result::Result<::std::primitive::u64, LockError> {
    ::std::result::Result::Ok(id)
}

#[distributed_lock(key = "b", on_busy = skip, wait = 0)]
async fn absolute() -> ::std::option::Option<()> {
    ::std::option::Option::None
}

fn main() {
    ::std::mem::drop(shadowed(1));
    ::std::mem::drop(absolute());
}
