//! Reads the settings of one source, each by its name.

use std::ffi::OsStr;

use super::value::{self, BYTE, COUNT, LEASE, NOT_ZERO, SPAN, flag, number, on_lost, time};
use super::{Config, Url, Values};

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

/// The settings that this build of the crate knows.
pub(super) const SETTINGS: &[&str] = &[
    "url",
    "prefix",
    "client_name",
    "lease",
    "wait",
    "at_least",
    "renew",
    "max_renewals",
    "max_hold",
    "reentrant",
    "lock_delay",
    "min_replicas",
    "fencing",
    "fair",
    "pipelined",
    "on_lost",
    "backoff_base",
    "backoff_ceiling",
    "handover_passes",
    "handover_time",
    "leave_free_pause",
    "leave_free_every",
    "skew",
    "longest_lease",
    "connect_timeout",
    "response_timeout",
    "shutdown_grace",
    "password_file",
    "sentinel_password_file",
    #[cfg(feature = "tls")]
    "root_certificate_file",
    #[cfg(feature = "tls")]
    "client_certificate_file",
    #[cfg(feature = "tls")]
    "client_key_file",
    #[cfg(feature = "legacy-setnx")]
    "legacy_setnx",
];

/// The settings that a feature adds.
pub(super) const OF_FEATURES: [(&str, &str); 4] = [
    ("root_certificate_file", "tls"),
    ("client_certificate_file", "tls"),
    ("client_key_file", "tls"),
    ("legacy_setnx", "legacy-setnx"),
];

/// Words of other libraries and of the attribute, each with the setting that it means.
pub(super) const SYNONYMS: [(&str, &str); 18] = [
    ("ttl", "lease"),
    ("expiry", "lease"),
    ("expire", "lease"),
    ("lease_time", "lease"),
    ("at_most_for", "lease"),
    ("default_lease", "lease"),
    ("timeout", "wait"),
    ("max_wait", "wait"),
    ("wait_time", "wait"),
    ("default_wait", "wait"),
    ("default_max_renewals", "max_renewals"),
    ("default_max_hold", "max_hold"),
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
        let values = &mut self.values;
        let (whole, text) = (text, text.trim());
        match setting {
            "url" => text.clone_into(&mut self.url),
            "prefix" => values.prefix = Some(whole.to_owned()),
            "client_name" => values.client_name = Some(value::graphic(text)?),
            "lease" => values.lease = Some(time(text, LEASE)?),
            "wait" => values.wait = Some(time(text, SPAN)?),
            "at_least" => values.at_least = Some(time(text, SPAN)?),
            "renew" => values.renew = Some(flag(text)?),
            "max_renewals" => values.max_renewals = Some(number(text, COUNT)?),
            "max_hold" => values.max_hold = Some(time(text, NOT_ZERO)?),
            "reentrant" => values.reentrant = Some(flag(text)?),
            "lock_delay" => values.lock_delay = Some(time(text, SPAN)?),
            "min_replicas" => values.min_replicas = Some(number(text, BYTE)?),
            "fencing" => values.fencing = Some(flag(text)?),
            "fair" => values.fair = Some(flag(text)?),
            "pipelined" => values.pipelined = Some(flag(text)?),
            "on_lost" => values.on_lost = Some(on_lost(text)?),
            "backoff_base" => values.backoff_base = Some(time(text, SPAN)?),
            "backoff_ceiling" => values.backoff_ceiling = Some(time(text, SPAN)?),
            "handover_passes" => values.handover_passes = Some(number(text, COUNT)?),
            "handover_time" => values.handover_time = Some(time(text, SPAN)?),
            "leave_free_pause" => values.leave_free_pause = Some(time(text, SPAN)?),
            "leave_free_every" => values.leave_free_every = Some(time(text, SPAN)?),
            "skew" => values.skew = Some(time(text, SPAN)?),
            "longest_lease" => values.longest_lease = Some(time(text, LEASE)?),
            "connect_timeout" => values.connect_timeout = Some(time(text, NOT_ZERO)?),
            "response_timeout" => values.response_timeout = Some(time(text, NOT_ZERO)?),
            "shutdown_grace" => values.shutdown_grace = Some(time(text, SPAN)?),
            "password_file" => values.password_file = Some(text.into()),
            "sentinel_password_file" => values.sentinel_password_file = Some(text.into()),
            #[cfg(feature = "tls")]
            "root_certificate_file" => values.root_certificate_file = Some(text.into()),
            #[cfg(feature = "tls")]
            "client_certificate_file" => values.client_certificate_file = Some(text.into()),
            #[cfg(feature = "tls")]
            "client_key_file" => values.client_key_file = Some(text.into()),
            #[cfg(feature = "legacy-setnx")]
            "legacy_setnx" => values.legacy_setnx = flag(text)?,
            _ => return Err("it is not known".to_owned()),
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
