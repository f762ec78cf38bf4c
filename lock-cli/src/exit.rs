//! Exit codes, and the errors that lead to them.

use lock_runtime::{ConfigError, LockError};

/// The command line cannot be used (`EX_USAGE` of sysexits.h).
pub(crate) const USAGE: u8 = 64;
/// The store cannot be used (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// The operating system does not do what it is asked (`EX_OSERR`).
pub(crate) const SYSTEM: u8 = 71;
/// The lock is busy (`EX_TEMPFAIL`).
pub(crate) const BUSY: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 76;

/// The table in the help of `run`.
pub(crate) const OF_RUN: &str = "\
Exit code: the command's own, or
  128+N  the command was ended by signal N
  64     the arguments cannot be used
  69     the store cannot be used, so the command was not run
  71     the operating system does not do what is needed to run the command
  75     the lock is busy, so the command was not run
  76     the lock was lost before the command had ended, and the command was ended
  126    the command cannot be run
  127    the command was not found

Environment of the command: LOCK_KEY, and with --fencing LOCK_FENCE.

If the lock is lost, or cannot be renewed until a quarter of its lease is left, the
command's process group gets SIGTERM, and SIGKILL before the lease ends. It gets
SIGKILL at once if lockctl itself is killed.";

/// The end of a subcommand that has failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// The cause and what to do, for stderr. Empty where the caller knows both.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// Returns the failure of a system call that is needed for `what`.
    pub(crate) fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(
            SYSTEM,
            format!("{what}: {error}; see the limits of this system and user"),
        )
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let code = if error.store_error().is_some() {
            UNAVAILABLE
        } else {
            USAGE
        };
        Self::new(code, error.to_string())
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let code = match &error {
            LockError::Busy { .. } => BUSY,
            LockError::InvalidKey { .. } | LockError::InvalidRequest { .. } => USAGE,
            LockError::Lost { .. } | LockError::Hung { .. } => LOST,
            _ => UNAVAILABLE,
        };
        Self::new(code, error.to_string())
    }
}
