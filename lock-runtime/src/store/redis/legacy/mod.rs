//! Locks shared with services that still use the pattern from before Redis 2.6.12: `SETNX name_lock
//! <time of its end>`, and `GETSET` to take over an expired lock. This store takes each step in one
//! script, by the server's clock. Those services read its locks like their own.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;

use crate::host::Host;
use crate::store::health::ServerHealth;
use crate::store::info::LockInfo;
use crate::store::redis::RedisStore;
use crate::store::redis::connection::eval;
use crate::store::redis::ops::apart::{known, renew_apart};
use crate::store::redis::ops::inspect::{BATCH, held, look, one, scan, taken_away};
use crate::store::redis::reply::{self, millis, token_or_verdict, verdict};
use crate::store::redis::scripts::{LockScript, NEXT_FENCE};
use crate::store::redis::settings::RedisSettings;
#[cfg(feature = "custom-store")]
use crate::store::redis::settings::TimeOuts;
use crate::store::{
    AcquireRequest, Attempt, Fence, HolderValue, Lane, Limited, LockPage, LockStore, LossHint, LossReceiver, Ownership,
    ReleaseRequest, RenewRequest, StoreError, StoreFuture,
};

/// The suffix of these locks' names.
const SUFFIX: &str = "_lock";

const COMMON: &str = include_str!("legacy.lua");

static ACQUIRE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::new(&[NEXT_FENCE, COMMON, include_str!("legacy_acquire.lua")]));
static RENEW: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[COMMON, include_str!("legacy_renew.lua")]));
static RELEASE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[COMMON, include_str!("legacy_release.lua")]));
static FENCE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[NEXT_FENCE, COMMON, include_str!("legacy_fence.lua")]));
static INSPECT: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_looking(&[COMMON, include_str!("legacy_inspect.lua")].concat()));
static FORCE_RELEASE: LazyLock<LockScript> =
    LazyLock::new(|| LockScript::for_held(&[COMMON, include_str!("legacy_force_release.lua")]));

#[cfg(lock_simulation)]
pub(super) fn all() -> [(&'static str, &'static LockScript); 6] {
    [
        ("legacy_acquire", &ACQUIRE),
        ("legacy_renew", &RENEW),
        ("legacy_release", &RELEASE),
        ("legacy_fence", &FENCE),
        ("legacy_inspect", &INSPECT),
        ("legacy_force_release", &FORCE_RELEASE),
    ]
}

/// Locks on one Redis or Valkey server in the form from before Redis 2.6.12, shared with services
/// that still use it. See [`legacy_setnx`](crate::LockManagerBuilder::legacy_setnx).
///
/// The lock `<key>` is the string `<key>_lock`, which contains the time of its end in ms since
/// 1970. A second key marks the locks of this store: `<prefix>%lock-old:{<key>_lock}` (or
/// `<prefix>%lock-old@<name>_lock` where the key contains a `}`) contains the same number, a colon,
/// and the holder's value. Both expire at that time. There is no queue, and all locks are
/// exclusive.
#[derive(Debug)]
pub struct LegacySetnxStore {
    server: RedisStore,
    /// Not that of the server: a lock in another form under the same key is another lock.
    place: Option<String>,
}

/// The keys of one lock.
struct Keys {
    /// The key that the other services know.
    lock: String,
    /// The key that names the holder, if this store took the lock.
    side: String,
}

impl LegacySetnxStore {
    /// Creates a store on the server at `url`. `prefix` is that of its
    /// keys, most often empty here. It connects on first use.
    ///
    /// # Errors
    /// Fails if the URL is not understood.
    #[cfg(feature = "custom-store")]
    pub fn open(url: &str, prefix: &str, time_outs: TimeOuts) -> Result<Self, StoreError> {
        Self::new(&Host::process(), url, prefix, &RedisSettings::within(time_outs))
    }

    pub(crate) fn new(host: &Host, url: &str, prefix: &str, settings: &RedisSettings) -> Result<Self, StoreError> {
        let server = RedisStore::new(host, url, prefix, settings)?;
        let place = server.place().map(|place| format!("{place}, as of old clients"));
        Ok(Self { server, place })
    }

    fn keys_of(&self, key: &str) -> Keys {
        let lock = format!("{key}{SUFFIX}");
        let side = self.server.names.beside("old", &lock);
        Keys { lock, side }
    }

    async fn take(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        if request.value.is_shared() {
            return Err(
                StoreError::permanent("a lock shared with old clients is exclusive: they know no other mode")
                    .advise("use another manager, without `legacy_setnx`, for this one"),
            );
        }
        if request.fair {
            return Err(
                StoreError::permanent("a lock shared with old clients cannot be fair: they know no queue")
                    .advise("leave `fair` out until the last old client is gone"),
            );
        }
        let slot = self.server.commands.here();
        let live = slot.live().await?;
        request.receipt.sent_at(live.number, slot.host().now());
        let own = self.keys_of(request.key);
        let counter = self.server.names.counter(&own.lock);
        let keys: [&str; 3] = [&own.lock, &own.side, &counter];
        let answer = eval(&slot, &live, &ACQUIRE, &keys, |command| {
            command
                .arg(request.value.as_str())
                .arg(millis(request.ttl))
                .arg(u8::from(request.fence));
        });
        let answer = answer.await?;
        match answer.as_sequence() {
            Some([Value::Int(2), Value::BulkString(found), _]) => Err(StoreError::permanent(format!(
                "`{}` holds `{}`, which is no time in milliseconds since 1970 and so no lock of an old client; it stays as it is",
                own.lock,
                String::from_utf8_lossy(found).chars().take(64).collect::<String>()
            ))
            .advise("choose another key, or find out what else writes this one")),
            _ => reply::attempt(&answer),
        }
    }

    async fn renew_all(&self, requests: &[RenewRequest]) -> Result<Vec<Ownership>, StoreError> {
        let mut verdicts = Vec::with_capacity(requests.len());
        // A longer script would delay the server's other clients.
        for requests in requests.chunks(BATCH) {
            let own: Vec<_> = requests.iter().map(|request| self.keys_of(&request.key)).collect();
            let keys: Vec<&str> = own.iter().flat_map(|own| [own.lock.as_str(), &own.side]).collect();
            verdicts.extend(self.server.renew_keys(&RENEW, &keys, requests).await?);
        }
        Ok(verdicts)
    }

    async fn give_back(&self, request: &ReleaseRequest<'_>) -> Result<Ownership, StoreError> {
        let (slot, live) = self.server.commands.for_release(request).await?;
        request.receipt.sent_on(live.number);
        let own = self.keys_of(request.key);
        let answer = eval(&slot, &live, &RELEASE, &[&own.lock, &own.side], |command| {
            command.arg(request.value.as_str()).arg(request.keep.map_or(0, millis));
        })
        .await?;
        verdict(&answer)
    }

    async fn token(&self, key: &str, value: &HolderValue) -> Result<Fence, StoreError> {
        let slot = self.server.commands.here();
        let live = slot.live().await?;
        let own = self.keys_of(key);
        let counter = self.server.names.counter(&own.lock);
        let keys: [&str; 3] = [&own.lock, &own.side, &counter];
        let answer = eval(&slot, &live, &FENCE, &keys, |command| {
            command.arg(value.as_str());
        });
        token_or_verdict(&answer.await?)
    }

    /// Inspects locks, with `None` for a key that is not a lock.
    async fn look(&self, keys: &[&str]) -> Result<Vec<Option<LockInfo>>, StoreError> {
        let slot = self.server.commands.here();
        let keys_of = |key: &str| {
            let own = self.keys_of(key);
            vec![own.lock, own.side]
        };
        look(&slot, &INSPECT, &self.server.names.counter(""), keys, keys_of).await
    }

    async fn page(&self, pattern: &str, from: u64) -> Result<LockPage, StoreError> {
        let slot = self.server.commands.here();
        let (next, found) = scan(&slot, &self.server.names, &format!("{pattern}{SUFFIX}"), from).await?;
        let keys: Vec<_> = found.iter().filter_map(|key| key.strip_suffix(SUFFIX)).collect();
        let mut locks = Vec::new();
        for keys in keys.chunks(BATCH) {
            locks.extend(held(self.look(keys).await?));
        }
        Ok(LockPage { locks, next })
    }

    async fn take_away(&self, key: &str) -> Result<bool, StoreError> {
        let slot = self.server.commands.here();
        let live = slot.live().await?;
        let own = self.keys_of(key);
        let answer = eval(&slot, &live, &FORCE_RELEASE, &[&own.lock, &own.side], |_| {}).await?;
        taken_away(&answer)
    }
}

impl LockStore for LegacySetnxStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(self.take(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        Box::pin(self.renew_all(requests))
    }

    fn renew_each<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Option<Ownership>>> {
        Box::pin(async move {
            known(
                self.server.background.host(),
                renew_apart(requests, &|some| self.renew(some)).await,
            )
        })
    }

    fn health(&self) -> Option<watch::Receiver<Vec<ServerHealth>>> {
        self.server.health()
    }

    fn check_setup(&self, min_replicas: u32) -> StoreFuture<'_, Vec<String>> {
        self.server.check_setup(min_replicas)
    }

    fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    fn skew(&self) -> Duration {
        self.server.skew()
    }

    fn renewal_is_late(&self, lane: Lane) {
        self.server.renewal_is_late(lane);
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        Box::pin(self.give_back(request))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        Box::pin(self.token(key, value))
    }

    fn ready(&self, what: Limited, key: &str, most: Duration) -> Option<StoreFuture<'_, ()>> {
        self.server.ready(what, key, most)
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

    /// Removes the suffix from the keys that the server reports.
    fn report_losses(&self, receiver: LossReceiver) -> bool {
        self.server.report_losses(Arc::new(move |hint| match hint {
            LossHint::Key(key) => {
                if let Some(key) = key.strip_suffix(SUFFIX) {
                    receiver(LossHint::Key(key.into()));
                }
            }
            hint => receiver(hint),
        }))
    }
}
