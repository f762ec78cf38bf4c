//! How spans, verdicts, holders and tokens are written in commands and read from answers.

use std::time::Duration;

use redis::{Value, from_redis_value};

use crate::holder::Holder;
use crate::store::{Attempt, Fence, StoreError, Verdict};

pub(super) fn granted_or_busy(parts: &[Value]) -> Result<Attempt, StoreError> {
    match parts {
        [Value::Int(1), Value::BulkString(fence)] if fence.is_empty() => Ok(Attempt::Granted { fence: None }),
        [Value::Int(1), fence] => Ok(Attempt::Granted {
            fence: Some(fence_of(fence)?),
        }),
        [Value::Int(0), Value::BulkString(holder), remaining] => Ok(Attempt::Busy {
            holder: (!holder.is_empty()).then(|| holder_of(holder)),
            remaining: as_remaining(remaining),
        }),
        _ => Err(StoreError::unknown(
            "the server gave an unexpected answer to the acquire script",
        )),
    }
}

pub(super) fn verdict(answer: &Value) -> Result<Verdict, StoreError> {
    match answer {
        Value::Int(1) => Ok(Verdict::Owned),
        Value::Int(0) => Ok(Verdict::Gone),
        Value::Int(-1) => Ok(Verdict::Foreign),
        other => Err(unexpected(other)),
    }
}

/// One verdict for each of so many locks.
pub(super) fn verdicts(answer: &Value, locks: usize) -> Result<Vec<Verdict>, StoreError> {
    match answer {
        Value::Array(verdicts) if verdicts.len() == locks => verdicts.iter().map(verdict).collect(),
        other => Err(unexpected(other)),
    }
}

/// A fencing token, or why there is none.
pub(super) fn token_or_verdict(answer: &Value) -> Result<Fence, StoreError> {
    match answer {
        token @ Value::BulkString(_) => fence_of(token).map(Fence::Token),
        other => verdict(other).map(Fence::NotOwned),
    }
}

/// The verdict on the release of a lock that several may hold: how often the value held it is once or not at all.
pub(super) fn released(answer: &Value) -> Result<Verdict, StoreError> {
    match answer {
        Value::Int(0 | 1) => Ok(Verdict::Owned),
        Value::Nil => Ok(Verdict::Gone),
        other => Err(unexpected(other)),
    }
}

pub(super) fn fence_of(token: &Value) -> Result<u64, StoreError> {
    from_redis_value(token.clone())
        .map_err(|_| StoreError::unknown("the server gave a fencing token that is no number"))
}

pub(super) fn holder_of(value: &[u8]) -> Holder {
    Holder::new(String::from_utf8_lossy(value))
}

/// The rest of a lease; a key without expiry has none to tell.
pub(super) fn as_remaining(answer: &Value) -> Option<Duration> {
    match answer {
        Value::Int(millis) => u64::try_from(*millis).ok().map(Duration::from_millis),
        _ => None,
    }
}

/// Whole milliseconds, at least one: the store must never keep a key for a shorter time than was asked for.
pub(super) fn millis(span: Duration) -> u64 {
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).max(1)
}

pub(super) fn unexpected(answer: &Value) -> StoreError {
    StoreError::unknown(format!("the server gave an unexpected answer: {answer:?}"))
}
