//! Locks for unit tests: held by somebody else, lost, unanswered, out of reach, and asserted. Feature `testing`.
//!
//! ```
//! use std::time::Duration;
//!
//! use lock_runtime::testing::TestLocks;
//! use lock_runtime::{LockError, assert_locked, distributed_lock};
//!
//! #[distributed_lock(key = "inventory:<item_id>", wait = 5)]
//! async fn reduce_stock(item_id: u64) -> Result<(), LockError> {
//!     // … a slow step:
//!     tokio::time::sleep(Duration::from_secs(60)).await;
//!     Ok(())
//! }
//!
//! # macro_rules! run { ($test:ident) => {
//! #     tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on($test())
//! # } }
//! # /*
//! #[tokio::test(start_paused = true)]
//! # */
//! async fn the_stock_waits_for_its_turn_and_gives_up() {
//!     let kit = TestLocks::new();
//!     let _global = kit.as_global();
//!     let other = kit.hold("inventory:7");
//!     assert!(reduce_stock(7).await.is_err_and(|error| error.is_busy()));
//!
//!     other.release();
//!     reduce_stock(7).await.unwrap();
//!     assert_locked!("inventory:7");
//! }
//!
//! # /*
//! #[tokio::test(start_paused = true)]
//! # */
//! async fn a_lost_lock_stops_it() {
//!     let kit = TestLocks::new();
//!     let _global = kit.as_global();
//!     let reducing = tokio::spawn(reduce_stock(7));
//!     tokio::time::sleep(Duration::from_secs(1)).await;
//!     kit.steal("inventory:7");
//!     assert!(reducing.await.unwrap().is_err_and(|error| error.is_lost()));
//! }
//! # run!(the_stock_waits_for_its_turn_and_gives_up);
//! # run!(a_lost_lock_stops_it);
//! ```
//!
//! Everything happens in this process, and time is tokio's, which `start_paused` makes virtual: leases, waits, time-outs and
//! renewals take no real time, and happen in the order in which they would. Without it the kit works as well, in real time.

mod other;
mod record;
mod store;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

pub use self::other::OtherHolder;
pub use self::record::{AsGlobal, Locked};
pub(crate) use self::record::{Record, global_here, note, seen_here};
use self::store::{TestStore, as_store};
use crate::acquire::MAX_LEASE;
use crate::builder::LockManagerBuilder;
use crate::error::LostReason;
use crate::held::Fate;
use crate::manager::LockManager;
use crate::store::{AcquireRequest, Attempt, LockStore, Mode, Receipt};

/// How long a thief keeps what it has stolen.
const STOLEN_FOR: Duration = Duration::from_secs(30);

/// A lock manager for tests, and what can be done to its locks. Cheap to clone; all clones are one kit.
///
/// The tested code takes its locks from [`manager`](Self::manager), or by [`as_global`](Self::as_global) without knowing. All
/// methods do what they say before they return; a body that has lost its lock is cancelled at its next await. Keys are given as
/// the tested code gives them, without the manager's prefix.
///
/// The [module's page](self) has an example of whole tests.
///
/// # Panics
/// Its methods panic where a test makes a mistake, with what to do.
#[derive(Clone, Debug)]
pub struct TestLocks {
    kit: Arc<Kit>,
}

#[derive(Debug)]
struct Kit {
    store: Arc<TestStore>,
    manager: LockManager,
    record: Arc<Record>,
}

impl Default for TestLocks {
    fn default() -> Self {
        Self::new()
    }
}

impl TestLocks {
    /// A kit with no locks, and a manager with the default settings.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// use lock_runtime::assert_locked;
    /// use lock_runtime::testing::TestLocks;
    ///
    /// let kit = TestLocks::new();
    /// kit.manager().lock("inventory:7").run(async { /* … */ }).await?;
    /// assert_locked!("inventory:7");
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Panics
    /// When the operating system gives no thread.
    #[must_use]
    pub fn new() -> Self {
        Self::with(LockManager::builder("memory://"))
    }

    /// A kit whose manager has other settings. The kit puts in its own store; the clock is tokio's unless the settings name one.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # use lock_runtime::testing::TestLocks;
    /// # use std::time::Duration;
    /// let kit = TestLocks::with(LockManager::builder("memory://").prefix("shop:").wait(Duration::from_secs(1)));
    /// assert_eq!(kit.manager().prefix(), "shop:");
    /// ```
    ///
    /// # Panics
    /// When the operating system gives no thread.
    #[must_use]
    #[allow(clippy::panic, reason = "a test that cannot run has failed")]
    pub fn with(settings: LockManagerBuilder) -> Self {
        let store = Arc::<TestStore>::default();
        let record = Arc::<Record>::default();
        let built = settings.store(as_store(&store)).record(&record).build();
        let manager = built.unwrap_or_else(|error| panic!("a kit needs a manager: {error}"));
        let kit = Arc::new(Kit { store, manager, record });
        let kit = Self { kit };
        record::made_here(&kit);
        kit
    }

    /// The manager whose locks this is about: for `manager = …`, for [`LockManager::lock`], or for
    /// [`init_with`](crate::init_with), which makes it the global one of the whole process.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # use lock_runtime::testing::TestLocks;
    /// struct Shop {
    ///     locks: LockManager,
    /// }
    ///
    /// let kit = TestLocks::new();
    /// let shop = Shop { locks: kit.manager() };
    /// # let _ = shop.locks;
    /// ```
    ///
    /// ```
    /// # use lock_runtime::testing::TestLocks;
    /// use std::sync::LazyLock;
    ///
    /// // One kit for all tests of the process: they must not use the same keys, and a fault hits all of them.
    /// static KIT: LazyLock<TestLocks> = LazyLock::new(|| {
    ///     let kit = TestLocks::new();
    ///     lock_runtime::init_with(kit.manager()).expect("nobody else makes the global manager");
    ///     kit
    /// });
    /// # assert!(!KIT.is_locked("inventory:7"));
    /// # assert!(lock_runtime::global().is_ok());
    /// ```
    #[must_use]
    pub fn manager(&self) -> LockManager {
        self.kit.manager.clone()
    }

    /// Lets annotated functions that name no manager take their locks from this kit, where they are called on this thread, until
    /// the returned value is dropped. So each test has locks of its own.
    ///
    /// A `#[tokio::test]` runs on one thread, with the tasks that it spawns, unless its flavor is `multi_thread`.
    /// [`lock_runtime::global`](crate::global) does not know of it.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::testing::TestLocks;
    /// # use lock_runtime::{LockError, distributed_lock};
    /// #[distributed_lock(key = "report")]
    /// async fn report() -> Result<(), LockError> {
    ///     Ok(())
    /// }
    ///
    /// let kit = TestLocks::new();
    /// let _global = kit.as_global();
    /// report().await?;
    /// assert!(kit.was_locked("report"));
    /// # Ok::<(), LockError>(())
    /// # }).unwrap();
    /// ```
    pub fn as_global(&self) -> AsGlobal {
        AsGlobal::begin(&self.kit.manager)
    }

    /// Holds a key as somebody else, on another host, until the returned value is dropped or released.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let other = kit.hold("inventory:7");
    /// let busy = kit.manager().lock("inventory:7").acquire().await.unwrap_err(); // after the 10 s of `wait`
    /// assert!(busy.is_busy() && busy.to_string().contains("another-host"));
    ///
    /// drop(other);
    /// kit.manager().lock("inventory:7").acquire().await?;
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Panics
    /// When somebody has the key.
    #[track_caller]
    pub fn hold(&self, key: &str) -> OtherHolder {
        self.hold_as(key, &Mode::Exclusive, MAX_LEASE)
    }

    /// Holds a key as somebody else, in any mode, who dies: the lock is free when the lease has run out, or when the returned
    /// value is dropped before that.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::{LockError, Mode};
    /// # use lock_runtime::testing::TestLocks;
    /// # use std::time::Duration;
    /// let kit = TestLocks::new();
    /// let _died = kit.hold_as("inventory:7", &Mode::Exclusive, Duration::from_secs(3));
    /// let began = tokio::time::Instant::now();
    /// kit.manager().lock("inventory:7").run(async {}).await?; // waits for the end of the lease
    /// assert!(began.elapsed() >= Duration::from_secs(3));
    /// # Ok::<(), LockError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Panics
    /// When somebody has the key and does not share it in this mode.
    #[track_caller]
    #[allow(clippy::panic, reason = "a test that makes a mistake is to fail")]
    pub fn hold_as(&self, key: &str, mode: &Mode, lease: Duration) -> OtherHolder {
        let whole = self.whole(key);
        let value = Self::value(mode);
        let request = AcquireRequest {
            key: &whole,
            value: &value,
            lease,
            fence: false,
            tell_remaining: false,
            fair: false,
            receipt: &Receipt::default(),
        };
        match self.kit.store.inner.acquire_now(&request) {
            Some(Ok(Attempt::Granted { .. })) => OtherHolder::new(&self.kit.store, whole, value),
            Some(Ok(Attempt::Busy {
                holder: Some(holder), ..
            })) => {
                panic!("`{key}` cannot be held as somebody else: {holder} has it; use `steal` to take it away")
            }
            _ => panic!("`{key}` cannot be held as somebody else: others wait for it, or have it; let them end before"),
        }
    }

    /// Lets the lease of a key run out, as if its holder had stood still for so long. A body of this process that holds it is
    /// cancelled at its next await, with [`LostReason::Expired`]. The key is free, after the
    /// [`lock_delay`](crate::LockRequest::lock_delay) if the holder had asked for one.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::{LockError, LostReason};
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let endless = kit.manager().lock("inventory:7").run(std::future::pending::<()>());
    /// let body = tokio::spawn(endless);
    /// tokio::task::yield_now().await;
    /// kit.expire("inventory:7");
    /// let lost = body.await.unwrap();
    /// assert!(matches!(lost, Err(LockError::Lost { reason: LostReason::Expired, .. })));
    /// # })
    /// ```
    ///
    /// # Panics
    /// When nobody has the key.
    #[track_caller]
    pub fn expire(&self, key: &str) {
        let whole = self.held_by_somebody(key, "expire");
        let ours = self.kit.record.held(&whole);
        let delay = ours.iter().map(|held| held.terms.lock_delay).max();
        self.kit.store.inner.end_leases(&whole, delay.unwrap_or_default());
        for held in ours {
            held.end_with(Fate::Lost(LostReason::Expired));
        }
    }

    /// Deletes a key, as a flush, an eviction or an operator does. A body of this process that holds it is cancelled at its next
    /// await, with [`LostReason::Deleted`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::{LockError, LostReason};
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let body = tokio::spawn(kit.manager().lock("inventory:7").run(std::future::pending::<()>()));
    /// tokio::task::yield_now().await;
    /// kit.delete("inventory:7");
    /// let lost = body.await.unwrap();
    /// assert!(matches!(lost, Err(LockError::Lost { reason: LostReason::Deleted, .. })));
    /// # })
    /// ```
    ///
    /// # Panics
    /// When nobody has the key.
    #[track_caller]
    pub fn delete(&self, key: &str) {
        let whole = self.held_by_somebody(key, "delete");
        self.kit.store.inner.end_leases(&whole, Duration::ZERO);
        self.kit.store.report_changes();
    }

    /// Gives a held key to somebody else, on another host, who keeps it for 30 s unless it is [deleted](Self::delete) or
    /// [expires](Self::expire) before. A body of this process that holds it is cancelled at its next await, with
    /// [`LostReason::Taken`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::{LockError, LostReason};
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let body = tokio::spawn(kit.manager().lock("inventory:7").run(std::future::pending::<()>()));
    /// tokio::task::yield_now().await;
    /// kit.steal("inventory:7");
    /// let lost = body.await.unwrap();
    /// assert!(matches!(lost, Err(LockError::Lost { reason: LostReason::Taken, .. })));
    /// assert!(kit.is_locked("inventory:7"));
    /// # })
    /// ```
    ///
    /// # Panics
    /// When nobody has the key.
    #[track_caller]
    pub fn steal(&self, key: &str) {
        let whole = self.held_by_somebody(key, "steal");
        let shared = |holder: &crate::Holder| Mode::is_shared(holder.value());
        let mode = if self.kit.store.inner.holders(&whole).iter().any(shared) {
            Mode::Write
        } else {
            Mode::Exclusive
        };
        self.kit.store.inner.replace(&whole, &Self::value(&mode), STOLEN_FOR);
        self.kit.store.report_changes();
    }

    /// Loses the reply to the next acquire, renewal or release: the store does it, and the caller does not hear of it. It then
    /// goes on as it would with a real store, after its response time-out. Called again, it loses one more; the next one may be
    /// that to the release of what the first attempt has got.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::testing::TestLocks;
    /// # use std::time::Duration;
    /// let kit = TestLocks::new();
    /// kit.drop_next_reply();
    /// let once = kit.manager().lock("inventory:7").wait(Duration::ZERO);
    /// let unknown = once.acquire().await.unwrap_err();
    /// assert_eq!(unknown.kind(), "store");
    /// // What the store had granted has been released.
    /// assert!(!kit.is_locked("inventory:7"));
    /// # })
    /// ```
    pub fn drop_next_reply(&self) {
        self.kit.store.drop_next_reply();
    }

    /// Puts the store out of reach until tokio's clock has passed `span` from now: nothing gets through. Locks are held on until
    /// their deadline, then lost with [`LostReason::Unreachable`]; calls that wait try again. [`hold`](Self::hold), and what else
    /// the kit does, gets through. Called again, it counts anew; with zero, the store is in reach at once.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::testing::TestLocks;
    /// # use std::time::Duration;
    /// let kit = TestLocks::new();
    /// kit.unreachable_for(Duration::from_secs(3));
    /// let impatient = kit.manager().lock("inventory:7").wait(Duration::from_secs(1));
    /// assert_eq!(impatient.acquire().await.unwrap_err().kind(), "store");
    /// let patient = kit.manager().lock("inventory:7").wait(Duration::from_secs(5));
    /// patient.acquire().await?;
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    pub fn unreachable_for(&self, span: Duration) {
        self.kit.store.unreachable_for(span);
    }

    /// Whether anybody has the key now. A key that is kept for a [minimum hold](crate::LockRequest::at_least), or a
    /// [delay](crate::LockRequest::lock_delay), is had by whoever had it last.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let guard = kit.manager().lock("inventory:7").acquire().await?;
    /// assert!(kit.is_locked("inventory:7"));
    /// guard.release().await?;
    /// assert!(!kit.is_locked("inventory:7"));
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn is_locked(&self, key: &str) -> bool {
        !self.kit.store.inner.holders(&self.whole(key)).is_empty()
    }

    /// Whether a call of the manager has locked the key since the kit was made, or [`forget`](Self::forget) was called. What the
    /// kit holds as somebody else does not count.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// kit.manager().lock("inventory:7").run(async { /* … */ }).await?;
    /// assert!(kit.was_locked("inventory:7") && !kit.was_locked("inventory:8"));
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn was_locked(&self, key: &str) -> bool {
        self.kit.record.check(key).is_ok()
    }

    /// What the manager's calls have locked since the kit was made, or [`forget`](Self::forget) was called, in the order in which
    /// they got it. A nested call that [passes through](crate::LockRequest::reentrant) is none.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::Mode;
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let locks = kit.manager();
    /// locks.lock("order:1").run(async {
    ///     locks.lock("inventory:7").run(async { /* … */ }).await
    /// }).await??;
    /// assert_eq!(kit.locked(), ["order:1", "inventory:7"]);
    /// assert_eq!(*kit.locked()[0].mode(), Mode::Exclusive);
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn locked(&self) -> Vec<Locked> {
        self.kit.record.locked()
    }

    /// Forgets what was locked, so that the next assertions are about what comes.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// kit.manager().lock("inventory:7").run(async { /* … */ }).await?;
    /// kit.forget();
    /// assert!(kit.locked().is_empty());
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    pub fn forget(&self) {
        self.kit.record.forget();
    }

    /// Asserts that [`was_locked`](Self::was_locked); what [`assert_locked!`](crate::assert_locked!) does with a kit.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::assert_locked;
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let item_id = 7;
    /// kit.manager().lock(format!("inventory:{item_id}")).run(async { /* … */ }).await?;
    /// kit.assert_locked("inventory:7");
    /// assert_locked!(kit, "inventory:{item_id}");
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Panics
    /// When the key was not locked, with the keys that were.
    #[track_caller]
    #[allow(clippy::panic, reason = "it is an assertion")]
    pub fn assert_locked(&self, key: impl Display) {
        if let Err(problem) = self.kit.record.check(&key.to_string()) {
            panic!("{problem}");
        }
    }

    fn whole(&self, key: &str) -> Arc<str> {
        format!("{}{key}", self.kit.manager.prefix()).into()
    }

    #[track_caller]
    fn held_by_somebody(&self, key: &str, what: &str) -> Arc<str> {
        let whole = self.whole(key);
        assert!(
            !self.kit.store.inner.holders(&whole).is_empty(),
            "there is nothing to {what}: nobody has `{key}`; let the tested code take it first"
        );
        whole
    }

    #[track_caller]
    #[allow(clippy::panic, reason = "a test that cannot run has failed")]
    fn value(mode: &Mode) -> Arc<str> {
        other::value(mode).unwrap_or_else(|| panic!("the operating system gave no random bytes"))
    }
}
