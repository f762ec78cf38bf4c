//! Where the suite's locks are kept: what it needs from a store beyond the seam itself.

use std::sync::Arc;
use std::time::Duration;

use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::redis::RedisStore;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, LockStore, Receipt, ReleaseRequest, RenewRequest, StoreError, Verdict,
};
use lock_tests::Server;
use tokio::runtime::{Builder, Runtime};

/// Every lease of the suite is a multiple of this, but for those that are to run out by themselves. It is far longer than
/// a test takes, so that the time a test takes does not show.
pub(crate) const STEP: Duration = Duration::from_secs(10);
/// A lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Somewhere locks are kept.
pub(crate) trait Place {
    /// One more client. All of them share the locks.
    fn store(&self) -> Arc<dyn LockStore>;

    /// Makes every key older by a multiple of [`STEP`], as if that time had passed.
    async fn age(&self, span: Duration);

    /// What the store's time is kept by.
    fn runtime(&self) -> Runtime;

    /// A client with a value of its own.
    fn client(&self, value: &str) -> Client {
        Client {
            store: self.store(),
            value: value.to_owned(),
        }
    }
}

/// Runs a promise on the place's own runtime.
pub(crate) fn run<P: Place>(place: &P, promise: impl AsyncFnOnce(&P)) {
    place.runtime().block_on(promise(place));
}

/// One memory store, by a paused clock.
pub(crate) struct InMemory(Arc<MemoryStore>);

impl InMemory {
    pub(crate) fn new() -> Self {
        Self(Arc::new(MemoryStore::new()))
    }
}

impl Place for InMemory {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::clone(&self.0) as Arc<dyn LockStore>
    }

    async fn age(&self, span: Duration) {
        tokio::time::advance(span).await;
    }

    fn runtime(&self) -> Runtime {
        Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    }
}

/// A server of the version under test.
pub(crate) struct OnServer(pub(crate) Server);

impl OnServer {
    pub(crate) fn start() -> Self {
        Self(Server::start())
    }
}

/// A real server's clock cannot be moved, but the expiry of its keys can. What has passed of the last step is given back first.
const AGE: &str = "
local step, span = tonumber(ARGV[1]), tonumber(ARGV[2])
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then
    redis.call('PEXPIRE', key, math.ceil(left / step) * step - span)
  end
end
return 0";

impl Place for OnServer {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::new(RedisStore::open(&self.0.url(), "").unwrap())
    }

    async fn age(&self, span: Duration) {
        assert_eq!(span.as_millis() % STEP.as_millis(), 0);
        self.0.cmd(&[
            "EVAL",
            AGE,
            "0",
            &STEP.as_millis().to_string(),
            &span.as_millis().to_string(),
        ]);
    }

    fn runtime(&self) -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }
}

/// A client that always presents the same value.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) value: String,
}

/// How a lock is asked for. [`Ask::default`]: for [`LONG`], without a token, telling the rest of the holder's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) lease: Duration,
    pub(crate) fence: bool,
    pub(crate) tell_remaining: bool,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            lease: LONG,
            fence: false,
            tell_remaining: true,
        }
    }
}

pub(crate) const GRANTED: Attempt = Attempt::Granted { fence: None };

impl Client {
    pub(crate) async fn try_acquire(&self, key: &str, ask: Ask) -> Result<Attempt, StoreError> {
        let receipt = Receipt::default();
        let Ask {
            lease,
            fence,
            tell_remaining,
        } = ask;
        let request = AcquireRequest {
            key,
            value: &self.value,
            lease,
            fence,
            tell_remaining,
            receipt: &receipt,
        };
        self.store.acquire(&request).await
    }

    pub(crate) async fn acquire(&self, key: &str, lease: Duration) -> Attempt {
        self.try_acquire(
            key,
            Ask {
                lease,
                ..Ask::default()
            },
        )
        .await
        .unwrap()
    }

    /// Takes the lock with a token.
    pub(crate) async fn acquire_fenced(&self, key: &str) -> u64 {
        let ask = Ask {
            fence: true,
            ..Ask::default()
        };
        match self.try_acquire(key, ask).await.unwrap() {
            Attempt::Granted { fence: Some(fence) } => fence,
            other => panic!("{other:?} instead of a grant with a token"),
        }
    }

    pub(crate) fn request(&self, key: &str, extend: Option<Duration>) -> RenewRequest {
        RenewRequest {
            key: key.into(),
            value: self.value.as_str().into(),
            extend,
        }
    }

    pub(crate) async fn renew(&self, key: &str, extend: Option<Duration>) -> Verdict {
        let verdicts = self.store.renew(&[self.request(key, extend)]).await.unwrap();
        let [verdict] = <[Verdict; 1]>::try_from(verdicts).unwrap();
        verdict
    }

    pub(crate) async fn try_release(&self, key: &str, keep: Option<Duration>) -> Result<Verdict, StoreError> {
        let receipt = Receipt::default();
        let request = ReleaseRequest {
            key,
            value: &self.value,
            keep,
            unanswered_on: None,
            receipt: &receipt,
        };
        self.store.release(&request).await
    }

    pub(crate) async fn release(&self, key: &str) -> Verdict {
        self.try_release(key, None).await.unwrap()
    }

    pub(crate) async fn fence(&self, key: &str) -> Fence {
        self.store.fence(key, &self.value).await.unwrap()
    }

    pub(crate) async fn token(&self, key: &str) -> u64 {
        match self.fence(key).await {
            Fence::Token(token) => token,
            Fence::NotOwned(verdict) => panic!("{verdict:?} instead of a token"),
        }
    }

    /// The rest of the present holder's lease; `None` if it has none.
    pub(crate) async fn rest(&self, key: &str) -> Option<Duration> {
        match self.try_acquire(key, Ask::default()).await.unwrap() {
            Attempt::Busy { remaining, .. } => remaining,
            granted @ Attempt::Granted { .. } => panic!("{granted:?} instead of busy"),
        }
    }

    /// Whether the key holds another value. Takes and gives back a free key.
    pub(crate) async fn finds_busy(&self, key: &str) -> bool {
        match self.acquire(key, LONG).await {
            Attempt::Busy { .. } => true,
            Attempt::Granted { .. } => {
                assert_eq!(self.release(key).await, Verdict::Owned);
                false
            }
        }
    }
}

/// Whether the rest of a lease is what it should be, but for the time that the test has taken.
pub(crate) fn is_about(rest: Option<Duration>, lease: Duration) -> bool {
    rest.is_some_and(|rest| rest <= lease && rest > lease.saturating_sub(STEP))
}
