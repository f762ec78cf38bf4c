//! Commands that scripts send.

use super::gate::{MASTER_DOWN, OOM, READ_ONLY, TOO_FEW_REPLICAS};
use super::{Caller, Engine};
use crate::server::command::{Command, MEMORY, Missing, NO_SCRIPT, WRITE};
use crate::server::membership::slot_of;
use crate::server::resp::Reply;
use crate::server::script::Traits;
use crate::server::version::Version;

/// A script that runs.
pub(super) struct Running {
    /// Those that it was given, for a server that has them tracked.
    pub(super) keys: Vec<Vec<u8>>,
    traits: Option<Traits>,
    /// That of its keys, on a node of a cluster.
    slot: Option<u16>,
    has_written: bool,
    /// The number of its commands.
    commands: u32,
    /// What it writes goes to replicas.
    pub(super) replicates: bool,
    is_full: bool,
}

/// A command of a script is refused by the server itself, or answered.
pub enum Asked {
    Refused(String),
    Answered(Reply),
}

/// Scripts.
impl Engine {
    /// Notes that a script begins. Fails if the server is in no state for it.
    pub(crate) fn begin_script(&mut self, keys: &[&[u8]], traits: Option<Traits>) -> Result<(), Reply> {
        if traits.is_none() && self.version.is_7() && self.is_cut_off() {
            return Err(Reply::error(MASTER_DOWN));
        }
        let slot = self.membership.as_ref().and(keys.first()).map(|key| slot_of(key));
        // From 7.2 it is not the given keys that are tracked.
        let keys = if self.version.is_recent() { &[] } else { keys };
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        self.script = Some(Running {
            keys,
            traits,
            slot,
            has_written: false,
            commands: 0,
            replicates: true,
            is_full: self.state.is_full && self.state.follows.is_none(),
        });
        Ok(())
    }

    pub(crate) fn end_script(&mut self) {
        let commands = self.script.take().map_or(0, |script| script.commands);
        self.longest_script = self.longest_script.max(commands);
    }

    pub(crate) fn replicate(&mut self, replicates: bool) {
        if let Some(script) = &mut self.script {
            script.replicates = replicates;
        }
    }

    /// Carries out a command of a script.
    pub(crate) fn ask(&mut self, caller: &Caller, words: &[&[u8]]) -> Asked {
        if let Some(script) = &mut self.script {
            script.commands += 1;
        }
        let version = self.version;
        let caller = Caller { is_3: false, ..*caller };
        let refused = |seven: &str, six: &str| Asked::Refused(if version.is_7() { seven } else { six }.to_owned());
        let called = if version == Version::Valkey9 { "" } else { "Redis " };
        let command = match Command::find(words, version) {
            Ok(found) => found,
            Err(Missing::Command | Missing::Within) => {
                return refused(
                    &format!("ERR Unknown {called}command called from script"),
                    "Unknown Redis command called from Lua script",
                );
            }
            Err(Missing::Arity(_)) => {
                return refused(
                    &format!("ERR Wrong number of args calling {called}command from script"),
                    "Wrong number of args calling Redis command From Lua script",
                );
            }
        };
        if command.is(NO_SCRIPT, version) {
            let product = version.product();
            return refused(
                &format!("ERR This {product} command is not allowed from script"),
                "This Redis command is not allowed from scripts",
            );
        }
        if let Some(denied) = self.denied(&caller, command, words) {
            let told = self.denial(&caller, denied, command.name, true);
            return refused(
                &if version.is_recent() {
                    told.clone()
                } else {
                    format!("ERR {told}")
                },
                &told,
            );
        }
        let slot = self.script.as_ref().and_then(|script| script.slot);
        if self.is_elsewhere(command, words, slot) {
            return refused(
                "ERR Script attempted to access a non local key in a cluster node",
                "Lua script attempted to access a non local key in a cluster node",
            );
        }
        let is_full = self
            .script
            .as_ref()
            .is_some_and(|script| script.is_full && !script.has_written);
        let traits = self.script.as_ref().and_then(|script| script.traits);
        let dashed = |text: &str| refused(text, &format!("-{text}"));
        let lacks_memory = is_full && command.is(MEMORY, version) && !traits.is_some_and(|traits| traits.allow_oom);
        if let Some(text) = self.refused_on_demand(command, true) {
            return dashed(&text);
        }
        // Valkey looks at the memory first.
        if lacks_memory && version == Version::Valkey9 {
            return dashed(OOM);
        }
        if command.is(WRITE, version) {
            if traits.is_some_and(|traits| traits.no_writes) {
                return refused("ERR Write commands are not allowed from read-only scripts.", "");
            }
            if self.state.follows.is_some() {
                return dashed(READ_ONLY);
            }
            if self.state.cannot_save {
                return dashed(&self.cannot_save());
            }
            if version.is_7() && self.lacks_replicas() {
                return dashed(TOO_FEW_REPLICAS);
            }
        }
        if lacks_memory {
            return dashed(OOM);
        }
        if let Some(script) = &mut self.script {
            script.has_written |= command.is(WRITE, version);
        }
        Asked::Answered(self.call(&caller, command, words).unwrap_or_else(|refusal| refusal))
    }
}
