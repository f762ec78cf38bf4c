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
            Self::WouldDeadlock { .. } | Self::InvalidLease { .. } | Self::NotConfigured { .. } => {
                (500, "locks are not set up correctly")
            }
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
