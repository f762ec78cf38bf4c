//! The ways out for an error type of another crate.

use std::io;

use lock_runtime::{LockError, distributed_lock};

fn refused<T>(error: LockError) -> io::Result<T> {
    Err(io::Error::other(error))
}

#[distributed_lock(key = "a", on_busy = refused)]
async fn answered() -> io::Result<u64> {
    Ok(1)
}

enum Error {
    Lock(LockError),
    Io(io::Error),
}

impl From<LockError> for Error {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[distributed_lock(key = "a")]
async fn wrapped() -> Result<u64, Error> {
    Ok(answered().await?)
}

fn main() {
    drop(wrapped());
    let _ = |error: Error| match error {
        Error::Lock(error) => error.to_string(),
        Error::Io(error) => error.to_string(),
    };
}
