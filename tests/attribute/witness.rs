//! Helpers: checks that a body runs under its lock, and the error type of the functions under test.

use std::fmt;
use std::num::ParseIntError;
use std::time::Duration;

use lock_runtime::{LockError, LockManager, RequestProblem};

/// An application's error, as the attribute asks for it.
#[derive(Debug)]
pub(crate) enum ShopError {
    Lock(LockError),
    Number(#[expect(dead_code, reason = "only shown")] ParseIntError),
    SoldOut,
}

impl From<LockError> for ShopError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<ParseIntError> for ShopError {
    fn from(error: ParseIntError) -> Self {
        Self::Number(error)
    }
}

pub(crate) type Shop<T> = Result<T, ShopError>;

/// Makes the global manager.
pub(crate) async fn start() -> &'static LockManager {
    lock_runtime::init("memory://")
        .await
        .expect("the embedded store is always there")
}

/// The key of the lock that the caller runs under, after making sure that nobody else gets it.
pub(crate) async fn locked_key() -> String {
    let key = lock_runtime::current()
        .expect("the body runs under a lock")
        .key()
        .to_owned();
    assert!(
        is_taken(&key).await,
        "another task got `{key}` while the body was running"
    );
    key
}

/// Whether another task cannot get the lock of the global manager.
pub(crate) async fn is_taken(key: &str) -> bool {
    let request = lock_runtime::global().expect("started").lock(key).wait(Duration::ZERO);
    match tokio::spawn(request.acquire()).await.expect("the other task ends") {
        Ok(guard) => {
            guard.release().await.expect("the embedded store releases");
            false
        }
        Err(LockError::Busy { .. }) => true,
        Err(error) => panic!("neither free nor busy: {error}"),
    }
}

/// What `call` returned, after making sure that it left its lock.
pub(crate) async fn released<T>(key: &str, call: impl Future<Output = T>) -> T {
    let returned = call.await;
    assert!(!is_taken(key).await, "`{key}` is still taken after the call");
    returned
}

/// The problem for which a call was refused.
pub(crate) fn problem<T: fmt::Debug>(refused: Shop<T>) -> RequestProblem {
    match refused {
        Err(ShopError::Lock(LockError::InvalidRequest { problem, .. })) => problem,
        other => panic!("{other:?}"),
    }
}
