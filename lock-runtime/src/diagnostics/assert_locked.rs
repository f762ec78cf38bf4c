//! `assert_locked!`: code that must only run under a lock states that, and a test states which
//! locks must have been taken.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::{self, Write};

use crate::error::EndCause;
use crate::hold::{Hold, call_tree};
use crate::key::decoded;
use crate::store::LockMode;

/// Panics unless the running code is under the lock of this key. Use it in internal functions that
/// must only be called under that lock.
///
/// As for [`current`](crate::current), the call tree counts: the code runs under the lock whose
/// body contains it, and under the locks around that one, while they are held. The key may be any
/// of their keys, in any mode. Code under a bare [`LockGuard`](crate::LockGuard) and in tasks
/// spawned with `tokio::spawn` is in no body. The key is compared without the manager's prefix. It
/// is a text with arguments as for [`format!`], or one value that implements `Display`. Give a value
/// that a template inserts, and that may have white space or a `:`, by
/// [`encode_value`](crate::encode_value). It is always checked, also in release builds.
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
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
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
/// With the feature `testing`, `assert_locked!(kit, "inventory:7")` asserts that a kit has seen the
/// key locked. Outside of any lock's body, as in a test's own code, `assert_locked!("inventory:7")`
/// does the same with the kits that this thread has made and not dropped: there it asserts that the
/// key **was** locked at any time since the kit was made. Inside a body only the call tree counts.
///
/// A function that asserts its lock and is called directly by a test therefore passes if the key
/// was locked before: let such a test make a kit of its own, or call `TestLocks::forget`.
///
/// # Panics
/// Panics if the lock is not held, with the caller's line, the key, and the locks that are held.
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

/// Implements [`assert_locked!`].
///
/// # Panics
/// Panics unless the running code is under the lock of this key.
#[track_caller]
#[allow(clippy::panic, reason = "it is what the macro is for")]
pub fn assert_locked(key: fmt::Arguments<'_>) {
    let key = key.as_str().map_or_else(|| Cow::Owned(key.to_string()), Cow::Borrowed);
    if let Err(problem) = check(&key) {
        panic!("{problem}");
    }
}

/// A function that returns `Ok` if the key was seen locked, `Err` with a message if not, and `None`
/// if this thread has no kit.
pub(super) type Witness = fn(&str) -> Option<Result<(), String>>;

thread_local! {
    /// The witness that [`check`] asks on this thread outside of any lock.
    static WITNESS: Cell<Option<Witness>> = const { Cell::new(None) };
}

/// Sets the witness of this thread.
#[cfg(feature = "testing")]
pub(crate) fn ask(witness: Witness) {
    WITNESS.set(Some(witness));
}

/// Returns `Ok` if the running code is under the lock of `key`, and the message to panic with
/// otherwise.
fn check(key: &str) -> Result<(), String> {
    let all = call_tree::around();
    let around = || all.iter().map(|held| &**held);
    let of_key = |held: &&Hold| {
        held.tenure
            .keys()
            .iter()
            .any(|other| held.tenure.manager.name(other) == key)
    };
    if around().filter(of_key).any(is_held) {
        return Ok(());
    }
    if all.is_empty()
        && let Some(seen) = WITNESS.try_with(Cell::get).ok().flatten()
        && let Some(seen) = seen(key)
    {
        return seen;
    }
    Err(problem(key, around(), around().find(of_key)))
}

fn is_held(held: &Hold) -> bool {
    !held.has_ended() && held.check_deadline().is_none()
}

#[cold]
fn problem<'a>(key: &str, around: impl Iterator<Item = &'a Hold>, of_key: Option<&Hold>) -> String {
    if let Some(held) = of_key {
        let how = match held.end_cause() {
            Some(EndCause::Lost(reason)) => reason.to_string(),
            Some(EndCause::Hung) => "its call counts as hung".to_owned(),
            Some(EndCause::Closed) => "its manager was shut down".to_owned(),
            None => "it was released".to_owned(),
        };
        return format!(
            "`{key}` must be locked here, and its lock has ended: {how}; \
             ask `current()` for `ensure(…)` before steps that need the lock"
        );
    }
    let mut problem = format!("`{key}` must be locked here, and the running code is under ");
    let held = around.filter(|held| is_held(held)).flat_map(|held| {
        let keys = held.tenure.keys().iter();
        keys.map(|key| {
            (
                held.tenure.manager.name(key),
                held.tenure.value.mode(),
                held.options.site.function,
            )
        })
    });
    let held: Vec<_> = held.collect();
    if !list(&mut problem, held.iter().copied()) {
        problem.push_str("no lock");
    }
    let is_encoded = held
        .iter()
        .any(|(name, ..)| decoded(name).is_some_and(|decoded| decoded == key));
    if is_encoded {
        problem.push_str("; give the value that the template inserts by `encode_value`");
        return problem;
    }
    problem.push_str(
        "; call it from a function under `#[distributed_lock]` with this key, or inside `LockRequest::run` \
         (spawned tasks, and code under a bare guard, are in no lock's body)",
    );
    let of_template = key.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    if let Some((name, _)) = of_template.filter(|(name, _)| is_name(name)) {
        // Writing into a string does not fail.
        let _ = write!(
            problem,
            "; `assert_locked!` takes a format string: write `{{{name}}}` for `<{name}>`"
        );
    }
    problem
}

/// Appends locks by key, mode and function. Returns `false` if there are none.
pub(crate) fn list<'a>(text: &mut String, locks: impl Iterator<Item = (&'a str, &'a LockMode, &'a str)>) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigError, LockManager, encode_value};

    #[tokio::test(start_paused = true)]
    async fn a_value_that_is_given_as_it_is_is_told_to_be_encoded() -> Result<(), ConfigError> {
        let locks = LockManager::builder("memory://").build()?;
        let owner = "Ann Lee";
        let held = locks.lock(format!("account:{}", encode_value(owner)));
        let checked = held.run(async { [check("account:Ann Lee"), check("account:Ann%20Lee"), check("account:7")] });
        let checked = checked.await.map_err(|error| error.to_string());
        let [as_it_is, encoded, other] = checked.unwrap_or_else(|error| [(); 3].map(|()| Err(error.clone())));
        let advice = "give the value that the template inserts by `encode_value`";
        assert!(as_it_is.is_err_and(|problem| problem.ends_with(advice)));
        assert_eq!(encoded, Ok(()));
        assert!(other.is_err_and(|problem| !problem.contains(advice)));
        Ok(())
    }

    #[test]
    fn a_template_is_told_to_be_a_format_string() {
        let template = check("account:<owner>");
        let advice = "; `assert_locked!` takes a format string: write `{owner}` for `<owner>`";
        assert!(template.is_err_and(|problem| problem.ends_with(advice)));
    }
}
