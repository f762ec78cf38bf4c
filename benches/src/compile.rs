//! The compile time of the attribute.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::plot::Panel;
use crate::report::{Report, progress, ratio, time};
use crate::sample::median;
use crate::{Result, Size, error};

const FUNCTIONS: usize = 500;

pub(crate) async fn run(size: Size) -> Result<Report> {
    tokio::task::spawn_blocking(move || measure(size)).await?
}

fn measure(size: Size) -> Result<Report> {
    let mut report = Report::new(
        "compile",
        "A dev build of a crate of 500 functions, with and without the attribute, its dependencies built before; medians of alternating runs. `cargo check` \
         is what an editor runs.",
        &["crate", "cargo build", "cargo check"],
    );
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("the bench has no workspace")?;
    let target = target_folder()?;
    let folder = target.join("crates");
    let _ = fs::remove_dir_all(&folder);
    let kinds = [
        ("plain", ""),
        (
            "annotated",
            "#[distributed_lock(key = \"item:<id>\", lease = 15, wait = 5)]\n",
        ),
    ];
    for (name, attribute) in kinds {
        generate(&folder.join(name), name, attribute, workspace)?;
    }
    let Size::Full = size else {
        for (name, _) in kinds {
            cargo(
                &["metadata", "--no-deps", "--format-version=1"],
                &folder.join(name),
                &target,
            )?;
        }
        return Ok(report);
    };

    let commands = ["build", "check"];
    let runs = 3;
    let bar = progress("compile: dependencies", commands.len() * kinds.len() * (runs + 1));
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for (command, times) in commands.into_iter().zip(&mut times) {
        // The first one builds the dependencies.
        for run in 0..=runs {
            for ((name, _), times) in kinds.into_iter().zip(&mut *times) {
                bar.set_message(format!("compile: cargo {command}, {name}"));
                let crate_folder = folder.join(name);
                let source = crate_folder.join("src/lib.rs");
                let text = fs::read_to_string(&source)?;
                fs::write(&source, text)?;
                let began = Instant::now();
                cargo(&[command], &crate_folder, &target)?;
                if run > 0 {
                    times.push(began.elapsed().as_secs_f64());
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let mut panel = Panel::cost("seconds for 500 functions");
    let middle = |command: usize, kind: usize| {
        times
            .get(command)
            .and_then(|times| times.get(kind))
            .map_or(0.0, |times| median(times))
    };
    for (kind, (name, _)) in kinds.into_iter().enumerate() {
        let mut row = vec![format!("{FUNCTIONS} {name} functions")];
        for (at, command) in commands.into_iter().enumerate() {
            panel.bar(format!("cargo {command}, {name}"), middle(at, kind));
            row.push(time(Duration::from_secs_f64(middle(at, kind))));
        }
        report.row(row);
    }
    let more = |command| Duration::from_secs_f64(ratio((middle(command, 1) - middle(command, 0)).max(0.0), FUNCTIONS));
    report.row(vec!["per annotated function".to_owned(), time(more(0)), time(more(1))]);
    report.panels.push(panel);
    Ok(report)
}

/// Beside this program, where cargo builds everything.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program
        .ancestors()
        .nth(2)
        .ok_or("the bench is not in a target folder")?;
    Ok(target.join("compile-bench"))
}

fn generate(folder: &Path, name: &str, attribute: &str, workspace: &Path) -> Result {
    fs::create_dir_all(folder.join("src"))?;
    fs::write(
        folder.join("Cargo.toml"),
        format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
             lock-runtime = {{ path = \"{}\" }}\n",
            workspace.join("lock-runtime").display()
        ),
    )?;
    // The same versions as everywhere else.
    fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut source =
        "#![allow(unused_imports, clippy::unused_async)]\nuse std::pin::Pin;\n\nuse lock_runtime::{LockError, distributed_lock};\n"
            .to_owned();
    for number in 0..FUNCTIONS {
        write!(
            source,
            "\n{attribute}pub async fn reduce_stock_{number}(id: u64, quantity: u32) -> Result<u32, LockError> {{\n    \
             let left = quantity.saturating_sub(id as u32);\n    step(left).await?;\n    Ok(left)\n}}\n"
        )?;
    }
    source.push_str("\nasync fn step(_left: u32) -> Result<(), LockError> {\n    Ok(())\n}\n");
    // What nobody polls is not compiled to the end.
    source
        .push_str("\npub fn all() -> Vec<Pin<Box<dyn Future<Output = Result<u32, LockError>> + Send>>> {\n    vec![\n");
    for number in 0..FUNCTIONS {
        writeln!(source, "        Box::pin(reduce_stock_{number}(1, 2)),")?;
    }
    source.push_str("    ]\n}\n");
    fs::write(folder.join("src/lib.rs"), source)?;
    Ok(())
}

fn cargo(arguments: &[&str], folder: &Path, target: &Path) -> Result {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    // What the outer cargo set for the bench is not for this crate.
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG") || name_text.starts_with("CARGO_MANIFEST") {
            command.env_remove(&name);
        }
    }
    let output = command
        .args(arguments)
        .args(["--offline", "--quiet"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(error(format!(
        "cargo {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    )))
}
