//! `assert_locked!`: code that must only run under a lock says so, and a test says what must have been locked.

use std::borrow::Cow;
use std::fmt::{self, Write};

use crate::context;
use crate::held::{Fate, Held};
use crate::store::Mode;

/// Panics unless the running code is under the lock of this key. For internal functions that must only be called under it.
///
/// What counts is the call tree, as for [`current`](crate::current): the lock whose body this is and those around it, any of
/// their keys, in any mode, while they are held. Code under a bare [`LockGuard`](crate::LockGuard) and in spawned tasks is in no
/// body. The key is compared without the manager's prefix. It is a text with arguments as for [`format!`], or one value that can
/// be written as text, and it is always checked, also in release builds.
///
/// ```
/// # use lock_runtime::{LockError, LockManager};
/// use lock_runtime::{assert_locked, distributed_lock};
///
/// fn write_stock(item_id: u64) {
///     assert_locked!("inventory:{item_id}");
///     // …
/// }
///
/// #[distributed_lock(key = "inventory:<item_id>")]
/// async fn reduce_stock(item_id: u64) -> Result<(), LockError> {
///     write_stock(item_id);
///     Ok(())
/// }
/// # async fn example() -> Result<(), LockError> {
/// # lock_runtime::init("memory://").await?;
/// reduce_stock(7).await?;
/// let unlocked = std::panic::catch_unwind(|| write_stock(7));
/// assert!(unlocked.is_err());
/// # Ok(())
/// # }
/// # std::panic::set_hook(Box::new(|_| {}));
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// # In tests
/// With the feature `testing`, `assert_locked!(kit, "inventory:7")` asserts that a kit has seen the key locked. Outside of any
/// lock's body, where a test's own code is, `assert_locked!("inventory:7")` does the same with the kits that this thread has made
/// and not dropped: there it tells that the key **was** locked, at any time since the kit was made. Inside of a body only the call
/// tree counts.
///
/// A function that asserts its lock, called by a test directly, therefore passes if the key was locked before: let such a test
/// make a kit of its own, or call `TestLocks::forget`.
///
/// # Panics
/// When the lock is not held, with the user's line, the key, and the locks that are held.
#[macro_export]
macro_rules! assert_locked {
    ($key:literal $($arguments:tt)*) => {
        $crate::__private::assert_locked(::core::format_args!($key $($arguments)*))
    };
    ($kit:expr, $key:literal $($arguments:tt)*) => {
        $kit.assert_locked(::core::format_args!($key $($arguments)*))
    };
    ($kit:expr, $key:expr $(,)?) => {
        $kit.assert_locked(::core::format_args!("{}", $key))
    };
    ($key:expr $(,)?) => {
        $crate::__private::assert_locked(::core::format_args!("{}", $key))
    };
}

/// What [`assert_locked!`] does.
///
/// # Panics
/// Unless the running code is under the lock of this key.
#[track_caller]
#[allow(clippy::panic, reason = "it is what the macro is for")]
pub fn assert_locked(key: fmt::Arguments<'_>) {
    let key = key.as_str().map_or_else(|| Cow::Owned(key.to_string()), Cow::Borrowed);
    if let Err(problem) = check(&key) {
        panic!("{problem}");
    }
}

/// Whether the running code is under the lock of `key`, or what to say.
fn check(key: &str) -> Result<(), String> {
    let all = context::around();
    let around = || all.iter().map(|held| &**held);
    let of_key = |held: &&Held| held.keys().iter().any(|other| held.manager.name(other) == key);
    if around().filter(of_key).any(is_held) {
        return Ok(());
    }
    #[cfg(feature = "testing")]
    if all.is_empty()
        && let Some(seen) = crate::testing::seen_here(key)
    {
        return seen;
    }
    Err(problem(key, around(), around().find(of_key)))
}

fn is_held(held: &Held) -> bool {
    !held.has_ended() && held.look().is_none()
}

#[cold]
fn problem<'a>(key: &str, around: impl Iterator<Item = &'a Held>, of_key: Option<&Held>) -> String {
    if let Some(held) = of_key {
        let how = match held.fate() {
            Some(Fate::Lost(reason)) => reason.to_string(),
            Some(Fate::Hung) => "its call counts as hung".to_owned(),
            Some(Fate::Closed) => "its manager was shut down".to_owned(),
            None => "it was released".to_owned(),
        };
        return format!(
            "`{key}` must be locked here, and its lock has ended: {how}; \
             ask `current()` for `ensure(…)` before steps that need the lock"
        );
    }
    let mut problem = format!("`{key}` must be locked here, and the running code is under ");
    let held = around.filter(|held| is_held(held)).flat_map(|held| {
        let keys = held.keys().iter();
        keys.map(|key| (held.manager.name(key), &held.mode, held.function))
    });
    if !list(&mut problem, held) {
        problem.push_str("no lock");
    }
    problem.push_str(
        "; call it from a function under `#[distributed_lock]` with this key, or inside `LockRequest::run` \
         (spawned tasks, and code under a bare guard, are in no lock's body)",
    );
    problem
}

/// Writes down locks by key, mode and function. `false`: there are none.
pub(crate) fn list<'a>(text: &mut String, locks: impl Iterator<Item = (&'a str, &'a Mode, &'a str)>) -> bool {
    let mut any = false;
    for (key, mode, function) in locks {
        let comma = if any { ", " } else { "" };
        // Writing into a string does not fail.
        let _ = write!(text, "{comma}`{key}` ({mode}");
        if !function.is_empty() {
            let _ = write!(text, ", by {function}");
        }
        text.push(')');
        any = true;
    }
    any
}
