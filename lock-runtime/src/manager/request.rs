//! Requests for locks without the attribute.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Shared, acquire};
use crate::error::LockError;
use crate::hold::guard::{Guard, LockGuard, Run};
use crate::hold::{LockOptions, OnLost};
use crate::host;
use crate::key::{CallSite, KeyError, Names};
use crate::manager::LockManager;
use crate::store::LockMode;

/// A request for a lock, created by [`LockManager::lock`] or [`LockManager::lock_all`].
///
/// An option that the request is not given has the manager's default, which is the one named here unless
/// [`LockManagerBuilder::defaults`](crate::LockManagerBuilder::defaults) sets another.
///
/// ```
/// # use lock_runtime::LockManager;
/// # use std::time::Duration;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::connect("memory://").await?;
/// let sum = locks
///     .lock("inventory:7")
///     .lease(Duration::from_secs(15))
///     .wait(Duration::from_secs(5))
///     .run(async { 2 + 2 })
///     .await?;
/// assert_eq!(sum, 4);
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until `acquire` or `run` is awaited"]
// Boxed: without optimisation, every step of a chain would take its own place on the stack, below
// the body of an annotated function.
pub struct LockRequest(Box<Request>);

#[derive(Clone, Debug)]
struct Request {
    /// `None` if an annotated function was called before there is a global manager.
    manager: Option<LockManager>,
    names: Result<Names, KeyError>,
    options: LockOptions,
}

impl LockRequest {
    /// Creates a request that comes from `site`.
    pub(crate) fn new(manager: Option<LockManager>, names: Result<Names, KeyError>, site: CallSite) -> Self {
        let defaults = manager.as_ref().map(|manager| &manager.shared().defaults);
        let options = defaults.map_or_else(
            || LockOptions::default().of_call(site),
            |defaults| defaults.of_call(site),
        );
        Self(Box::new(Request {
            manager,
            names,
            options,
        }))
    }

    /// Creates a request for no lock, on which a manager's defaults are set.
    pub(super) fn of_defaults(options: LockOptions) -> Self {
        Self(Box::new(Request {
            manager: None,
            names: Names::all(std::iter::empty()),
            options,
        }))
    }

    pub(super) fn into_options(self) -> LockOptions {
        self.0.options
    }

    /// Makes the request fail, since the `Display` of a value has failed.
    pub(crate) fn unwritten(mut self) -> Self {
        self.0.names = self.0.names.and_then(|names| Err(names.unwritten()));
        self
    }

    /// Sets the lease: the time after which the store frees the lock unless it is renewed. Defaults
    /// to the manager's [`default_lease`](crate::LockManagerBuilder::default_lease), 30 s.
    ///
    /// The watchdog renews the lease. It limits how long a crashed holder blocks others, not how
    /// long the lock can be held.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.options.lease = lease;
        self
    }

    /// Sets the longest time that the whole acquisition may take. Defaults to the manager's
    /// [`default_wait`](crate::LockManagerBuilder::default_wait), 10 s. With zero, the call tries
    /// once, for at most two [response time-outs](crate::LockManagerBuilder::response_timeout): one
    /// for a connection, one for the answer.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.0.options.wait = wait;
        self
    }

    /// Sets the minimum time that the lock stays taken, counted from the grant, even if it is
    /// released sooner. Defaults to zero. Has no effect after a crash: the lock expires with its
    /// lease.
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.0.options.at_least = at_least;
        self
    }

    /// Sets whether the watchdog renews the lease. Defaults to `true`. With `false`, the lease is a
    /// time limit.
    pub fn renew(mut self, renew: bool) -> Self {
        self.0.options.renew = renew;
        self
    }

    /// Sets how many renewals a call may have before it counts as hung. Defaults to the manager's
    /// [`default_max_renewals`](crate::LockManagerBuilder::default_max_renewals), 30.
    ///
    /// When one more renewal would be due, the lock is no longer renewed, and the body is cancelled
    /// with [`LockError::Hung`]. That is after 2/3 of the lease × (`max_renewals` + 1): 620 s by
    /// default, or 310 s with a lease of 15 s. It is earlier by the time for which the lock had
    /// passed from call to call inside the process, 50 ms at most unless
    /// [`handover`](crate::LockManagerBuilder::handover) allows more. Replaces
    /// [`max_hold`](Self::max_hold).
    pub fn max_renewals(mut self, max_renewals: u32) -> Self {
        self.0.options.set_max_renewals(max_renewals);
        self
    }

    /// Sets the longest time, counted from the grant, that the lock may be held before the call
    /// counts as hung, with the same result as too many [renewals](Self::max_renewals). Replaces
    /// `max_renewals`.
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
    /// # let locks = LockManager::connect("memory://").await.unwrap();
    /// let report = locks.lock("report").max_hold(Duration::from_secs(600));
    /// let hung = report.run(std::future::pending::<()>()).await.unwrap_err();
    /// assert!(matches!(hung, LockError::Hung { held, .. } if held.as_secs() == 600));
    /// # })
    /// ```
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.0.options.set_max_hold(max_hold);
        self
    }

    /// Sets the mode, which determines which holders can share the lock. Defaults to
    /// [`LockMode::Exclusive`].
    ///
    /// [`exclusive`](Self::exclusive), [`read`](Self::read), [`write`](Self::write),
    /// [`semaphore`](Self::semaphore) and [`owner`](Self::owner) are short forms of this method. A request that is given more than one
    /// mode fails with [`RequestProblem::TwoModes`](crate::RequestProblem::TwoModes). A mode that is the
    /// manager's [default](crate::LockManagerBuilder::defaults) does not count.
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager, LockMode, RequestProblem};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::connect("memory://").await?;
    /// let reader = locks.lock("prices").mode(LockMode::Read).acquire().await?;
    /// assert_eq!(*reader.handle().mode(), LockMode::Read);
    ///
    /// let both = locks.lock("prices").read().write().acquire().await;
    /// assert!(matches!(both, Err(LockError::InvalidRequest { problem: RequestProblem::TwoModes, .. })));
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn mode(mut self, mode: LockMode) -> Self {
        self.0.options.set_mode(mode);
        self
    }

    /// Takes the lock alone: the default, unless the manager's
    /// [defaults](crate::LockManagerBuilder::defaults) have another mode.
    pub fn exclusive(self) -> Self {
        self.mode(LockMode::Exclusive)
    }

    /// Takes the lock for reading: any number of readers hold it together while there is no writer.
    /// A waiting writer holds new readers back. Each reader has its own lease.
    pub fn read(self) -> Self {
        self.mode(LockMode::Read)
    }

    /// Takes the lock for writing: alone, without readers or other writers.
    ///
    /// A nested call under it can take the lock for reading without waiting. A nested call for
    /// writing under a reader fails with [`LockError::WouldDeadlock`].
    pub fn write(self) -> Self {
        self.mode(LockMode::Write)
    }

    /// Takes one of `permits` permits: at most `permits` holders have the lock at once, across all
    /// processes.
    ///
    /// If deployed versions disagree on the number, the smallest number among the caller and the
    /// present holders applies. The permit of a crashed holder becomes available when its lease
    /// ends.
    ///
    /// A request for none fails with [`RequestProblem::NoPermits`](crate::RequestProblem::NoPermits).
    pub fn semaphore(mut self, permits: u32) -> Self {
        self.0.options.set_permits(permits);
        self
    }

    /// Takes the lock for a logical owner, such as a workflow: any number of holders for the same
    /// owner share it, in any process, each with its own lease.
    ///
    /// Other owners can take the lock when the last of these holders has ended. A call for an owner
    /// that already has the lock does not queue behind other waiters.
    pub fn owner(self, name: &str) -> Self {
        self.mode(LockMode::owner(name))
    }

    /// Sets whether a nested call re-enters the lock if the call tree already holds it in the same
    /// mode. Defaults to `false`: the call fails with [`LockError::WouldDeadlock`].
    ///
    /// The lock is released when the last of these calls has ended. Tasks that a body spawns by
    /// `tokio::spawn`, or runs in a `LocalSet` or runtime of its own, are not part of its call
    /// tree; see [`current`](crate::current).
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.0.options.reentrant = reentrant;
        self
    }

    /// Sets the time for which the lock stays closed after its lease has run out without a release,
    /// so that requests that are still in flight can land before the next holder enters. Defaults
    /// to zero.
    ///
    /// The lease runs out in this way when the process has died, is suspended, or cannot reach the
    /// store. A release frees the lock without this delay.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.0.options.lock_delay = lock_delay;
        self
    }

    /// Sets how many replicas must have the lock before the body begins. Defaults to the manager's
    /// [`min_replicas`](crate::LockManagerBuilder::min_replicas), zero. More than 255 count as 255.
    pub fn min_replicas(mut self, replicas: u32) -> Self {
        self.0.options.min_replicas = u8::try_from(replicas).unwrap_or(u8::MAX);
        self
    }

    /// Sets whether the call takes a [fencing token](crate::HeldLock::fencing_token) in the same step as
    /// the lock. Defaults to `false`.
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.0.options.fencing = fencing;
        self
    }

    /// Sets whether the call takes its own place in the store's queue, first come, first served: the
    /// fair calls of all processes get the lock in the order in which they joined that queue. Defaults
    /// to `false`.
    ///
    /// A fair call overtakes no waiter in that queue, not even with a `wait` of zero, which tries once
    /// and leaves. The calls that are not fair have one place in it per process. The store skips
    /// waiters that have died.
    ///
    /// Every grant then comes from the store instead of being handed over inside the process, which
    /// is slower, and each waiting call takes a place in the store.
    pub fn fair(mut self, fair: bool) -> Self {
        self.0.options.fair = fair;
        self
    }

    /// Sets whether the release returns once it is queued, in order, on the connection, without waiting
    /// for the store's answer. Defaults to `false`.
    ///
    /// A pipelined release is sent within 100 ms, even if the runtime no longer runs tasks. If it fails, or
    /// finds the lock lost, the caller gets no error: the failure is logged by `tracing` and
    /// counted in [`Stats`](crate::Stats).
    pub fn pipelined(mut self, pipelined: bool) -> Self {
        self.0.options.pipelined = pipelined;
        self
    }

    /// Sets what happens to the body of [`run`](Self::run) when the lock is lost. Defaults to
    /// [`OnLost::Cancel`].
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.0.options.on_lost = on_lost;
        self
    }

    /// Sets a name for the holder. Empty by default; an annotated function has its path. It is stored with the lock beside host and
    /// process, and shown to operators and in [`LockError::Busy`]. It is also the label of the call's metrics.
    pub fn label(mut self, label: &'static str) -> Self {
        self.0.options.site.function = label;
        self
    }

    /// Takes the lock and returns its guard.
    ///
    /// # Errors
    /// [`LockError::Busy`] when `wait` ends first, and every other variant. `Lost` and `Hung` occur
    /// only in a nested call that takes a fencing token for the lock that it re-enters.
    ///
    /// # Cancel safety
    /// The future can be dropped at any point and leaves nothing behind: a lock that the store may
    /// have granted is released in the background.
    ///
    /// If the future is kept for a second without being polled, it loses its place in front of
    /// other waiters, and a lock that the store has granted it. It asks again when it is next
    /// polled. Await it, or drop it, before awaiting anything else for long.
    // Not an `async fn`: its future would hold the request as well, and thousands of calls may be
    // waiting.
    pub fn acquire(self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static {
        self.take(LockGuard::new)
    }

    /// Takes the lock if it is free, and returns its guard. The same as [`acquire`](Self::acquire)
    /// with a [`wait`](Self::wait) of zero.
    ///
    /// ```
    /// # use lock_runtime::{LockError, LockManager};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::connect("memory://").await?;
    /// let guard = locks.lock("inventory:7").try_acquire().await?;
    /// let busy = locks.lock("inventory:7").try_acquire().await;
    /// assert!(matches!(busy, Err(LockError::Busy { .. })));
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`LockError::Busy`] if another holder has the lock, and the other errors of `acquire`.
    ///
    /// # Cancel safety
    /// The same as that of `acquire`.
    pub fn try_acquire(self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + 'static {
        self.wait(Duration::ZERO).acquire()
    }

    /// Takes the lock and returns its guard, while this thread waits: for code without a runtime. The watchdog
    /// renews the lease as usual. Nothing can cancel what this thread does under the lock, so ask
    /// [`is_held`](crate::HeldLock::is_held) between its steps, or give later writes a
    /// [fencing token](Self::fencing).
    ///
    /// ```
    /// # use lock_runtime::{ConfigError, LockError, LockManager};
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::builder("memory://").build()?;
    /// let guard = locks.lock("inventory:7").acquire_blocking()?;
    /// assert!(guard.handle().is_held());
    /// guard.release_blocking()?;
    /// # Ok(())
    /// # }
    /// # example().unwrap();
    /// ```
    ///
    /// # Errors
    /// Fails like [`acquire`](Self::acquire).
    /// [`RequestProblem::InRuntime`](crate::RequestProblem::InRuntime) on a thread of a tokio runtime, whose
    /// tasks would have to wait as well: await `acquire` there, or have
    /// [`Handle::block_on`](tokio::runtime::Handle::block_on) do so in
    /// [`spawn_blocking`](tokio::task::spawn_blocking).
    pub fn acquire_blocking(self) -> Result<LockGuard, LockError> {
        let key = match &self.0.names {
            Ok(names) => Box::from(&*names.first),
            Err(error) => return Err(LockError::of_key(error.clone())),
        };
        host::block_on(self.acquire()).unwrap_or_else(|| Err(LockError::in_runtime(key)))
    }

    pub(crate) fn take<T: 'static>(
        self,
        wrap: fn(Guard) -> T,
    ) -> impl Future<Output = Result<T, LockError>> + Send + 'static {
        acquire(move || self.into_parts(), wrap)
    }

    pub(crate) fn into_parts(self) -> Result<(Arc<Shared>, Names, LockOptions), LockError> {
        let Request {
            manager,
            names,
            options,
        } = *self.0;
        let names = names.map_err(LockError::of_key)?;
        match manager {
            Some(manager) => Ok((manager.into_shared(), names, options)),
            None => Err(LockError::NotConfigured {
                key: names.first.into(),
            }),
        }
    }

    /// Takes the lock, runs `body` under it, and releases it. The body is cancelled if the lock is
    /// lost, and dropped before the release.
    ///
    /// # Errors
    /// - The errors of [`acquire`](Self::acquire), without running the body.
    /// - [`LockError::Lost`], [`LockError::Hung`] and [`LockError::Closed`] when the lock ended
    ///   before the body did. The body was then cancelled or, with `completed`, had just ended.
    ///
    /// A store that does not confirm the release is not an error: the release goes on in the
    /// background.
    ///
    /// # Cancel safety
    /// If the future is dropped at any point, the body is dropped first, and the lock is then
    /// released in the background.
    pub async fn run<F: Future>(self, body: F) -> Result<F::Output, LockError> {
        let mut guard = Box::pin(self.acquire()).await?.into_guard();
        let value = {
            let body = pin!(body);
            Run::new(&mut guard, body).await
        };
        match (value, guard.leave().await) {
            (Ok(value), Ok(())) => Ok(value),
            (Err(error), _) | (Ok(_), Err(error)) => Err(*error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::LockRequest;
    use crate::error::{ConfigError, LockError};
    use crate::hold::OnLost;
    use crate::key::{CallSite, KeyProblem};
    use crate::manager::{LockManager, LockManagerBuilder};

    type Set = fn(LockRequest) -> LockRequest;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn builder() -> LockManagerBuilder {
        LockManager::builder("memory://")
    }

    /// All options that the request was given or has by default.
    fn options(request: &LockRequest) -> String {
        format!("{:?}", request.0.options.of_call(CallSite::default()))
    }

    /// Settings that a default may have, each with one that a call gives in its place.
    const OPTIONS: [(Set, Set); 19] = [
        (|call| call.lease(seconds(15)), |call| call.lease(seconds(60))),
        (|call| call.wait(seconds(1)), |call| call.wait(Duration::ZERO)),
        (|call| call.at_least(seconds(9)), |call| call.at_least(Duration::ZERO)),
        (
            |call| call.lock_delay(seconds(5)),
            |call| call.lock_delay(Duration::ZERO),
        ),
        (|call| call.renew(false), |call| call.renew(true)),
        (|call| call.max_renewals(9), |call| call.max_renewals(3)),
        (|call| call.max_renewals(9), |call| call.max_hold(seconds(600))),
        (|call| call.max_hold(seconds(600)), |call| call.max_renewals(9)),
        (|call| call.min_replicas(2), |call| call.min_replicas(0)),
        (|call| call.fair(true), |call| call.fair(false)),
        (|call| call.fencing(true), |call| call.fencing(false)),
        (|call| call.reentrant(true), |call| call.reentrant(false)),
        (|call| call.pipelined(true), |call| call.pipelined(false)),
        (|call| call.on_lost(OnLost::Signal), |call| call.on_lost(OnLost::Cancel)),
        (|call| call.label("shop"), |call| call.label("cart")),
        (LockRequest::read, LockRequest::write),
        (LockRequest::write, LockRequest::exclusive),
        (|call| call.semaphore(5), |call| call.owner("me")),
        (|call| call.owner("me"), |call| call.semaphore(5)),
    ];

    #[test]
    fn a_call_has_the_defaults_in_place_of_what_it_is_not_given() -> Result<(), ConfigError> {
        let plain = || builder().build().map(|locks| locks.lock("k"));
        for (default, own) in OPTIONS {
            let locks = builder().defaults(default).build()?;
            assert_eq!(options(&locks.lock("k")), options(&default(plain()?)));
            assert_eq!(options(&locks.lock_all(["k", "l"])), options(&default(plain()?)));
            assert_eq!(options(&own(locks.lock("k"))), options(&own(plain()?)));
            assert_ne!(options(&default(plain()?)), options(&own(plain()?)));
        }
        // Those of one setting do not undo those of another.
        let all = OPTIONS
            .iter()
            .fold(builder(), |builder, (default, _)| builder.defaults(default));
        let request = OPTIONS.iter().fold(plain()?, |request, (default, _)| default(request));
        assert_eq!(options(&all.build()?.lock("k")), options(&request));
        Ok(())
    }

    #[test]
    fn the_last_setting_of_an_option_counts() -> Result<(), ConfigError> {
        let lease = |builder: LockManagerBuilder| builder.build().map(|locks| locks.lock("k").0.options.lease);
        let fifteen: Set = |call| call.lease(seconds(15));
        assert_eq!(
            lease(builder().default_lease(seconds(60)).defaults(fifteen))?,
            seconds(15)
        );
        assert_eq!(
            lease(builder().defaults(fifteen).default_lease(seconds(60)))?,
            seconds(60)
        );
        assert_eq!(
            lease(builder().default_lease(Duration::ZERO).defaults(fifteen))?,
            seconds(15)
        );

        let two_modes = || builder().defaults(|call| call.read().write());
        assert!(two_modes().build().is_err());
        assert!(two_modes().defaults(fifteen).build().is_err());
        let locks = two_modes().defaults(LockRequest::read).defaults(fifteen).build()?;
        assert_eq!(
            options(&locks.lock("k")),
            options(&fifteen(builder().build()?.lock("k").read()))
        );
        Ok(())
    }

    #[test]
    fn an_annotated_function_keeps_its_name_beside_a_default_label() -> Result<(), ConfigError> {
        let locks = builder().defaults(|call| call.label("shop").fair(true)).build()?;
        let site = CallSite {
            templates: &["k"],
            function: "shop::reduce",
        };
        let names = locks.lock("k").0.names;
        let request = LockRequest::new(Some(locks), names, site).0;
        assert_eq!(request.options.site.function, "shop::reduce");
        assert_eq!(request.options.site.templates, ["k"]);
        assert!(request.options.fair);
        Ok(())
    }

    #[tokio::test]
    async fn what_sets_the_defaults_cannot_take_a_lock() {
        let mut kept = None;
        let builder = builder().defaults(|call| {
            kept = Some(call.clone());
            call
        });
        assert!(builder.build().is_ok());
        let Some(call) = kept else { return };
        let refused = call.acquire().await.map(drop);
        assert!(
            matches!(
                refused,
                Err(LockError::InvalidKey {
                    problem: KeyProblem::NoKeys,
                    ..
                })
            ),
            "{refused:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_flag_can_be_switched_off_again() -> Result<(), Box<dyn std::error::Error>> {
        let locks = builder().build()?;
        let on = |request: LockRequest| request.reentrant(true).fencing(true).fair(true).pipelined(true);
        let off = |request: LockRequest| request.reentrant(false).fencing(false).fair(false).pipelined(false);
        let plain = locks.lock("k");
        assert_eq!(
            format!("{:?}", off(on(plain.clone()))),
            format!("{plain:?}"),
            "nothing else is left of them"
        );
        let nested = off(on(plain.clone())).run(off(on(plain)).run(async {})).await?;
        assert!(matches!(nested, Err(LockError::WouldDeadlock { .. })), "{nested:?}");
        Ok(())
    }
}
