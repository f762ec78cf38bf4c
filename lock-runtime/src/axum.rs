//! The HTTP response for a `LockError`.

use std::time::Duration;

use axum_core::response::{IntoResponse, Response};

use crate::error::{LockError, RequestProblem};

/// Maps each variant to a status, with a short text as the body. The whole error, with the holder
/// and the store's message, is only logged.
///
/// - 423 Locked for `Busy`, with a `Retry-After`: as long as this call has waited, at least 1 s, at
///   most 30 s, and not beyond [`retry_after`](LockError::retry_after), the holder's lease. (The
///   rest of the lease alone would be a poor estimate: it is long, renewed while the holder works,
///   and the lock is often released sooner.)
/// - 424 Failed Dependency where the request may have been carried out in part: for `Lost` and
///   `Hung`, and for `Closed` and `Store` with `began`. Clients and proxies do not repeat it by
///   themselves.
/// - 503 Service Unavailable for `Store`, `TooFewReplicas` and `Closed` before the body began; with
///   [`retry_after`](LockError::retry_after) as the `Retry-After` where there is one.
/// - 400 Bad Request for a key, or an owner, that a value in the request made invalid.
/// - 500 for mistakes in the service.
///
/// The status speaks of the call that returned the error. A handler that takes another lock in its body has done a
/// part of its work by then: have it map that lock's errors to an error of its own, or clients may repeat the
/// request.
impl IntoResponse for LockError {
    fn into_response(self) -> Response {
        let (status, text) = answer(&self);
        tracing::debug!(error = %self, status, "lock error answered");
        let mut response = text.into_response();
        if let Ok(status) = http::StatusCode::from_u16(status) {
            *response.status_mut() = status;
        }
        let pause = match self {
            Self::Busy { waited, .. } => Some(self.retry_after().map_or(waited, |rest| waited.min(rest))),
            _ => self.retry_after(),
        };
        if let Some(pause) = pause {
            let seconds = whole_seconds(pause.min(LONGEST_RETRY));
            response.headers_mut().insert("retry-after", seconds.into());
        }
        response
    }
}

/// Returns the status and the text for an error.
fn answer(error: &LockError) -> (u16, &'static str) {
    match error {
        LockError::Busy { .. } => (423, "locked by another request, try again"),
        LockError::Lost { .. }
        | LockError::Hung { .. }
        | LockError::Closed { began: true, .. }
        | LockError::Store { began: true, .. } => (
            PARTLY_DONE,
            "the request may have been carried out in part or as a whole, see what it has done before sending it again",
        ),
        LockError::Store { source, .. } if source.is_permanent() => (503, "locks are not available"),
        // Another instance may still take locks when this one has been shut down.
        LockError::Store { .. } | LockError::TooFewReplicas { .. } | LockError::Closed { .. } => {
            (503, "locks are not available, try again")
        }
        LockError::InvalidKey { .. } => (400, "a value in the request cannot be used in a lock key"),
        LockError::InvalidRequest {
            problem: RequestProblem::NoOwner | RequestProblem::LongOwner,
            ..
        } => (400, "a value in the request cannot be the owner of a lock"),
        LockError::WouldDeadlock { .. } | LockError::InvalidRequest { .. } | LockError::NotConfigured { .. } => {
            (500, "locks are not set up correctly")
        }
    }
}

/// The status for a request that must not be repeated by a machine: it may have been carried out in
/// part, and a payment would be made twice.
///
/// Not a 5xx: common retry layers repeat every one of them, 500 too, and whatever the method
/// (`reqwest-retry`, the `5xx` of Envoy). A 4xx is not to be repeated unchanged, and yet some are:
/// 408, 425 and 429, 409 (the `retriable-4xx` of Envoy), and what has a `Retry-After`. 424 is none
/// of these, and is what has happened: something that the request depended on has failed. It is
/// from the document that 423 is from, RFC 4918.
const PARTLY_DONE: u16 = 424;

/// The longest `Retry-After`: a lock is usually free before its lease ends.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Returns the pause in whole seconds. Never zero, which would ask for a busy loop.
fn whole_seconds(pause: Duration) -> u64 {
    (pause.as_secs() + u64::from(pause.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LostReason;
    use crate::key::KeyProblem;
    use crate::store::StoreError;
    use crate::store::holder::Holder;

    fn key() -> Box<str> {
        "inventory:7".into()
    }

    fn busy(waited: Duration, retry_after: Option<Duration>) -> LockError {
        LockError::Busy {
            key: key(),
            waited,
            holder: Some(Box::new(Holder::of("secret-token"))),
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

    fn failed(began: bool, source: StoreError) -> LockError {
        LockError::Store {
            key: key(),
            began,
            source,
        }
    }

    fn closed(began: bool) -> LockError {
        LockError::Closed { key: key(), began }
    }

    fn hung() -> LockError {
        LockError::Hung {
            key: key(),
            renewals: 30,
            held: Duration::from_secs(600),
        }
    }

    fn lost(completed: bool) -> LockError {
        LockError::Lost {
            key: key(),
            reason: LostReason::Deleted,
            completed,
            renew: true,
        }
    }

    #[test]
    fn each_error_has_its_status() {
        let store = || StoreError::transient("connection refused");
        let invalid_key = LockError::InvalidKey {
            key: key(),
            problem: KeyProblem::TooLong(2000),
        };
        let invalid_request = |problem| LockError::InvalidRequest { key: key(), problem };
        assert_eq!(status(busy(Duration::ZERO, None)), 423);
        assert_eq!(status(lost(false)), 424);
        assert_eq!(status(lost(true)), 424);
        assert_eq!(status(failed(false, store())), 503);
        assert_eq!(status(failed(true, store())), 424);
        assert_eq!(status(closed(false)), 503);
        assert_eq!(status(closed(true)), 424);
        assert_eq!(status(hung()), 424);
        assert_eq!(status(invalid_key), 400);
        assert_eq!(status(invalid_request(RequestProblem::MaxHold)), 500);
        assert_eq!(status(invalid_request(RequestProblem::NoOwner)), 400);
        assert_eq!(status(invalid_request(RequestProblem::LongOwner)), 400);
        assert_eq!(status(LockError::WouldDeadlock { key: key() }), 500);
        assert_eq!(status(LockError::NotConfigured { key: key() }), 500);
    }

    /// Statuses that clients or proxies repeat by themselves, many of them whatever the method.
    fn is_repeated_by_some(status: u16) -> bool {
        matches!(status, 408 | 409 | 413 | 423 | 425 | 429 | 500..)
    }

    #[test]
    fn a_request_that_may_have_been_carried_out_in_part_is_repeated_by_nobody() {
        let unanswered = failed(true, StoreError::unknown("no answer"));
        for error in [lost(false), lost(true), hung(), closed(true), unanswered] {
            let (_, text) = answer(&error);
            assert!(
                text.contains("may have been carried out in part") && !text.contains("try again"),
                "{text}"
            );
            let told = error.to_string();
            let response = error.into_response();
            assert!(
                !is_repeated_by_some(response.status().as_u16()),
                "{}: {told}",
                response.status()
            );
            assert!(!response.headers().contains_key("retry-after"), "{told}");
        }
    }

    #[test]
    fn a_busy_lock_says_when_to_come_back_in_whole_seconds() {
        let after = |waited, rest| retry_after(busy(Duration::from_millis(waited), rest));
        assert_eq!(after(0, None).as_deref(), Some("1"));
        assert_eq!(after(200, Some(Duration::from_secs(10))).as_deref(), Some("1"));
        assert_eq!(after(5_000, Some(Duration::from_secs(29))).as_deref(), Some("5"));
        assert_eq!(after(5_001, None).as_deref(), Some("6"));
        assert_eq!(after(5_000, Some(Duration::from_millis(2_100))).as_deref(), Some("3"));
        assert_eq!(after(5_000, Some(Duration::ZERO)).as_deref(), Some("1"));
        // A lock whose lease ends in a year.
        assert_eq!(after(600_000, Some(crate::MAX_LEASE)).as_deref(), Some("30"));
        assert_eq!(retry_after(lost(false)), None);
    }

    #[test]
    fn a_store_that_failed_for_the_moment_says_when_to_come_back() {
        assert_eq!(
            retry_after(failed(false, StoreError::transient("connection refused"))).as_deref(),
            Some("1")
        );
        assert_eq!(
            retry_after(failed(false, StoreError::permanent("unknown command"))),
            None
        );
    }
}
