//! `lockctl watch`: the changes of locks.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use lock_runtime::{HolderInfo, LockError, LockInfo, LockManager};
use serde::Serialize;

use crate::args::{Store, Watch};
use crate::connect;
use crate::exit::Failure;
use crate::list::unlisted;
use crate::report::{Output, shown};
use crate::warn;

/// A change as a JSON object.
#[derive(Serialize)]
struct Change<'a> {
    time: &'a str,
    key: &'a str,
    event: Event,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a HolderInfo>,
    waiters: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Event {
    /// The lock was held when the watch began.
    Held,
    Taken,
    Released,
    Waiters,
}

impl Event {
    const fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Taken => "taken",
            Self::Released => "released",
            Self::Waiters => "waiters",
        }
    }
}

type Snapshot = BTreeMap<Box<str>, LockInfo>;

pub(crate) fn watch(store: &Store, options: &Watch) -> Result<u8, Failure> {
    if options.interval.is_zero() {
        return Err(Failure::usage(
            "an interval of 0 would keep the store busy; give `--interval 100ms` or more",
        ));
    }
    connect::runtime()?.block_on(async {
        let locks = connect::for_operators(store)?;
        connect::to_answer(&locks).await?;
        let mut output = Output::new();
        let unseen = |error| unseen(&options.pattern, error);
        let mut before = look(&locks, &options.pattern).await.map_err(unseen)?;
        let time = timestamp(SystemTime::now());
        for info in before.values() {
            print_changes(&mut output, &time, None, info, options.json)?;
        }
        output.flush()?;
        let mut is_out = false;
        loop {
            tokio::time::sleep(options.interval).await;
            Output::is_read()?;
            let now = match look(&locks, &options.pattern).await {
                Ok(now) => now,
                Err(error) if error.is_retryable() => {
                    if !std::mem::replace(&mut is_out, true) {
                        let Failure { message, .. } = unseen(error);
                        warn(&format!("changes are not seen until the store answers: {message}"));
                    }
                    continue;
                }
                Err(error) => return Err(unseen(error)),
            };
            if std::mem::take(&mut is_out) {
                warn("the store answers again");
            }
            let time = timestamp(SystemTime::now());
            let free = |info: &LockInfo| {
                let mut free = info.clone();
                free.holders.clear();
                free.waiters = 0;
                free
            };
            for (key, was) in &before {
                let is = now.get(key).cloned().unwrap_or_else(|| free(was));
                print_changes(&mut output, &time, Some(was), &is, options.json)?;
            }
            for (_, is) in now.iter().filter(|(key, _)| !before.contains_key(*key)) {
                print_changes(&mut output, &time, Some(&free(is)), is, options.json)?;
            }
            output.flush()?;
            before = now;
        }
    })
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// Returns the failure of a look, whose error has a pattern in place of a key.
fn unseen(pattern: &str, error: LockError) -> Failure {
    if is_pattern(pattern) {
        unlisted(pattern, error)
    } else {
        error.into()
    }
}

/// Returns the locks that are watched and are not idle.
async fn look(locks: &LockManager, pattern: &str) -> Result<Snapshot, LockError> {
    let found = if is_pattern(pattern) {
        locks.list(pattern).await?
    } else {
        locks.inspect(pattern).await?.into_iter().collect()
    };
    Ok(found.into_iter().map(|info| (info.key.clone(), info)).collect())
}

/// Prints what has become of a lock. `was` is `None` for the first look.
fn print_changes(
    output: &mut Output,
    time: &str,
    was: Option<&LockInfo>,
    is: &LockInfo,
    json: bool,
) -> Result<(), Failure> {
    let empty = Vec::new();
    let before = was.map_or(&empty, |was| &was.holders);
    // The value has the holder's token: another one for each time that the lock is taken.
    let has = |holders: &[HolderInfo], one: &HolderInfo| {
        holders.iter().any(|other| other.holder.value() == one.holder.value())
    };
    let taken = if was.is_some() { Event::Taken } else { Event::Held };
    let left = before.iter().filter(|holder| !has(&is.holders, holder));
    let came = is.holders.iter().filter(|holder| !has(before, holder));
    let changes = left.map(|holder| (Event::Released, Some(holder)));
    let changes = changes.chain(came.map(|holder| (taken, Some(holder))));
    let others_wait = was.map_or(0, |was| was.waiters) != is.waiters;
    for (event, holder) in changes.chain(others_wait.then_some((Event::Waiters, None))) {
        if json {
            output.json(&Change {
                time,
                key: &is.key,
                event,
                holder,
                waiters: is.waiters,
            })?;
            continue;
        }
        let key = shown(&is.key);
        let what = match holder {
            Some(holder) => format!("by {}, {}", shown(&holder.holder.to_string()), holder.holder.mode()),
            None => is.waiters.to_string(),
        };
        output.line(&format!("{time}  {:<8}  {key}  {what}", event.word()))?;
    }
    Ok(())
}

/// Returns a time as `2026-11-27T17:42:18.250Z`.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Howard Hinnant's `civil_from_days`: years begin in March, so that the leap day is the last one.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.250Z"),
            (951_782_399, "2000-02-28T23:59:59.250Z"),
            (951_782_400, "2000-02-29T00:00:00.250Z"),
            (951_868_800, "2000-03-01T00:00:00.250Z"),
            (1_735_689_599, "2024-12-31T23:59:59.250Z"),
            (4_107_542_400, "2100-03-01T00:00:00.250Z"),
        ] {
            assert_eq!(
                timestamp(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 250)),
                text
            );
        }
    }
}
