//! Locks beside services that still use the pattern of before Redis 2.6.12: `SETNX name_lock <when it ends>`, `GETSET` to take over
//! what has ended. Ours take each step of it in one script, by the server's clock, and are read by those services as their own.

use std::sync::Arc;

use once_cell::sync::Lazy;
use redis::Value;

use super::inspect::{BATCH, held, look, one, scan, taken_away};
use super::scripts::{LockScript, NEXT_FENCE, eval};
use super::values::{granted_or_busy, millis, token_or_verdict, unexpected, verdict, verdicts};
use super::{RedisSettings, RedisStore};
use crate::inspect::LockInfo;
use crate::store::{
    AcquireRequest, Attempt, Fence, LockPage, LockStore, LossHint, LossReceiver, Mode, ReleaseRequest, RenewRequest,
    StoreError, StoreFuture, Verdict,
};

/// What the names of these locks end with.
const SUFFIX: &str = "_lock";

const OLD: &str = include_str!("old.lua");

static ACQUIRE: Lazy<LockScript> = Lazy::new(|| LockScript::new(&[NEXT_FENCE, OLD, include_str!("old_acquire.lua")]));
static RENEW: Lazy<LockScript> = Lazy::new(|| LockScript::for_held(&[OLD, include_str!("old_renew.lua")]));
static RELEASE: Lazy<LockScript> = Lazy::new(|| LockScript::for_held(&[OLD, include_str!("old_release.lua")]));
static FENCE: Lazy<LockScript> = Lazy::new(|| LockScript::for_held(&[NEXT_FENCE, OLD, include_str!("old_fence.lua")]));
static INSPECT: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_looking(&[OLD, include_str!("old_inspect.lua")].concat()));
static FORCE_RELEASE: Lazy<LockScript> =
    Lazy::new(|| LockScript::for_held(&[OLD, include_str!("old_force_release.lua")]));

/// Locks kept by one Redis or Valkey server in the form of before Redis 2.6.12, to be shared with services that still use
/// it. See [`old_neighbours`](crate::LockManagerBuilder::old_neighbours).
///
/// The lock `<key>` is the string `<key>_lock`: when it ends, in ms since 1970. What the store itself has taken is told by a
/// second key, `<prefix>%lock-old:{<key>_lock}` (or `<prefix>%lock-old@<name>_lock` where the key contains a `}`): the same
/// number, a colon, and the holder's value. Both expire at that time. It has no queue, and exclusive locks only.
#[derive(Debug)]
pub struct OldNeighbourStore {
    server: RedisStore,
}

/// The keys of one lock.
struct Keys {
    /// What the old clients know.
    lock: String,
    /// What tells its holder, if it is ours.
    side: String,
}

impl OldNeighbourStore {
    /// A store on the server at `url`, with the default time-outs. `prefix` is that of its keys, most often empty here. It
    /// connects on first use.
    ///
    /// # Errors
    /// When the URL is not understood.
    pub fn open(url: &str, prefix: &str) -> Result<Self, StoreError> {
        Self::new(url, prefix, &RedisSettings::default())
    }

    pub(crate) fn new(url: &str, prefix: &str, settings: &RedisSettings) -> Result<Self, StoreError> {
        let server = RedisStore::new(url, prefix, settings)?;
        Ok(Self { server })
    }

    fn keys_of(&self, key: &str) -> Keys {
        let lock = format!("{key}{SUFFIX}");
        let side = self.server.names.beside("old", &lock);
        Keys { lock, side }
    }

    async fn take(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        if Mode::is_shared(request.value) {
            return Err(StoreError::permanent(
                "a lock beside old neighbours is exclusive: they know no other mode; use another manager, without `old_neighbours`, for this one",
            ));
        }
        if request.fair {
            return Err(StoreError::permanent(
                "a lock beside old neighbours cannot be fair: they know no queue; leave `fair` out until the last of them is gone",
            ));
        }
        let link = self.server.commands.here();
        let live = link.live().await?;
        request.receipt.sent_on(live.number);
        let own = self.keys_of(request.key);
        let keys = [&own.lock, &own.side, self.server.names.counter.as_str()];
        let answer = eval(&link, &live, &ACQUIRE, &keys, |command| {
            command
                .arg(&**request.value)
                .arg(millis(request.lease))
                .arg(u8::from(request.fence));
        });
        match answer.await? {
            Value::Array(parts) => match parts.as_slice() {
                [Value::Int(2), Value::BulkString(found), _] => Err(StoreError::permanent(format!(
                    "`{}` holds `{}`, which is no time in milliseconds since 1970 and so no lock of an old client; it stays as it is",
                    own.lock,
                    String::from_utf8_lossy(found).chars().take(64).collect::<String>()
                ))),
                parts => granted_or_busy(parts),
            },
            other => Err(unexpected(&other)),
        }
    }

    async fn renew_all(&self, requests: &[RenewRequest]) -> Result<Vec<Verdict>, StoreError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let link = &self.server.background;
        let live = link.live().await?;
        let own: Vec<_> = requests.iter().map(|request| self.keys_of(&request.key)).collect();
        let keys: Vec<&str> = own.iter().flat_map(|own| [own.lock.as_str(), &own.side]).collect();
        let answer = eval(link, &live, &RENEW, &keys, |command| {
            for request in requests {
                command.arg(&*request.value).arg(request.extend.map_or(0, millis));
            }
        });
        verdicts(&answer.await?, requests.len())
    }

    async fn give_back(&self, request: &ReleaseRequest<'_>) -> Result<Verdict, StoreError> {
        let (link, live) = self.server.commands.for_release(request).await?;
        request.receipt.sent_on(live.number);
        let own = self.keys_of(request.key);
        let answer = eval(&link, &live, &RELEASE, &[&own.lock, &own.side], |command| {
            command.arg(request.value).arg(request.keep.map_or(0, millis));
        })
        .await?;
        verdict(&answer)
    }

    async fn token(&self, key: &str, value: &str) -> Result<Fence, StoreError> {
        let link = self.server.commands.here();
        let live = link.live().await?;
        let own = self.keys_of(key);
        let keys = [&own.lock, &own.side, self.server.names.counter.as_str()];
        let answer = eval(&link, &live, &FENCE, &keys, |command| {
            command.arg(value);
        });
        token_or_verdict(&answer.await?)
    }

    /// `None` in place of what is no lock.
    async fn look(&self, keys: &[&str]) -> Result<Vec<Option<LockInfo>>, StoreError> {
        let link = self.server.commands.here();
        let keys_of = |key: &str| {
            let own = self.keys_of(key);
            vec![own.lock, own.side]
        };
        look(&link, &INSPECT, &self.server.names.counter, keys, keys_of).await
    }

    async fn page(&self, pattern: &str, from: u64) -> Result<LockPage, StoreError> {
        let link = self.server.commands.here();
        let (next, found) = scan(&link, &format!("{pattern}{SUFFIX}"), from).await?;
        let keys: Vec<_> = found.iter().filter_map(|key| key.strip_suffix(SUFFIX)).collect();
        let mut locks = Vec::new();
        for keys in keys.chunks(BATCH) {
            locks.extend(held(self.look(keys).await?));
        }
        Ok(LockPage { locks, next })
    }

    async fn take_away(&self, key: &str) -> Result<bool, StoreError> {
        let link = self.server.commands.here();
        let live = link.live().await?;
        let own = self.keys_of(key);
        let answer = eval(&link, &live, &FORCE_RELEASE, &[&own.lock, &own.side], |_| {}).await?;
        taken_away(&answer)
    }
}

impl LockStore for OldNeighbourStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(self.take(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Verdict>> {
        Box::pin(self.renew_all(requests))
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Verdict> {
        Box::pin(self.give_back(request))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a str) -> StoreFuture<'a, Fence> {
        Box::pin(self.token(key, value))
    }

    fn connect(&self) -> StoreFuture<'_, ()> {
        self.server.connect()
    }

    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        Box::pin(async move { one(self.look(&[key]).await?, key) })
    }

    fn list<'a>(&'a self, pattern: &'a str, from: u64) -> StoreFuture<'a, LockPage> {
        Box::pin(self.page(pattern, from))
    }

    fn force_release<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(self.take_away(key))
    }

    /// The server reports the keys that it knows.
    fn report_losses(&self, receiver: LossReceiver) -> bool {
        self.server.report_losses(Arc::new(move |hint| match hint {
            LossHint::Key(key) => {
                if let Some(key) = key.strip_suffix(SUFFIX) {
                    receiver(LossHint::Key(key.into()));
                }
            }
            LossHint::All => receiver(LossHint::All),
        }))
    }
}
