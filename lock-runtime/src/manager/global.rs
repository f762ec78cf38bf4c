//! The manager of annotated functions that name no manager.

use once_cell::sync::OnceCell;
use std::cell::RefCell;

use crate::error::ConfigError;
use crate::host;
use crate::manager::LockManager;
use crate::manager::url;

struct Global {
    manager: LockManager,
    /// The URL that the manager was created from; `None` for a manager given to [`init_with`].
    url: Option<String>,
}

static GLOBAL: OnceCell<Global> = OnceCell::new();

/// Creates the global manager for the store at `url`, connects it and checks it. Call it at
/// start-up. See [`LockManager::connect`] for the forms of `url`.
///
/// Called again with the same URL, it returns the same manager, so every `#[tokio::test]` can call
/// it.
///
/// ```
/// # async fn example() -> Result<(), lock_runtime::ConfigError> {
/// lock_runtime::init("memory://").await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Errors
/// The errors of [`LockManager::connect`], and [`ConfigError::AlreadySet`] when there is a global
/// manager already, for another URL or given to [`init_with`]. A failed `init` sets no global manager:
/// call it again, with the same URL or another one. A service that is to start while its store is away
/// gives [`init_with`] a manager that [`build`](crate::LockManagerBuilder::build) has made, which
/// connects on its first use.
///
/// # Cancel safety
/// If the future is dropped before it completes, it sets no global manager.
pub async fn init(url: &str) -> Result<&'static LockManager, ConfigError> {
    host::take_part().await;
    let global = if let Some(global) = GLOBAL.get() {
        global
    } else {
        let manager = LockManager::connect(url).await?;
        let new = Global {
            manager,
            url: Some(url.to_owned()),
        };
        // Of several calls at one time, the first to connect decides.
        match GLOBAL.try_insert(new) {
            Ok(global) => return Ok(&global.manager),
            Err((first, _)) => first,
        }
    };
    if global.url.as_deref() != Some(url) {
        return Err(already_set(global));
    }
    global.manager.check_connection().await?;
    Ok(&global.manager)
}

/// Makes `manager` the global manager. Use it for settings that a URL does not carry.
///
/// # Errors
/// [`ConfigError::AlreadySet`] when there is a global manager already.
pub fn init_with(manager: LockManager) -> Result<&'static LockManager, ConfigError> {
    GLOBAL
        .try_insert(Global { manager, url: None })
        .map(|global| &global.manager)
        .map_err(|(first, _)| already_set(first))
}

/// Returns the global manager.
///
/// # Errors
/// [`ConfigError::NotSet`] before [`init`] or [`init_with`] was called.
pub fn global() -> Result<&'static LockManager, ConfigError> {
    try_get().ok_or(ConfigError::NotSet)
}

pub(super) fn try_get() -> Option<&'static LockManager> {
    GLOBAL.get().map(|global| &global.manager)
}

/// Returns the manager of a call that names none.
pub(crate) fn for_calls() -> Option<LockManager> {
    let here = STAND_INS.try_with(|managers| managers.borrow().last().cloned());
    here.ok().flatten().or_else(|| try_get().cloned())
}

thread_local! {
    /// The managers that replace the global one on this thread. The last one is used.
    static STAND_INS: RefCell<Vec<LockManager>> = const { RefCell::new(Vec::new()) };
}

/// Replaces the global manager on this thread by `manager`, until [`stand_down`].
#[cfg(feature = "testing")]
pub(crate) fn stand_in(manager: LockManager) {
    STAND_INS.with_borrow_mut(|managers| managers.push(manager));
}

#[cfg(feature = "testing")]
pub(crate) fn stand_down() {
    // While the thread ends, its locals may be gone already. The removed manager is dropped after
    // the borrow.
    drop(STAND_INS.try_with(|managers| managers.borrow_mut().pop()));
}

fn already_set(first: &Global) -> ConfigError {
    let first = first.url.as_deref().map(url::without_password);
    ConfigError::AlreadySet { first }
}
