//! `lockctl ls`: the held locks, as the store finds them.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use lock_runtime::{LockError, LockInfo};

use crate::args::{List, Store};
use crate::connect;
use crate::exit::{Failure, UNAVAILABLE};
use crate::report::{Output, holders, rest, shown};
use crate::warn;

pub(crate) fn list(store: &Store, options: &List) -> Result<u8, Failure> {
    connect::runtime()?.block_on(async {
        let locks = connect::for_operators(store)?;
        connect::to_answer(&locks).await?;
        let mut output = Output::new();
        let mut pages = locks.list_pages(&options.pattern);
        let mut first = !options.json;
        // A lock may be on several pages. Hashes of 16 bytes take less room than keys, and do not collide.
        let (one, other) = (RandomState::new(), RandomState::new());
        let mut seen = HashSet::new();
        while let Some(page) = pages.next().await.map_err(|error| unlisted(&options.pattern, error))? {
            for info in page {
                if !seen.insert((one.hash_one(&info.key), other.hash_one(&info.key))) {
                    continue;
                }
                if first {
                    output.line(&row("LEFT", "WAITERS", "MODE", "KEY", "HOLDERS"))?;
                    first = false;
                }
                print(&mut output, &info, options.json)?;
            }
            output.flush()?;
        }
        if seen.is_empty() && !options.json {
            warn(&format!(
                "no held lock under the prefix `{}` matches",
                shown(locks.prefix())
            ));
        }
        Ok(0)
    })
}

/// Returns the failure of a list, whose error has the pattern in place of a key.
pub(crate) fn unlisted(pattern: &str, error: LockError) -> Failure {
    let LockError::Store { source, .. } = error else {
        return error.into();
    };
    let what = format!("the locks that match `{}` cannot be listed", shown(pattern));
    Failure::new(UNAVAILABLE, format!("{what}: {source}"))
}

fn print(output: &mut Output, info: &LockInfo, json: bool) -> Result<(), Failure> {
    if json {
        return output.json(info);
    }
    // The lock is free when the last lease has ended.
    let lefts = info.holders.iter().map(|holder| holder.remaining);
    let longest = lefts.max_by_key(|left| left.unwrap_or(Duration::MAX));
    let left = longest.map(rest).unwrap_or_default();
    let mode = info.mode().map(|mode| mode.to_string()).unwrap_or_default();
    output.line(&row(
        &left,
        &info.waiters.to_string(),
        &mode,
        &shown(&info.key),
        &holders(info),
    ))
}

/// Returns a row of the table. The widths are fixed, since the first rows are printed before the last ones are known.
fn row(left: &str, waiters: &str, mode: &str, key: &str, holders: &str) -> String {
    format!("{left:>9}  {waiters:>7}  {mode:<12}  {key:<32}  {holders}")
}
