//! Users and what they may do.

use std::collections::BTreeMap;

use super::command::{Command, NO_AUTH};
use super::glob;
use super::version::Version;

pub type Users = BTreeMap<String, User>;

#[derive(Clone, Default)]
pub struct User {
    is_on: bool,
    no_password: bool,
    passwords: Vec<Vec<u8>>,
    /// Patterns of keys, of channels.
    keys: Vec<Vec<u8>>,
    channels: Vec<Vec<u8>>,
    /// Commands allowed and forbidden, where the last that fits decides. An empty name means all.
    commands: Vec<(bool, String)>,
}

/// Adds a pattern, where all are not yet allowed.
fn add(patterns: &mut Vec<Vec<u8>>, pattern: &[u8], [all, reset, what]: [&str; 3]) -> Result<(), String> {
    if patterns.iter().any(|one| one == b"*") {
        let kinds = if what == "keys" { "patterns" } else { what };
        return Err(format!(
            "Adding a pattern after the * pattern (or the '{all}' flag) is not valid and does not have any effect. Try '{reset}' to start with an \
             empty list of {kinds}"
        ));
    }
    if !patterns.iter().any(|one| one == pattern) {
        patterns.push(pattern.to_vec());
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    Command,
    Key,
    Channel,
}

impl User {
    /// Returns the user that everybody is at first.
    pub fn usual() -> Self {
        Self {
            is_on: true,
            no_password: true,
            keys: vec![b"*".to_vec()],
            channels: vec![b"*".to_vec()],
            commands: vec![(true, String::new())],
            ..Self::default()
        }
    }

    pub fn new(version: Version) -> Self {
        Self {
            channels: if version.is_7() {
                Vec::new()
            } else {
                vec![b"*".to_vec()]
            },
            ..Self::default()
        }
    }

    pub fn lets_in(&self, password: &[u8]) -> bool {
        self.is_on && (self.no_password || self.passwords.iter().any(|known| known == password))
    }

    pub fn needs_password(&self) -> bool {
        !(self.is_on && self.no_password)
    }

    /// Changes what the user may do.
    ///
    /// # Errors
    /// Fails with the reason if the rule is not known, or of no effect.
    pub fn change(&mut self, rule: &[u8]) -> Result<(), String> {
        let name = |word: &[u8]| String::from_utf8_lossy(word).to_lowercase();
        match rule {
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"nopass" => (self.no_password, self.passwords) = (true, Vec::new()),
            b"resetpass" => (self.no_password, self.passwords) = (false, Vec::new()),
            b"allkeys" => self.keys = vec![b"*".to_vec()],
            b"resetkeys" => self.keys.clear(),
            b"allchannels" => self.channels = vec![b"*".to_vec()],
            b"resetchannels" => self.channels.clear(),
            b"allcommands" | b"+@all" => self.commands = vec![(true, String::new())],
            b"nocommands" | b"-@all" => self.commands.clear(),
            b"reset" => *self = Self::default(),
            [b'>', password @ ..] => {
                self.no_password = false;
                self.passwords.push(password.to_vec());
            }
            [b'<', password @ ..] => self.passwords.retain(|known| known != password),
            b"~*" => self.keys = vec![b"*".to_vec()],
            b"&*" => self.channels = vec![b"*".to_vec()],
            [b'~', pattern @ ..] => add(&mut self.keys, pattern, ["allkeys", "resetkeys", "keys"])?,
            [b'&', pattern @ ..] => add(
                &mut self.channels,
                pattern,
                ["allchannels", "resetchannels", "channels"],
            )?,
            [sign @ (b'+' | b'-'), command @ ..] if !command.is_empty() && command[0] != b'@' => {
                self.commands.push((*sign == b'+', name(command)));
            }
            _ => return Err("Syntax error".to_owned()),
        }
        Ok(())
    }

    /// Returns what the user may not do about such a command.
    pub fn denies(&self, command: &Command, words: &[&[u8]], version: Version) -> Option<Denied> {
        if command.is(NO_AUTH, version) {
            return None;
        }
        let name = command.name;
        let fits = |rule: &str| {
            rule.is_empty() || rule == name || name.strip_prefix(rule).is_some_and(|rest| rest.starts_with('|'))
        };
        let rule = self.commands.iter().rev().find(|(_, rule)| fits(rule));
        if !rule.is_some_and(|(allowed, _)| *allowed) {
            return Some(Denied::Command);
        }
        let may = |patterns: &[Vec<u8>], all: &[&[u8]]| {
            patterns.iter().any(|pattern| pattern == b"*")
                || all
                    .iter()
                    .all(|one| patterns.iter().any(|pattern| glob::matches(pattern, one)))
        };
        if !may(&self.keys, command.keys(words)) {
            return Some(Denied::Key);
        }
        (!self.may_hear(command.channels(words))).then_some(Denied::Channel)
    }

    /// Returns `true` if connections of the user, as it was before, are looked through for channels that it may no longer
    /// hear: it had a channel by a pattern that it no longer has.
    pub fn has_lost_channels(&self, before: &Self, version: Version) -> bool {
        let has = |pattern: &[u8]| self.channels.iter().any(|one| one == pattern);
        let all = b"*".as_slice();
        // Before 7.0, all channels are no pattern.
        let lost = |pattern: &Vec<u8>| !has(pattern) && (version.is_7() || pattern != all);
        !has(all) && before.channels.iter().any(lost)
    }

    /// Returns `true` if the user may use all of these channels.
    pub fn may_hear(&self, channels: &[&[u8]]) -> bool {
        let is_allowed = |channel: &&[u8]| self.channels.iter().any(|pattern| glob::matches(pattern, channel));
        channels.iter().all(is_allowed)
    }
}
