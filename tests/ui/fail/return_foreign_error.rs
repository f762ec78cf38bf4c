//! An error type of another crate, which cannot implement `From<LockError>`: the error lists the ways out.

use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn reduce() -> std::io::Result<u64> {
    Ok(1)
}

#[distributed_lock(key = "a", on_busy = skip)]
async fn tidy() -> Result<(), std::fmt::Error> {
    Ok(())
}

fn main() {}
