//! The options of one call.

use std::time::Duration;

use crate::error::{LockError, RequestProblem};
use crate::hold::backend::Backend;
use crate::host::Moment;
use crate::key::{self, CallSite, MAX_KEY_LEN, Names};
use crate::store::LockMode;
use crate::store::limits::{MAX_LEASE, MIN_LEASE};

/// The effect of a lost lock on the body that runs under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLost {
    /// Drops the body at its next await, before another holder can be granted the lock.
    #[default]
    Cancel,
    /// Lets the body continue; [`HeldLock::lost`](crate::HeldLock::lost) reports the loss. A body
    /// that learned of the loss from that method, [`ensure`](crate::HeldLock::ensure),
    /// [`verify`](crate::HeldLock::verify), [`fencing_token`](crate::HeldLock::fencing_token) or
    /// [`shielded`](crate::HeldLock::shielded) decides itself what to return; any other body still
    /// ends with `Lost`. `Debug` and the getters do not count, and neither does anything that
    /// another task learned.
    Signal,
}

/// The mode setting of a call: none, one, or a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Nothing,
    OneMode,
    /// A semaphore without permits, which is an error.
    NoPermits,
    /// More than one, which is an error.
    TwoModes,
}

/// The options of one call. A manager keeps one value with its defaults, which each call copies and
/// changes.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct LockOptions {
    pub(crate) site: CallSite,
    mode: LockMode,
    given: Given,
    pub(crate) reentrant: bool,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) renew: bool,
    pub(super) limit: HoldLimit,
    pub(crate) at_least: Duration,
    /// The time for which the key stays taken after the lease of a holder that did not release it.
    pub(crate) lock_delay: Duration,
    pub(crate) on_lost: OnLost,
    pub(crate) fencing: bool,
    pub(crate) fair: bool,
    /// The number of replicas that must have the lock before the body begins. No server has more than
    /// a byte can count.
    pub(crate) min_replicas: u8,
    /// `true` if the call does not wait for its release.
    pub(crate) pipelined: bool,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            site: CallSite::default(),
            mode: LockMode::Exclusive,
            given: Given::Nothing,
            reentrant: false,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(10),
            renew: true,
            limit: HoldLimit::Renewals(30),
            at_least: Duration::ZERO,
            lock_delay: Duration::ZERO,
            on_lost: OnLost::default(),
            fencing: false,
            fair: false,
            min_replicas: 0,
            pipelined: false,
        }
    }
}

impl LockOptions {
    /// Returns the options with which a call from `site` begins if these are its manager's defaults. A
    /// mode that the call gives replaces theirs.
    pub(crate) fn of_call(&self, mut site: CallSite) -> Self {
        if site.function.is_empty() {
            site.function = self.site.function;
        }
        Self {
            site,
            given: Given::Nothing,
            ..self.clone()
        }
    }

    /// Returns these defaults in place of `former` ones. A mistake in the former mode stays unless another
    /// mode has replaced it.
    pub(crate) fn in_place_of(mut self, former: &Self) -> Self {
        if self.given == Given::Nothing {
            self.given = former.given;
        }
        self
    }

    pub(crate) fn mode(&self) -> &LockMode {
        &self.mode
    }

    pub(crate) fn set_mode(&mut self, mode: LockMode) {
        self.mode = mode;
        self.given = match self.given {
            Given::Nothing => Given::OneMode,
            _ => Given::TwoModes,
        };
    }

    /// Sets the mode of a semaphore.
    pub(crate) fn set_permits(&mut self, permits: u32) {
        let mode = LockMode::of_permits(permits);
        let is_missing = mode.is_none() && self.given == Given::Nothing;
        self.set_mode(mode.unwrap_or_default());
        if is_missing {
            self.given = Given::NoPermits;
        }
    }

    /// Sets the number of renewals after which a call counts as hung when one more is due.
    pub(crate) fn set_max_renewals(&mut self, renewals: u32) {
        self.limit = HoldLimit::Renewals(renewals);
    }

    /// Sets the time after which a call counts as hung, regardless of its renewals.
    pub(crate) fn set_max_hold(&mut self, span: Duration) {
        self.limit = HoldLimit::Time(span);
    }

    /// Returns the time at which a call that got the lock at `since` counts as hung, regardless of
    /// its renewals.
    pub(super) fn hangs_at(&self, since: Moment) -> Moment {
        self.limit.time().map_or(Moment::NEVER, |span| since.after(span))
    }

    /// Returns `true` if a grant that arrives at `now`, of a request sent at `sent`, is of no use: the lock is over, or could
    /// not be renewed in time, or its call would count as hung as the body begins.
    pub(crate) fn is_too_late(&self, backend: &Backend, sent: Moment, now: Moment) -> bool {
        let deadline = backend.deadline(sent, self.lease);
        if now >= deadline {
            return true;
        }
        if !self.renew || now < backend.margins.renew_at(sent, self.lease) {
            return false;
        }
        let renewal = (2 * backend.access.usual_round_trip()).max(self.lease / 10);
        self.limit.renewals() == 0 || deadline.since(now) <= renewal
    }

    /// Returns the expiry to set on the key.
    pub(crate) fn time_to_live(&self) -> Duration {
        self.lease.saturating_add(self.lock_delay)
    }

    /// Returns the longest time for which the key may be kept after the grant or a renewal.
    pub(crate) fn longest(&self) -> Duration {
        self.time_to_live().max(self.at_least)
    }

    /// Returns an error if no lock can be taken with these options, whatever its keys and its store.
    pub(crate) fn check_alone(&self) -> Result<(), RequestProblem> {
        // Limited, since a server accepts an expiry in the distant future, with which the key
        // stays.
        Err(match &self.mode {
            _ if !(MIN_LEASE..=MAX_LEASE).contains(&self.lease) => RequestProblem::Lease(self.lease),
            _ if self.at_least > MAX_LEASE => RequestProblem::AtLeast(self.at_least),
            _ if self.lock_delay > MAX_LEASE => RequestProblem::LockDelay(self.lock_delay),
            _ if self.limit.time().is_some_and(|span| span.is_zero()) => RequestProblem::MaxHold,
            _ if self.given == Given::TwoModes => RequestProblem::TwoModes,
            _ if self.given == Given::NoPermits => RequestProblem::NoPermits,
            LockMode::Read | LockMode::Semaphore(_) if self.fencing => RequestProblem::ManyToFence,
            LockMode::Owner(owner) if owner.is_empty() => RequestProblem::NoOwner,
            LockMode::Owner(owner) if key::encode_value(owner).len() > MAX_KEY_LEN => RequestProblem::LongOwner,
            _ => return Ok(()),
        })
    }

    /// Returns an error if no lock can be taken with these options in this store, whatever its keys.
    pub(crate) fn check_in(&self, backend: &Backend) -> Result<(), RequestProblem> {
        self.check_alone()?;
        if backend.margins.validity(self.lease).is_zero() {
            return Err(RequestProblem::Lease(self.lease));
        }
        if backend.store().refuses_mode(&self.mode, self.fair) {
            return Err(RequestProblem::OneServer);
        }
        match backend.store().longest_lease() {
            Some(longest) if self.longest() > longest => Err(RequestProblem::LongLease),
            _ => Ok(()),
        }
    }

    /// Returns an error if a lock of these keys cannot be taken with these options.
    pub(crate) fn check(&self, names: &Names, backend: &Backend) -> Result<(), LockError> {
        let several = !names.others.is_empty();
        let problem = match self.check_in(backend) {
            Err(problem) => problem,
            Ok(()) if several && self.mode != LockMode::Exclusive => RequestProblem::SeveralInAMode,
            Ok(()) if several && self.fair => RequestProblem::SeveralFair,
            Ok(()) => return Ok(()),
        };
        Err(LockError::InvalidRequest {
            key: names.first.as_str().into(),
            problem,
        })
    }
}

/// The limit after which a call counts as hung.
#[derive(Clone, Copy, Debug)]
pub(super) enum HoldLimit {
    /// The number of renewals. The call counts as hung when one more is due: after
    /// `2/3 × lease × (renewals + 1)`.
    Renewals(u32),
    Time(Duration),
}

impl HoldLimit {
    /// Returns the maximum number of renewals.
    pub(super) const fn renewals(self) -> u32 {
        match self {
            Self::Renewals(renewals) => renewals,
            Self::Time(_) => u32::MAX,
        }
    }

    /// Returns the maximum time for which the call may hold the lock, or `None` if only the
    /// renewals are limited.
    pub(super) const fn time(self) -> Option<Duration> {
        match self {
            Self::Renewals(_) => None,
            Self::Time(span) => Some(span),
        }
    }
}
