//! What an annotated function returns when its lock fails it.

use crate::error::LockError;

/// Turns a lock error into an annotated function's return value. One implementation per `on_busy`.
#[diagnostic::on_unimplemented(
    message = "`#[distributed_lock]` cannot return a lock error as `{R}`",
    label = "this return type cannot carry a lock error",
    note = "return `Result<T, E>` where `E: From<lock_runtime::LockError>`",
    note = "or give `on_busy = path::to::fn`, a function from `LockError` to the return type",
    note = "or, for `()`, `Option<T>` and `Ok` of one of these, give `on_busy = skip`"
)]
pub trait Outcome<R> {
    /// The body was not run, or was cancelled.
    fn refused(self, error: LockError) -> R;

    /// The body had returned `value`, but the lock was gone before.
    fn late(self, value: R, error: LockError) -> R;
}

/// `on_busy = error`.
#[derive(Clone, Copy, Debug)]
pub struct OrError;

impl<T, E: From<LockError>> Outcome<Result<T, E>> for OrError {
    fn refused(self, error: LockError) -> Result<T, E> {
        Err(error.into())
    }

    /// An error of the body tells more than the loss of the lock.
    fn late(self, value: Result<T, E>, error: LockError) -> Result<T, E> {
        value.and_then(|_| Err(error.into()))
    }
}

/// `on_busy = path::to::fn`.
#[derive(Clone, Copy, Debug)]
pub struct OrElse<F>(pub F);

impl<R, F: FnOnce(LockError) -> R> Outcome<R> for OrElse<F> {
    fn refused(self, error: LockError) -> R {
        (self.0)(error)
    }

    fn late(self, _: R, error: LockError) -> R {
        (self.0)(error)
    }
}

/// `on_busy = skip`.
#[derive(Clone, Copy, Debug)]
pub struct OrSkip;

impl<R: Skip> Outcome<R> for OrSkip {
    fn refused(self, error: LockError) -> R {
        if error.is_busy() {
            R::skipped()
        } else {
            R::failed(error)
        }
    }

    fn late(self, value: R, error: LockError) -> R {
        R::late(value, error)
    }
}

/// What `on_busy = skip` can return: `()`, `Option<T>`, or `Ok` of one of these.
#[diagnostic::on_unimplemented(
    message = "`on_busy = skip` cannot return `{Self}`",
    label = "there is nothing to return here when the body is skipped",
    note = "return `()`, `Option<T>`, `Result<(), E>` or `Result<Option<T>, E>`"
)]
pub trait Skip: Sized {
    /// Another holder has the lock.
    fn skipped() -> Self;

    /// The lock failed in another way.
    fn failed(error: LockError) -> Self;

    /// The body had ended, but the lock was gone before.
    fn late(value: Self, error: LockError) -> Self;
}

impl Skip for () {
    fn skipped() -> Self {}

    fn failed(error: LockError) -> Self {
        report(&error);
    }

    fn late((): Self, error: LockError) -> Self {
        report(&error);
    }
}

impl<T> Skip for Option<T> {
    fn skipped() -> Self {
        None
    }

    fn failed(error: LockError) -> Self {
        report(&error);
        None
    }

    fn late(_: Self, error: LockError) -> Self {
        report(&error);
        None
    }
}

impl<S: Skip, E: From<LockError>> Skip for Result<S, E> {
    fn skipped() -> Self {
        Ok(S::skipped())
    }

    fn failed(error: LockError) -> Self {
        Err(error.into())
    }

    fn late(value: Self, error: LockError) -> Self {
        value.and_then(|_| Err(error.into()))
    }
}

/// The return type has no room for the error, so that the log is the only place where anybody can see it.
fn report(error: &LockError) {
    tracing::error!(%error, kind = error.kind(), "a locked function did not run to its end");
}

/// What `on_busy = coalesce` can give to every caller.
#[diagnostic::on_unimplemented(
    message = "`on_busy = coalesce` cannot give copies of `{Self}` to other callers",
    label = "this return type cannot be copied and sent to other tasks",
    note = "both types of the `Result` must be `Clone + Send + Sync + 'static`",
    note = "derive `Clone` for the error type, and keep in an `Arc` what is not `Clone` itself"
)]
pub trait Share: Clone + Send + Sync + 'static {}

#[diagnostic::do_not_recommend]
impl<R: Clone + Send + Sync + 'static> Share for R {}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> LockError {
        LockError::Busy {
            key: "k".into(),
            waited: std::time::Duration::ZERO,
            holder: None,
            retry_after: None,
        }
    }

    fn closed() -> LockError {
        LockError::Closed { key: "k".into() }
    }

    #[test]
    fn a_busy_lock_is_skipped_and_another_failure_is_not() {
        let skipped: Result<Option<u8>, LockError> = OrSkip.refused(busy());
        assert!(matches!(skipped, Ok(None)));
        let failed: Result<Option<u8>, LockError> = OrSkip.refused(closed());
        assert!(matches!(failed, Err(LockError::Closed { .. })));
    }

    #[test]
    fn a_late_success_is_an_error_and_a_late_error_stays() {
        let late: Result<u8, LockError> = OrError.late(Ok(1), closed());
        assert!(matches!(late, Err(LockError::Closed { .. })));
        let late: Result<u8, LockError> = OrError.late(Err(busy()), closed());
        assert!(matches!(late, Err(LockError::Busy { .. })));
        assert_eq!(OrElse(|_| 7).late(1, closed()), 7);
    }
}
