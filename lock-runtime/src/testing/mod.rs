//! Locks for unit tests: held by another host, lost, unanswered, out of reach, and asserted.
//! Requires the feature `testing`.
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
//! Everything happens in this process, and time is tokio's, which `start_paused` makes virtual:
//! leases, waits, time-outs and renewals take no real time, and happen in their usual order.
//! Without `start_paused` the kit works as well, in real time.

mod record;
mod remote_holder;
mod store;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use self::record::Record;
pub use self::record::{AsGlobal, Locked};
pub use self::remote_holder::RemoteHolder;
use self::store::{TestStore, as_store};
use crate::error::EndCause;
use crate::error::LostReason;
use crate::manager::{LockManager, LockManagerBuilder};
use crate::store::limits::MAX_LEASE;
use crate::store::{AcquireRequest, Attempt, HolderValue, LockMode, LockStore, Receipt};

/// The lease of a lock taken by [`TestLocks::steal`].
const STOLEN_FOR: Duration = Duration::from_secs(30);

/// A lock manager for tests, with methods that interfere with its locks. Clones are cheap, and all
/// clones are one kit.
///
/// The tested code takes its locks from [`manager`](Self::manager), or through
/// [`as_global`](Self::as_global) without any change. Every method has taken effect when it
/// returns, but a body that has lost its lock is cancelled only at its next await. Keys are given
/// as the tested code gives them, without the manager's prefix.
///
/// The [module's page](self) has an example of whole tests.
///
/// # Panics
/// The methods panic if a test uses them wrongly, with a message that says what to do.
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
    /// Creates a kit without any locks, and a manager with the default settings.
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
    /// Panics if the operating system cannot start a thread.
    #[must_use]
    pub fn new() -> Self {
        Self::with(LockManager::builder("memory://"))
    }

    /// Creates a kit whose manager has these settings. The kit replaces the store by its own; the
    /// clock is tokio's unless the settings name one.
    ///
    /// ```
    /// # use lock_runtime::LockManager;
    /// # use lock_runtime::testing::TestLocks;
    /// # use std::time::Duration;
    /// let kit = TestLocks::with(LockManager::builder("memory://").prefix("shop:").default_wait(Duration::from_secs(1)));
    /// assert_eq!(kit.manager().prefix(), "shop:");
    /// ```
    ///
    /// # Panics
    /// Panics if the operating system cannot start a thread.
    #[must_use]
    #[allow(clippy::panic, reason = "a test that cannot run has failed")]
    pub fn with(settings: LockManagerBuilder) -> Self {
        let store = Arc::<TestStore>::default();
        let record = Arc::<Record>::default();
        let built = settings
            .with_store(as_store(&store))
            .observer(Arc::clone(&record) as _)
            .build();
        let manager = built.unwrap_or_else(|error| panic!("a kit needs a manager: {error}"));
        let kit = Arc::new(Kit { store, manager, record });
        let kit = Self { kit };
        record::made_here(&kit);
        kit
    }

    /// Returns the manager whose locks this kit controls: for `manager = …`, for
    /// [`LockManager::lock`], or for [`init_with`](crate::init_with), which makes it the global
    /// manager of the whole process.
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
    /// // One kit for all tests of the process: they must not use the same keys, and a fault hits
    /// // all of them.
    /// static KIT: LazyLock<TestLocks> = LazyLock::new(|| {
    ///     let kit = TestLocks::new();
    ///     lock_runtime::init_with(kit.manager()).expect("no other test makes the global manager");
    ///     kit
    /// });
    /// # assert!(!KIT.is_locked("inventory:7"));
    /// # assert!(lock_runtime::global().is_ok());
    /// ```
    #[must_use]
    pub fn manager(&self) -> LockManager {
        self.kit.manager.clone()
    }

    /// Makes annotated functions that name no manager take their locks from this kit when they are
    /// called on this thread, until the returned value is dropped. This way each test can have its
    /// own locks.
    ///
    /// A `#[tokio::test]` and the tasks that it spawns run on one thread, unless its flavor is
    /// `multi_thread`. [`lock_runtime::global`](crate::global) is not affected.
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

    /// Holds a key as a holder on another host, until the returned value is dropped or released.
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
    /// Panics if the key is locked.
    #[track_caller]
    pub fn hold(&self, key: &str) -> RemoteHolder {
        self.hold_as(key, &LockMode::Exclusive, MAX_LEASE)
    }

    /// Holds a key in any mode, as a holder on another host that dies: the lock becomes free when
    /// the lease has run out, or earlier when the returned value is dropped.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::{LockError, LockMode};
    /// # use lock_runtime::testing::TestLocks;
    /// # use std::time::Duration;
    /// let kit = TestLocks::new();
    /// let _died = kit.hold_as("inventory:7", &LockMode::Exclusive, Duration::from_secs(3));
    /// let began = tokio::time::Instant::now();
    /// kit.manager().lock("inventory:7").run(async {}).await?; // waits for the end of the lease
    /// assert!(began.elapsed() >= Duration::from_secs(3));
    /// # Ok::<(), LockError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Panics
    /// Panics if the key is locked and the holders do not share it in this mode.
    #[track_caller]
    #[allow(clippy::panic, reason = "a test that makes a mistake is to fail")]
    pub fn hold_as(&self, key: &str, mode: &LockMode, lease: Duration) -> RemoteHolder {
        let whole = self.whole(key);
        let value = Self::value(mode);
        let request = AcquireRequest {
            key: &whole,
            value: &value,
            ttl: lease,
            fence: false,
            tell_remaining: false,
            fair: false,
            receipt: &Receipt::default(),
        };
        match self.kit.store.inner.acquire_now(&request) {
            Some(Ok(Attempt::Granted { .. })) => RemoteHolder::new(&self.kit.store, whole, value),
            Some(Ok(Attempt::Busy {
                holder: Some(holder), ..
            })) => {
                panic!("`{key}` cannot be held as another host: {holder} has it; use `steal` to take it away")
            }
            _ => panic!("`{key}` cannot be held as another host: others wait for it, or have it; let them end before"),
        }
    }

    /// Lets the lease of a key run out, as if its holder had been suspended. A body of this process
    /// that holds the lock is cancelled at its next await, with [`LostReason::Expired`]. The key is
    /// free afterwards, or after the [`lock_delay`](crate::LockRequest::lock_delay) if the holder
    /// asked for one.
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
    /// Panics if the key is not locked.
    #[track_caller]
    pub fn expire(&self, key: &str) {
        let whole = self.held_by_somebody(key, "expire");
        let ours = self.kit.record.held(&whole);
        let delay = ours.iter().map(|held| held.options.lock_delay).max();
        self.kit.store.inner.end_leases(&whole, delay.unwrap_or_default());
        for held in ours {
            held.tenure.end_with(EndCause::Lost(LostReason::Expired));
        }
    }

    /// Deletes a key, as a flush, an eviction or an operator does. A body of this process that
    /// holds the lock is cancelled at its next await, with [`LostReason::Deleted`].
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
    /// Panics if the key is not locked.
    #[track_caller]
    pub fn delete(&self, key: &str) {
        let whole = self.held_by_somebody(key, "delete");
        self.kit.store.inner.end_leases(&whole, Duration::ZERO);
        self.kit.store.report_changes();
    }

    /// Gives a locked key to a holder on another host, which keeps it for 30 s unless it is
    /// [deleted](Self::delete) or [expires](Self::expire) before. A body of this process that holds
    /// the lock is cancelled at its next await, with [`LostReason::Taken`].
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
    /// Panics if the key is not locked.
    #[track_caller]
    pub fn steal(&self, key: &str) {
        let whole = self.held_by_somebody(key, "steal");
        let shared = |holder: &crate::store::holder::Holder| holder.mode() != LockMode::Exclusive;
        let mode = if self.kit.store.inner.holders(&whole).iter().any(shared) {
            LockMode::Write
        } else {
            LockMode::Exclusive
        };
        self.kit.store.inner.replace(&whole, &Self::value(&mode), STOLEN_FOR);
        self.kit.store.report_changes();
    }

    /// Loses the reply to the next acquire, renewal or release: the store carries it out, and the
    /// caller gets no answer.
    ///
    /// The caller then goes on as with a real store, after its response time-out. Each further call
    /// loses one more reply. The second lost reply may be that to the release of the lock that the
    /// first attempt was granted.
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

    /// Puts the store out of reach for `span` of tokio's time: no request gets through.
    ///
    /// Holders keep their locks until the deadline, and then lose them with
    /// [`LostReason::Unreachable`]; waiting calls try again. [`hold`](Self::hold) and the other
    /// methods of the kit still reach the store. Each further call starts the time anew; with zero,
    /// the store is in reach again at once.
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

    /// Returns `true` if the key is locked now. A key that is kept for a [minimum
    /// hold](crate::LockRequest::at_least) or a [delay](crate::LockRequest::lock_delay) still
    /// belongs to its last holder.
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

    /// Returns `true` if a call of the manager has locked the key since the kit was created or
    /// [`forget`](Self::forget) was called. Locks that the kit holds as another host do not count.
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

    /// Returns the locks that the manager's calls have taken since the kit was created or
    /// [`forget`](Self::forget) was called, in the order of their grants. A nested call that
    /// [re-enters its lock](crate::LockRequest::reentrant) is not listed.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # use lock_runtime::LockMode;
    /// # use lock_runtime::testing::TestLocks;
    /// let kit = TestLocks::new();
    /// let locks = kit.manager();
    /// locks.lock("order:1").run(async {
    ///     locks.lock("inventory:7").run(async { /* … */ }).await
    /// }).await??;
    /// assert_eq!(kit.locked(), ["order:1", "inventory:7"]);
    /// assert_eq!(*kit.locked()[0].mode(), LockMode::Exclusive);
    /// # Ok::<(), lock_runtime::LockError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn locked(&self) -> Vec<Locked> {
        self.kit.record.locked()
    }

    /// Forgets the locks taken so far, so that the next assertions are about later ones.
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

    /// Asserts that [`was_locked`](Self::was_locked) returns `true` for the key.
    /// [`assert_locked!`](crate::assert_locked!) with a kit calls this method.
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
    /// Panics if the key was not locked, with a list of the keys that were.
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
            "there is nothing to {what}: `{key}` has no holder; let the tested code take it first"
        );
        whole
    }

    #[track_caller]
    #[allow(clippy::panic, reason = "a test that cannot run has failed")]
    fn value(mode: &LockMode) -> HolderValue {
        crate::store::holder::remote_value("TestLocks::hold", mode)
            .unwrap_or_else(|_| panic!("the operating system gave no random bytes"))
    }
}
