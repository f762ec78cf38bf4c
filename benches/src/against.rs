//! Compares two builds: `bench against <program of the other build> [--rounds N] [scenario …]`, which
//! `benches/compare` calls.
//!
//! In each round both programs measure the same scenarios one after the other, in reverse order
//! every second round, so that a machine that becomes slower or faster affects both alike. The
//! result is the median of the rounds' own ratios.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::process::Command;

use crate::contender::OURS_ALONE;
use crate::plot::Panel;
use crate::report::{count, progress, ratio, table};
use crate::sample::median;
use crate::{Result, SCENARIOS, Size, error};

/// The number of rounds, unless `--rounds` says another.
const ROUNDS: usize = 9;
/// The ratio from which on a build counts as as fast as the other one.
const LIMIT: f64 = 0.95;
/// The scenarios that are compared if none is named.
const DEFAULT: [&str; 5] = ["uncontended", "hot", "inside", "crowd", "attribute"];
/// The beginning of a line of `--figures`.
const WORD: &str = "figure";

/// The lines that a program with `--figures` prints for the bars of its diagrams.
pub(crate) fn print(scenario: &str, panels: &[Panel]) {
    for panel in panels {
        let direction = if panel.less_is_better() { "less" } else { "more" };
        for (label, value) in panel.values() {
            println!("{WORD}\t{scenario}\t{}\t{label}\t{direction}\t{value}", panel.title());
        }
    }
}

/// One bar of one diagram: scenario, title, label.
type Name = (String, String, String);

/// Runs a program and returns its figures, each with `true` if less is better.
fn measure(program: &str, size: Size, scenarios: &[String]) -> Result<BTreeMap<Name, (f64, bool)>> {
    let output = Command::new(program)
        .arg("--figures")
        .args((size == Size::Smoke).then_some("--smoke"))
        .args(scenarios)
        .env(OURS_ALONE, "1")
        .output()?;
    if !output.status.success() {
        return Err(error(format!("{program}: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let mut figures = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let [WORD, scenario, title, label, direction, value] = line.split('\t').collect::<Vec<_>>()[..] {
            let name = (scenario.to_owned(), title.to_owned(), label.to_owned());
            figures.insert(name, (value.parse()?, direction == "less"));
        }
    }
    Ok(figures)
}

pub(crate) fn run(arguments: &[String]) -> Result {
    let (size, arguments) = match arguments {
        [smoke, rest @ ..] if smoke == "--smoke" => (Size::Smoke, rest),
        all => (Size::Full, all),
    };
    let [other, rest @ ..] = arguments else {
        return Err(error("against what? The path of the other build's program is missing"));
    };
    let (total, scenarios) = match rest {
        [option, rounds, scenarios @ ..] if option == "--rounds" => {
            (rounds.parse::<NonZero<usize>>()?.get(), scenarios)
        }
        [option] if option == "--rounds" => return Err(error("--rounds needs a number")),
        scenarios if size == Size::Full => (ROUNDS, scenarios),
        scenarios => (1, scenarios),
    };
    let scenarios = if scenarios.is_empty() {
        DEFAULT.map(str::to_owned).to_vec()
    } else {
        scenarios.to_vec()
    };
    if let Some(unknown) = scenarios
        .iter()
        .find(|asked| !SCENARIOS.iter().any(|(name, _)| name == asked))
    {
        return Err(error(format!("there is no scenario {unknown:?}")));
    }
    let this = std::env::current_exe()?.to_string_lossy().into_owned();
    let bar = progress("against the other build", total * 2);
    let mut rounds: BTreeMap<Name, Vec<(f64, f64, bool)>> = BTreeMap::new();
    for round in 0..total {
        let of = |program: &str| -> Result<_> {
            let figures = measure(program, size, &scenarios)?;
            bar.inc(1);
            Ok(figures)
        };
        let (before, now) = if round % 2 == 0 {
            let before = of(other)?;
            (before, of(&this)?)
        } else {
            let now = of(&this)?;
            (of(other)?, now)
        };
        for (name, (now, less)) in now {
            if let Some((before, _)) = before.get(&name) {
                rounds.entry(name).or_default().push((*before, now, less));
            }
        }
    }
    bar.finish_and_clear();
    if rounds.is_empty() {
        return Err(error("the two builds have no figure in common"));
    }
    let rows = rounds.iter().map(|((scenario, title, label), rounds)| {
        let mut ratios: Vec<f64> = rounds
            .iter()
            .map(|(before, now, less)| {
                if *less {
                    ratio(*before, *now)
                } else {
                    ratio(*now, *before)
                }
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let middle = |which: fn(&(f64, f64, bool)) -> f64| median(&rounds.iter().map(which).collect::<Vec<_>>());
        let figure = |value: f64| {
            if value < 10.0 {
                format!("{value:.3}")
            } else {
                count(value)
            }
        };
        let median = median(&ratios);
        vec![
            scenario.clone(),
            format!("{title}: {label}"),
            figure(middle(|round| round.0)),
            figure(middle(|round| round.1)),
            format!("{median:.3}"),
            format!(
                "{:.3} to {:.3}",
                ratios.first().copied().unwrap_or_default(),
                ratios.last().copied().unwrap_or_default()
            ),
            if median >= LIMIT { "met" } else { "**not met**" }.to_owned(),
        ]
    });
    let limit = format!("≥ {LIMIT}");
    let header = ["scenario", "figure", "before", "now", "ratio", "spread", &limit];
    println!(
        "Medians of {total} rounds in turn; a ratio above 1 is in favour of this build.\n\n{}",
        table(&header, rows.collect())
    );
    Ok(())
}
