//! Every return type, and the value that a busy lock produces.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

use lock_runtime::{LockError, LockManager, distributed_lock};

use crate::witness::{Shop, ShopError, locked_key, start};

/// Makes the caller find its lock taken.
async fn while_taken<T>(key: &str, call: impl Future<Output = T> + Send + 'static) -> T
where
    T: Send + 'static,
{
    let guard = start().await.lock(key).acquire().await.unwrap();
    let returned = tokio::spawn(call).await.unwrap();
    guard.release().await.unwrap();
    returned
}

#[distributed_lock(key = "impl in result", wait = 0)]
async fn impl_in_result(id: u32) -> Result<impl Display + use<>, ShopError> {
    if id == 0 {
        return Err(ShopError::SoldOut);
    }
    Ok(locked_key().await)
}

#[tokio::test]
async fn an_impl_trait_is_returned() {
    start().await;
    assert_eq!(
        impl_in_result(1).await.unwrap_or_else(|_| panic!("locked")).to_string(),
        "impl in result"
    );
    assert!(impl_in_result(0).await.is_err());
}

#[distributed_lock(key = "impl result", wait = 0)]
async fn impl_result() -> impl Into<Result<String, ShopError>> {
    Shop::Ok(locked_key().await)
}

#[tokio::test]
async fn a_result_behind_an_impl_trait_carries_the_lock_error() {
    start().await;
    assert_eq!(impl_result().await.into().unwrap(), "impl result");
    let busy: Shop<String> = while_taken("impl result", async { impl_result().await.into() }).await;
    assert!(matches!(busy, Err(ShopError::Lock(LockError::Busy { .. }))));
}

#[distributed_lock(key = "alias", wait = 0)]
async fn alias() -> Shop<()> {
    locked_key().await;
    Ok(())
}

#[tokio::test]
async fn a_busy_lock_is_the_functions_error() {
    assert!(matches!(
        while_taken("alias", alias()).await,
        Err(ShopError::Lock(LockError::Busy { .. }))
    ));
    assert!(alias().await.is_ok());
}

static RUNS: AtomicU32 = AtomicU32::new(0);

#[distributed_lock(key = "skip unit", wait = 0, on_busy = skip)]
async fn skip_unit() {
    locked_key().await;
    RUNS.fetch_add(1, Ordering::Relaxed);
}

#[distributed_lock(key = "skip written unit", wait = 0, on_busy = skip)]
async fn skip_written_unit() -> () {
    locked_key().await;
}

#[distributed_lock(key = "skip option", wait = 0, on_busy = skip)]
async fn skip_option(id: u32) -> Option<u32> {
    let checked = id.checked_sub(1)?;
    locked_key().await;
    Some(checked)
}

#[distributed_lock(key = "skip ok unit", wait = 0, on_busy = skip)]
async fn skip_ok_unit() -> Shop<()> {
    locked_key().await;
    Err(ShopError::SoldOut)
}

#[distributed_lock(key = "skip ok option", wait = 0, on_busy = skip)]
async fn skip_ok_option() -> Result<Option<u32>, ShopError> {
    locked_key().await;
    Ok(Some(1))
}

#[tokio::test]
async fn a_busy_lock_is_skipped() {
    while_taken("skip unit", skip_unit()).await;
    assert_eq!(RUNS.load(Ordering::Relaxed), 0);
    skip_unit().await;
    assert_eq!(RUNS.load(Ordering::Relaxed), 1);
    skip_written_unit().await;

    assert_eq!(while_taken("skip option", skip_option(2)).await, None);
    assert_eq!(skip_option(2).await, Some(1));
    assert_eq!(skip_option(0).await, None);

    assert!(while_taken("skip ok unit", skip_ok_unit()).await.is_ok());
    assert!(skip_ok_unit().await.is_err());

    assert_eq!(while_taken("skip ok option", skip_ok_option()).await.unwrap(), None);
    assert_eq!(skip_ok_option().await.unwrap(), Some(1));
}

mod answers {
    #![expect(clippy::needless_pass_by_value, reason = "the attribute hands the error over")]

    use super::LockError;

    pub(super) fn number(error: LockError) -> u32 {
        u32::from(error.is_busy()) * 100
    }

    pub(super) fn text<T: From<String>>(error: LockError) -> T {
        error.key().to_owned().into()
    }
}

#[distributed_lock(key = "answer", wait = 0, on_busy = answers::number)]
async fn answered() -> u32 {
    locked_key().await;
    1
}

#[distributed_lock(key = "generic answer", wait = 0, on_busy = answers::text)]
async fn answered_in_text() -> String {
    locked_key().await
}

#[tokio::test]
async fn a_function_answers_for_a_busy_lock() {
    assert_eq!(while_taken("answer", answered()).await, 100);
    assert_eq!(answered().await, 1);
    assert_eq!(
        while_taken("generic answer", answered_in_text()).await,
        "generic answer"
    );
}

#[distributed_lock(key = "never", wait = 0, on_busy = error)]
async fn never_returns_normally(fails: bool) -> Shop<()> {
    locked_key().await;
    if fails {
        return Err(ShopError::SoldOut);
    }
    panic!("the body panicked")
}

#[tokio::test]
async fn a_panic_of_the_body_reaches_the_caller() {
    start().await;
    assert!(never_returns_normally(true).await.is_err());
    let panicked = tokio::spawn(never_returns_normally(false)).await.unwrap_err();
    assert_eq!(panicked.into_panic().downcast_ref(), Some(&"the body panicked"));
}

/// An error that remembers where it was made, as `eyre`'s and `snafu`'s do.
#[derive(Debug)]
struct Located(&'static std::panic::Location<'static>);

impl From<LockError> for Located {
    #[track_caller]
    fn from(_: LockError) -> Self {
        Self(std::panic::Location::caller())
    }
}

#[distributed_lock(key = "located", wait = 0)]
async fn located() -> Result<(), Located> {
    Ok(())
}

#[distributed_lock(key = "<key>", wait = 0, on_busy = skip)]
async fn located_skip(key: &str) -> Result<(), Located> {
    Ok(())
}

#[tokio::test]
async fn an_error_that_remembers_its_place_points_at_the_annotated_function() {
    let busy = while_taken("located", located()).await.unwrap_err();
    assert_eq!(busy.0.file(), file!());
    assert!(busy.0.line() < line!(), "{busy:?}");
    let invalid = located_skip("").await.unwrap_err();
    assert_eq!(invalid.0.file(), file!());
}

/// A second `From` for the error would make the type of this body's error ambiguous.
#[tokio::test]
async fn an_untyped_ok_takes_the_type_of_the_error_from_the_function_around_it() -> Result<(), LockError> {
    async fn step() -> Result<(), LockError> {
        Ok(())
    }
    let locks = LockManager::builder("memory://").build().unwrap();
    let body = async {
        step().await?;
        Ok(7)
    };
    assert_eq!(locks.lock("untyped").run(body).await??, 7);
    Ok(())
}
