//! `lockctl` runs commands under distributed locks in Redis or Valkey, and shows, watches and releases
//! locks. docs/lockctl.md describes it.

mod args;
mod connect;
mod doctor;
mod exit;
mod list;
mod open;
mod release;
mod report;
mod run;
mod show;
mod watch;

use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};
use crate::exit::{Failure, USAGE};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // The stages of `run`, which nobody types.
    match arguments.next().as_deref().and_then(OsStr::to_str) {
        Some(run::STAGE) => return run::stage(arguments),
        Some(run::WATCHER) => return run::watcher(arguments),
        _ => {}
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to do if this fails.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let ended = match cli.command {
        Command::Run(options) => run::run(&cli.store, &options),
        Command::Ls(options) => list::list(&cli.store, &options),
        Command::Show(options) => show::show(&cli.store, &options),
        Command::Watch(options) => watch::watch(&cli.store, &options),
        Command::Release(options) => release::release(&cli.store, &options),
        Command::OpenQuorum(options) => open::open_quorum(&cli.store, &options),
        Command::Doctor(options) => doctor::doctor(&cli.store, &options),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lockctl", &mut script);
            let mut output = report::Output::new();
            output
                .line(String::from_utf8_lossy(&script).trim_end())
                .and_then(|()| output.flush())
                .map(|()| 0)
        }
    };
    ExitCode::from(ended.unwrap_or_else(|Failure { code, message }| {
        if !message.is_empty() {
            warn(&message);
        }
        code
    }))
}

/// Writes one line to stderr. If that fails, no other place is left.
fn warn(message: &str) {
    let _ = writeln!(std::io::stderr(), "lockctl: {}", report::shown(message));
}
