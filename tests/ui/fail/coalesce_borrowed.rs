//! A result that borrows from one of the callers.

#![allow(unused_variables)]

use std::borrow::Cow;

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", coalesce)]
async fn reference(name: &str) -> Result<&str, LockError> {
    Ok(name)
}

#[distributed_lock(key = "a", coalesce)]
async fn named<'a>(name: &'a str) -> Result<Cow<'a, str>, LockError> {
    Ok(name.into())
}

#[distributed_lock(key = "a", coalesce)]
async fn owned(name: &str) -> Result<&'static str, LockError> {
    Ok("a")
}

#[distributed_lock(key = "a", coalesce)]
async fn pointer(name: &str) -> Result<fn(&str) -> usize, LockError> {
    Ok(str::len)
}

fn main() {}
