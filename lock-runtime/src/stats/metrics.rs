//! The events of all managers as metrics of the crate `metrics`, under the templates of the keys: a template is one label however many keys
//! it makes.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use metrics::{
    Counter, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::error::{EndCause, LostReason};
use crate::key::CallSite;
use crate::stats::Event;

const ACQUIRE: &str = "lock_acquire_seconds";
const HOLD: &str = "lock_hold_seconds";
const RENEW: &str = "lock_renew_seconds";
const WAITERS: &str = "lock_waiters";
const HELD: &str = "lock_held";
const LOST: &str = "lock_lost_total";
const HUNG: &str = "lock_hung_total";
const BUSY: &str = "lock_busy_total";
const STORE_FAILURES: &str = "lock_store_failures_total";
const RENEWAL_FAILURES: &str = "lock_renewal_failures_total";
const RELEASE_FAILURES: &str = "lock_release_failures_total";
const OVERRUNS: &str = "lock_overruns_total";

/// `true` if there may be a recorder.
pub(crate) const RECORDS: bool = true;

thread_local! {
    /// The calls whose counters this thread has given to the recorder.
    static BEGUN: RefCell<HashSet<CallSite>> = RefCell::default();
}

/// Describes the metrics to the recorder that is installed.
pub(crate) fn describe() {
    describe_histogram!(ACQUIRE, Unit::Seconds, "How long calls that got their lock had waited.");
    describe_histogram!(HOLD, Unit::Seconds, "How long calls had held their lock.");
    describe_histogram!(
        RENEW,
        Unit::Seconds,
        "The time from the sending of a renewal to the answer that confirmed it."
    );
    describe_gauge!(WAITERS, "The calls that wait for a lock now.");
    describe_gauge!(HELD, "The locks held now.");
    describe_counter!(LOST, "The locks lost before their calls released them, by reason.");
    describe_counter!(HUNG, "The calls cancelled after max_hold or max_renewals.");
    describe_counter!(BUSY, "The calls that did not get their lock within wait.");
    describe_counter!(
        STORE_FAILURES,
        "The calls that failed before their body began because of the store, by the kind of their error."
    );
    describe_counter!(
        RENEWAL_FAILURES,
        "The attempts to renew a lock that the store has not confirmed while it still held."
    );
    describe_counter!(
        RELEASE_FAILURES,
        "The releases that a call waited for, or sent by release = pipelined, and that the store has not confirmed."
    );
    describe_counter!(OVERRUNS, "The polls of bodies that went on beyond the deadline.");
}

/// Gives the recorder the counters of a call at zero: Prometheus sees no increase in a series that begins at 1.
fn begin(site: CallSite) {
    let lost = |reason| Event::Ended(EndCause::Lost(reason));
    let failures = [
        Event::Busy,
        Event::StoreFailed,
        Event::TooFewReplicas,
        Event::RenewalFailed,
        Event::Overrun,
        Event::Ended(EndCause::Hung),
        lost(LostReason::Expired),
        lost(LostReason::Taken),
        lost(LostReason::Deleted),
        lost(LostReason::Unreachable),
    ];
    for counter in failures.into_iter().filter_map(|event| counter_of(event, site)) {
        counter.increment(0);
    }
    release_failures(site).increment(0);
}

/// Returns the label of a call: the templates of its keys, or without any the label that the call gives for its holder.
fn label(site: CallSite) -> SharedString {
    match site.templates {
        [] => site.function.into(),
        [template] => (*template).into(),
        templates => templates.join(", ").into(),
    }
}

pub(super) fn waits(site: CallSite) {
    // Each thread may do so, since it changes no number. While a thread ends, its locals may be gone already.
    let is_new = BEGUN.try_with(|begun| begun.borrow_mut().insert(site));
    if is_new.unwrap_or_default() {
        begin(site);
    }
    gauge!(WAITERS, "key" => label(site)).increment(1.0);
}

pub(super) fn waited(site: CallSite) {
    gauge!(WAITERS, "key" => label(site)).decrement(1.0);
}

/// Gives the recorder a call that has got its lock after it had `waited`.
pub(crate) fn holds(site: CallSite, waited: Duration) {
    histogram!(ACQUIRE, "key" => label(site)).record(waited);
    gauge!(HELD, "key" => label(site)).increment(1.0);
}

/// Gives the recorder a lock that a call no longer holds, which `held` it for so long.
pub(crate) fn ends(site: CallSite, held: impl FnOnce() -> Duration) {
    let held = held();
    gauge!(HELD, "key" => label(site)).decrement(1.0);
    histogram!(HOLD, "key" => label(site)).record(held);
}

/// Gives the recorder a renewal that took so long.
pub(crate) fn renewed(site: CallSite, took: Duration) {
    histogram!(RENEW, "key" => label(site)).record(took);
}

/// Gives the recorder a release that the store has not confirmed.
pub(crate) fn release_failed(site: CallSite) {
    release_failures(site).increment(1);
}

fn release_failures(site: CallSite) -> Counter {
    counter!(RELEASE_FAILURES, "key" => label(site))
}

/// Gives the recorder an event that was counted.
pub(crate) fn count(event: Event, site: CallSite) {
    if let Some(counter) = counter_of(event, site) {
        counter.increment(1);
    }
}

/// Returns the counter of a failure.
fn counter_of(event: Event, site: CallSite) -> Option<Counter> {
    let key = || label(site);
    Some(match event {
        Event::Busy => counter!(BUSY, "key" => key()),
        Event::StoreFailed => counter!(STORE_FAILURES, "key" => key(), "kind" => "store"),
        Event::TooFewReplicas => counter!(STORE_FAILURES, "key" => key(), "kind" => "too_few_replicas"),
        Event::RenewalFailed => counter!(RENEWAL_FAILURES, "key" => key()),
        Event::Overrun => counter!(OVERRUNS, "key" => key()),
        Event::Ended(EndCause::Hung) => counter!(HUNG, "key" => key()),
        Event::Ended(EndCause::Lost(reason)) => counter!(LOST, "key" => key(), "reason" => label_of(reason)?),
        // Counted by the histograms, by `release_failed`, or no failure.
        Event::Acquired | Event::Passed | Event::Coalesced | Event::Unconfirmed | Event::Ended(EndCause::Closed) => {
            return None;
        }
    })
}

/// Returns a reason's label, or `None` if the loss does not count: a forked child's lock belongs to its parent.
fn label_of(reason: LostReason) -> Option<&'static str> {
    (reason != LostReason::Forked).then(|| reason.name())
}
