//! The return value of an annotated function whose lock failed.

use crate::error::LockError;

/// Turns a lock error into an annotated function's return value. One implementation per `on_busy`.
#[diagnostic::on_unimplemented(
    message = "`#[distributed_lock]` cannot return a lock error as `{R}`",
    label = "this return type cannot carry a lock error",
    note = "return `Result<T, E>` where `E: From<lock_runtime::LockError>`: implement it, or wrap an error type of another crate in one of your own",
    note = "or give `on_busy = path::to::fn`, a function from `LockError` to the return type",
    note = "or, for `()`, `Option<T>` and `Ok` of one of these, give `on_busy = skip`"
)]
pub trait OnBusy<R> {
    /// Returns the value for a body that was not run, or was cancelled.
    // `track_caller`, like every function that converts a `LockError` to the user's error: error
    // reporters then show the annotated function instead of this file.
    #[track_caller]
    fn refused(self, error: LockError) -> R;

    /// Returns the value for a body that returned `value` after its lock had ended.
    #[track_caller]
    fn late(self, value: R, error: LockError) -> R;
}

/// The policy for `on_busy = error`.
#[derive(Clone, Copy, Debug)]
pub struct OrError;

// Without this, rustc reports that `E: From<LockError>` is missing, but not the ways out for an
// error type that cannot implement it.
#[diagnostic::do_not_recommend]
impl<T, E: From<LockError>> OnBusy<Result<T, E>> for OrError {
    #[track_caller]
    fn refused(self, error: LockError) -> Result<T, E> {
        Err(E::from(error))
    }

    /// Keeps an error of the body, which says more than the loss of the lock.
    #[track_caller]
    fn late(self, value: Result<T, E>, error: LockError) -> Result<T, E> {
        match value {
            Ok(_) => Err(E::from(error)),
            Err(own) => Err(own),
        }
    }
}

/// The policy for `on_busy = path::to::fn`.
#[derive(Clone, Copy, Debug)]
pub struct OrElse<F>(pub F);

impl<R, F: FnOnce(LockError) -> R> OnBusy<R> for OrElse<F> {
    fn refused(self, error: LockError) -> R {
        (self.0)(error)
    }

    fn late(self, _: R, error: LockError) -> R {
        (self.0)(error)
    }
}

/// The policy for `on_busy = skip`.
#[derive(Clone, Copy, Debug)]
pub struct OrSkip;

impl<R: Skip> OnBusy<R> for OrSkip {
    #[track_caller]
    fn refused(self, error: LockError) -> R {
        if error.is_busy() {
            R::skipped()
        } else {
            R::failed(error)
        }
    }

    #[track_caller]
    fn late(self, value: R, error: LockError) -> R {
        R::late(value, error)
    }
}

/// A return type for `on_busy = skip`: `()`, `Option<T>`, or `Ok` of one of these.
#[diagnostic::on_unimplemented(
    message = "`on_busy = skip` cannot return `{Self}`",
    label = "there is nothing to return here when the body is skipped",
    note = "return `()`, `Option<T>`, `Result<(), E>` or `Result<Option<T>, E>`, where `E: From<lock_runtime::LockError>`",
    note = "implement it, or wrap an error type of another crate in one of your own, or give `on_busy = path::to::fn`, a function from `LockError` to the return type"
)]
pub trait Skip: Sized {
    /// Returns the value for a lock that another holder has.
    fn skipped() -> Self;

    /// Returns the value for a lock that failed in another way.
    #[track_caller]
    fn failed(error: LockError) -> Self;

    /// Returns the value for a body that ended after its lock.
    #[track_caller]
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

#[diagnostic::do_not_recommend]
impl<S: Skip, E: From<LockError>> Skip for Result<S, E> {
    fn skipped() -> Self {
        Ok(S::skipped())
    }

    #[track_caller]
    fn failed(error: LockError) -> Self {
        Err(E::from(error))
    }

    #[track_caller]
    fn late(value: Self, error: LockError) -> Self {
        match value {
            Ok(_) => Err(E::from(error)),
            Err(own) => Err(own),
        }
    }
}

/// Logs the error, since the return type cannot carry it.
fn report(error: &LockError) {
    tracing::error!(%error, kind = error.kind(), "a locked function did not run to its end");
}

/// A return type for `coalesce`, which every caller can receive a clone of.
#[diagnostic::on_unimplemented(
    message = "`coalesce` cannot give copies of `{Self}` to other callers",
    label = "this return type cannot be copied and sent to other tasks",
    note = "it must be `Clone + Send + Sync + 'static`: for a `Result`, both of its types",
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
        LockError::Closed {
            key: "k".into(),
            began: true,
        }
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
