//! Converts durations, answers, holders and tokens to and from the server's protocol.

use std::time::Duration;

use redis::{Value, from_redis_value};

use crate::store::holder::Holder;
use crate::store::{Attempt, Fence, FencingToken, Ownership, StoreError};

/// Returns the outcome of a script that acquires a lock, or several under one value.
pub(super) fn attempt(answer: &Value) -> Result<Attempt, StoreError> {
    match answer {
        Value::Int(1) => Ok(Attempt::Granted { fence: None }),
        token @ Value::BulkString(_) => fence_of(token).map(|fence| Attempt::Granted { fence: Some(fence) }),
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(0), Value::BulkString(holder), remaining, ..] => Ok(Attempt::Busy {
                holder: (!holder.is_empty()).then(|| holder_of(holder)),
                remaining: as_remaining(remaining),
            }),
            _ => Err(unexpected(answer)),
        },
        other => Err(unexpected(other)),
    }
}

/// Returns the outcome of a plain `SET` with `NX` and `GET` of this value. `None` if the key held that value already:
/// its lease is then still the earlier one.
pub(super) fn taken(answer: &Value, value: &str, remaining: Option<Duration>) -> Result<Option<Attempt>, StoreError> {
    match answer {
        Value::Nil => Ok(Some(Attempt::Granted { fence: None })),
        Value::BulkString(holder) if holder == value.as_bytes() => Ok(None),
        Value::BulkString(holder) => Ok(Some(Attempt::Busy {
            holder: Some(holder_of(holder)),
            remaining,
        })),
        other => Err(unexpected(other)),
    }
}

/// Returns the same outcome of a `SET` that was sent once.
pub(super) fn taken_once(answer: &Value, value: &str) -> Result<Attempt, StoreError> {
    taken(answer, value, None)?.ok_or_else(|| StoreError::unknown("the server was asked twice"))
}

pub(super) fn verdict(answer: &Value) -> Result<Ownership, StoreError> {
    match answer {
        Value::Int(1) => Ok(Ownership::Owned),
        Value::Int(0) => Ok(Ownership::Gone),
        Value::Int(-1) => Ok(Ownership::Foreign),
        other => Err(unexpected(other)),
    }
}

/// Returns the ownership of each of `locks` locks.
pub(super) fn verdicts(answer: &Value, locks: usize) -> Result<Vec<Ownership>, StoreError> {
    match answer {
        Value::Array(verdicts) if verdicts.len() == locks => verdicts.iter().map(verdict).collect(),
        other => Err(unexpected(other)),
    }
}

/// Returns a fencing token, or the reason why there is none.
pub(super) fn token_or_verdict(answer: &Value) -> Result<Fence, StoreError> {
    match answer {
        token @ Value::BulkString(_) => fence_of(token).map(Fence::Token),
        other => verdict(other).map(Fence::NotOwned),
    }
}

/// The answer to the release of an exclusive lock that is left free for a while although others
/// wait for it.
pub(super) const LEFT_FREE: Value = Value::Int(2);

/// Returns the ownership that the release of an exclusive lock found.
pub(super) fn given_back(answer: &Value) -> Result<Ownership, StoreError> {
    if *answer == LEFT_FREE {
        return Ok(Ownership::Owned);
    }
    verdict(answer)
}

/// Returns the ownership that the release of a lock in a shared mode found.
pub(super) fn released(answer: &Value) -> Result<Ownership, StoreError> {
    match answer {
        Value::Int(0 | 1) => Ok(Ownership::Owned),
        Value::Nil => Ok(Ownership::Gone),
        other => Err(unexpected(other)),
    }
}

pub(super) fn fence_of(token: &Value) -> Result<FencingToken, StoreError> {
    from_redis_value(token.clone())
        .map(FencingToken::new)
        .map_err(|_| StoreError::unknown("the server gave a fencing token that is no number"))
}

pub(super) fn holder_of(value: &[u8]) -> Holder {
    Holder::of(String::from_utf8_lossy(value))
}

/// Returns the rest of a lease, or `None` for a key without expiry.
pub(super) fn as_remaining(answer: &Value) -> Option<Duration> {
    match answer {
        Value::Int(millis) => u64::try_from(*millis).ok().map(Duration::from_millis),
        _ => None,
    }
}

/// Converts to whole milliseconds, rounded up and at least one: the store must never keep a key for
/// a shorter time than was asked for.
pub(super) fn millis(span: Duration) -> u64 {
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).max(1)
}

pub(super) fn unexpected(answer: &Value) -> StoreError {
    // Leaves out the answer itself, which may be a holder's value.
    let what: &dyn std::fmt::Display = match answer {
        Value::Nil => &"nothing",
        Value::Int(number) => number,
        Value::BulkString(_) | Value::SimpleString(_) | Value::VerbatimString { .. } => &"a string",
        Value::Array(_) => &"an array",
        _ => &"neither a number nor a string nor an array",
    };
    StoreError::unknown(format!("the server gave an unexpected answer: {what}"))
}
