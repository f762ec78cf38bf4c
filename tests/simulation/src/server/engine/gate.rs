//! What a server refuses before it looks at a command more closely, and in which words.

use super::{Caller, Engine, Refusal, Session};
use crate::server::acl::Denied;
use crate::server::command::{BUSY, Command, Keys, LOADING, MEMORY, Missing, NO_AUTH, STALE, SUBSCRIBED, WRITE};
use crate::server::resp::{Answer, Reply};

pub(super) const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
pub(super) const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
pub(super) const MASTER_DOWN: &str = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
pub(super) const TOO_FEW_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// Returns the name of a command without that of the one within it.
fn outer(name: &str) -> &str {
    name.split('|').next().unwrap_or_default()
}

impl Engine {
    /// Refuses a command, or carries it out.
    pub(super) fn process(&mut self, caller: &Caller, words: &[&[u8]]) -> Answer {
        if let Some(answer) = self.watches.as_ref().and_then(|knowledge| knowledge.answer(words)) {
            return answer;
        }
        let command = self.find(words)?;
        let version = self.version;
        let is_in = self.sessions.get(&caller.id).is_some_and(|session| session.is_in);
        if !is_in && !command.is(NO_AUTH, version) {
            return Err(Reply::error("NOAUTH Authentication required."));
        }
        if let Some(denied) = self.denied(caller, command, words) {
            return Err(Reply::error(self.denial(caller, denied, command.name, false)));
        }
        if let Some(text) = self.refused_on_demand(command, false) {
            return Err(Reply::error(text));
        }
        if let Some(elsewhere) = self.redirected(caller, command, words) {
            return Err(elsewhere);
        }
        let traits = if command.keys == Keys::Counted {
            self.scripts.traits(words, version)
        } else {
            None
        };
        let [writes, needs_memory, is_stale_fine] = match traits {
            Some(traits) => [
                !traits.no_writes,
                !traits.no_writes && !traits.allow_oom,
                traits.allow_stale,
            ],
            None => [WRITE, MEMORY, STALE].map(|flag| command.is(flag, version)),
        };
        let product = version.product();
        let is_master = self.state.follows.is_none();
        if self.state.is_full && is_master && needs_memory {
            return Err(Reply::error(OOM));
        }
        let minds_disk = is_master || version.is_7();
        if self.state.cannot_save && minds_disk && (writes || command.name == "ping") {
            return Err(Reply::error(self.cannot_save()));
        }
        if is_master && writes && self.lacks_replicas() {
            return Err(Reply::error(TOO_FEW_REPLICAS));
        }
        if !is_master && writes {
            return Err(Reply::error(READ_ONLY));
        }
        let has_subscribed = self.sessions.get(&caller.id).is_some_and(Session::has_subscribed);
        if has_subscribed && !caller.is_3 && !command.is(SUBSCRIBED, version) {
            let kinds = if version.is_7() { "P|S" } else { "P" };
            let name = if version.is_7() {
                command.name
            } else {
                outer(command.name)
            };
            return Err(Reply::error(format!(
                "ERR Can't execute '{name}': only ({kinds})SUBSCRIBE / ({kinds})UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            )));
        }
        if self.is_cut_off() && !is_stale_fine {
            return Err(Reply::error(MASTER_DOWN));
        }
        if self.state.is_loading && !command.is(LOADING, version) {
            return Err(Reply::error(format!(
                "LOADING {product} is loading the dataset in memory"
            )));
        }
        if self.state.runs_script.is_some() && !command.is(BUSY, version) {
            return Err(Reply::error(format!(
                "BUSY {product} is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
            )));
        }
        self.call(caller, command, words)
    }

    /// Returns the text of a refusal on demand.
    pub(super) fn refused_on_demand(&mut self, command: &Command, in_script: bool) -> Option<String> {
        let refusals = &mut self.state.refusals;
        let strikes = |one: &Refusal| {
            one.in_scripts == in_script && one.times > 0 && (one.command.is_empty() || one.command == command.name)
        };
        let refusal = refusals.iter_mut().find(|one| strikes(one))?;
        refusal.times -= 1;
        let text = refusal.text.clone();
        refusals.retain(|one| one.times > 0);
        Some(text)
    }

    pub(super) fn lacks_replicas(&self) -> bool {
        self.state.replicas_needed > 0 && self.replicas() < self.state.replicas_needed
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.state.follows == Some(false) && self.state.refuses_stale
    }

    pub(super) fn cannot_save(&self) -> String {
        let product = self.version.product();
        let unable = if self.version.is_7() {
            "it's currently unable to persist to disk"
        } else {
            "it is currently not able to persist on disk"
        };
        format!(
            "MISCONF {product} is configured to save RDB snapshots, but {unable}. Commands that may modify the data set are disabled, because this instance \
             is configured to report errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the {product} logs \
             for details about the RDB error."
        )
    }

    fn find(&self, words: &[&[u8]]) -> Result<&'static Command, Reply> {
        let is_7 = self.version.is_7();
        let text = |at: usize| {
            words
                .get(at)
                .map(|word| String::from_utf8_lossy(word))
                .unwrap_or_default()
        };
        Command::find(words, self.version).map_err(|missing| {
            Reply::error(match missing {
                Missing::Command => {
                    let (open, close, end) = if is_7 { ('\'', '\'', " ") } else { ('`', '`', ", ") };
                    let all: String = (1..words.len())
                        .map(|at| format!("{open}{}{close}{end}", text(at)))
                        .collect();
                    format!(
                        "ERR unknown command {open}{}{close}, with args beginning with: {all}",
                        text(0)
                    )
                }
                Missing::Within => {
                    format!(
                        "ERR unknown subcommand '{}'. Try {} HELP.",
                        text(1),
                        text(0).to_uppercase()
                    )
                }
                Missing::Arity(name) => format!("ERR wrong number of arguments for '{name}' command"),
            })
        })
    }

    pub(super) fn denied(&self, caller: &Caller, command: &Command, words: &[&[u8]]) -> Option<Denied> {
        let user = self.users.get(&self.sessions.get(&caller.id)?.user)?;
        user.denies(command, words, self.version)
    }

    pub(super) fn denial(&self, caller: &Caller, denied: Denied, name: &str, is_in_script: bool) -> String {
        let user = self
            .sessions
            .get(&caller.id)
            .map(|session| session.user.as_str())
            .unwrap_or_default();
        let is_7 = self.version.is_7();
        if self.version.is_recent() {
            let told = match denied {
                Denied::Command => format!("User {user} has no permissions to run the '{name}' command"),
                Denied::Key => "No permissions to access a key".to_owned(),
                Denied::Channel => "No permissions to access a channel".to_owned(),
            };
            let code = if is_in_script {
                "ERR ACL failure in script:"
            } else {
                "NOPERM"
            };
            return format!("{code} {told}");
        }
        if is_in_script {
            return match denied {
                Denied::Command => "The user executing the script can't run this command or subcommand",
                Denied::Key => "The user executing the script can't access at least one of the keys mentioned in the command arguments",
                Denied::Channel => "The user executing the script can't publish to the channel mentioned in the command",
            }
            .to_owned();
        }
        let outer = outer(name);
        match denied {
            Denied::Command if is_7 => format!("NOPERM this user has no permissions to run the '{name}' command"),
            Denied::Command => {
                format!("NOPERM this user has no permissions to run the '{outer}' command or its subcommand")
            }
            Denied::Key => "NOPERM this user has no permissions to access one of the keys used as arguments".to_owned(),
            Denied::Channel => {
                "NOPERM this user has no permissions to access one of the channels used as arguments".to_owned()
            }
        }
    }
}
