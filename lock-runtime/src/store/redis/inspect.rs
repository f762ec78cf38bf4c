//! The operator's view of a server's locks.

use once_cell::sync::Lazy;
use redis::{Value, from_redis_value};

use super::RedisStore;
use super::failure::sort;
use super::link::Link;
use super::scripts::{LockScript, NEXT_FENCE, QUEUE, eval};
use super::values::{as_remaining, fence_of, holder_of, unexpected};
use crate::inspect::LockInfo;
use crate::store::{LockPage, StoreError};

/// How many of the database's keys the server looks at in one go.
const SCANNED: usize = 1000;
/// How many locks one script's run is about at most: a longer one would hold up the server's other clients.
pub(super) const BATCH: usize = 100;

static INSPECT: Lazy<LockScript> = Lazy::new(|| LockScript::for_looking(include_str!("inspect.lua")));
static FORCE_RELEASE: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_held(&[NEXT_FENCE, QUEUE, include_str!("force_release.lua")]));

impl RedisStore {
    pub(super) async fn inspect_one(&self, key: &str) -> Result<Option<LockInfo>, StoreError> {
        let link = self.commands.here();
        let found = look(&link, &INSPECT, &self.names.counter, &[key], |key| self.keys_of(key)).await?;
        one(found, key)
    }

    pub(super) async fn list_page(&self, pattern: &str, from: u64) -> Result<LockPage, StoreError> {
        let link = self.commands.here();
        let (next, keys) = scan(&link, pattern, from).await?;
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let mut locks = Vec::new();
        for keys in keys.chunks(BATCH) {
            let found = look(&link, &INSPECT, &self.names.counter, keys, |key| self.keys_of(key)).await?;
            locks.extend(held(found));
        }
        Ok(LockPage { locks, next })
    }

    pub(super) async fn take_away(&self, key: &str) -> Result<bool, StoreError> {
        let queue = self.names.queue(key);
        let keys: [&str; 3] = [key, &queue, &self.names.counter];
        let link = self.commands.here();
        let live = link.live().await?;
        let answer = eval(&link, &live, &FORCE_RELEASE, &keys, |command| {
            command.arg(&self.names.channels);
        });
        taken_away(&answer.await?)
    }

    fn keys_of(&self, key: &str) -> Vec<String> {
        vec![key.to_owned(), self.names.queue(key), self.names.beside("shared", key)]
    }
}

/// The next keys that match, and where to go on.
pub(super) async fn scan(link: &Link, pattern: &str, from: u64) -> Result<(u64, Vec<String>), StoreError> {
    let live = link.live().await?;
    let mut scan = redis::cmd("SCAN");
    scan.arg(from).arg("MATCH").arg(pattern).arg("COUNT").arg(SCANNED);
    let answer = link.call(&live, "", scan).await.map_err(|error| sort(error, true))?;
    let (next, keys): (u64, Vec<Vec<u8>>) = from_redis_value(answer.clone()).map_err(|_| unexpected(&answer))?;
    // A key that is no text is none of the library's.
    let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
    Ok((next, keys.collect()))
}

/// Has a script look at locks, in one round trip; `None` in place of what is no lock. `keys_of` names the keys of one lock.
pub(super) async fn look(
    link: &Link,
    script: &LockScript,
    counter: &str,
    locks: &[&str],
    keys_of: impl Fn(&str) -> Vec<String>,
) -> Result<Vec<Option<LockInfo>>, StoreError> {
    let live = link.live().await?;
    let keys: Vec<_> = locks.iter().flat_map(|lock| keys_of(lock)).collect();
    let keys: Vec<_> = std::iter::once(counter)
        .chain(keys.iter().map(String::as_str))
        .collect();
    let answer = eval(link, &live, script, &keys, |_| {}).await?;
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

/// The answer for a single lock.
pub(super) fn one(found: Vec<Option<LockInfo>>, key: &str) -> Result<Option<LockInfo>, StoreError> {
    match found.into_iter().next().flatten() {
        Some(info) => Ok(Some(info).filter(|info| !info.is_idle())),
        None => Err(StoreError::permanent(format!(
            "what is kept under `{key}` is no lock; choose another key, or prefix"
        ))),
    }
}

/// Those that somebody holds.
pub(super) fn held(found: Vec<Option<LockInfo>>) -> impl Iterator<Item = LockInfo> {
    found.into_iter().flatten().filter(|info| !info.holders.is_empty())
}

/// What a script says that takes a lock away.
pub(super) fn taken_away(answer: &Value) -> Result<bool, StoreError> {
    match answer {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        other => Err(unexpected(other)),
    }
}

fn info(key: &str, answer: &Value, last_fence: Option<u64>) -> Result<Option<LockInfo>, StoreError> {
    match answer {
        Value::Int(0) => Ok(None),
        Value::Array(parts) => {
            let [fence, Value::Int(waiters), holders @ ..] = parts.as_slice() else {
                return Err(unexpected(answer));
            };
            let mut info = LockInfo::new(key);
            info.fence = token(fence)?;
            info.last_fence = last_fence;
            info.waiters = u64::try_from(*waiters).unwrap_or(0);
            for holder in holders.chunks(2) {
                let [Value::BulkString(value), remaining] = holder else {
                    return Err(unexpected(answer));
                };
                info.hold(holder_of(value), as_remaining(remaining));
            }
            Ok(Some(info))
        }
        other => Err(unexpected(other)),
    }
}

fn token(text: &Value) -> Result<Option<u64>, StoreError> {
    match text {
        Value::BulkString(text) if text.is_empty() => Ok(None),
        text => fence_of(text).map(Some),
    }
}
