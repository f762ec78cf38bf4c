//! Releases locks in the background, and what an attempt may have taken.

use std::sync::Arc;
use std::time::Duration;

use crate::error::EndCause;
use crate::error::LostReason;
use crate::hold::Hold;
use crate::hold::backend::Backend;
use crate::key::Keys;
use crate::store::abandon::BackgroundRelease;
use crate::store::{Abandoned, HolderValue, Queued, Receipt, Tracked};

/// The keys that an attempt may take, and its value.
#[derive(Clone)]
pub(crate) struct Stake {
    key: Arc<str>,
    others: Box<[Arc<str>]>,
    value: HolderValue,
    ttl: Duration,
    /// The place in the store's queue that the attempt asks for, if any.
    queued: Option<Queued>,
}

impl Stake {
    pub(crate) fn new(keys: Keys<'_>, value: HolderValue, ttl: Duration, queued: Option<Queued>) -> Self {
        Self {
            key: Arc::clone(keys.first),
            others: keys.others.into(),
            value,
            ttl,
            queued,
        }
    }

    pub(crate) fn value(&self) -> &HolderValue {
        &self.value
    }

    /// Releases whatever may have been taken. If `elsewhere` is set, first tries another connection
    /// than that of the request, since the runtime of that one may be blocked.
    pub(crate) fn give_back(&self, manager: &Arc<Backend>, receipt: &Receipt, elsewhere: bool) {
        // The attempt was not sent, so it has taken nothing.
        if receipt.connection().is_none() {
            return;
        }
        manager.access.abandon(&Abandoned {
            keys: std::iter::once(&self.key).chain(&self.others).cloned().collect(),
            value: self.value.clone(),
            ttl: self.ttl,
            queued: self.queued,
            unanswered_on: receipt.unanswered_on(),
            may_grant: receipt.may_grant(),
            elsewhere,
            tracked: Tracked {
                held: manager.held.clone(),
                unanswered: manager.unanswered.clone(),
            },
        });
    }
}

/// Releases a held lock in the background. Does not block, and works on any thread, inside and
/// outside of a runtime.
pub(super) fn release_later(held: &Arc<Hold>) {
    if held.tenure.manager.host().is_forked() {
        return;
    }
    // A lock that expired and has a `lock_delay` is not released: its key stays for the delay.
    let expired = held.was_late()
        || matches!(
            held.end_cause(),
            Some(EndCause::Lost(LostReason::Expired | LostReason::Unreachable))
        );
    if expired && !held.options.lock_delay.is_zero() {
        return;
    }
    for key in held.tenure.keys().iter() {
        BackgroundRelease::of_held(
            &held.tenure.manager.access,
            key,
            &held.tenure.value,
            held.gone_by(),
            &held.tenure.manager.held,
        )
        .keeping_until(held.keep().map(|keep| held.tenure.now().after(keep)))
        .leaving_free(held.leave_free())
        .start();
    }
}
