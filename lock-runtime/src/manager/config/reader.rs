//! Reads the settings of one source, each by its name.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use super::value::{self, BYTE, COUNT, LEASE, NOT_ZERO, SPAN, any, flag, graphic, number, on_lost, time};
use super::{Config, Url};
use crate::hold::OnLost;

/// The names by which a source calls the settings.
#[derive(Clone, Debug, Default)]
pub(super) enum Names {
    /// As the fields of this crate.
    #[default]
    Fields,
    /// In capitals, behind this prefix.
    Variables(String),
}

impl Names {
    pub(super) fn of(&self, setting: &str) -> String {
        match self {
            Self::Fields => setting.to_owned(),
            Self::Variables(prefix) => format!("{prefix}{}", setting.to_ascii_uppercase()),
        }
    }
}

/// Defines [`Values`], [`SETTINGS`] and [`Values::set`] by a row for each setting but the URL: its name, its type,
/// and the function that reads it, with that function's bounds.
macro_rules! settings {
    ($($(#[$feature:meta])? $name:ident: $type:ty = $read:ident($($bound:expr)?);)*) => {
        /// The values that are given.
        #[derive(Clone, Debug, Default)]
        pub(super) struct Values {
            $($(#[$feature])? pub(super) $name: Option<$type>,)*
        }

        /// The settings that this build of the crate knows.
        pub(super) const SETTINGS: &[&str] = &["url", $($(#[$feature])? stringify!($name),)*];

        impl Values {
            fn set(&mut self, setting: &str, text: &str) -> Result<(), String> {
                match setting {
                    $($(#[$feature])? _ if setting == stringify!($name) => self.$name = Some($read(text, $($bound)?)?),)*
                    _ => return Err("it is not known".to_owned()),
                }
                Ok(())
            }
        }
    };
}

settings! {
    prefix: String = any();
    client_name: String = graphic();
    lease: Duration = time(LEASE);
    wait: Duration = time(SPAN);
    at_least: Duration = time(SPAN);
    renew: bool = flag();
    max_renewals: u32 = number(COUNT);
    max_hold: Duration = time(NOT_ZERO);
    reentrant: bool = flag();
    lock_delay: Duration = time(SPAN);
    min_replicas: u32 = number(BYTE);
    fencing: bool = flag();
    fair: bool = flag();
    pipelined: bool = flag();
    on_lost: OnLost = on_lost();
    backoff_base: Duration = time(SPAN);
    backoff_ceiling: Duration = time(SPAN);
    handover_passes: u32 = number(COUNT);
    handover_time: Duration = time(SPAN);
    leave_free_pause: Duration = time(SPAN);
    leave_free_every: Duration = time(SPAN);
    skew: Duration = time(SPAN);
    longest_lease: Duration = time(LEASE);
    connect_timeout: Duration = time(NOT_ZERO);
    response_timeout: Duration = time(NOT_ZERO);
    shutdown_grace: Duration = time(SPAN);
    password_file: PathBuf = any();
    sentinel_password_file: PathBuf = any();
    #[cfg(feature = "tls")]
    root_certificate_file: PathBuf = any();
    #[cfg(feature = "tls")]
    client_certificate_file: PathBuf = any();
    #[cfg(feature = "tls")]
    client_key_file: PathBuf = any();
    #[cfg(feature = "legacy-setnx")]
    legacy_setnx: bool = flag();
}

/// The settings that a feature adds.
pub(super) const OF_FEATURES: [(&str, &str); 4] = [
    ("root_certificate_file", "tls"),
    ("client_certificate_file", "tls"),
    ("client_key_file", "tls"),
    ("legacy_setnx", "legacy-setnx"),
];

/// Words of other libraries and of the attribute, each with the setting that it means.
pub(super) const SYNONYMS: [(&str, &str); 24] = [
    ("ttl", "lease"),
    ("expiry", "lease"),
    ("expire", "lease"),
    ("lease_time", "lease"),
    ("at_most_for", "lease"),
    ("default_lease", "lease"),
    ("lease_seconds", "lease"),
    ("timeout", "wait"),
    ("max_wait", "wait"),
    ("wait_time", "wait"),
    ("default_wait", "wait"),
    ("wait_timeout", "wait"),
    // The prefix of a variable has a `LOCK_` of its own.
    ("delay", "lock_delay"),
    ("hold", "max_hold"),
    ("default_max_renewals", "max_renewals"),
    ("default_max_hold", "max_hold"),
    ("grace", "shutdown_grace"),
    ("fence_token", "fencing"),
    ("username", "url"),
    ("key_prefix", "prefix"),
    ("namespace", "prefix"),
    ("redis_url", "url"),
    ("release", "pipelined"),
    ("password", "password_file"),
];

/// The variables behind `LOCK_` that `lockctl` sets for the command that it runs under a lock.
const OF_CHILDREN: [&str; 2] = ["LOCK_KEY", "LOCK_FENCE"];

/// Reads the settings of one source.
pub(super) struct Reader {
    names: Names,
    url: String,
    values: Values,
    /// The settings that were read.
    given: Vec<&'static str>,
}

impl Reader {
    pub(super) fn new(names: Names) -> Self {
        Self {
            names,
            url: String::new(),
            values: Values::default(),
            given: Vec::new(),
        }
    }

    /// Reads the variable `name`, whose name is `setting` without its prefix.
    pub(super) fn read_variable(&mut self, name: &str, setting: &str, value: &OsStr) -> Result<(), String> {
        let known = SETTINGS.iter().find(|known| known.to_ascii_uppercase() == setting);
        if let Some(known) = known {
            let value = value
                .to_str()
                .ok_or_else(|| format!("the value of `{name}` is not UTF-8: give it as UTF-8"))?;
            return self.read(known, value);
        }
        if OF_CHILDREN.contains(&name) {
            return Ok(());
        }
        match self.meant_by(setting) {
            Some(advice) => Err(format!("the variable `{name}` is not known: {advice}")),
            None => Ok(()),
        }
    }

    /// Reads a setting of a file.
    #[cfg(feature = "serde")]
    pub(super) fn read_field(&mut self, name: &str, value: &str) -> Result<(), String> {
        if let Some(known) = SETTINGS.iter().find(|known| **known == name) {
            return self.read(known, value);
        }
        let advice = self
            .meant_by(name)
            .unwrap_or_else(|| format!("known are `{}`", SETTINGS.join("`, `")));
        Err(format!("the setting `{name}` is not known: {advice}"))
    }

    /// Returns what to write in place of a setting that is not known, if that can be told.
    fn meant_by(&self, setting: &str) -> Option<String> {
        let setting = setting.to_ascii_lowercase();
        if let Some((known, feature)) = OF_FEATURES.iter().find(|(known, _)| *known == setting) {
            let name = self.names.of(known);
            return Some(format!(
                "write `{name}`, and enable the feature `{feature}` of `lock-runtime`"
            ));
        }
        let same = SYNONYMS.iter().find(|(word, _)| *word == setting);
        let meant = same
            .map(|(_, meant)| *meant)
            .or_else(|| value::nearest(&setting, SETTINGS))?;
        let name = self.names.of(meant);
        Some(format!("write `{name}`, or leave it out"))
    }

    fn read(&mut self, setting: &'static str, text: &str) -> Result<(), String> {
        let name = self.names.of(setting);
        if self.given.contains(&setting) {
            return Err(format!("`{name}` is given twice: give it once"));
        }
        self.given.push(setting);
        // No problem is found with a URL here, so none is shown.
        self.set(setting, text)
            .map_err(|problem| format!("`{name}` is `{}`: {problem}", value::shown(text)))
    }

    fn set(&mut self, setting: &str, text: &str) -> Result<(), String> {
        match setting {
            "url" => text.trim().clone_into(&mut self.url),
            // May begin and end with spaces.
            "prefix" => self.values.set(setting, text)?,
            _ => self.values.set(setting, text.trim())?,
        }
        Ok(())
    }

    /// Returns the settings, if they go together.
    pub(super) fn finish(self) -> Result<Config, String> {
        let (values, name) = (&self.values, |setting| self.names.of(setting));
        if self.url.is_empty() {
            return Err(format!(
                "`{}` is not set: give the store's URL, such as `redis://cache.example:6379`",
                name("url")
            ));
        }
        #[cfg(feature = "tls")]
        if values.client_certificate_file.is_some() != values.client_key_file.is_some() {
            let (certificate, key) = (name("client_certificate_file"), name("client_key_file"));
            return Err(format!(
                "one of `{certificate}` and `{key}` is not set: give both, or neither"
            ));
        }
        if values.max_renewals.is_some() && values.max_hold.is_some() {
            let (one, other) = (name("max_renewals"), name("max_hold"));
            return Err(format!("`{one}` and `{other}` set the same limit: give one of them"));
        }
        Ok(Config {
            url: Url(self.url),
            values: self.values,
            #[cfg(feature = "tls")]
            names: self.names,
            #[cfg(feature = "serde")]
            problem: None,
        })
    }
}
