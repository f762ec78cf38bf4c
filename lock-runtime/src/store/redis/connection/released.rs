//! What a server has been told that another one may not know which takes over from it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::batcher::Release;
use crate::host::Moment;

/// The time between the promotion of a server and the moment at which the store hears of it: the
/// longest pause between two questions to a sentinel, and the time for an answer. A release that
/// the former server answers in between is unknown to the new one.
const UNHEARD_FOR: Duration = Duration::from_secs(15);
/// The maximum number of releases. Older ones are forgotten: what they released ends with its lease.
const MOST: usize = 50_000;

/// The latest releases, oldest first, and those that only take a call out of a queue.
#[derive(Default)]
pub(super) struct Released(Mutex<VecDeque<(Moment, Release)>>);

/// Releases that are to be repeated.
pub(in crate::store::redis) struct Unheard {
    /// Those that take calls out of queues. They come first, since the present server would hand a
    /// lock to a call that has left.
    pub(in crate::store::redis) places: Vec<Release>,
    /// The others, latest first: those that the present server is the least likely to know.
    pub(in crate::store::redis) releases: Vec<Release>,
}

impl Released {
    /// Records a release that was answered.
    pub(super) fn note(&self, now: Moment, release: Release) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while latest.len() >= MOST || latest.front().is_some_and(|(at, _)| now.since(*at) > UNHEARD_FOR) {
            latest.pop_front();
        }
        latest.push_back((now, release));
    }

    /// Returns the releases that the present server may not know, as they are to be repeated.
    pub(super) fn unheard(&self, now: Moment) -> Unheard {
        let latest = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let unheard = latest.into_iter().rev();
        let unheard = unheard.filter(|(at, _)| now.since(*at) <= UNHEARD_FOR);
        let unheard = unheard.map(|(at, release)| again(release, now.since(at)));
        let (places, releases) = unheard.partition(Release::is_of_a_place);
        Unheard { places, releases }
    }

    /// Returns the releases that were answered after `moved`, as they are to be repeated. Those that
    /// only take a call out of a queue are not among them.
    pub(super) fn since(&self, moved: Moment, now: Moment) -> Vec<Release> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = latest.iter().rev().take_while(|(at, _)| *at >= moved);
        let since = since.filter(|(_, release)| !release.is_of_a_place());
        since
            .map(|(at, release)| again(release.clone(), now.since(*at)))
            .collect()
    }
}

/// Returns a release as it is to be repeated so long after its answer.
fn again(mut release: Release, after: Duration) -> Release {
    let after = after.as_millis().try_into().unwrap_or(u64::MAX);
    release.keep = release.keep.saturating_sub(after);
    release.leave_free = None;
    release
}
