//! Words that are nearly, or elsewhere, those of `on_busy`.

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_busy = skp)]
async fn misspelt() -> Option<u64> {
    None
}

#[distributed_lock(key = "a", on_busy = ignore)]
async fn elsewhere() -> Option<u64> {
    None
}

#[distributed_lock(key = "a", on_busy = None)]
async fn value() -> Option<u64> {
    None
}

#[distributed_lock(key = "a", on_busy = self::skp)]
async fn function() -> Option<u64> {
    None
}

fn skp(_: LockError) -> Option<u64> {
    None
}

fn main() {}
