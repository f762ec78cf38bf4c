//! `LockError` as an HTTP response.

use std::time::Duration;

use axum_core::response::{IntoResponse, Response};

use crate::error::LockError;

/// 423 Locked with `Retry-After` for `Busy`; 409 Conflict for `Lost`; 503 Service Unavailable for `Store`,
/// `Closed` and `Hung`; 400 Bad Request for a key that a request's values made invalid; 500 for mistakes in the
/// service. The body is the error's first clause: who holds the lock, and what the store said, is for the log.
impl IntoResponse for LockError {
    fn into_response(self) -> Response {
        let (status, text) = match &self {
            Self::Busy { .. } => (423, "locked by another request, try again"),
            Self::Lost { .. } => (
                409,
                "the lock was lost while the request was being worked on, try again",
            ),
            Self::Store { .. } | Self::Closed { .. } | Self::Hung { .. } => (503, "locks are not available, try again"),
            Self::InvalidKey { .. } => (400, "a value in the request cannot be used in a lock key"),
            Self::WouldDeadlock { .. }
            | Self::InvalidLease { .. }
            | Self::InvalidMode { .. }
            | Self::NotConfigured { .. } => (500, "locks are not set up correctly"),
        };
        tracing::debug!(error = %self, status, "lock error answered");
        let mut response = text.into_response();
        if let Ok(status) = http::StatusCode::from_u16(status) {
            *response.status_mut() = status;
        }
        if let Self::Busy { retry_after, .. } = self {
            // Whole seconds, and never zero, which would ask for a busy loop.
            let rest = retry_after.unwrap_or(Duration::from_secs(1));
            let seconds = rest.as_secs() + u64::from(rest.subsec_nanos() > 0);
            response.headers_mut().insert("retry-after", seconds.max(1).into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LostReason;
    use crate::holder::Holder;
    use crate::key::KeyProblem;
    use crate::store::StoreError;

    fn key() -> Box<str> {
        "inventory:7".into()
    }

    fn busy(retry_after: Option<Duration>) -> LockError {
        LockError::Busy {
            key: key(),
            waited: Duration::from_secs(5),
            holder: Some(Box::new(Holder::new("secret-token"))),
            retry_after,
        }
    }

    fn status(error: LockError) -> u16 {
        error.into_response().status().as_u16()
    }

    fn retry_after(error: LockError) -> Option<String> {
        let response = error.into_response();
        let value = response.headers().get("retry-after")?;
        value.to_str().ok().map(ToOwned::to_owned)
    }

    fn lost(completed: bool) -> LockError {
        LockError::Lost {
            key: key(),
            reason: LostReason::Deleted,
            completed,
        }
    }

    #[test]
    fn each_error_has_its_status() {
        let store = StoreError::transient("connection refused");
        let hung = LockError::Hung {
            key: key(),
            renewals: 30,
            held: Duration::from_secs(600),
        };
        let invalid_key = LockError::InvalidKey {
            key: key(),
            problem: KeyProblem::TooLong(2000),
        };
        let invalid_lease = LockError::InvalidLease {
            key: key(),
            lease: Duration::ZERO,
        };
        assert_eq!(status(busy(None)), 423);
        assert_eq!(status(lost(false)), 409);
        assert_eq!(status(lost(true)), 409);
        assert_eq!(
            status(LockError::Store {
                key: key(),
                source: store
            }),
            503
        );
        assert_eq!(status(LockError::Closed { key: key() }), 503);
        assert_eq!(status(hung), 503);
        assert_eq!(status(invalid_key), 400);
        assert_eq!(status(invalid_lease), 500);
        assert_eq!(status(LockError::WouldDeadlock { key: key() }), 500);
        assert_eq!(status(LockError::NotConfigured { key: key() }), 500);
    }

    #[test]
    fn a_busy_lock_says_when_to_come_back_in_whole_seconds() {
        let after = |rest| retry_after(busy(rest));
        assert_eq!(after(None).as_deref(), Some("1"));
        assert_eq!(after(Some(Duration::ZERO)).as_deref(), Some("1"));
        assert_eq!(after(Some(Duration::from_millis(1))).as_deref(), Some("1"));
        assert_eq!(after(Some(Duration::from_secs(3))).as_deref(), Some("3"));
        assert_eq!(after(Some(Duration::from_millis(3001))).as_deref(), Some("4"));
        assert_eq!(retry_after(lost(false)), None);
    }
}
