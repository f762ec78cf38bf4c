//! The manager of annotated functions that name none.

use once_cell::sync::OnceCell;

use crate::error::LockError;
use crate::manager::LockManager;
use crate::store::StoreError;

struct Global {
    manager: LockManager,
    /// The URL it was made from; `None` for one that was handed over.
    url: Option<String>,
}

static GLOBAL: OnceCell<Global> = OnceCell::new();

/// Makes the global manager for the store at `url` (see [`LockManager::connect`] for the forms), connects it
/// and checks it. To be called at start-up.
///
/// Called again with the same URL it returns the same manager, so that every `#[tokio::test]` can call it.
///
/// ```
/// # async fn example() -> Result<(), lock_runtime::LockError> {
/// lock_runtime::init("memory://").await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Errors
/// [`LockError::Store`] as for [`LockManager::connect`], and when another URL or manager was given before. A
/// manager whose check failed stays the global one, and connects on the next use.
pub async fn init(url: &str) -> Result<&'static LockManager, LockError> {
    let global = GLOBAL.get_or_try_init(|| {
        let manager = LockManager::builder(url).build()?;
        Ok(Global {
            manager,
            url: Some(url.to_owned()),
        })
    })?;
    if global.url.as_deref() != Some(url) {
        return Err(already_set());
    }
    global.manager.check().await?;
    Ok(&global.manager)
}

/// Makes `manager` the global one. For settings that a URL does not carry.
///
/// # Errors
/// [`LockError::Store`] when there is one already.
pub fn init_with(manager: LockManager) -> Result<&'static LockManager, LockError> {
    GLOBAL
        .try_insert(Global { manager, url: None })
        .map(|global| &global.manager)
        .map_err(|_| already_set())
}

/// The global manager.
///
/// # Errors
/// [`LockError::NotConfigured`] before [`init`].
pub fn global() -> Result<&'static LockManager, LockError> {
    try_get().ok_or_else(|| LockError::NotConfigured { key: "*".into() })
}

pub(crate) fn try_get() -> Option<&'static LockManager> {
    GLOBAL.get().map(|global| &global.manager)
}

/// The manager of a call that names none.
pub(crate) fn for_calls() -> Option<LockManager> {
    #[cfg(feature = "testing")]
    if let Some(manager) = crate::testing::global_here() {
        return Some(manager);
    }
    try_get().cloned()
}

fn already_set() -> LockError {
    let problem = "the global manager was already made for another store; call `init` once, at start-up";
    LockError::Store {
        key: "*".into(),
        source: StoreError::permanent(problem),
    }
}
