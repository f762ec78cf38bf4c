//! Releases that one server knows, and that a server taking over from it may not know.

use std::collections::VecDeque;
use std::time::Duration;

use super::batcher::Release;
use crate::host::{Moment, Mutex};

/// The time between the promotion of a server and the moment at which the store hears of it: the
/// longest pause between two questions to a sentinel, and the time for an answer. A release that
/// the former server answers in between is unknown to the new one. It counts back from the last
/// release that was recorded: a server that has died answers none, and the election of the next
/// one may take longer than this.
const UNACKNOWLEDGED_FOR: Duration = Duration::from_secs(15);
/// The time for which releases are repeated at a server that has taken over, and the pause after one without an answer.
pub(in crate::store::redis) const REPEATED_FOR: Duration = Duration::from_secs(60);
pub(in crate::store::redis) const REPEAT_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of releases. Older ones are forgotten: what they released ends with its lease.
const MOST: usize = 50_000;

/// The latest releases, oldest first, and those that only take a call out of a queue.
#[derive(Default)]
pub(super) struct Released(Mutex<VecDeque<(Moment, Release)>>);

/// Releases that are to be repeated.
pub(in crate::store::redis) struct Unacknowledged {
    /// The releases that take calls out of queues. They come first, since the present server would hand a
    /// lock to a call that has left.
    pub(in crate::store::redis) places: Vec<Release>,
    /// The others, latest first: the present server is the least likely to know the latest ones.
    pub(in crate::store::redis) releases: Vec<Release>,
}

impl Released {
    /// Records a release that was answered, or that is about to be sent and that no call waits for.
    pub(super) fn note(&self, now: Moment, release: Release) {
        let mut latest = self.0.lock();
        while latest.len() >= MOST
            || latest
                .front()
                .is_some_and(|(at, _)| now.since(*at) > UNACKNOWLEDGED_FOR)
        {
            latest.pop_front();
        }
        latest.push_back((now, release));
    }

    /// Returns the releases that the present server may not know, as they are to be repeated.
    pub(super) fn unacknowledged(&self, now: Moment) -> Unacknowledged {
        let latest = std::mem::take(&mut *self.0.lock());
        let last = latest.back().map_or(now, |(at, _)| *at);
        let unacknowledged = latest.into_iter().rev();
        let unacknowledged = unacknowledged.filter(|(at, _)| last.since(*at) <= UNACKNOWLEDGED_FOR);
        let unacknowledged = unacknowledged.map(|(at, release)| again(release, now.since(at)));
        let (places, releases) = unacknowledged.partition(Release::is_of_a_place);
        Unacknowledged { places, releases }
    }

    /// Returns the releases that were recorded after `moved`, as they are to be repeated. Those that
    /// only take a call out of a queue are not among them.
    pub(super) fn since(&self, moved: Moment, now: Moment) -> Vec<Release> {
        let latest = self.0.lock();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn release(value: &str) -> Release {
        Release {
            lock: "lock".into(),
            value: value.into(),
            is_shared: false,
            keep: 0,
            member: String::new(),
            leave_free: None,
        }
    }

    #[test]
    fn releases_of_the_last_time_that_a_server_answered_are_repeated_however_long_its_successor_took() {
        let at = |seconds| Moment::from_nanos(0).after(Duration::from_secs(seconds));
        let released = Released::default();
        for (moment, value) in [(100, "a"), (110, "b"), (120, "c")] {
            released.note(at(moment), release(value));
        }
        let unacknowledged = released.unacknowledged(at(180)).releases;
        let values: Vec<&str> = unacknowledged.iter().map(|release| &*release.value).collect();
        assert_eq!(values, ["c", "b"]);
    }
}
