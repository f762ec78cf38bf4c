//! The manager of the store that the command line names.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use lock_runtime::{Config, LockManager, LockManagerBuilder};
use tokio::runtime::{Builder, Runtime};

use crate::args::Store;
use crate::exit::Failure;

/// How long an operator waits for one answer: longer than a service, since nobody waits behind the question.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the store's URL.
pub(crate) fn url(store: &Store) -> Result<&str, Failure> {
    let url = store.url.as_deref().map(str::trim).filter(|url| !url.is_empty());
    let url = url.ok_or_else(|| {
        Failure::usage("no store is named; give `--url redis://host:port`, or set LOCK_URL in the environment")
    })?;
    if url.starts_with("memory:") {
        return Err(Failure::usage(
            "`memory://` is the memory of one process, which no other process shares; give the URL of a server",
        ));
    }
    Ok(url)
}

/// Returns a manager of the store for questions of operators.
pub(crate) fn for_operators(store: &Store) -> Result<LockManager, Failure> {
    Ok(builder(store)?.response_timeout(PATIENCE).build()?)
}

/// Returns a builder for the store's manager, set up as a service is by the same variables; options come before them. What a service sets for
/// its calls counts for `run` where that has no option of its own.
pub(crate) fn builder(store: &Store) -> Result<LockManagerBuilder, Failure> {
    let mut options = vec![("LOCK_URL", OsString::from(url(store)?))];
    let files = [
        ("LOCK_PASSWORD_FILE", &store.password_file),
        ("LOCK_ROOT_CERTIFICATE_FILE", &store.root_certificate),
    ];
    options.extend(
        files
            .into_iter()
            .filter_map(|(name, file)| Some((name, file.as_ref()?.into()))),
    );
    let words = [
        ("LOCK_PREFIX", &store.prefix),
        ("LOCK_LONGEST_LEASE", &store.longest_lease),
    ];
    options.extend(
        words
            .into_iter()
            .filter_map(|(name, word)| Some((name, word.as_ref()?.into()))),
    );
    let variables = std::env::vars_os().filter(|(name, _)| !options.iter().any(|(option, _)| name == option));
    let options = options
        .iter()
        .map(|(name, value)| (OsString::from(name), value.clone()));
    Ok(Config::from_vars("LOCK_", variables.chain(options))?.builder()?)
}

pub(crate) fn root_certificate(store: &Store) -> Result<Option<Vec<u8>>, Failure> {
    let Some(file) = store
        .root_certificate
        .as_ref()
        .filter(|file| !file.as_os_str().is_empty())
    else {
        return Ok(None);
    };
    let read = fs::read(file);
    let read = read.map_err(|error| Failure::usage(format!("{}: {error}; give a PEM file", file.display())));
    read.map(Some)
}

/// Returns a runtime on the calling thread.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::system("no runtime can be started", error))
}
