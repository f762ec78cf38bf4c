//! The exclusive lock: `SET key value NX PX`, and scripts that compare before they act.

use std::time::Duration;

use redis::{Cmd, RedisError, Value, from_redis_value};

use super::RedisStore;
use super::failure::{is_missing_script, sort};
use super::link::{Link, Live};
use super::scripts::{ACQUIRE, FENCE, LockScript, RELEASE, RENEW};
use crate::holder::Holder;
use crate::store::{AcquireRequest, Attempt, Fence, ReleaseRequest, RenewRequest, StoreError, Verdict};

impl RedisStore {
    pub(super) async fn acquire_exclusive(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        let live = self.commands.live().await?;
        request.receipt.sent_on(live.number);
        let may_hold = live.server.is_7 && !request.fence;
        if may_hold && let Some(answer) = self.acquire_by_set(&live, request).await? {
            return Ok(answer);
        }
        let keys: &[&str] = if request.fence {
            &[request.key, &self.counter]
        } else {
            &[request.key]
        };
        let answer = eval(&self.commands, &live, &ACQUIRE, keys, |command| {
            command.arg(request.value).arg(millis(request.lease));
        });
        // After the cheap path has found the caller's own value, a failure does not mean that nothing was taken.
        let answer = answer
            .await
            .map_err(|error| if may_hold { StoreError::unknown(error) } else { error });
        match answer? {
            Value::Array(parts) => granted_or_busy(&parts),
            other => Err(unexpected(&other)),
        }
    }

    /// The cheap path: one plain command. `GET` tells the holder, and refuses a key of another type. `None`: the key
    /// held the caller's own value already, and its lease is still the earlier one.
    async fn acquire_by_set(&self, live: &Live, request: &AcquireRequest<'_>) -> Result<Option<Attempt>, StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(request.key)
            .arg(request.value)
            .arg("NX")
            .arg("GET")
            .arg("PX")
            .arg(millis(request.lease));
        let taken = async { self.commands.call(live, &set).await.map_err(|error| sort(error, true)) };
        // Both are on their way before the first answer is back.
        let (answer, remaining) = tokio::join!(taken, self.remaining(live, request));
        match answer? {
            Value::Nil => Ok(Some(Attempt::Granted { fence: None })),
            Value::BulkString(holder) if holder == request.value.as_bytes() => Ok(None),
            Value::BulkString(holder) => Ok(Some(Attempt::Busy {
                holder: Some(holder_of(&holder)),
                remaining,
            })),
            other => Err(unexpected(&other)),
        }
    }

    async fn remaining(&self, live: &Live, request: &AcquireRequest<'_>) -> Option<Duration> {
        if !request.tell_remaining {
            return None;
        }
        let answer = self.commands.call(live, redis::cmd("PTTL").arg(request.key)).await;
        answer.ok().as_ref().and_then(as_remaining)
    }

    pub(super) async fn renew_exclusive(&self, requests: &[RenewRequest]) -> Result<Vec<Verdict>, StoreError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let live = self.renewals.live().await?;
        let keys: Vec<&str> = requests.iter().map(|request| &*request.key).collect();
        let answer = eval(&self.renewals, &live, &RENEW, &keys, |command| {
            for request in requests {
                command.arg(&*request.value).arg(request.extend.map_or(0, millis));
            }
        });
        match answer.await? {
            Value::Array(verdicts) if verdicts.len() == requests.len() => verdicts.iter().map(verdict).collect(),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn release_exclusive(&self, request: &ReleaseRequest<'_>) -> Result<Verdict, StoreError> {
        let live = match request.unanswered_on.and_then(|number| self.commands.numbered(number)) {
            Some(live) => live,
            None => self.commands.live().await?,
        };
        request.receipt.sent_on(live.number);
        let keep = request.keep.map_or(0, millis);
        let answer = eval(&self.commands, &live, &RELEASE, &[request.key], |command| {
            command.arg(request.value).arg(keep);
        })
        .await?;
        verdict(&answer)
    }

    pub(super) async fn fence_exclusive(&self, key: &str, value: &str) -> Result<Fence, StoreError> {
        let live = self.commands.live().await?;
        let answer = eval(&self.commands, &live, &FENCE, &[key, &self.counter], |command| {
            command.arg(value);
        })
        .await?;
        match answer {
            token @ Value::BulkString(_) => fence_of(&token).map(Fence::Token),
            other => verdict(&other).map(Fence::NotOwned),
        }
    }
}

/// Runs a script by its hash, and by its source where the server does not have it.
async fn eval(
    link: &Link,
    live: &Live,
    script: &LockScript,
    keys: &[&str],
    args: impl Fn(&mut Cmd),
) -> Result<Value, StoreError> {
    let script = script.form(live.server.is_7);
    let command = |name: &str, script: &str| {
        let mut command = redis::cmd(name);
        command.arg(script).arg(keys.len()).arg(keys);
        args(&mut command);
        command
    };
    let answer = match link.call(live, &command("EVALSHA", &script.hash)).await {
        // Not by SCRIPT LOAD: in a cluster that would have to succeed on every node.
        Err(error) if is_missing_script(&error) => link.call(live, &command("EVAL", &script.source)).await,
        answer => answer,
    };
    answer.map_err(|error: RedisError| sort(error, true))
}

fn granted_or_busy(parts: &[Value]) -> Result<Attempt, StoreError> {
    match parts {
        [Value::Int(1), Value::BulkString(fence)] if fence.is_empty() => Ok(Attempt::Granted { fence: None }),
        [Value::Int(1), fence] => Ok(Attempt::Granted {
            fence: Some(fence_of(fence)?),
        }),
        [Value::Int(0), Value::BulkString(holder), remaining] => Ok(Attempt::Busy {
            holder: Some(holder_of(holder)),
            remaining: as_remaining(remaining),
        }),
        _ => Err(StoreError::unknown(
            "the server gave an unexpected answer to the acquire script",
        )),
    }
}

fn verdict(answer: &Value) -> Result<Verdict, StoreError> {
    match answer {
        Value::Int(1) => Ok(Verdict::Owned),
        Value::Int(0) => Ok(Verdict::Gone),
        Value::Int(-1) => Ok(Verdict::Foreign),
        other => Err(unexpected(other)),
    }
}

fn fence_of(token: &Value) -> Result<u64, StoreError> {
    from_redis_value(token.clone())
        .map_err(|_| StoreError::unknown("the server gave a fencing token that is no number"))
}

fn holder_of(value: &[u8]) -> Holder {
    Holder::new(String::from_utf8_lossy(value))
}

/// The rest of a lease; a key without expiry has none to tell.
fn as_remaining(answer: &Value) -> Option<Duration> {
    match answer {
        Value::Int(millis) => u64::try_from(*millis).ok().map(Duration::from_millis),
        _ => None,
    }
}

/// Whole milliseconds, at least one: the store must never keep a key for a shorter time than was asked for.
fn millis(span: Duration) -> u64 {
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).max(1)
}

fn unexpected(answer: &Value) -> StoreError {
    StoreError::unknown(format!("the server gave an unexpected answer: {answer:?}"))
}
