//! The commands that locks need: docs/operations.md, "Permissions".

use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};

use crate::doctor::{Findings, Verdict};
use crate::exit::Failure;

/// A use of locks, and its commands with arguments, in which `K` stands for a key under the prefix and `C` for a channel.
struct Use {
    to: &'static str,
    commands: &'static [&'static [&'static str]],
    /// A service that does not do this needs no permission.
    is_needed: bool,
}

const USES: &[Use] = &[
    Use {
        to: "take, renew and release locks",
        commands: &[
            &["GET", "K"],
            &["MGET", "K"],
            &["SET", "K", "v"],
            &["PTTL", "K"],
            &["PEXPIRE", "K", "1"],
            &["DEL", "K"],
            &["EVAL", "return 1", "1", "K"],
            &["EVALSHA", "0", "1", "K"],
            &["CLIENT", "TRACKING", "ON"],
            &["INFO"],
        ],
        is_needed: true,
    },
    Use {
        to: "wait for locks, and take them fair or in other modes",
        commands: &[
            &["TIME"],
            &["ZADD", "K", "1", "m"],
            &["ZREM", "K", "m"],
            &["ZSCORE", "K", "m"],
            &["ZRANGE", "K", "0", "1"],
            &["ZRANGEBYSCORE", "K", "0", "1"],
            &["SUBSCRIBE", "C"],
            &["UNSUBSCRIBE", "C"],
            &["PUBLISH", "C", "m"],
        ],
        is_needed: true,
    },
    Use {
        to: "list locks",
        commands: &[&["SCAN", "0"]],
        is_needed: false,
    },
    Use {
        to: "take fencing tokens",
        commands: &[&["INCR", "K"]],
        is_needed: false,
    },
    Use {
        to: "wait for replicas",
        commands: &[&["WAIT", "0", "1"]],
        is_needed: false,
    },
];

/// The same for the nodes of a cluster.
const USES_OF_CLUSTER: &[Use] = &[
    Use {
        to: "find the node of a lock, and follow it to another one",
        commands: &[
            &["CLUSTER", "SLOTS"],
            &["CLUSTER", "NODES"],
            &["CLUSTER", "INFO"],
            &["ASKING"],
        ],
        is_needed: true,
    },
    Use {
        to: "send and get messages within a shard",
        commands: &[&["SSUBSCRIBE", "C"], &["SPUBLISH", "C", "m"]],
        is_needed: true,
    },
];

/// Commands that a server has from 7.0 on, and that locks can do without.
const FROM_7: [&str; 2] = ["SSUBSCRIBE", "SPUBLISH"];

/// Tells which commands the server does not have, and which its user is not permitted.
pub(super) async fn check(
    findings: &mut Findings,
    address: Option<&str>,
    prefix: &str,
    is_of_cluster: bool,
    connection: &mut MultiplexedConnection,
) -> Result<(), Failure> {
    let of_cluster = if is_of_cluster { USES_OF_CLUSTER } else { &[] };
    let purposes: Vec<_> = USES.iter().chain(of_cluster).collect();
    let missing = missing(findings, address, &purposes, connection).await?;
    permissions(findings, address, prefix, &purposes, &missing, connection).await
}

/// Tells which commands were renamed or are not there, and returns them.
async fn missing(
    findings: &mut Findings,
    address: Option<&str>,
    purposes: &[&Use],
    connection: &mut MultiplexedConnection,
) -> Result<Vec<&'static str>, Failure> {
    let mut question = cmd("COMMAND");
    question.arg("INFO");
    let commands = purposes.iter().flat_map(|purpose| purpose.commands);
    let names: Vec<&'static str> = commands.filter_map(|command| command.first().copied()).collect();
    question.arg(&names);
    let answers = match question.query_async::<Vec<Value>>(connection).await {
        Ok(answers) => answers,
        Err(error) => {
            let or = "allow `+command|info`, or see `rename-command` in the server's configuration";
            findings.unasked(address, "commands", "", &error, or)?;
            return Ok(Vec::new());
        }
    };
    let missing = names.iter().zip(&answers).filter(|(_, answer)| **answer == Value::Nil);
    let missing: Vec<_> = missing.map(|(name, _)| *name).collect();
    let needed: Vec<_> = missing.iter().copied().filter(|name| !FROM_7.contains(name)).collect();
    if needed.is_empty() {
        findings.add(address, "commands", Verdict::Ok, "the server has all that locks need")?;
    } else {
        let message = format!(
            "the server does not know {}; remove its `rename-command`, or connect to the server behind a proxy",
            needed.join(", ")
        );
        findings.add(address, "commands", Verdict::Failed, &message)?;
    }
    Ok(missing)
}

/// Tells which commands the user may not run.
async fn permissions(
    findings: &mut Findings,
    address: Option<&str>,
    prefix: &str,
    purposes: &[&Use],
    missing: &[&str],
    connection: &mut MultiplexedConnection,
) -> Result<(), Failure> {
    let user = match cmd("ACL").arg("WHOAMI").query_async::<String>(connection).await {
        Ok(user) => user,
        Err(error) => {
            let or = "allow `+acl|whoami +acl|dryrun` for this check, or compare with docs/operations.md";
            return findings.unasked(address, "permissions", "", &error, or);
        }
    };
    let place = format!("{prefix}lockctl-doctor");
    let mut said = Vec::new();
    for purpose in purposes {
        let mut denied = Vec::new();
        for command in purpose.commands {
            if command.first().is_none_or(|name| missing.contains(name)) {
                continue;
            }
            let mut question = cmd("ACL");
            question.arg("DRYRUN").arg(&user);
            for word in *command {
                question.arg(if ["K", "C"].contains(word) { &place } else { *word });
            }
            match question.query_async::<String>(connection).await {
                Ok(answer) if answer == "OK" => {}
                Ok(_) => denied.push(name_of(command)),
                Err(error) => {
                    let or =
                        "allow `+acl|dryrun` (from Redis 7.0 on) for this check, or compare with docs/operations.md";
                    return findings.unasked(address, "permissions", "", &error, or);
                }
            }
        }
        if !denied.is_empty() {
            let verdict = if purpose.is_needed {
                Verdict::Warning
            } else {
                Verdict::Info
            };
            said.push((verdict, purpose.to, denied.join(", ")));
        }
    }
    if said.is_empty() {
        let message = format!("user `{user}` may run all that locks need under `{prefix}`");
        return findings.add(address, "permissions", Verdict::Ok, &message);
    }
    for (verdict, purpose, denied) in said {
        let message = format!(
            "user `{user}` may not run {denied} under `{prefix}`, without which it cannot {purpose} as it should; allow what \
             docs/operations.md lists, unless no service does this. It was asked for the key and the channel `{place}`, which patterns for single \
             keys need not cover"
        );
        findings.add(address, "permissions", verdict, &message)?;
    }
    Ok(())
}

/// Returns a command's name as a permission has it, which is given for some subcommands alone.
fn name_of(command: &[&str]) -> String {
    match command {
        [container @ ("CLIENT" | "CLUSTER"), subcommand, ..] => {
            format!("{container}|{subcommand}").to_ascii_lowercase()
        }
        [name, ..] => (*name).to_owned(),
        [] => String::new(),
    }
}
