//! Inspects, lists and releases a server's locks for operators.

use std::sync::LazyLock;

use redis::{Value, from_redis_value};

use crate::store::info::LockInfo;
use crate::store::redis::RedisStore;
use crate::store::redis::connection::ConnectionSlot;
use crate::store::redis::connection::eval;
use crate::store::redis::connection::failure::sort;
use crate::store::redis::keyspace::Keyspace;
use crate::store::redis::reply::{as_remaining, fence_of, holder_of, unexpected};
use crate::store::redis::scripts::{LockScript, QUEUE};
use crate::store::{FencingToken, Limited, LockPage, StoreError};

/// The number of keys of the database that the server examines in one step of `SCAN`.
const SCANNED: usize = 1000;
/// The maximum number of locks in one script run: a longer run would delay the server's other
/// clients.
pub(in crate::store::redis) const BATCH: usize = 100;

static INSPECT: LazyLock<LockScript> = LazyLock::new(|| LockScript::for_looking(include_str!("inspect.lua")));
static FORCE_RELEASE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[QUEUE, include_str!("force_release.lua")]));

#[cfg(lock_simulation)]
pub(in crate::store::redis) fn all() -> [(&'static str, &'static LockScript); 2] {
    [("inspect", &INSPECT), ("force_release", &FORCE_RELEASE)]
}

impl RedisStore {
    pub(in crate::store::redis) async fn inspect_one(&self, key: &str) -> Result<Option<LockInfo>, StoreError> {
        let slot = self.commands.here();
        let found = look(&slot, &INSPECT, &self.names.counter(key), &[key], |key| {
            self.keys_of(key)
        })
        .await?;
        one(found, key)
    }

    pub(in crate::store::redis) async fn list_page(&self, pattern: &str, from: u64) -> Result<LockPage, StoreError> {
        let (next, keys) = self.scan_keys(pattern, from).await?;
        let locks = self.look_at(&keys).await?;
        Ok(LockPage { locks, next })
    }

    /// Returns the position from which to go on, and the next keys that match.
    pub(in crate::store::redis) async fn scan_keys(
        &self,
        pattern: &str,
        from: u64,
    ) -> Result<(u64, Vec<String>), StoreError> {
        scan(&self.commands.here(), &self.names, pattern, from).await
    }

    /// Returns the locks under these keys that have holders.
    pub(in crate::store::redis) async fn look_at(&self, keys: &[String]) -> Result<Vec<LockInfo>, StoreError> {
        let slot = self.commands.here();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let mut locks = Vec::new();
        for keys in keys.chunks(BATCH) {
            let counter = self.names.counter(keys.first().copied().unwrap_or_default());
            let found = look(&slot, &INSPECT, &counter, keys, |key| self.keys_of(key)).await?;
            locks.extend(held(found));
        }
        Ok(locks)
    }

    pub(in crate::store::redis) async fn take_away(&self, key: &str) -> Result<bool, StoreError> {
        let queue = self.names.queue(key);
        let counter = self.names.counter(key);
        let keys: [&str; 3] = [key, &queue, &counter];
        let slot = self.commands.here();
        let live = slot.live().await?;
        let answer = eval(&slot, &live, &FORCE_RELEASE, &keys, |command| {
            command.arg(&self.names.channels);
        });
        taken_away(&answer.await?)
    }

    fn keys_of(&self, key: &str) -> Vec<String> {
        vec![key.to_owned(), self.names.queue(key), self.names.beside("shared", key)]
    }
}

/// Returns the position from which to go on, and the next keys that match, without the library's own.
pub(in crate::store::redis) async fn scan(
    slot: &ConnectionSlot,
    names: &Keyspace,
    pattern: &str,
    from: u64,
) -> Result<(u64, Vec<String>), StoreError> {
    let live = slot.live().await?;
    let mut scan = redis::cmd("SCAN");
    scan.arg(from).arg("MATCH").arg(pattern).arg("COUNT").arg(SCANNED);
    let answer = slot
        .call(&live, Limited::Releases, "", scan)
        .await
        .map_err(|error| sort(&error, true))?;
    let (next, keys): (u64, Vec<Vec<u8>>) = from_redis_value(answer.clone()).map_err(|_| unexpected(&answer))?;
    // A key that is not UTF-8 is not the library's.
    let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
    // A pattern cannot exclude them.
    Ok((next, keys.filter(|key| !names.is_reserved(key)).collect()))
}

/// Inspects locks by a script, in one round trip, with `None` for a key that is not a lock.
/// `keys_of` returns the keys of one lock.
pub(in crate::store::redis) async fn look(
    slot: &ConnectionSlot,
    script: &LockScript,
    counter: &str,
    locks: &[&str],
    keys_of: impl Fn(&str) -> Vec<String>,
) -> Result<Vec<Option<LockInfo>>, StoreError> {
    let live = slot.live().await?;
    let keys: Vec<_> = locks.iter().flat_map(|lock| keys_of(lock)).collect();
    let keys: Vec<_> = std::iter::once(counter)
        .chain(keys.iter().map(String::as_str))
        .collect();
    let answer = eval(slot, &live, script, &keys, |_| {}).await?;
    let Value::Array(parts) = &answer else {
        return Err(unexpected(&answer));
    };
    let Some((last, answers)) = parts.split_first().filter(|(_, answers)| answers.len() == locks.len()) else {
        return Err(unexpected(&answer));
    };
    let last = token(last)?;
    let locks = locks.iter().zip(answers);
    locks.map(|(key, answer)| info(key, answer, last)).collect()
}

/// Returns the answer for a single lock.
pub(in crate::store::redis) fn one(found: Vec<Option<LockInfo>>, key: &str) -> Result<Option<LockInfo>, StoreError> {
    match found.into_iter().next().flatten() {
        Some(info) => Ok(Some(info).filter(|info| !info.is_idle())),
        None => Err(StoreError::permanent(format!("the key `{key}` does not hold a lock"))
            .advise("choose another key, or prefix")),
    }
}

/// Returns the locks that have holders.
pub(in crate::store::redis) fn held(found: Vec<Option<LockInfo>>) -> impl Iterator<Item = LockInfo> {
    found.into_iter().flatten().filter(|info| !info.holders.is_empty())
}

/// Reads the answer of a script that takes a lock away.
pub(in crate::store::redis) fn taken_away(answer: &Value) -> Result<bool, StoreError> {
    match answer {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        other => Err(unexpected(other)),
    }
}

fn info(key: &str, answer: &Value, last_fence: Option<FencingToken>) -> Result<Option<LockInfo>, StoreError> {
    match answer {
        Value::Int(0) => Ok(None),
        Value::Array(parts) => {
            let [fence, Value::Int(waiters), holders @ ..] = parts.as_slice() else {
                return Err(unexpected(answer));
            };
            let mut info = LockInfo::free(key);
            info.fence = token(fence)?;
            info.last_fence = last_fence;
            info.waiters = u64::try_from(*waiters).unwrap_or(0);
            for holder in holders.chunks(2) {
                let [Value::BulkString(value), remaining] = holder else {
                    return Err(unexpected(answer));
                };
                info.add(holder_of(value), as_remaining(remaining));
            }
            Ok(Some(info))
        }
        other => Err(unexpected(other)),
    }
}

fn token(text: &Value) -> Result<Option<FencingToken>, StoreError> {
    match text {
        Value::BulkString(text) if text.is_empty() => Ok(None),
        text => fence_of(text).map(Some),
    }
}
