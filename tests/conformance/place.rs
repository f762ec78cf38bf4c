//! The places of the suite's locks: the methods that it needs beyond those of `LockStore`.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lock_runtime::clock::{BootClock, Clock, TokioClock};
use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::quorum::QuorumStore;
use lock_runtime::store::redis::{ClusterStore, RedisStore};
use lock_runtime::store::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, ContentionSlot, Fence, HolderValue, LockStore, Ownership,
    QueueOutcome, QueueRequest, Queued, Receipt, ReleaseRequest, RenewRequest, StoreError,
};
use lock_runtime::{FencingToken, LockError, LostReason, MAX_LEASE};
use lock_tests::server::{SLOWNESS, slow_down};
use lock_tests::{ClusterGroup, PATIENCE, PATIENT, SentinelGroup, Server, permissions};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Every lease of the suite is a multiple of this, but for those that are to run out by themselves. It is far longer than
/// a test takes, so that the time a test takes does not show.
pub(crate) const STEP: Duration = Duration::from_secs(10);
/// A lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Somewhere locks are kept. The promises take any of them as one type, so that each is built once.
#[async_trait(?Send)]
pub(crate) trait Place {
    /// One more client. All of them share the locks.
    fn store(&self) -> Arc<dyn LockStore>;

    /// Makes every key older by a multiple of [`STEP`], as if that time had passed.
    async fn age(&self, span: Duration);

    /// What the store's time is kept by. This and the next two are right for servers with slow clocks.
    fn runtime(&self) -> Runtime {
        OnServer::runtime_of()
    }

    /// How much of a time by the test's clock has passed for the store.
    fn passed(&self, time: Duration) -> Duration {
        time / SLOWNESS
    }

    /// The clock that its grants are dated by.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(BootClock)
    }

    /// Whether the store keeps locks under this key.
    fn keeps(&self, key: &str) -> bool {
        self.store().refuses(key).is_none()
    }

    /// A client with a value of its own.
    fn client(&self, value: &str) -> Client {
        Client {
            store: self.store(),
            value: value.to_owned(),
            clock: self.clock(),
        }
    }
}

/// Runs a promise on the place's own runtime.
pub(crate) fn run(place: &dyn Place, promise: impl AsyncFnOnce(&dyn Place)) {
    place.runtime().block_on(promise(place));
}

/// One memory store, by a paused clock.
pub(crate) struct InMemory(Arc<MemoryStore>);

impl InMemory {
    pub(crate) fn new() -> Self {
        Self(Arc::new(MemoryStore::new()))
    }
}

#[async_trait(?Send)]
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

    fn passed(&self, time: Duration) -> Duration {
        time
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(TokioClock)
    }
}

/// A quorum of three memory stores, by a paused clock.
pub(crate) struct QuorumInMemory([Arc<MemoryStore>; 3]);

impl QuorumInMemory {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Arc::new(MemoryStore::new())))
    }
}

#[async_trait(?Send)]
impl Place for QuorumInMemory {
    fn store(&self) -> Arc<dyn LockStore> {
        let masters = self.0.iter().enumerate();
        let masters = masters.map(|(nth, store)| (format!("master {nth}"), Arc::clone(store) as Arc<dyn LockStore>));
        Arc::new(QuorumStore::of(masters, PATIENCE).unwrap())
    }

    async fn age(&self, span: Duration) {
        tokio::time::advance(span).await;
    }

    fn runtime(&self) -> Runtime {
        InMemory::new().runtime()
    }

    fn passed(&self, time: Duration) -> Duration {
        time
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(TokioClock)
    }
}

/// A quorum of three servers of the version under test.
pub(crate) struct QuorumOfServers([Server; 3]);

impl QuorumOfServers {
    pub(crate) fn start() -> Self {
        let servers = std::array::from_fn(|_| Server::builder().slow_clock().start());
        slow_down(&servers);
        OnServer::runtime_of().block_on(async {
            for server in &servers {
                assert!(Self::master(server).open_now().await.unwrap(), "it was open");
            }
        });
        Self(servers)
    }

    fn master(server: &Server) -> RedisStore {
        RedisStore::open_as_master(&server.url(), "", MAX_LEASE, PATIENT).unwrap()
    }
}

#[async_trait(?Send)]
impl Place for QuorumOfServers {
    fn store(&self) -> Arc<dyn LockStore> {
        let masters = self
            .0
            .iter()
            .map(|server| (server.url(), Arc::new(Self::master(server)) as Arc<dyn LockStore>));
        Arc::new(QuorumStore::of(masters, PATIENCE).unwrap())
    }

    async fn age(&self, span: Duration) {
        // A grant does not wait for the votes beyond a majority, which come later.
        let keys = |server: &Server| server.ask::<std::collections::BTreeSet<String>>(&["KEYS", "*"]);
        for _ in 0..40 {
            let [one, two, three] = self.0.each_ref().map(keys);
            if one == two && two == three {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(span.as_millis() % STEP.as_millis(), 0);
        let (step, span) = (STEP.as_millis().to_string(), span.as_millis().to_string());
        for server in &self.0 {
            server.cmd(&["EVAL", AGE, "0", &step, &span]);
        }
    }
}

/// Waits for a body that is cancelled because its lock was lost for this reason, long before its lease of [`LONG`] ends.
pub(crate) async fn assert_cancelled<T: Debug>(body: JoinHandle<Result<T, LockError>>, wanted: LostReason) {
    let error = tokio::time::timeout(LONG / 3, body)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(error, LockError::Lost { reason, completed: false, .. } if reason == wanted),
        "{error:?}"
    );
}

/// Starts a server by whose clock next to nothing passes while a test goes on, also on a machine that stands still now and then: a lock
/// that is handed over is kept for 1.5 s only, unless it is claimed.
fn slow_server() -> Server {
    let server = Server::builder().slow_clock().start();
    slow_down([&server]);
    server
}

/// A server of the version under test.
pub(crate) struct OnServer(pub(crate) Server);

impl OnServer {
    pub(crate) fn start() -> Self {
        Self(slow_server())
    }

    fn runtime_of() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }
}

/// A real server's clock cannot be moved, but the expiry of its locks can. What has passed of the last step is given back first.
/// Queues stay as they are: their expiry is that of the processes that wait. Where several hold a lock, each has an expiry of its own, in
/// its score.
const AGE: &str = "
local step, span = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function aged(left) return math.ceil(left / step) * step - span end
for _, key in ipairs(redis.call('KEYS', '*')) do
  if string.find(key, '%lock-queue', 1, true) or string.find(key, '%lock-shared', 1, true) then
    -- It stays.
  elseif redis.call('TYPE', key).ok == 'zset' and redis.call('PTTL', key) < 0 then
    return redis.error_reply('ERR ' .. key .. ' would stay for ever')
  else
    local holders = redis.call('TYPE', key).ok == 'zset' and redis.call('ZRANGEBYSCORE', key, 1e12, '+inf', 'WITHSCORES') or {}
    for i = 1, #holders, 2 do
      local left = holders[i + 1] - now
      if left > 0 then
        redis.call('ZADD', key, string.format('%.0f', now + aged(left)), holders[i])
      end
    end
    local left = redis.call('PTTL', key)
    if left >= 0 then
      redis.call('PEXPIRE', key, string.format('%.0f', aged(left)))
    end
  end
end
return 0";

/// One database of a master that sentinels watch. All tests share the processes, since a group takes seconds to start.
pub(crate) struct BehindSentinels {
    group: &'static SentinelGroup,
    database: usize,
}

impl BehindSentinels {
    pub(crate) fn start() -> Self {
        static GROUP: OnceLock<SentinelGroup> = OnceLock::new();
        static USED: AtomicUsize = AtomicUsize::new(0);
        let start = || std::thread::spawn(|| OnServer::runtime_of().block_on(SentinelGroup::start_slow())).join();
        Self {
            group: GROUP.get_or_init(|| start().unwrap()),
            database: USED.fetch_add(1, Ordering::Relaxed),
        }
    }
}

#[async_trait(?Send)]
impl Place for BehindSentinels {
    fn store(&self) -> Arc<dyn LockStore> {
        let url = format!("{}?db={}", self.group.url(), self.database);
        Arc::new(RedisStore::open(&url, "", PATIENT).unwrap())
    }

    async fn age(&self, span: Duration) {
        assert_eq!(span.as_millis() % STEP.as_millis(), 0);
        let master = self.group.server(self.group.master().await);
        let mut connection = master.connection().await;
        let mut age = redis::pipe();
        age.cmd("SELECT").arg(self.database).ignore();
        let (step, span) = (STEP.as_millis(), span.as_millis());
        age.cmd("EVAL")
            .arg(AGE)
            .arg(0)
            .arg(step.to_string())
            .arg(span.to_string());
        age.query_async::<()>(&mut connection).await.unwrap();
    }
}

/// A cluster. All tests share its processes, since it takes seconds to start, and have it in turn, since it has one database.
pub(crate) struct BehindCluster {
    cluster: &'static ClusterGroup,
    _turn: MutexGuard<'static, ()>,
}

impl BehindCluster {
    pub(crate) fn start() -> Self {
        static CLUSTER: OnceLock<ClusterGroup> = OnceLock::new();
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let start = || std::thread::spawn(|| OnServer::runtime_of().block_on(ClusterGroup::start_slow())).join();
        let cluster = CLUSTER.get_or_init(|| start().unwrap());
        for master in cluster.masters() {
            master.cmd(&["FLUSHALL"]);
        }
        Self { cluster, _turn: turn }
    }
}

#[async_trait(?Send)]
impl Place for BehindCluster {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::new(ClusterStore::open(&self.cluster.url(), "", PATIENT).unwrap())
    }

    async fn age(&self, span: Duration) {
        assert_eq!(span.as_millis() % STEP.as_millis(), 0);
        let (step, span) = (STEP.as_millis().to_string(), span.as_millis().to_string());
        for master in self.cluster.masters() {
            master.cmd(&["EVAL", AGE, "0", &step, &span]);
        }
    }
}

#[async_trait(?Send)]
impl Place for OnServer {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::new(RedisStore::open(&self.0.url(), "", PATIENT).unwrap())
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
}

/// A server of the version under test that lets its clients do what `docs/operations.md` asks for, and nothing else.
pub(crate) struct AsTheDocumentedUser(OnServer);

impl AsTheDocumentedUser {
    pub(crate) fn start() -> Self {
        let server = slow_server();
        // The clients of a place have no prefix.
        let rules = permissions::all().join(" ").replace("dist_lock:", "");
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">secret"].into_iter();
        server.cmd(&user.chain(rules.split(' ')).collect::<Vec<_>>());
        Self(OnServer(server))
    }
}

#[async_trait(?Send)]
impl Place for AsTheDocumentedUser {
    fn store(&self) -> Arc<dyn LockStore> {
        let url = self.0.0.url().replace("redis://", "redis://app:secret@");
        Arc::new(RedisStore::open(&url, "", PATIENT).unwrap())
    }

    async fn age(&self, span: Duration) {
        self.0.age(span).await;
    }
}

/// A client that always presents the same value.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) value: String,
    pub(crate) clock: Arc<dyn Clock>,
}

/// How a lock is asked for. [`Ask::default`]: for [`LONG`], without a token, telling the rest of the holder's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) lease: Duration,
    pub(crate) fence: bool,
    pub(crate) tell_remaining: bool,
    pub(crate) fair: bool,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            lease: LONG,
            fence: false,
            tell_remaining: true,
            fair: false,
        }
    }
}

/// A token as the runtime makes them, and not the same backwards.
pub(crate) fn token(name: &str) -> String {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    format!("{:032x}", hasher.finish())
}

pub(crate) const GRANTED: Attempt = Attempt::Granted { fence: None };

impl Client {
    pub(crate) fn holder_value(&self) -> HolderValue {
        HolderValue::of(self.value.as_str())
    }

    pub(crate) async fn try_acquire(&self, key: &str, ask: Ask) -> Result<Attempt, StoreError> {
        let receipt = Receipt::default();
        let Ask {
            lease,
            fence,
            tell_remaining,
            fair,
        } = ask;
        let request = AcquireRequest {
            key: &key.into(),
            value: &self.holder_value(),
            ttl: lease,
            fence,
            tell_remaining,
            fair,
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
            Attempt::Granted { fence: Some(fence) } => fence.get(),
            other => panic!("{other:?} instead of a grant with a token"),
        }
    }

    /// Asks for many locks without a token.
    /// Keeps keys for half of the lease, if it is to keep some.
    pub(crate) async fn acquire_all(
        &self,
        keys: &[&str],
        former: Option<&str>,
        keep: bool,
        lease: Duration,
    ) -> AttemptAll {
        let keys: Vec<Arc<str>> = keys.iter().map(|&key| key.into()).collect();
        let former = former.map(HolderValue::of);
        let receipt = Receipt::default();
        let request = AcquireAllRequest {
            keys: &keys,
            value: &self.holder_value(),
            former: former.as_ref(),
            keep: keep.then_some(lease / 2),
            ttl: lease,
            fence: false,
            receipt: &receipt,
        };
        self.store.acquire_all(&request).await.unwrap()
    }

    pub(crate) fn request(&self, key: &str, extend: Option<Duration>) -> RenewRequest {
        RenewRequest {
            key: key.into(),
            value: self.holder_value(),
            extend,
        }
    }

    pub(crate) async fn renew(&self, key: &str, extend: Option<Duration>) -> Ownership {
        let requests = [self.request(key, extend)];
        let verdicts = self.store.renew(&requests).await.unwrap();
        let [verdict] = <[Ownership; 1]>::try_from(verdicts).unwrap();
        verdict
    }

    pub(crate) async fn try_release(&self, key: &str, keep: Option<Duration>) -> Result<Ownership, StoreError> {
        let receipt = Receipt::default();
        let request = ReleaseRequest {
            key: &key.into(),
            value: &self.holder_value(),
            keep,
            unanswered_on: None,
            elsewhere: false,
            queued: None,
            leave_free: None,
            receipt: &receipt,
        };
        self.store.release(&request).await
    }

    pub(crate) async fn release(&self, key: &str) -> Ownership {
        self.try_release(key, None).await.unwrap()
    }

    /// Waits in the queue for the lock.
    pub(crate) async fn queue(
        &self,
        key: &str,
        ask: Ask,
        receipt: &Receipt,
        contention: &ContentionSlot,
    ) -> Result<QueueOutcome, StoreError> {
        let request = QueueRequest {
            key: &key.into(),
            value: &self.holder_value(),
            ttl: ask.lease,
            fence: ask.fence,
            clock: &self.clock,
            receipt,
            contention,
        };
        self.store.queue(&request).await
    }

    /// Stands in the queue from when this returns, or has the lock by then.
    pub(crate) async fn stand(&self, key: &str, ask: Ask) -> Standing {
        let (receipt, contention) = (Arc::new(Receipt::default()), Arc::new(ContentionSlot::default()));
        let task = tokio::spawn({
            let (client, key) = (self.clone(), key.to_owned());
            let (receipt, contention) = (Arc::clone(&receipt), Arc::clone(&contention));
            async move { client.queue(&key, ask, &receipt, &contention).await }
        });
        let standing = Standing {
            client: self.clone(),
            key: key.to_owned(),
            ask,
            contention,
            task,
        };
        let stands = || receipt.connection().is_some() && receipt.unanswered_on().is_none();
        until("a place in the queue", || stands() || standing.task.is_finished()).await;
        standing
    }

    /// Takes the value back, wherever it is: in the queue or under the key.
    pub(crate) async fn leave(&self, key: &str, ask: Ask) -> Ownership {
        let receipt = Receipt::default();
        let request = ReleaseRequest {
            key: &key.into(),
            value: &self.holder_value(),
            keep: None,
            unanswered_on: None,
            elsewhere: false,
            queued: Some(Queued {
                ttl: ask.lease,
                fence: ask.fence,
            }),
            leave_free: None,
            receipt: &receipt,
        };
        self.store.release(&request).await.unwrap()
    }

    pub(crate) async fn fence(&self, key: &str) -> Fence {
        let value = self.holder_value();
        self.store.fence(key, &value).await.unwrap()
    }

    pub(crate) async fn token(&self, key: &str) -> u64 {
        match self.fence(key).await {
            Fence::Token(token) => token.get(),
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
                assert_eq!(self.release(key).await, Ownership::Owned);
                false
            }
        }
    }
}

/// A client in the queue.
pub(crate) struct Standing {
    pub(crate) client: Client,
    key: String,
    ask: Ask,
    pub(crate) contention: Arc<ContentionSlot>,
    task: JoinHandle<Result<QueueOutcome, StoreError>>,
}

impl Standing {
    /// Whether it has been told nothing so far.
    pub(crate) fn waits(&self) -> bool {
        !self.task.is_finished()
    }

    /// Its turn, as the store tells it.
    pub(crate) async fn turn(&mut self) -> QueueOutcome {
        until("a turn in the queue", || self.task.is_finished()).await;
        (&mut self.task).await.unwrap().unwrap()
    }

    /// Waits for the lock. Returns its token, where one was asked for.
    pub(crate) async fn claim(mut self) -> Option<u64> {
        let QueueOutcome::Granted { fence, .. } = self.turn().await else {
            panic!("{} has lost its place", self.client.value);
        };
        assert_eq!(fence.is_some(), self.ask.fence);
        fence.map(FencingToken::get)
    }

    /// Stops listening, as a process does that is killed: the place stays.
    pub(crate) async fn abandon(self) -> Client {
        self.task.abort();
        let _ = self.task.await;
        // A look that was under way is answered before this.
        self.client.store.ping().await.unwrap();
        self.client
    }

    /// Leaves the queue, or gives back what it got.
    pub(crate) async fn leave(self) -> Ownership {
        let (key, ask) = (self.key.clone(), self.ask);
        self.abandon().await.leave(&key, ask).await
    }
}

/// Waits for something that other tasks or threads do, without letting the time of a paused clock pass.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(Duration::from_micros(50));
        tokio::task::yield_now().await;
    }
}

/// Whether the rest of a lease is what it should be, but for the time that the test has taken.
pub(crate) fn is_about(rest: Option<Duration>, lease: Duration) -> bool {
    rest.is_some_and(|rest| rest <= lease && rest > lease.saturating_sub(STEP))
}
