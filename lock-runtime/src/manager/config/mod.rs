//! The settings of a manager as text: from environment variables, or from a file.

#[cfg(feature = "serde")]
mod file;
mod reader;
mod value;

use std::ffi::OsString;
use std::fmt;

use self::reader::{Names, Reader, Values};
use crate::error::ConfigError;
use crate::hold::HandoverLimits;
use crate::host::{self, Backoff};
use crate::manager::builder::{LEAVE_FREE_EVERY, LEAVE_FREE_PAUSE};
use crate::manager::{LockManager, LockManagerBuilder, url};

/// The settings of a manager that are text: from [environment variables](Self::from_env), or with the feature
/// `serde` from a file in TOML, YAML or JSON.
///
/// Only the URL is required. What is not given has its default, and code can still change what is given,
/// on the [`builder`](Self::builder).
///
/// ```no_run
/// use lock_runtime::Config;
///
/// # async fn example() -> Result<(), lock_runtime::ConfigError> {
/// // LOCK_URL=redis://cache.example?prefix=shop: LOCK_LEASE=15s LOCK_PASSWORD_FILE=/run/secrets/cache
/// let locks = Config::from_env()?.builder()?.connect().await?;
/// lock_runtime::init_with(locks)?;
/// # Ok(())
/// # }
/// ```
///
/// # Settings
///
#[doc = include_str!("settings.md")]
///
/// The mode of locks, [`credentials`](LockManagerBuilder::credentials) by a function, and what else is no text,
/// are set on the builder.
///
/// # From a file
///
/// With the feature `serde`, `Config` implements `Deserialize`, alone or as a part of a service's own
/// settings. A setting that is not known, given twice or out of range is an error of [`builder`](Self::builder),
/// which names what is allowed: an error of the format would show lines of the file, and with them a password of
/// the URL. A time may be a number of seconds or a text. The format must be one that describes itself, as
/// TOML, YAML and JSON are.
///
#[cfg_attr(feature = "serde", doc = "```")]
#[cfg_attr(not(feature = "serde"), doc = "```ignore")]
/// use lock_runtime::{Config, LockManager};
///
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     locks: Config,
/// }
///
/// let settings: Settings = toml::from_str(
///     r#"
///     [locks]
///     url = "memory://?prefix=shop:"
///     lease = 15
///     wait = "1500ms"
///     fair = true
///     "#,
/// )?;
/// let locks = settings.locks.builder()?.build()?;
/// assert_eq!(locks.prefix(), "shop:");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    url: Url,
    values: Values,
    /// The names by which messages call the settings.
    #[cfg(feature = "tls")]
    names: Names,
    /// What is wrong with a file.
    #[cfg(feature = "serde")]
    problem: Option<String>,
}

/// A URL, whose password is not shown.
#[derive(Clone)]
struct Url(String);

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&url::without_password(&self.0), f)
    }
}

impl Config {
    /// Reads the environment variables behind `LOCK_`: `LOCK_URL`, `LOCK_LEASE` and so on, as the
    /// [table](Self#settings) lists them. One that is empty counts as not set; the URL can name an empty prefix,
    /// `?prefix=`.
    ///
    /// Other variables behind `LOCK_` are not read, such as those that an orchestrator sets for a
    /// service of the name `lock`. But one that is near to a setting, as `LOCK_LAESE` is, or has another
    /// library's word for it, such as `LOCK_TTL`, is an error: otherwise the service would run with another
    /// value than it was given.
    ///
    /// # Errors
    /// [`ConfigError::Settings`] when `LOCK_URL` is not set, a variable is near to a setting and is none, a value
    /// is not understood or out of range, or two settings exclude each other. The error names the
    /// variable, its value and what is allowed. A value of `LOCK_URL` is not shown.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars("LOCK_", host::environment())
    }

    /// Reads `vars`, names with their values, as [`from_env`](Self::from_env) reads the variables of the
    /// process, with `prefix` in place of `LOCK_`. For variables with another prefix, for services with
    /// several managers, and for variables of a file.
    ///
    /// ```
    /// use lock_runtime::Config;
    ///
    /// let vars = [("SHOP_LOCK_URL", "memory://"), ("SHOP_LOCK_WAIT", "1500ms"), ("HOME", "/root")];
    /// let locks = Config::from_vars("SHOP_LOCK_", vars)?.builder()?.prefix("shop:").build()?;
    /// assert_eq!(locks.prefix(), "shop:");
    ///
    /// // The variables of the process are `std::env::vars_os()`.
    /// let missing = Config::from_vars("NO_SUCH_LOCK_", std::env::vars_os());
    /// assert!(missing.unwrap_err().to_string().contains("`NO_SUCH_LOCK_URL` is not set"));
    ///
    /// let misspelt = Config::from_vars("LOCK_", [("LOCK_URL", "memory://"), ("LOCK_LAESE", "15s")]);
    /// assert!(misspelt.unwrap_err().to_string().contains("write `LOCK_LEASE`"));
    /// # Ok::<(), lock_runtime::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`from_env`](Self::from_env).
    pub fn from_vars<K, V>(prefix: &str, vars: impl IntoIterator<Item = (K, V)>) -> Result<Self, ConfigError>
    where
        K: Into<OsString>,
        V: Into<OsString>,
    {
        let mut reader = Reader::new(Names::Variables(prefix.to_owned()));
        for (name, value) in vars {
            let (name, value) = (name.into(), value.into());
            if let Some(name) = name.to_str()
                && let Some(setting) = name.strip_prefix(prefix)
                && !value.is_empty()
            {
                reader.read_variable(name, setting, &value).map_err(settings)?;
            }
        }
        reader.finish().map_err(settings)
    }

    /// Returns a builder with these settings, on which others can be set. Reads the files of
    /// certificates and keys, and blocks for that.
    ///
    /// # Errors
    /// [`ConfigError::Settings`] when the file of a certificate or a key cannot be read, and when something is wrong
    /// with the settings of a file.
    pub fn builder(&self) -> Result<LockManagerBuilder, ConfigError> {
        #[cfg(feature = "serde")]
        if let Some(problem) = &self.problem {
            return Err(settings(problem.clone()));
        }
        let values = &self.values;
        let mut builder = LockManager::builder(&self.url.0).defaults(|mut call| {
            macro_rules! set {
                ($($setting:ident)*) => {
                    $(if let Some(value) = values.$setting { call = call.$setting(value); })*
                };
            }
            set!(lease wait at_least renew max_renewals max_hold reentrant lock_delay min_replicas);
            set!(fencing fair pipelined on_lost);
            call
        });
        macro_rules! set {
            ($($setting:ident)*) => {
                $(if let Some(value) = &values.$setting { builder = builder.$setting(value.clone()); })*
            };
        }
        set!(prefix client_name skew longest_lease connect_timeout response_timeout shutdown_grace);
        set!(password_file sentinel_password_file);
        builder = builder
            .backoff(Backoff::default().with(values.backoff_base, values.backoff_ceiling))
            .handover(HandoverLimits::default().with(values.handover_passes, values.handover_time))
            .leave_free(
                values.leave_free_pause.unwrap_or(LEAVE_FREE_PAUSE),
                values.leave_free_every.unwrap_or(LEAVE_FREE_EVERY),
            );
        #[cfg(feature = "tls")]
        {
            if let Some(path) = &values.root_certificate_file {
                builder = builder.root_certificate(self.contents("root_certificate_file", path)?);
            }
            if let (Some(certificate), Some(key)) = (&values.client_certificate_file, &values.client_key_file) {
                let certificate = self.contents("client_certificate_file", certificate)?;
                builder = builder.client_certificate(certificate, self.contents("client_key_file", key)?);
            }
        }
        #[cfg(feature = "legacy-setnx")]
        if values.legacy_setnx == Some(true) {
            builder = builder.legacy_setnx();
        }
        Ok(builder)
    }

    #[cfg(feature = "serde")]
    fn with_problem(problem: String) -> Self {
        Self {
            url: Url(String::new()),
            values: Values::default(),
            #[cfg(feature = "tls")]
            names: Names::default(),
            problem: Some(problem),
        }
    }

    /// Reads the file that a setting names.
    #[cfg(feature = "tls")]
    fn contents(&self, setting: &str, path: &std::path::Path) -> Result<Vec<u8>, ConfigError> {
        std::fs::read(path).map_err(|error| {
            let (name, path) = (self.names.of(setting), path.display());
            settings(format!(
                "`{name}` names the file `{path}`, which cannot be read: {error}; give the path of a PEM file that this process may read"
            ))
        })
    }
}

fn settings(problem: String) -> ConfigError {
    ConfigError::Settings {
        problem: problem.into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::reader::{OF_FEATURES, SETTINGS, SYNONYMS};
    use super::{Config, ConfigError};

    fn read(vars: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let url = [("LOCK_URL", "memory://")];
        let url = url.iter().filter(|(url, _)| vars.iter().all(|(name, _)| name != url));
        Config::from_vars("LOCK_", url.chain(vars).copied())
    }

    fn refused(vars: &[(&str, &str)]) -> String {
        match read(vars) {
            Err(ConfigError::Settings { problem }) => problem.into(),
            other => format!("{vars:?} gives {other:?}"),
        }
    }

    #[test]
    fn the_table_lists_every_setting_with_its_variable() {
        let table = include_str!("settings.md");
        let rows: Vec<_> = table.lines().filter_map(|line| line.strip_prefix("| `")).collect();
        let features = OF_FEATURES.iter().map(|(setting, _)| *setting);
        let mut all: Vec<_> = SETTINGS.iter().copied().chain(features).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(rows.len(), all.len());
        for setting in all {
            let row = format!("{setting}` | `LOCK_{}` | ", setting.to_ascii_uppercase());
            assert!(rows.iter().any(|line| line.starts_with(&row)), "{row}");
        }
        for (word, meant) in SYNONYMS {
            assert!(SETTINGS.contains(&meant) && !SETTINGS.contains(&word), "{word}");
        }
    }

    /// A file that is there.
    #[cfg(feature = "tls")]
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

    /// The value of each in a row of its own, in the order of [`SETTINGS`], and how it is shown once it is set.
    const GIVEN: &[(&str, &str, &str)] = &[
        ("LOCK_URL", "memory://", ""),
        ("LOCK_PREFIX", "shop:", "prefix: Some(\"shop:\")"),
        ("LOCK_CLIENT_NAME", "web-1", "client_name: Some(\"web-1\")"),
        ("LOCK_LEASE", "15", " lease: 15s"),
        ("LOCK_WAIT", "1500ms", " wait: 1.5s"),
        ("LOCK_AT_LEAST", "2s", "at_least: 2s"),
        ("LOCK_RENEW", "False", "renew: false"),
        ("LOCK_MAX_RENEWALS", "7", "limit: Renewals(7)"),
        ("LOCK_REENTRANT", "1", "reentrant: true"),
        ("LOCK_LOCK_DELAY", "3s", "lock_delay: 3s"),
        ("LOCK_MIN_REPLICAS", "2", "min_replicas: 2"),
        ("LOCK_FENCING", "true", "fencing: true"),
        ("LOCK_FAIR", "true", "fair: true"),
        ("LOCK_PIPELINED", "true", "pipelined: true"),
        ("LOCK_ON_LOST", "signal", "on_lost: Signal"),
        ("LOCK_BACKOFF_BASE", "2ms", "base: 2ms, ceiling: 250ms"),
        ("LOCK_BACKOFF_CEILING", "1s", "base: 5ms, ceiling: 1s"),
        ("LOCK_HANDOVER_PASSES", "3", "passes: 3, time: 50ms"),
        ("LOCK_HANDOVER_TIME", "20ms", "passes: 128, time: 20ms"),
        ("LOCK_LEAVE_FREE_PAUSE", "0", "leave_free: None"),
        ("LOCK_LEAVE_FREE_EVERY", "0", "pause: 12ms, every: 0ns"),
        ("LOCK_SKEW", "50ms", "skew: Some(50ms)"),
        ("LOCK_LONGEST_LEASE", "1m30s", "longest_lease: Some(90s)"),
        ("LOCK_CONNECT_TIMEOUT", "3s", "connect: 3s"),
        ("LOCK_RESPONSE_TIMEOUT", "2", "response: 2s"),
        ("LOCK_SHUTDOWN_GRACE", "1h", "shutdown_grace: 3600s"),
        ("LOCK_PASSWORD_FILE", "/run/a", "/run/a"),
        ("LOCK_SENTINEL_PASSWORD_FILE", "/run/b", "/run/b"),
        #[cfg(feature = "tls")]
        ("LOCK_ROOT_CERTIFICATE_FILE", FILE, "root_certificate: true"),
        #[cfg(feature = "tls")]
        ("LOCK_CLIENT_CERTIFICATE_FILE", FILE, ""),
        #[cfg(feature = "tls")]
        ("LOCK_CLIENT_KEY_FILE", FILE, ""),
        #[cfg(feature = "legacy-setnx")]
        ("LOCK_LEGACY_SETNX", "true", "legacy_setnx: true"),
    ];

    #[test]
    fn every_setting_is_read_and_arrives_at_the_builder() {
        let before = read(&[]).unwrap().builder().unwrap().all_settings();
        for (name, value, shown) in GIVEN {
            #[allow(unused_mut)]
            let mut vars = vec![(*name, *value)];
            #[cfg(feature = "tls")]
            if name.starts_with("LOCK_CLIENT_") && !shown.starts_with("client_name") {
                vars = vec![("LOCK_CLIENT_CERTIFICATE_FILE", FILE), ("LOCK_CLIENT_KEY_FILE", FILE)];
            }
            let after = read(&vars).unwrap().builder().unwrap().all_settings();
            assert!(after.contains(shown), "{name}: {shown} is not in {after}");
            assert_eq!(after == before, *name == "LOCK_URL", "{name}: {after}");
        }
        let given = GIVEN.iter().map(|(name, ..)| name.to_ascii_lowercase());
        let given: Vec<_> = given.chain(["lock_max_hold".to_owned()]).collect();
        for setting in SETTINGS {
            assert!(given.contains(&format!("lock_{setting}")), "{setting}");
        }
        let limited = read(&[("LOCK_MAX_HOLD", "10m")]).unwrap().builder().unwrap();
        assert!(limited.all_settings().contains("limit: Time(600s)"));
        // Code has the last word.
        let config = read(&[("LOCK_PREFIX", "shop:"), ("LOCK_LEASE", "15s")]).unwrap();
        let locks = config.builder().unwrap().prefix("bank:").build().unwrap();
        assert_eq!(locks.prefix(), "bank:");
    }

    /// In a child, since a process cannot safely change its own variables.
    #[test]
    fn the_variables_of_the_process_are_read() {
        const PREFIX: &str = "of-the-child:";
        if std::env::var("LOCK_PREFIX").as_deref() == Ok(PREFIX) {
            let locks = Config::from_env().unwrap().builder().unwrap().build().unwrap();
            assert_eq!(locks.prefix(), PREFIX);
            return;
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "manager::config::tests::the_variables_of_the_process_are_read",
            ])
            .envs([("LOCK_URL", "memory://"), ("LOCK_PREFIX", PREFIX), ("LOCK_KEY", "k")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_variable_and_what_is_allowed() {
        for (name, value, said) in [
            ("LOCK_LEASE", "5x", "`LOCK_LEASE` is `5x`: give a time such as `15s`"),
            ("LOCK_LEASE", "1.5", "give a time such as"),
            ("LOCK_LEASE", "-1", "give a time such as"),
            ("LOCK_LEASE", "s", "give a time such as"),
            ("LOCK_LEASE", "15 s", "give a time such as"),
            ("LOCK_LEASE", "9ms", "give at least 10 ms"),
            ("LOCK_LEASE", "0", "give at least 10 ms"),
            (
                "LOCK_LEASE",
                "15000",
                "write `15000ms` if milliseconds were meant, `15000s` if not",
            ),
            ("LOCK_WAIT", "9000h", "give at most 366 days"),
            ("LOCK_WAIT", "99999999999999999999999", "give at most 366 days"),
            ("LOCK_WAIT", "99999999999999999999999h", "give at most 366 days"),
            ("LOCK_RESPONSE_TIMEOUT", "0", "give more than 0"),
            ("LOCK_MAX_HOLD", "0s", "give more than 0"),
            ("LOCK_MAX_RENEWALS", "-1", "give a whole number from 0 to 4294967295"),
            ("LOCK_MIN_REPLICAS", "256", "give a whole number from 0 to 255"),
            ("LOCK_FAIR", "yes", "`LOCK_FAIR` is `yes`: give `true` or `false`"),
            ("LOCK_ON_LOST", "abort", "give `cancel` or `signal`"),
            ("LOCK_CLIENT_NAME", "web 1", "without spaces"),
        ] {
            let problem = refused(&[(name, value)]);
            assert!(problem.contains(said), "{name}={value}: {problem}");
            assert!(problem.starts_with(&format!("`{name}` is `{value}`: ")), "{problem}");
        }
        let long = refused(&[("LOCK_FAIR", &"x\n".repeat(100))]);
        assert!(long.len() < 200 && !long.contains('\n'), "{long}");
        let both = refused(&[("LOCK_MAX_HOLD", "10m"), ("LOCK_MAX_RENEWALS", "3")]);
        assert!(
            both.contains("`LOCK_MAX_RENEWALS` and `LOCK_MAX_HOLD` set the same limit"),
            "{both}"
        );
        let twice = refused(&[("LOCK_FAIR", "1"), ("LOCK_FAIR", "0")]);
        assert!(twice.contains("`LOCK_FAIR` is given twice"), "{twice}");
        for empty in [Config::from_vars("LOCK_", [("", ""); 0]), read(&[("LOCK_URL", "")])] {
            assert!(empty.unwrap_err().to_string().starts_with("`LOCK_URL` is not set"));
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_certificate_that_cannot_be_read_is_refused_with_its_variable() {
        let half = refused(&[("LOCK_CLIENT_KEY_FILE", FILE)]);
        assert!(half.contains("one of `LOCK_CLIENT_CERTIFICATE_FILE` and `LOCK_CLIENT_KEY_FILE`"));
        let missing = read(&[("LOCK_ROOT_CERTIFICATE_FILE", "no/such/file")]).unwrap();
        let missing = missing.builder().unwrap_err().to_string();
        assert!(
            missing.contains("`LOCK_ROOT_CERTIFICATE_FILE` names the file `no/such/file`"),
            "{missing}"
        );
    }

    #[test]
    fn a_misspelt_variable_is_refused_and_those_of_others_are_left_alone() {
        for (name, meant) in [
            ("LOCK_LAESE", "LOCK_LEASE"),
            ("LOCK_lease", "LOCK_LEASE"),
            ("LOCK_URI", "LOCK_URL"),
            ("LOCK_ATLEAST", "LOCK_AT_LEAST"),
            ("LOCK_REPONSE_TIMEOUT", "LOCK_RESPONSE_TIMEOUT"),
            ("LOCK_TTL", "LOCK_LEASE"),
            ("LOCK_TIMEOUT", "LOCK_WAIT"),
            ("LOCK_DELAY", "LOCK_LOCK_DELAY"),
            ("LOCK_WAIT_TIMEOUT", "LOCK_WAIT"),
            ("LOCK_LEASE_SECONDS", "LOCK_LEASE"),
            ("LOCK_HOLD", "LOCK_MAX_HOLD"),
            ("LOCK_GRACE", "LOCK_SHUTDOWN_GRACE"),
            ("LOCK_FENCE_TOKEN", "LOCK_FENCING"),
            ("LOCK_PASSWORD", "LOCK_PASSWORD_FILE"),
        ] {
            let problem = refused(&[(name, "s3cret")]);
            assert!(
                problem.contains(&format!("`{name}` is not known: write `{meant}`")),
                "{problem}"
            );
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        for name in [
            "LOCK_KEY",
            "LOCK_FENCE",
            "LOCK_SERVICE_HOST",
            "LOCK_SERVICE_PORT",
            "LOCK_PORT",
            "LOCK_PORT_6379_TCP",
            "LOCK_PORT_6379_TCP_ADDR",
            "LOCK_FILE",
            "LOCKS",
            "BLOCK_LAESE",
        ] {
            assert!(read(&[(name, "5x")]).is_ok(), "{name}: {}", refused(&[(name, "5x")]));
        }
        // An empty one counts as not set.
        assert_eq!(
            read(&[("LOCK_PREFIX", ""), ("LOCK_LAESE", "")]).unwrap().values.prefix,
            None
        );
    }

    #[test]
    fn no_password_of_a_url_is_shown() {
        let config = read(&[("LOCK_URL", "redis://app:s3cret@one:port/0")]).unwrap();
        let refused = config.builder().unwrap().build().map(drop).unwrap_err();
        for shown in [format!("{config:?}"), refused.to_string()] {
            assert!(
                shown.contains("redis://app:***@one") && !shown.contains("s3cret"),
                "{shown}"
            );
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_file_has_the_same_settings_and_says_what_is_wrong_with_them() {
        let json = |text: &str| serde_json::from_str::<Config>(text);
        let refused = |config: Config| config.builder().map(drop).unwrap_err().to_string();
        let config = json(
            r#"{"url": "memory://", "prefix": "", "lease": 15, "wait": "1500ms", "skew": 0.0, "fair": true, "max_renewals": "3", "max_hold": null}"#,
        );
        let shown = config.unwrap().builder().unwrap().all_settings();
        for expected in [
            "prefix: Some(\"\")",
            " lease: 15s",
            " wait: 1.5s",
            "skew: Some(0ns)",
            "fair: true",
            "limit: Renewals(3)",
        ] {
            assert!(shown.contains(expected), "{expected} is not in {shown}");
        }
        for (text, said) in [
            ("{}", "`url` is not set"),
            (r#"{"url": "a", "lease": "5x"}"#, "`lease` is `5x`: give a time"),
            (r#"{"url": "a", "lease": 15000}"#, "write `15000ms`"),
            (r#"{"url": "a", "lease": [15]}"#, "expected a text, a number"),
            (
                r#"{"url": "a", "laese": 15}"#,
                "the setting `laese` is not known: write `lease`",
            ),
            (
                r#"{"url": "a", "default_lease": 15}"#,
                "the setting `default_lease` is not known",
            ),
            (r#"{"url": "a", "colour": 1}"#, "known are `url`, `prefix`"),
            (r#"{"url": "a", "url": "b"}"#, "`url` is given twice"),
            (r#""redis://:s3cret@one""#, "give a table with its `url`"),
            (r#"{"url": {"a": "s3cret"}}"#, "expected a text"),
        ] {
            let problem = json(text).map_or_else(|error| error.to_string(), refused);
            assert!(
                problem.contains(said) && !problem.contains("s3cret"),
                "{text}: {problem}"
            );
        }
        // The format's own errors show lines of the file.
        for (wrong, said) in [
            ("fair = \"yes\"", "`fair` is `yes`"),
            ("password = \"s3cret\"", "write `password_file`"),
            ("max_renewals = 3\nmax_hold = 3", "set the same limit"),
        ] {
            let file = format!("url = \"redis://:s3cret@one\"\nlease = \"15\"\n{wrong}\n");
            let problem = refused(toml::from_str(&file).unwrap());
            assert!(problem.contains(said) && !problem.contains("s3cret"), "{problem}");
        }
    }
}
