//! `RESULTS.md`, which keeps the last run, and the plots beside it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use lock_tests::server::Server;

use crate::report::Report;
use crate::{Result, SCENARIOS, plot};

const HEADING: &str = "\n## `";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Draws the picture of a scenario into `benches/plots/`, or into `instead`.
pub(crate) fn draw(report: &Report, instead: Option<&Path>) -> Result {
    if report.panels.is_empty() {
        return Ok(());
    }
    let plots = instead.map_or_else(|| folder().join("plots"), Path::to_path_buf);
    fs::create_dir_all(&plots)?;
    plot::draw(&report.panels, &plots.join(format!("{}.svg", report.scenario)))
}

/// Puts the scenarios that have run in the place of what was kept of them; the others stay.
pub(crate) fn save(reports: &[Report]) -> Result {
    let file = folder().join("RESULTS.md");
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let mut sections: BTreeMap<String, String> = kept
        .split(HEADING)
        .skip(1)
        .filter_map(|section| section.split_once("`\n"))
        .map(|(scenario, text)| (scenario.to_owned(), text.to_owned()))
        .collect();
    let machine = machine()?;
    for report in reports {
        let mut text = format!("\n{machine}\n\n{}", report.markdown());
        if !report.panels.is_empty() {
            let _ = write!(text, "\n![{0}](plots/{0}.svg)\n", report.scenario);
        }
        sections.insert(report.scenario.to_owned(), text);
    }

    let in_order = || {
        SCENARIOS
            .iter()
            .filter_map(|(scenario, _)| Some((scenario, sections.get(*scenario)?)))
    };
    let mut all = "# Last run\n\nWritten by `cargo run --release -p lock-benches --bin bench -- --save`, which starts its own server; one scenario alone: \
                   `-- <scenario> --save`.\n"
        .to_owned();
    // Every section has its verdicts; here they stand together.
    let verdicts: Vec<_> = in_order().flat_map(|(_, text)| verdicts(text)).collect();
    if !verdicts.is_empty() {
        all.push_str("\n| line | what | limit | figure | verdict |\n|---|---|---|---|---|\n");
        for cells in verdicts {
            let _ = writeln!(all, "| {} |", cells.join(" | "));
        }
    }
    for (scenario, text) in in_order() {
        let _ = write!(all, "{HEADING}{scenario}`\n{}\n", text.trim_end_matches('\n'));
    }
    fs::write(file, all)?;
    Ok(())
}

/// The rows of the verdicts' table.
fn verdicts(section: &str) -> Vec<Vec<&str>> {
    section
        .lines()
        .skip_while(|line| !line.starts_with("| line "))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// Date, machine and server.
fn machine() -> Result<String> {
    let server = Server::start();
    let product = if server.name().starts_with("valkey") {
        "Valkey"
    } else {
        "Redis"
    };
    let version = match product {
        "Valkey" => server.info("valkey_version"),
        _ => server.info("redis_version"),
    };
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/ostype").unwrap_or_else(|_| std::env::consts::OS.to_owned());
    Ok(format!(
        "{}, {cores} cores, {}, {product} {} on loopback, release build.",
        today()?,
        kernel.trim(),
        version.trim()
    ))
}

/// The date in UTC, by the civil calendar.
pub(crate) fn today() -> Result<String> {
    let days = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400;
    // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March.
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months + 2) / 5 + 1;
    let month = if months < 10 { months + 3 } else { months - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    Ok(format!("{year}-{month:02}-{day:02}"))
}
