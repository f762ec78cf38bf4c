//! `lockctl doctor`: what the start of a service would find out, and more, with advice.

mod permissions;
mod questions;

use lock_runtime::{ConfigError, Health, LockManager, ServerRole, ServerState};
use redis::RedisError;
use serde::Serialize;

use crate::args::{Doctor, Store};
use crate::connect;
use crate::exit::{Failure, UNAVAILABLE};
use crate::report::{Output, shown};

/// The exit code where there is something to do.
const TO_DO: u8 = 1;

/// What a check has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Nothing to do for most.
    Info,
    /// It could not be checked, since the server does not tell it, or not to this user.
    Skipped,
    Warning,
    Failed,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Failed => "FAILED",
        }
    }
}

#[derive(Debug, Serialize)]
struct Finding<'a> {
    server: Option<&'a str>,
    check: &'static str,
    verdict: Verdict,
    message: &'a str,
}

/// Prints the findings as they come.
struct Findings {
    output: Output,
    json: bool,
    worst: Verdict,
}

impl Findings {
    /// Tells that `what` was not checked, since the server has answered with an error, or not at all. `or` is what to do if
    /// this user may not ask, or the server does not know the question.
    fn unasked(
        &mut self,
        server: Option<&str>,
        check: &'static str,
        what: &str,
        error: &RedisError,
        or: &str,
    ) -> Result<(), Failure> {
        let (verdict, advice) = if is_not_to_be_asked(error) {
            (Verdict::Skipped, or)
        } else {
            (Verdict::Failed, "mend that, and run `lockctl doctor` again")
        };
        self.add(server, check, verdict, &format!("{what}not checked: {error}; {advice}"))
    }

    fn add(
        &mut self,
        server: Option<&str>,
        check: &'static str,
        verdict: Verdict,
        message: &str,
    ) -> Result<(), Failure> {
        self.worst = self.worst.max(verdict);
        if self.json {
            self.output.json(&Finding {
                server,
                check,
                verdict,
                message,
            })?;
        } else {
            let server = server.map(|server| format!("{}: ", shown(server))).unwrap_or_default();
            self.output
                .line(&format!("{:<8}  {server}{check}: {}", verdict.word(), shown(message)))?;
        }
        self.output.flush()
    }
}

/// Returns `true` if a user may not ask, or the server does not know the question.
fn is_not_to_be_asked(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
    let is_unknown = ["unknown command", "unknown subcommand"];
    error.code() == Some("NOPERM") || is_unknown.iter().any(|unknown| detail.starts_with(unknown))
}

pub(crate) fn doctor(store: &Store, options: &Doctor) -> Result<u8, Failure> {
    connect::runtime()?.block_on(async {
        let locks = connect::builder(store)?.build()?;
        let mut findings = Findings {
            output: Output::new(),
            json: options.json,
            worst: Verdict::Ok,
        };
        let connected = locks.check_connection().await;
        let answers = connect::answers(&locks);
        // A server that refuses a command can be asked why; one that cannot be reached cannot.
        let is_reached = answers || connected.as_ref().err().is_none_or(|error| !error.is_retryable());
        connection(&mut findings, connected)?;
        let health = locks.health();
        for server in &health.servers {
            state(&mut findings, &health, server)?;
        }
        if answers {
            advice(&mut findings, &locks).await?;
        }
        if is_reached {
            for server in &health.servers {
                questions::ask(&mut findings, store, &locks, server).await?;
            }
        }
        Ok(match findings.worst {
            _ if !is_reached => UNAVAILABLE,
            Verdict::Failed | Verdict::Warning => TO_DO,
            Verdict::Ok | Verdict::Info | Verdict::Skipped => 0,
        })
    })
}

/// Tells whether a service could be started.
fn connection(findings: &mut Findings, connected: Result<(), ConfigError>) -> Result<(), Failure> {
    match connected {
        Ok(()) => findings.add(
            None,
            "connection",
            Verdict::Ok,
            "connected, and the commands of locks that no call waits for are permitted",
        ),
        Err(error) => findings.add(None, "connection", Verdict::Failed, &error.to_string()),
    }
}

/// Tells the state of the connections to one server.
fn state(findings: &mut Findings, health: &Health, server: &lock_runtime::ServerHealth) -> Result<(), Failure> {
    let time = server.round_trip.map(|time| format!(", {time:.1?} until an answer"));
    let error = server
        .last_error
        .as_ref()
        .filter(|_| server.state != ServerState::Connected);
    let error = error.map(|error| format!(", last failure: {error}"));
    let (time, error) = (time.unwrap_or_default(), error.unwrap_or_default());
    let message = format!("{}, {}{time}{error}", server.role, server.state);
    let verdict = match (server.state, server.role) {
        (ServerState::Down, _) if health.is_ready() => Verdict::Warning,
        (ServerState::Down, _) | (_, ServerRole::Replica) => Verdict::Failed,
        (ServerState::Degraded, _) => Verdict::Warning,
        (ServerState::Unused, _) => Verdict::Info,
        _ => Verdict::Ok,
    };
    findings.add(Some(&server.address), "state", verdict, &message)
}

/// Tells the runtime's own advice, but for what [`questions`] tell for each server.
async fn advice(findings: &mut Findings, locks: &LockManager) -> Result<(), Failure> {
    let advice = match locks.check_setup().await {
        Ok(advice) => advice,
        Err(error) => {
            let is_passing = error.is_retryable();
            let verdict = if is_passing { Verdict::Failed } else { Verdict::Skipped };
            return findings.add(None, "setup", verdict, &format!("not checked: {error}"));
        }
    };
    for sentence in advice.iter().filter(|sentence| !sentence.contains("maxmemory-policy")) {
        findings.add(None, "setup", Verdict::Warning, sentence)?;
    }
    Ok(())
}
