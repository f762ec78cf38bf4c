//! The manager of the store that the command line names.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

use lock_runtime::{Config, LockManager, LockManagerBuilder, ServerHealth, ServerRole, ServerState};
use redis::ClientTlsConfig;
use tokio::runtime::{Builder, Runtime};

use crate::args::{Store, duration};
use crate::exit::Failure;
use crate::warn;

/// The time that an operator waits for a connection, and for one answer: longer than a service, since nobody waits behind the question.
const PATIENCE: Duration = Duration::from_secs(5);

/// The default lease of a manager.
const LEASE: Duration = Duration::from_secs(30);

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

/// Returns the scheme of a store's URL.
pub(crate) fn scheme(url: &str) -> &str {
    url.split("://").next().unwrap_or_default()
}

/// Returns a manager of the store for questions of operators.
pub(crate) fn for_operators(store: &Store) -> Result<LockManager, Failure> {
    let mut builder = builder(store)?.response_timeout(PATIENCE);
    if std::env::var_os("LOCK_CONNECT_TIMEOUT").is_none_or(|set| set.is_empty()) {
        builder = builder.connect_timeout(PATIENCE);
    }
    Ok(builder.build()?)
}

/// Connects, for questions that need no more than a server that answers. It may take no writes for now, such as while its memory is
/// full, or call itself a replica.
pub(crate) async fn to_answer(locks: &LockManager) -> Result<(), Failure> {
    match locks.check_connection().await {
        Err(error) if answers(locks) => {
            warn(&error.to_string());
            Ok(())
        }
        connected => Ok(connected?),
    }
}

/// Returns `true` if a server that keeps locks can be asked.
pub(crate) fn answers(locks: &LockManager) -> bool {
    let is_up = |server: &ServerHealth| matches!(server.state, ServerState::Connected | ServerState::Degraded);
    let servers = locks.health().servers;
    servers
        .iter()
        .any(|server| server.role != ServerRole::Sentinel && is_up(server))
}

/// Returns a builder for the store's manager, set up as a service is by the same variables; options come before them. What a service sets for
/// its calls counts for `run` where that has no option of its own.
pub(crate) fn builder(store: &Store) -> Result<LockManagerBuilder, Failure> {
    let options = [
        ("LOCK_URL", Some(OsStr::new(url(store)?))),
        ("LOCK_PREFIX", store.prefix.as_deref().map(OsStr::new)),
        ("LOCK_LONGEST_LEASE", store.longest_lease.as_deref().map(OsStr::new)),
        ("LOCK_PASSWORD_FILE", store.password_file.as_deref()),
        ("LOCK_ROOT_CERTIFICATE_FILE", store.root_certificate.as_deref()),
    ];
    let others = std::env::vars_os().filter(|(name, _)| !options.iter().any(|(option, _)| name == option));
    let given = options
        .iter()
        .filter_map(|(name, value)| Some((name.into(), value.as_ref()?.into())));
    let mut builder = Config::from_vars("LOCK_", others.chain(given))?.builder()?;
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let longest = store.longest_lease.as_deref().and_then(time);
    if let Some(longest) = longest
        && set("LOCK_LEASE").is_none()
    {
        // No lock is taken for the default lease, but no manager is built with one that its quorum refuses.
        let delay = set("LOCK_LOCK_DELAY").and_then(|delay| time(delay.to_str()?));
        let lease = LEASE.min(longest.saturating_sub(delay.unwrap_or_default()));
        // Otherwise the error tells of the delay.
        if !lease.is_zero() {
            builder = builder.default_lease(lease);
        }
    }
    Ok(builder)
}

/// Reads a time as variables have it: `15`, `1500ms` or `1m30s`. Returns `None` for an empty text, and for what is not
/// understood, which the settings refuse.
fn time(text: &str) -> Option<Duration> {
    let mut sum = None;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = rest[number..].find(|c: char| !c.is_ascii_alphabetic());
        let (one, tail) = rest.split_at(unit.map_or(rest.len(), |unit| number + unit));
        sum = Some(sum.unwrap_or(Duration::ZERO).checked_add(duration(one).ok()?)?);
        rest = tail.trim_start();
    }
    sum
}

/// Returns the path that an option or its variable names. An empty one counts as not set, as for a service.
pub(crate) fn named(file: Option<&OsStr>) -> Option<&Path> {
    file.filter(|file| !file.is_empty()).map(Path::new)
}

pub(crate) fn root_certificate(store: &Store) -> Result<Option<Vec<u8>>, Failure> {
    named(store.root_certificate.as_deref()).map(pem).transpose()
}

/// Returns the certificate by which `lockctl` shows who it is, as the variables name it.
pub(crate) fn client_certificate() -> Result<Option<ClientTlsConfig>, Failure> {
    let [certificate, key] = ["LOCK_CLIENT_CERTIFICATE_FILE", "LOCK_CLIENT_KEY_FILE"].map(std::env::var_os);
    let files = named(certificate.as_deref()).zip(named(key.as_deref()));
    let read = files.map(|(certificate, key)| {
        Ok(ClientTlsConfig {
            client_cert: pem(certificate)?,
            client_key: pem(key)?,
        })
    });
    read.transpose()
}

fn pem(file: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(file).map_err(|error| Failure::usage(format!("{}: {error}; give a PEM file", file.display())))
}

/// Returns a runtime on the calling thread.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::system("no runtime can be started", error))
}
