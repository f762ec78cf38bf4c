//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use lock_runtime::LockMode;

/// Runs commands under distributed locks in Redis or Valkey, and shows, watches and releases locks.
#[derive(Debug, Parser)]
#[command(name = "lockctl", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The store, which every subcommand but `completions` needs. A file may be empty, as a variable may be: a path may not, for clap.
#[derive(Args, Debug)]
#[command(next_help_heading = "Store")]
pub(crate) struct Store {
    /// URL of the store: redis://, rediss://, redis+sentinel://, redis+cluster://, redlock://, unix://
    ///
    /// The environment variable keeps a password out of the list of processes.
    #[arg(long, env = "LOCK_URL", hide_env_values = true, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Prefix of all keys, if the URL has no `?prefix=`; `dist_lock:` if neither is given, or this is empty
    #[arg(long, env = "LOCK_PREFIX", global = true)]
    pub(crate) prefix: Option<String>,
    /// File with the server's password
    #[arg(long, env = "LOCK_PASSWORD_FILE", global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) password_file: Option<OsString>,
    /// Certificate (PEM) of the authority that signed the server's, for rediss:// and the like
    #[arg(long, env = "LOCK_ROOT_CERTIFICATE_FILE", global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) root_certificate: Option<OsString>,
    /// Longest lease of a quorum's locks, the same as in all services; 30s if they set none
    #[arg(long, env = "LOCK_LONGEST_LEASE", global = true, value_name = "TIME")]
    pub(crate) longest_lease: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take a lock, run a command under it, and release the lock when the command ends
    #[command(after_help = crate::exit::OF_RUN)]
    Run(Run),
    /// List the held locks, as the server finds them
    Ls(List),
    /// Show one lock: holders, mode, rest of the lease, waiters
    #[command(after_help = "Exit code: 0 if the lock is held, 1 if it is free, 69 if the store cannot be used.")]
    Show(Show),
    /// Print a line for each change of a lock, or of the locks that match a pattern
    Watch(Watch),
    /// Take a lock away from its holders
    #[command(after_help = "Exit code: 0 if the lock was taken away, 1 if it was free, 64 without --force.")]
    Release(Release),
    /// Let the masters of a quorum vote that give no vote because they may have forgotten some: before its first use, or after a restart of all
    #[command(after_help = "Exit code: 0 if there was such a master, 1 if there was none, 64 without --force.")]
    OpenQuorum(OpenQuorum),
    /// Check the server's settings and permissions
    #[command(
        after_help = "Exit code: 0 if all is well, 1 if there is something to do, 69 if the store cannot be reached."
    )]
    Doctor(Doctor),
    /// Print a script that completes the arguments in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// What is locked
    #[arg(long, short)]
    pub(crate) key: String,
    /// How long to wait for the lock; with 0, try once
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub(crate) wait: Duration,
    /// How long a crashed holder blocks others; renewed while the command runs, and at least 1s
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub(crate) lease: Duration,
    /// `exclusive`, `read`, `write`, `semaphore:N` or `owner:NAME`
    #[arg(long, default_value = "exclusive", value_parser = mode)]
    pub(crate) mode: LockMode,
    /// Time between SIGTERM and SIGKILL when the lock is lost, unless the lease ends sooner
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "TIME")]
    pub(crate) kill_after: Duration,
    /// Keep the lock for at least this long, even if the command ends sooner: for scheduled jobs
    #[arg(long, default_value = "0", value_parser = duration, value_name = "TIME")]
    pub(crate) at_least: Duration,
    /// First come, first served across all processes
    #[arg(long)]
    pub(crate) fair: bool,
    /// Give the command a fencing token, in `LOCK_FENCE`
    #[arg(long)]
    pub(crate) fencing: bool,
    /// Say nothing if the lock is busy
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// Glob that a whole key must match: `*`, `?`, `[a-z]`
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The key
    pub(crate) key: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// A key, or a glob: `*`, `?`, `[a-z]`
    #[arg(value_name = "KEY|PATTERN")]
    pub(crate) pattern: String,
    /// How often the store is asked; what a lock was in between is not seen
    #[arg(long, default_value = "1s", value_parser = duration, value_name = "TIME")]
    pub(crate) interval: Duration,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The key
    pub(crate) key: String,
    /// Do it. The holders go on until they notice, beside the next one
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct OpenQuorum {
    /// Do it. No process may hold a lock that such a master has forgotten: another one could get it as well
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a time: a number with `ms`, `s`, `m` or `h` behind it, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => Some(1),
        "" | "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    let product = number
        .zip(milliseconds)
        .and_then(|(number, unit)| number.checked_mul(unit));
    product
        .map(Duration::from_millis)
        .ok_or_else(|| "give a time such as `500ms`, `10s`, `5m`, or a number of seconds".to_owned())
}

/// Reads a mode, as `run` is given it or as the attribute spells it.
fn mode(text: &str) -> Result<LockMode, String> {
    let (name, value) = match text.split_once([':', '(']) {
        Some((name, value)) => (name, Some(value.strip_suffix(')').unwrap_or(value))),
        None => (text, None),
    };
    match (name, value) {
        ("exclusive", None) => Ok(LockMode::Exclusive),
        ("read", None) => Ok(LockMode::Read),
        ("write", None) => Ok(LockMode::Write),
        ("semaphore", Some(permits)) => permits
            .parse()
            .map(LockMode::Semaphore)
            .map_err(|_| "give the number of permits, as in `semaphore:5`".to_owned()),
        // A name may end with a bracket.
        ("owner", Some(_)) if text.starts_with("owner:") && text.len() > "owner:".len() => {
            Ok(LockMode::owner(&text["owner:".len()..]))
        }
        _ => Err("give `exclusive`, `read`, `write`, `semaphore:N` or `owner:NAME`".to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_misspelt_option_is_no_command_and_a_command_keeps_its_options() {
        let run = |rest: &[&str]| {
            let all = ["lockctl", "run", "--key", "k"].iter().chain(rest);
            Cli::try_parse_from(all)
                .map_err(|error| error.kind())
                .map(|cli| match cli.command {
                    Command::Run(run) => run.command,
                    _ => Vec::new(),
                })
        };
        let misspelt = run(&["--leese", "5", "--", "true"]);
        assert_eq!(misspelt, Err(clap::error::ErrorKind::UnknownArgument));
        for options in [&["ls", "-l", "--all"][..], &["--", "ls", "-l", "--all"]] {
            assert_eq!(run(options), Ok(["ls", "-l", "--all"].map(OsString::from).to_vec()));
        }
        assert_eq!(run(&["--", "-odd"]), Ok(vec![OsString::from("-odd")]));
    }

    #[test]
    fn times_are_read_with_their_units() {
        for (text, milliseconds) in [
            ("0", 0),
            ("7", 7_000),
            ("500ms", 500),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "s",
            "-1",
            "1d",
            "1.5s",
            "10 s",
            "99999999999999999999",
            "18446744073709551615h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn modes_are_read_in_both_spellings() {
        let five = LockMode::Semaphore(5.try_into().unwrap());
        for (text, read) in [
            ("exclusive", LockMode::Exclusive),
            ("read", LockMode::Read),
            ("write", LockMode::Write),
            ("semaphore:5", five.clone()),
            ("semaphore(5)", five),
            ("owner:a:b)", LockMode::owner("a:b)")),
        ] {
            assert_eq!(mode(text), Ok(read), "{text}");
        }
        for text in [
            "",
            "shared",
            "read:1",
            "semaphore",
            "semaphore:0",
            "semaphore:x",
            "owner",
            "owner:",
        ] {
            assert!(mode(text).is_err(), "{text}");
        }
    }
}
