//! Releases that a server has answered whose data another server may have replaced by older data.

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

/// The latest releases, oldest first.
#[derive(Default)]
pub(super) struct Released(Mutex<VecDeque<(Moment, Release)>>);

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
    pub(super) fn unheard(&self, now: Moment) -> Vec<Release> {
        let latest = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let unheard = latest.into_iter().filter_map(|(at, mut release)| {
            let since = now.since(at);
            release.keep = release
                .keep
                .saturating_sub(since.as_millis().try_into().unwrap_or(u64::MAX));
            release.leave_free = None;
            (since <= UNHEARD_FOR).then_some(release)
        });
        unheard.collect()
    }
}
